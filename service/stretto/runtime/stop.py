"""Stop: what signals have asked of this process so far: to drain, and to stop.

A load balancer learns only from health checks that a process is stopping. So the first SIGTERM
begins a drain: `/readyz` is red, and everything is still served. SIGINT comes from a terminal,
where there is no load balancer: it skips the drain. A second signal ends a drain.

What stops all processes of a service at once, such as systemd, signals a worker, and so does its
supervisor. So to a worker a second SIGTERM is the same order as the first. Its drain ends by SIGINT
alone, which its supervisor sends once its own drain is over.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Two signals within it are one order. `timeout` signals its command and then the process group of
# that command; a shell that ends repeats the SIGHUP of its terminal. A person takes longer.
ORDER_SECONDS: Final = 1.0


class Stop:
    """Two steps, each taken once: `asked`, then `at_once`. The clock is for tests."""

    def __init__(
        self,
        drain_seconds: float,
        *,
        is_worker: bool = False,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.drain_seconds = drain_seconds
        self._is_worker = is_worker
        self._clock_seconds = clock_seconds
        self._ordered_at = float("-inf")
        """When a signal other than SIGINT last was an order of its own."""
        self.asked = asyncio.Event()
        """The process must stop, after its drain."""
        self.at_once = asyncio.Event()
        """The drain is over, or skipped."""

    def take(self, number: signal.Signals) -> bool:
        """Take the step that a signal asks for; return False if none was left."""
        if number is not signal.SIGINT and self._is_same_order():
            return True
        if self.at_once.is_set():
            return False
        if number is signal.SIGINT or self.asked.is_set():
            self.at_once.set()
        self.asked.set()
        return True

    def _is_same_order(self) -> bool:
        """Whether this signal only repeats the one before."""
        now = self._clock_seconds()
        if now - self._ordered_at < ORDER_SECONDS or (self._is_worker and self.asked.is_set()):
            return True
        self._ordered_at = now
        return False

    async def drain(self) -> None:
        """Wait until the drain is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.drain_seconds):
                await self.at_once.wait()
        self.at_once.set()
