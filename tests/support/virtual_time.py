"""An event loop whose time is a test's: where nothing is left to do, it is at once the time of the next timer.

What waits for minutes takes milliseconds, and what happens is the same each time. Only for code without sockets,
threads and processes: those take real time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

Given = ParamSpec("Given")
Result = TypeVar("Result")


class _Jumps(selectors.SelectSelector):
    """Waits for nothing: it moves the loop's time on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "the test waits for what never happens"
            self.now += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is its clock."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Return the seconds that have passed, 1,000 at the beginning."""
        return self._jumps.now


def run_in_virtual_time(call: Coroutine[Any, Any, Result]) -> Result:
    """Run a test's coroutine to its end."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(call)


def in_virtual_time(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """Have a test run in virtual time, with the same random pauses each time."""

    @wraps(test)
    def run(*args: Given.args, **named: Given.kwargs) -> None:
        state = random.getstate()
        random.seed(1)
        try:
            run_in_virtual_time(test(*args, **named))
        finally:
            random.setstate(state)

    return run
