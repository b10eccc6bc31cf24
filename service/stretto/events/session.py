"""One client's live session: the events that wait for it, and why it has ended. It does no I/O.

States: catching up (events gather while the client gets what it has missed), live, closed. A
session that catches up drops its queue when it overflows: the log holds the same events, and they
are read from there. A live session whose queue overflows is closed as too slow.

The task that sends to the client waits for events with `take`, inside `until_closed`; all other
methods neither wait nor raise.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from stretto.events.close_codes import CloseCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from stretto.domain import UserId
    from stretto.events.outgoing import OutgoingEvent, Push
    from stretto.events.place import Place


class Session:
    """A bounded queue of events for one client."""

    __slots__ = (
        "_arrived",
        "_events_max",
        "_has_overflowed",
        "_live_from",
        "_queue",
        "_scope",
        "_sending",
        "_waiting",
        "close_code",
        "ends_at",
        "key",
        "user",
    )

    def __init__(self, user: UserId, ends_at: float, events_max: int, key: object = None) -> None:
        self.user = user
        self.ends_at = ends_at
        """When its token ends, in seconds since the epoch."""
        self.key = key
        """The key that verified its token (not an idempotency key)."""
        self.close_code: CloseCode | None = None
        self._events_max = events_max
        self._queue: list[OutgoingEvent] = []
        self._live_from: Place | None = None
        """What the client has had when it went live; None while it catches up."""
        self._has_overflowed = False
        self._arrived = asyncio.Event()
        self._scope: asyncio.Timeout | None = None
        self._waiting: tuple[Push, ...] = ()
        """Spans of what is queued."""
        self._sending: tuple[Push, ...] = ()
        """Spans of what was taken and is being sent."""

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, outgoing: OutgoingEvent) -> None:
        """Queue an event for the client. Never blocks: no client delays another."""
        if self.close_code is not None:
            return
        if self._live_from is not None and outgoing.is_covered_by(self._live_from):
            return
        if len(self._queue) >= self._events_max:
            if self._live_from is not None:
                self.close(CloseCode.TOO_SLOW)
                return
            self._queue.clear()
            self._release()
            self._has_overflowed = True
        self._queue.append(outgoing)
        if outgoing.push is not None:
            outgoing.push.join()
            self._waiting = (*self._waiting, outgoing.push)
        self._arrived.set()

    def go_live(self, place: Place) -> bool:
        """End the catch-up at this place, unless the queue has overflowed; return whether it ended.

        If it did not, the log must be read again from this place. A read that begins after this
        call finds every event that the queue dropped before it.
        """
        if self._has_overflowed:
            self._has_overflowed = False
            return False
        self._live_from = place
        self._queue = [each for each in self._queue if not each.is_covered_by(place)]
        # The catch-up has sent most of it; the rest is sent at once.
        self._release()
        return True

    def position(self, delivered: Place | None) -> str | None:
        """Return the client's position if it has been sent all that was taken; None while more waits.

        `delivered` is the place up to which the hub has queued every event: what is in no queue was
        sent, or is not for this user.
        """
        if self._queue or self._live_from is None or delivered is None:
            return None
        return str(self._live_from | delivered)

    async def take(self, seconds: float | None = None) -> Sequence[OutgoingEvent]:
        """Wait until events are queued, for so long at most; return all of them, in order.

        The caller has sent what it took before.
        """
        for push in self._sending:
            push.leave()
        self._sending = ()
        if not self._queue:
            self._arrived.clear()
            timer: asyncio.TimerHandle | None = None
            if seconds is not None:
                # A third of what `asyncio.timeout` costs: each event of a session ends such a wait.
                timer = asyncio.get_running_loop().call_later(seconds, self._arrived.set)
            try:
                await self._arrived.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        events, self._queue = self._queue, []
        self._sending, self._waiting = self._waiting, ()
        return events

    def hurry(self) -> None:
        """End the wait for events, as after a long silence: a heartbeat is sent."""
        self._arrived.set()

    def close(self, code: CloseCode) -> None:
        """End the session and drop its queue. The first code counts. Idempotent."""
        if self.close_code is not None:
            return
        self.close_code = code
        self._release()
        self._queue.clear()
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

    def _release(self) -> None:
        """Let go of all spans: no frame that is to be sent is theirs."""
        for push in self._sending + self._waiting:
            push.leave()
        self._sending = self._waiting = ()

    def _interrupt(self) -> None:
        if self._scope is not None:
            self._scope.reschedule(0)
