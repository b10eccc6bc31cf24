"""An event loop that runs when a test says so, and whose clock is only a number.

It runs until nothing is left to do. Short sleeps (pauses between looks, back-off) end at once, the
earliest first: what a task does after one is a store call, and that waits until its explorer lets
it go, for as long as it likes. Long timers (a client's patience) end only when it says so.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

# Longer than any pause or back-off, shorter than any patience.
SLEEP_SECONDS_MAX: Final = 1.0


class SteppedLoop:
    """What tasks, futures and timers need of a loop; there is no input and no output."""

    def __init__(self) -> None:
        self.faults: list[dict[str, Any]] = []
        """What was not caught."""
        self.is_dead = False
        self._as_loop = cast("asyncio.AbstractEventLoop", self)
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []

    def run_until_idle(self) -> None:
        """Run until every task waits for something that is not in this loop."""
        asyncio._set_running_loop(self._as_loop)
        try:
            while True:
                while self._ready:
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
                if not self._ring(SLEEP_SECONDS_MAX):
                    return
        finally:
            asyncio._set_running_loop(None)

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task and run until idle."""
        task = self.create_task(work)
        self.run_until_idle()
        return task

    @property
    def has_timers(self) -> bool:
        """Whether a client's patience is running."""
        while self._timers and self._timers[0].cancelled():
            heapq.heappop(self._timers)
        return bool(self._timers)

    def end_patience(self) -> None:
        """Let the next timer ring, however far away."""
        self._ring(float("inf"))

    def _ring(self, seconds_max: float) -> bool:
        if not self.has_timers or self._timers[0].when() > self._now + seconds_max:
            return False
        timer = heapq.heappop(self._timers)
        self._now = max(self._now, timer.when())
        self._ready.append(timer)
        return True

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._as_loop, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self._as_loop, context)
        heapq.heappush(self._timers, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._as_loop)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self._as_loop, name=name)

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self._as_loop

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # The tasks of a process that crashed are destroyed while they wait, as they should be.
        if not self.is_dead:
            self.faults.append(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are left out when their turn comes."""
