"""One client's live session: the events that wait for it, and why it has ended. It does no I/O.

States: catching up (events gather while the client gets what it has missed), live, behind, closed.
A queue that overflows is dropped: the log holds the same events, and they are read from there. A live
session is behind then: once what it has taken is sent, it catches up again. It is closed as too slow
if its queue overflows twice before its client takes another event.

The task that sends to the client waits for events with `take`, inside `until_closed`, and sends
each once `may_send` allows it or `turn` has been waited for; all other methods neither wait nor
raise.

What it sends, and its end, have a turn of the process's sessions (`session_turns.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from stretto.events.close_codes import CloseCode
from stretto.events.session_turns import SessionTurns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from stretto.domain import UserId
    from stretto.events.outgoing import OutgoingEvent, Push
    from stretto.events.place import Place

# Events that a session sends in its turn: then the next user's session sends, so that one with a single
# event waits for so many of each other's at most. A wait for a turn costs as much as half of a send.
SENDS_AT_ONCE: Final = 8


class Session:
    """A bounded queue of events for one client."""

    __slots__ = (
        "_catching_up",
        "_ending",
        "_events_max",
        "_has_overflowed",
        "_is_awake",
        "_is_sending",
        "_is_stuck",
        "_live",
        "_live_from",
        "_queue",
        "_scope",
        "_sending",
        "_sends_left",
        "_shared",
        "_turn_number",
        "_waiter",
        "_waiting",
        "close_code",
        "ends_at",
        "key",
        "user",
    )

    def __init__(
        self,
        user: UserId,
        ends_at: float,
        events_max: int,
        key: object = None,
        turns: SessionTurns | None = None,
    ) -> None:
        """Take the turns that all sessions of the process share."""
        self.user = user
        self.ends_at = ends_at
        """When its token ends, in seconds since the epoch."""
        self.key = key
        """The key that verified its token (not an idempotency key)."""
        self.close_code: CloseCode | None = None
        self._events_max = events_max
        self._queue: list[OutgoingEvent] = []
        self._live_from: Place | None = None
        """What the client has had when it went live; None while it catches up, or is behind."""
        self._has_overflowed = False
        turns = turns or SessionTurns()
        self._live, self._catching_up, self._ending = turns.live, turns.catching_up, turns.ending
        self._shared = self._catching_up
        """The turns in which it sends now."""
        self._turn_number = 0
        """Of the turn in which `_sends_left` holds."""
        self._sends_left = 0
        self._waiter: asyncio.Future[None] | None = None
        """The task waits for events."""
        self._is_awake = False
        """Whether that task has its turn, or waits for one."""
        self._is_sending = False
        """Whether that task waits for nothing but the client."""
        self._is_stuck = False
        """Whether the queue has overflowed since the client has taken an event."""
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
            if self._is_stuck:
                self.close(CloseCode.TOO_SLOW)
                return
            self._overflow()
        self._queue.append(outgoing)
        if outgoing.push is not None:
            outgoing.push.join()
            self._waiting = (*self._waiting, outgoing.push)
        if self._waiter is not None and not self._is_awake:
            self._wake()

    def _overflow(self) -> None:
        """Drop the queue: what was in it is read from the log."""
        self._queue.clear()
        for push in self._waiting:
            push.leave()
        self._waiting = ()
        self._has_overflowed = True
        self._live_from = None
        # A client that catches up has a time for each event instead.
        self._is_stuck = self._is_sending and self._shared is self._live

    @property
    def is_behind(self) -> bool:
        """Whether events were dropped since it went live, so that it must catch up again."""
        return self._live_from is None and self._shared is self._live

    def fall_back(self) -> None:
        """Catch up again, from the client's position after what was taken."""
        self._shared, self._has_overflowed = self._catching_up, False
        self._is_stuck = False
        self._release()

    def go_live(self, place: Place) -> bool:
        """End the catch-up at this place, unless the queue has overflowed; return whether it ended.

        If it did not, the log must be read again from this place. A read that begins after this
        call finds every event that the queue dropped before it.
        """
        if self._has_overflowed:
            self._has_overflowed = False
            return False
        self._live_from, self._shared = place, self._live
        self._queue = [each for each in self._queue if not each.is_covered_by(place)]
        # The catch-up has sent most of it; the rest is sent at once.
        self._release()
        return True

    def position(self, delivered: Place | None) -> str | None:
        """Return the client's position if it has been sent all that was taken; None while more waits.

        `delivered` is the place up to which the hub has queued every event: what is in no queue was
        sent, or is not for this user.
        """
        # What was queued when it was closed is gone, and was not sent.
        is_behind = self._queue or self.close_code is not None
        if is_behind or self._live_from is None or delivered is None:
            return None
        return str(self._live_from | delivered)

    async def take(self, seconds: float | None = None) -> Sequence[OutgoingEvent]:
        """Wait until events are queued, for so long at most; return all of them, in order.

        The caller has sent what it took before. There are none for a session that is behind.
        """
        self._is_sending = self._is_stuck = False
        for push in self._sending:
            push.leave()
        self._sending = ()
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer: asyncio.TimerHandle | None = None
        if self._queue:
            self._wake()
        elif seconds is not None:
            # A third of what `asyncio.timeout` costs: each event of a session ends such a wait.
            timer = loop.call_later(seconds, self._wake)
        try:
            await waiter
        finally:
            self._waiter, self._is_awake = None, False
            if timer is not None:
                timer.cancel()
        self._turn_number, self._is_sending = self._live.number, True
        if self.is_behind:
            return ()
        events, self._queue = self._queue, []
        self._sending, self._waiting = self._waiting, ()
        return events

    def may_send(self) -> bool:
        """Count an event that is about to be sent; return whether it may be, in this turn."""
        if (
            self._sends_left == 0
            or self._turn_number != self._shared.number
            or self.close_code is not None
        ):
            return False
        self._sends_left -= 1
        self._is_stuck = False
        return True

    async def turn(self, events: int = 1) -> None:
        """Wait for a turn in which the first of so many events may be sent.

        A closed session sends no more: this then waits for the end of `until_closed`.
        """
        sends = min(events, SENDS_AT_ONCE)
        self._is_sending = self._is_stuck = False
        await self._shared.take(self.user, sends)
        self._is_sending = True
        if self.close_code is not None and self._scope is not None:
            await asyncio.get_running_loop().create_future()
        self._turn_number, self._sends_left = self._shared.number, sends - 1

    def call(self, send: Callable[[], int]) -> None:
        """Call what sends something beside events, in a turn; it returns how much that was."""
        self._live.call(self.user, send)

    def hurry(self) -> None:
        """End the wait for events, as after a long silence: a heartbeat is sent."""
        self._wake()

    def _wake(self) -> None:
        """Have the task that waits for events take a turn."""
        if self._waiter is not None and not self._is_awake and self.close_code is None:
            self._is_awake = True
            self._live.call(self.user, self._end_wait)

    def _end_wait(self) -> int:
        """Begin the turn of that task; return how many events it may send."""
        if self._waiter is None or self._waiter.done():
            return 0
        self._waiter.set_result(None)
        self._sends_left = sends = min(len(self._queue), SENDS_AT_ONCE) or 1
        return sends

    def close(self, code: CloseCode) -> None:
        """End the session and drop its queue. The first code counts. Idempotent."""
        if self.close_code is not None:
            return
        self.close_code = code
        self._release()
        self._queue.clear()
        if self._scope is not None:
            self._ending.call(self.user, self._interrupt)

    @asynccontextmanager
    async def until_closed(self) -> AsyncIterator[None]:
        """Leave the block when the session is closed, whatever the block awaits then."""
        try:
            async with asyncio.timeout(None) as scope:
                self._scope = scope
                if self.close_code is not None:
                    scope.reschedule(0)
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

    def _interrupt(self) -> int:
        """End the block of `until_closed`, unless it has ended."""
        if self._scope is None:
            return 0
        self._scope.reschedule(0)
        return 1
