"""NatsBus: sends events to every replica and to other consumers, over a JetStream stream.

The stream is a copy with a limited age; the outbox stays the truth. The body of a message is the
event's CloudEvents document alone, so that any consumer can read it; what replicas need besides is
in headers. Every replica, the publishing one too, receives all events through its own consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson
from nats.js.api import Header, StreamConfig
from nats.js.errors import APIError

from stretto.domain import UserId
from stretto.events.event import CONTENT_TYPE, BusUnavailable, CommittedEvent
from stretto.events.positions import Position
from stretto.nats.connection import (
    CANCEL_SECONDS,
    NATS_ERRORS,
    RETRY,
    TOO_LARGE,
    Link,
    NatsConnection,
)
from stretto.nats.deployment import ForeignStream, provide_stream, require_own_streams
from stretto.nats.receiver import Receiver
from stretto.nats.requests import AGAIN_SECONDS, LEADER_SECONDS, Unsent, acknowledged
from stretto.network import network_failure
from stretto.observations import BusTrouble, EventsMissed
from stretto.runtime.actor import Actor, Pace, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nats.aio.msg import Msg
    from nats.js.api import StreamInfo

    from stretto.nats.deployment import Deployment
    from stretto.observations import Observer

RECIPIENTS: Final = "Stretto-Recipients"
RESUME_FROM: Final = "Stretto-Resume-From"
# Other consumers may be away for a weekend.
AGE_SECONDS_MAX: Final = 7 * 24 * 3600
# JetStream recognises an event's id for this long; consumers must recognise later copies.
DUPLICATES_SECONDS: Final = 120
# Events whose acknowledgements are awaited together: some hundred kilobytes in flight.
UNACKNOWLEDGED_MAX: Final = 256
# Recipients of one message: JetStream accepts at most 64 KiB of headers, and a user id of quotation
# marks only takes 259 bytes there.
RECIPIENTS_MAX: Final = 200
# How long a start waits for NATS before sessions are accepted without it.
START_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Next:
    """The next message to receive; `stream` tells a stream from one of the same name made later."""

    stream: object
    sequence: int


class NatsBus(Actor):
    """An `EventBus` on JetStream; a turn receives events for as long as the connection lives.

    `deliver` gets every event in the stream's order. `on_gap` is called if some events cannot be
    received any more: live sessions must then resume.
    """

    stop_seconds = 0.0
    cancel_again_seconds = CANCEL_SECONDS

    def __init__(
        self,
        connection: NatsConnection,
        deployment: Deployment,
        deliver: Callable[[CommittedEvent], None],
        on_gap: Callable[[], None],
        observe: Observer,
    ) -> None:
        super().__init__("nats receiver")
        self.pace, self.backoff = Pace(seconds=RETRY.seconds_first, full=1), RETRY
        self._connection = connection
        self._deployment = deployment
        self._deliver = deliver
        self._on_gap = on_gap
        self._observe = observe
        self._next: _Next | None = None
        self._receiving = asyncio.Event()
        self._provided: Link | None = None

    async def ready(self) -> None:
        """Wait until events can be received, for a bounded time.

        Raises `ForeignStream`. If NATS is away, a foreign stream is found later; nothing is sent to
        it.
        """
        with contextlib.suppress(*NATS_ERRORS):
            async with asyncio.timeout(START_SECONDS):
                link = await self._connection.linked()
                await link.unless_ended(require_own_streams(link, self._deployment))
                await self._receiving.wait()

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish events; return the reasons for those that were refused, by event id.

        Raises `BusUnavailable`; any of the events may have been published then.
        """
        link = self._connection.link()
        try:
            return await link.unless_ended(self._publish_over(link, events))
        except (*NATS_ERRORS, ForeignStream) as error:
            # The stream may have been deleted: look for it again.
            self._provided = None
            raise BusUnavailable(str(error) or network_failure(error)) from error

    async def _publish_over(
        self, link: Link, events: Sequence[CommittedEvent]
    ) -> Mapping[UUID, str]:
        if self._provided is not link:
            await self._provide_events(link)
            self._provided = link
        refused: dict[UUID, str] = {}
        for first in range(0, len(events), UNACKNOWLEDGED_MAX):
            refused |= await self._publish_some(link, events[first : first + UNACKNOWLEDGED_MAX])
        return refused

    async def _provide_events(self, link: Link) -> StreamInfo:
        return await provide_stream(
            link,
            self._deployment,
            StreamConfig(
                name=self._deployment.event_stream,
                subjects=self._deployment.event_subjects,
                max_age=AGE_SECONDS_MAX,
                duplicate_window=DUPLICATES_SECONDS,
            ),
        )

    async def _publish_some(self, link: Link, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        """Send all, then wait for all acknowledgements; raises `NATS_ERRORS`."""
        refused: dict[UUID, str] = {}
        unsent: list[tuple[UUID, Unsent]] = []
        for event in events:
            for subject, headers in _messages(self._deployment, event):
                if not link.may_send(len(headers[RECIPIENTS]) + len(event.envelope)):
                    refused[event.event_id] = f"larger than {link.client.max_payload} bytes"
                    break
                unsent.append((event.event_id, Unsent(subject, event.envelope, headers)))
        async with asyncio.timeout(LEADER_SECONDS):
            while unsent:
                answers = await acknowledged(link, [message for _, message in unsent])
                lost = []
                for each, answer in zip(unsent, answers, strict=True):
                    if answer is None:
                        lost.append(each)
                    elif isinstance(answer, APIError) and answer.err_code in TOO_LARGE:
                        refused[each[0]] = str(answer)
                    elif isinstance(answer, BaseException):
                        raise answer
                unsent = lost
                if unsent:
                    # Until the stream has a leader again; if it is gone, it is made anew.
                    await asyncio.sleep(AGAIN_SECONDS)
                    await self._provide_events(link)
        return refused

    async def run_once(self) -> int:
        """Receive until link or consumer end; return 1 if the next turn must wait for a link."""
        link = await self._connection.linked()
        try:
            await self._receive_over(link)
        except Exception as error:
            # The NATS client may raise anything.
            self._connection.report(error)
            if not link.ended.done():
                raise TryAgain from error
        return int(link.ended.done())

    async def _receive_over(self, link: Link) -> None:
        """Receive from the last position on, until the link or its consumer ends."""
        info = await link.unless_ended(self._provide_events(link))
        sequence = self._sequence_in(info)
        async with Receiver(link, self._deployment.event_stream, sequence, self._take) as receiver:
            self._receiving.set()
            await receiver.ended()

    def _sequence_in(self, info: StreamInfo) -> int:
        """Return the next sequence to receive; report a gap if it is not in the stream any more."""
        first, end = info.state.first_seq, info.state.last_seq + 1
        known = self._next
        if known is None or known.stream != info.created or not first <= known.sequence <= end:
            if known is not None:
                self._observe(EventsMissed())
            self._next = known = _Next(info.created, end)
            # The first time too: sessions may have connected before NATS did.
            self._on_gap()
        return known.sequence

    def _take(self, message: Msg, sequence: int) -> None:
        assert self._next is not None
        # Before the delivery: a message that cannot be delivered must not come again and again.
        self._next = _Next(self._next.stream, sequence + 1)
        try:
            event = read_event(message)
        except (KeyError, ValueError, TypeError) as error:
            stream = self._deployment.event_stream
            self._observe(BusTrouble(f"message {sequence} of {stream} is no event: {error!r}"))
            return
        self._deliver(event)


def read_event(message: Msg) -> CommittedEvent:
    """Return the event that a message of the stream carries.

    Raises `KeyError`, `ValueError` or `TypeError` if another program has written it.
    """
    headers = message.headers or {}
    return CommittedEvent(
        UUID(headers[Header.MSG_ID.value].partition("/")[0]),
        tuple(map(UserId, orjson.loads(headers[RECIPIENTS]))),
        message.data,
        Position(int(headers[RESUME_FROM])),
    )


def _messages(
    deployment: Deployment, event: CommittedEvent
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield subject and headers of each message of an event: one, unless it has many recipients."""
    # At least one message: other consumers read events without recipients too.
    for first in range(0, len(event.recipients) or 1, RECIPIENTS_MAX):
        recipients = event.recipients[first : first + RECIPIENTS_MAX]
        yield (
            deployment.event_subject if first == 0 else deployment.recipients_subject,
            {
                Header.MSG_ID.value: f"{event.event_id}/{first}" if first else str(event.event_id),
                "Content-Type": CONTENT_TYPE,
                RECIPIENTS: orjson.dumps(recipients).decode(),
                RESUME_FROM: str(event.position),
            },
        )
