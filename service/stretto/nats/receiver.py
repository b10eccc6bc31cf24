"""An ordered consumer of one stream, for one connection's life.

The server pushes messages to it, wants no acknowledgements, and forgets it soon after we are gone.
It ends at the first sign of a lost message: a gap in the consumer's own numbers, a missing
heartbeat, the end of the connection. To read on, the caller makes a new one, from the sequence
after the last message that was taken. (NATS describes the same in its ADR-15.)
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header

from stretto.events.event import TURN_EVENTS
from stretto.nats.client import is_stored
from stretto.nats.connection import NATS_ERRORS, Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nats.aio.msg import Msg

HEARTBEAT_SECONDS: Final = 2.0
# So many heartbeats may be missing before the receiver ends.
HEARTBEATS_MISSED_MAX: Final = 3
# The server forgets the consumer of a replica that has vanished.
INACTIVE_SECONDS: Final = 30.0
# Bytes that may wait for our event loop; flow control keeps the server below this.
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
_CONTROL: Final = "100"


class Receiver:
    """Calls `take` with every message from `sequence` on, and with its sequence, in order."""

    def __init__(
        self, link: Link, stream: str, sequence: int, take: Callable[[Msg, int], None]
    ) -> None:
        self._link = link
        self._stream = stream
        self._sequence = sequence
        self._take = take
        self._expected = 1
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()

    async def __aenter__(self) -> Self:
        client = self._link.client
        inbox = client.new_inbox()
        self._subscription = await client.subscribe(
            inbox, cb=self._on_message, pending_bytes_limit=PENDING_BYTES_MAX
        )
        self._heard = self._loop.time()
        try:
            await self._link.unless_ended(self._make_consumer(inbox))
        except BaseException:
            await self._unsubscribe()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._unsubscribe()

    async def ended(self) -> None:
        """Wait until this consumer delivers nothing any more."""
        silence_seconds = HEARTBEAT_SECONDS * HEARTBEATS_MISSED_MAX
        while not self._end.done() and not self._link.ended.done():
            left = self._heard + silence_seconds - self._loop.time()
            if left <= 0:
                return
            await asyncio.wait(
                (self._end, self._link.ended), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )

    async def _make_consumer(self, inbox: str) -> None:
        config = ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._sequence,
            ack_policy=AckPolicy.NONE,
            flow_control=True,
            idle_heartbeat=HEARTBEAT_SECONDS,
            inactive_threshold=INACTIVE_SECONDS,
            mem_storage=True,
            num_replicas=1,
        )
        await self._link.jetstream.add_consumer(self._stream, config)

    async def _unsubscribe(self) -> None:
        with contextlib.suppress(*NATS_ERRORS):
            await self._subscription.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        self._heard = self._loop.time()
        if not is_stored(message):
            headers = message.headers or {}
            if Header.STATUS.value in headers:
                await self._control(message, headers)
            return
        numbers = message.metadata.sequence
        if self._end.done() or numbers.consumer != self._expected:
            self._give_up()
            return
        self._expected += 1
        self._take(message, numbers.stream)
        if numbers.consumer % TURN_EVENTS == 0:
            # Queued messages are handled without a pause: give other tasks a turn.
            await asyncio.sleep(0)

    async def _control(self, message: Msg, headers: dict[str, str]) -> None:
        """Answer flow control after all earlier messages; end the receiver if one is missing."""
        if headers[Header.STATUS.value] != _CONTROL:
            self._give_up()
            return
        last = headers.get(Header.LAST_CONSUMER.value)
        if last is not None and int(last) >= self._expected:
            self._give_up()
        for subject in (message.reply, headers.get(Header.CONSUMER_STALLED.value)):
            if subject:
                with contextlib.suppress(Error):
                    await self._link.client.publish(subject)

    def _give_up(self) -> None:
        if not self._end.done():
            self._end.set_result(None)
