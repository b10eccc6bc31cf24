"""One client's live session: the events that wait for it, and why it has ended. It does no I/O.

States: catching up (events gather while the client gets what it has missed), live, closed. A
session that catches up drops its queue when it overflows: history holds the same events, and they
are read from there. A live session whose queue overflows is closed as too slow.

The task that sends to the client waits for events with `take`, inside `until_closed`; all other
methods neither wait nor raise.
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

# Ids of events that were sent from history and may still come live, as after an outage of the bus.
# Of more events than that, some are sent twice.
SENT_IDS_MAX: Final = 10_000


class Session:
    """A bounded queue of events for one client."""

    __slots__ = (
        "_arrived",
        "_events_max",
        "_has_overflowed",
        "_is_live",
        "_queue",
        "_scope",
        "_sent",
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
        # By id, so that an event that comes twice waits once; in the order of arrival.
        self._queue: dict[UUID, OutgoingEvent] = {}
        self._sent: set[UUID] = set()
        """Ids of events that were sent from history and may still come live."""
        self._is_live = False
        self._has_overflowed = False
        self._arrived = asyncio.Event()
        self._scope: asyncio.Timeout | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, outgoing: OutgoingEvent) -> None:
        """Queue an event for the client. Never blocks: no client delays another."""
        if self.close_code is not None:
            return
        if outgoing.event_id in self._sent:
            self._sent.discard(outgoing.event_id)
            return
        if len(self._queue) >= self._events_max and outgoing.event_id not in self._queue:
            if self._is_live:
                self.close(CloseCode.TOO_SLOW)
                return
            self._queue.clear()
            self._has_overflowed = True
        self._queue[outgoing.event_id] = outgoing
        self._arrived.set()

    def note_sent(self, outgoing: OutgoingEvent, *, is_under_way: bool) -> None:
        """Note that the client gets this event from history: do not send it live as well."""
        waited = self._queue.pop(outgoing.event_id, None) is not None
        if is_under_way and not waited and len(self._sent) < SENT_IDS_MAX:
            self._sent.add(outgoing.event_id)

    def go_live(self) -> bool:
        """End the catch-up and return whether it is over; if the queue overflowed, it is not.

        History must then be read again. A read that begins after this call finds every event that
        the queue drops after this call.
        """
        self._is_live = not self._has_overflowed
        self._has_overflowed = False
        return self._is_live

    async def take(self) -> Sequence[OutgoingEvent]:
        """Wait until events are queued; return all of them, in order."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        events = tuple(self._queue.values())
        self._queue.clear()
        return events

    def close(self, code: CloseCode) -> None:
        """End the session and drop its queue. The first code counts. Idempotent."""
        if self.close_code is not None:
            return
        self.close_code = code
        self._queue.clear()
        self._sent.clear()
        self._interrupt()

    @asynccontextmanager
    async def until_closed(self) -> AsyncIterator[None]:
        """Leave the block when the session is closed, whatever the block awaits then."""
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
            # The block's own time-outs pass on.
            if not scope.expired():
                raise

    def _interrupt(self) -> None:
        if self._scope is not None:
            self._scope.reschedule(0)
