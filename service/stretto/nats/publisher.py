"""NatsBus: events to every replica and to the rest of a backend, over a JetStream stream.

The stream is a copy that ages; the outbox stays the truth. A message is the event's CloudEvents
document and nothing else, so that any consumer can read it; what replicas need besides stands in
headers. Every replica, the publishing one too, receives all events through a consumer of its own.
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
from stretto.nats.connection import CANCEL_SECONDS, NATS_TROUBLE, RETRY, Link, NatsConnection
from stretto.nats.deployment import ForeignStream, provide_stream, require_own_streams
from stretto.nats.receiver import Receiver
from stretto.network import network_failure
from stretto.observations import BusTrouble, EventsMissed
from stretto.runtime.actor import Actor, Pace, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from nats.aio.msg import Msg
    from nats.js.api import PubAck, StreamInfo

    from stretto.nats.deployment import Deployment
    from stretto.observations import Observer

RECIPIENTS: Final = "Stretto-Recipients"
RESUME_FROM: Final = "Stretto-Resume-From"
# Consumers elsewhere may be away for a weekend.
AGE_SECONDS_MAX: Final = 7 * 24 * 3600
# JetStream knows an event's id again for this long; later copies are for consumers to recognise.
DUPLICATES_SECONDS: Final = 120
# Events whose acknowledgements are awaited together: some hundred kilobytes on their way.
UNACKNOWLEDGED_MAX: Final = 256
# Recipients of one message: JetStream takes no more than 64 KiB of headers, and a user id that is
# all quotation marks has 259 bytes there.
RECIPIENTS_MAX: Final = 200
# Header names, line ends and the protocol's own line.
_FRAME_BYTES: Final = 512
# JetStream's codes for a message, or its headers, being larger than the stream takes.
_TOO_LARGE: Final = (10054, 10097)
# At the start NATS is given this long before sessions come without it.
START_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a replica is in a stream; a stream that was made anew is another one."""

    stream: object
    sequence: int


class NatsBus(Actor):
    """An `EventBus` on JetStream; a turn receives events for as long as the connection lives.

    `deliver` gets every event, in the stream's order; `on_gap` is called where some could not be
    received any more: live sessions must resume then.
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
        self._place: _Place | None = None
        self._receiving = asyncio.Event()
        self._provided: Link | None = None

    async def ready(self) -> None:
        """Wait for the first events to come, for a bounded time.

        Raises `ForeignStream`; where NATS is away, that is found later, and nothing is sent.
        """
        with contextlib.suppress(*NATS_TROUBLE):
            async with asyncio.timeout(START_SECONDS):
                link = await self._connection.linked()
                await link.unless_ended(require_own_streams(link, self._deployment))
                await self._receiving.wait()

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Hand events over; return the reasons of those that were refused, by event id.

        Raises `BusUnavailable`, and then any of them may or may not have been handed over.
        """
        link = self._connection.link()
        try:
            return await link.unless_ended(self._publish_over(link, events))
        except (*NATS_TROUBLE, ForeignStream) as error:
            # The stream may have been deleted: it is looked for again.
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
        """Send all, then wait for all acknowledgements; raises `NATS_TROUBLE`."""
        refused: dict[UUID, str] = {}
        ids: list[UUID] = []
        sending: list[Coroutine[object, object, PubAck]] = []
        for event in events:
            for subject, headers in _messages(self._deployment, event):
                size = len(headers[RECIPIENTS]) + len(event.envelope) + _FRAME_BYTES
                # The server counts headers as well, and cuts the connection of whoever sends more.
                if size > link.client.max_payload:
                    refused[event.event_id] = f"larger than {link.client.max_payload} bytes"
                    break
                ids.append(event.event_id)
                sending.append(link.jetstream.publish(subject, event.envelope, headers=headers))
        answers = await asyncio.gather(*sending, return_exceptions=True)
        for event_id, answer in zip(ids, answers, strict=True):
            if isinstance(answer, APIError) and answer.err_code in _TOO_LARGE:
                refused[event_id] = str(answer)
            elif isinstance(answer, BaseException):
                raise answer
        return refused

    async def run_once(self) -> int:
        """Receive until the link or its consumer ends; return 1 where another link is to be waited for."""
        link = await self._connection.linked()
        try:
            await self._receive_over(link)
        except Exception as error:
            # Whatever the client may raise.
            self._connection.tell(error)
            if not link.ended.done():
                raise TryAgain from error
        return int(link.ended.done())

    async def _receive_over(self, link: Link) -> None:
        """Receive from where we were, until the link or its consumer ends."""
        info = await link.unless_ended(self._provide_events(link))
        sequence = self._sequence_in(info)
        async with Receiver(link, self._deployment.event_stream, sequence, self._take) as receiver:
            self._receiving.set()
            await receiver.ended()

    def _sequence_in(self, info: StreamInfo) -> int:
        """Return where to go on; tells of a gap where what we missed is not there any more."""
        first, end = info.state.first_seq, info.state.last_seq + 1
        place = self._place
        if place is None or place.stream != info.created or not first <= place.sequence <= end:
            if place is not None:
                self._observe(EventsMissed())
            self._place = place = _Place(info.created, end)
            # The first time too: sessions may have come before NATS did.
            self._on_gap()
        return place.sequence

    def _take(self, message: Msg, sequence: int) -> None:
        assert self._place is not None
        # Before it is delivered: one that cannot be must not come again and again.
        self._place = _Place(self._place.stream, sequence + 1)
        try:
            event = read_event(message)
        except (KeyError, ValueError, TypeError) as error:
            stream = self._deployment.event_stream
            self._observe(BusTrouble(f"message {sequence} of {stream} is no event: {error!r}"))
            return
        self._deliver(event)


def read_event(message: Msg) -> CommittedEvent:
    """Return the event that a message of the stream carries.

    Raises `KeyError`, `ValueError` or `TypeError` where somebody else has written it.
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
    """Return subject and headers of the messages by which an event goes out: one, if it can be."""
    # One at the least: an event is for others too.
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
