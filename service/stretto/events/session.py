"""One client's live session: what waits for it, and why it has ended. No I/O happens here.

States: replaying (events gather while the client is told what it has missed), live, closed. While it
replays, its queue may overflow: history holds the same events, so they are forgotten and read from
there. A live session whose queue overflows is too slow.

Whoever does the I/O asks for events with `take`, inside `until_closed`; everybody else only calls
methods that neither wait nor raise.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from stretto.events.close_codes import CloseCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.events.outgoing import OutgoingEvent

# Ids of replayed events that may still come live, as after an outage of the bus; of what is beyond,
# some comes twice.
TOLD_MAX: Final = 10_000


class Session:
    """A bounded queue of events for one client."""

    __slots__ = (
        "_arrived",
        "_events_max",
        "_has_forgotten",
        "_is_live",
        "_queue",
        "_scope",
        "_told",
        "close_code",
        "ends_at",
        "user",
    )

    def __init__(self, user: UserId, ends_at: float, events_max: int) -> None:
        self.user = user
        self.ends_at = ends_at
        """When its token ends, in seconds since the epoch."""
        self.close_code: CloseCode | None = None
        self._events_max = events_max
        # By id, so that an event that comes twice waits once, and in the order of their coming.
        self._queue: dict[UUID, OutgoingEvent] = {}
        self._told: set[UUID] = set()
        """What was replayed although it may still come live."""
        self._is_live = False
        self._has_forgotten = False
        self._arrived = asyncio.Event()
        self._scope: asyncio.Timeout | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, outgoing: OutgoingEvent) -> None:
        """Queue an event for the client. Never blocks: no client delays another."""
        if self.close_code is not None:
            return
        if outgoing.event_id in self._told:
            self._told.discard(outgoing.event_id)
            return
        if len(self._queue) >= self._events_max and outgoing.event_id not in self._queue:
            if self._is_live:
                self.close(CloseCode.TOO_SLOW)
                return
            self._queue.clear()
            self._has_forgotten = True
        self._queue[outgoing.event_id] = outgoing
        self._arrived.set()

    def note_replayed(self, outgoing: OutgoingEvent, *, is_under_way: bool) -> None:
        """Take note that the client is told this event from history, so need not be told it live."""
        waited = self._queue.pop(outgoing.event_id, None) is not None
        if is_under_way and not waited and len(self._told) < TOLD_MAX:
            self._told.add(outgoing.event_id)

    def go_live(self) -> bool:
        """End the replay; not where events were forgotten meanwhile: history has to be read again.

        What is forgotten from now on, a read that begins from now on finds.
        """
        self._is_live = not self._has_forgotten
        self._has_forgotten = False
        return self._is_live

    async def take(self) -> Sequence[OutgoingEvent]:
        """Wait until there are events; return all of them, in order."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        events = tuple(self._queue.values())
        self._queue.clear()
        return events

    def close(self, code: CloseCode) -> None:
        """End the session and drop what waits for it. The first code counts. Idempotent."""
        if self.close_code is not None:
            return
        self.close_code = code
        self._queue.clear()
        self._told.clear()
        self._interrupt()

    @asynccontextmanager
    async def until_closed(self) -> AsyncIterator[None]:
        """Leave the block when the session is closed, whatever it awaits at that moment."""
        try:
            async with asyncio.timeout(None) as scope:
                self._scope = scope
                if self.close_code is not None:
                    self._interrupt()
                try:
                    yield
                finally:
                    self._scope = None
        except TimeoutError:
            # A time-out of the block's own is not ours to swallow.
            if not scope.expired():
                raise

    def _interrupt(self) -> None:
        if self._scope is not None:
            self._scope.reschedule(0)
