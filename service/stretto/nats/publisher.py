"""NatsBus: publishes events for other consumers, to a JetStream stream.

The stream is a copy with a limited age; the log in PostgreSQL stays the truth, and is what our own
sessions are fed from. The body of a message is the event's CloudEvents document alone, so that any
consumer can read it; its recipients are in a header.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import orjson
from nats.js.api import Header, PubAck, StreamConfig
from nats.js.errors import APIError

from stretto.nats.connection import NATS_ERRORS, TOO_LARGE, LimitOutdated, Link, NatsConnection
from stretto.nats.deployment import ForeignStream, UnfitStream, provide_stream, require_own_streams
from stretto.nats.requests import AGAIN_SECONDS, LEADER_SECONDS, Unsent, acknowledged
from stretto.network import network_failure
from stretto.targets.bus import CONTENT_TYPE, BusUnavailable
from stretto.telemetry.trace_context import as_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from nats.js.api import StreamInfo

    from stretto.events.log import CommittedEvent
    from stretto.nats.deployment import Deployment

RECIPIENTS: Final = "Stretto-Recipients"
# Other consumers may be away for a weekend.
AGE_SECONDS_MAX: Final = 7 * 24 * 3600
# JetStream recognises an event's id for this long; consumers must recognise later copies.
DUPLICATES_SECONDS: Final = 120
# Messages, and their bytes, whose acknowledgements are awaited together. Pings wait behind them: on a
# link that takes two seconds for so much, the connection would end. A message may be larger alone.
UNACKNOWLEDGED_MAX: Final = 256
UNACKNOWLEDGED_BYTES_MAX: Final = 256 * 1024
# Recipients of one message: JetStream accepts at most 64 KiB of headers, and a user id of quotation
# marks only takes 259 bytes there.
RECIPIENTS_MAX: Final = 200
# Another deployment may make the stream anew while we stay connected. How long it is taken for ours.
LOOK_SECONDS: Final = 1.0
# How long a start waits for NATS before the service runs without it.
START_SECONDS: Final = 2.0


class NatsBus:
    """An `EventBus` on JetStream."""

    def __init__(self, connection: NatsConnection, deployment: Deployment) -> None:
        self._connection = connection
        self._deployment = deployment
        # Over which link the stream was last seen to be ours, and when.
        self._seen_over: Link | None = None
        self._seen_at = 0.0
        # The stream's newest sequence number, as far as is known here.
        self._newest = 0

    async def ready(self) -> None:
        """Wait until events can be published, for a bounded time.

        Raises an `UnfitStream`. If NATS is away, it is found later; nothing is sent to it.
        """
        with contextlib.suppress(*NATS_ERRORS):
            async with asyncio.timeout(START_SECONDS):
                link = await self._connection.linked()
                await link.unless_ended(require_own_streams(link, self._deployment))
                await link.unless_ended(self._look(link))

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish events; return the reasons for those that were refused, by event id.

        Raises `BusUnavailable`; any of the events may have been published then.
        """
        link = self._connection.link()
        try:
            try:
                return await link.unless_ended(self._publish_over(link, events))
            except LimitOutdated:
                # What was refused by a limit that has been raised would become a dead letter. The
                # relay waits no longer than its lease.
                link = await self._connection.linked()
                return await link.unless_ended(self._publish_over(link, events))
        except (*NATS_ERRORS, UnfitStream) as error:
            # The stream may have been deleted: look for it again.
            self._seen_over = None
            raise BusUnavailable(str(error) or network_failure(error)) from error

    async def _publish_over(
        self, link: Link, events: Sequence[CommittedEvent]
    ) -> Mapping[UUID, str]:
        if self._seen_over is not link or _now() - self._seen_at >= LOOK_SECONDS:
            await self._look(link)
        refused: dict[UUID, str] = {}
        wave: list[tuple[UUID, Unsent]] = []
        wave_bytes = 0
        for event in events:
            for subject, headers in _messages(self._deployment, event):
                if not link.may_send(len(event.envelope), headers):
                    link.require_known_limit()
                    refused[event.event_id] = f"larger than {link.client.max_payload} bytes"
                    break
                message_bytes = len(headers[RECIPIENTS]) + len(event.envelope)
                wave_bytes += message_bytes
                if wave_bytes > UNACKNOWLEDGED_BYTES_MAX or len(wave) == UNACKNOWLEDGED_MAX:
                    refused |= await self._publish_wave(link, wave)
                    wave, wave_bytes = [], message_bytes
                wave.append((event.event_id, Unsent(subject, event.envelope, headers)))
        return refused | await self._publish_wave(link, wave)

    async def _look(self, link: Link) -> None:
        """Have the stream, or raise an `UnfitStream`; `NATS_ERRORS`."""
        # A look that is cancelled has seen nothing: what another stream has taken is no success.
        self._seen_over = None
        await self._provide_events(link)
        self._seen_over, self._seen_at = link, _now()

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

    async def _publish_wave(self, link: Link, unsent: list[tuple[UUID, Unsent]]) -> dict[UUID, str]:
        """Send messages, and wait for all acknowledgements; return which events were refused, and why.

        Raises `NATS_ERRORS`.
        """
        refused: dict[UUID, str] = {}
        async with asyncio.timeout(LEADER_SECONDS):
            while unsent:
                answers = await acknowledged(link, [message for _, message in unsent])
                await self._require_same_stream(link, answers)
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

    async def _require_same_stream(
        self, link: Link, answers: Sequence[PubAck | BaseException | None]
    ) -> None:
        """Raise `ForeignStream` if the stream was made anew by another deployment; `NATS_ERRORS`."""
        taken = [each for each in answers if isinstance(each, PubAck)]
        for each in taken:
            if each.stream != self._deployment.event_stream:
                message = f"the stream {each.stream} takes our events: give it other subjects"
                raise ForeignStream(message)
        stored = [each.seq for each in taken if not each.duplicate]
        if stored:
            # A stream counts upwards for as long as it lives.
            if min(stored) <= self._newest:
                await self._look(link)
            self._newest = max(stored)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _messages(
    deployment: Deployment, event: CommittedEvent
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield subject and headers of each message of an event: one, unless it has many recipients."""
    subject = deployment.subject_of(event.event_type)
    further = deployment.recipients_subject_of(event.event_type)
    # At least one message: other consumers read events without recipients too.
    for first in range(0, len(event.recipients) or 1, RECIPIENTS_MAX):
        recipients = event.recipients[first : first + RECIPIENTS_MAX]
        yield (
            subject if first == 0 else further,
            {
                Header.MSG_ID.value: f"{event.event_id}/{first}" if first else str(event.event_id),
                "Content-Type": CONTENT_TYPE,
                RECIPIENTS: orjson.dumps(recipients).decode(),
                **as_fields(event.trace_context),
            },
        )
