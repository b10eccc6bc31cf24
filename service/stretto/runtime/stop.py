"""Stop: what signals have asked of this process so far: to drain, and to stop.

A load balancer learns only from health checks that a process is stopping. So the first SIGTERM
begins a drain: `/readyz` is red, and everything is still served. SIGINT comes from a terminal,
where there is no load balancer: it skips the drain. A second signal ends a drain.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress


class Stop:
    """Two steps, each taken once: `asked`, then `at_once`."""

    def __init__(self, drain_seconds: float) -> None:
        self.drain_seconds = drain_seconds
        self.asked = asyncio.Event()
        """The process must stop, after its drain."""
        self.at_once = asyncio.Event()
        """The drain is over, or skipped."""

    def take(self, number: signal.Signals) -> bool:
        """Take the step that a signal asks for; return whether one was left."""
        if self.at_once.is_set():
            return False
        if number is signal.SIGINT or self.asked.is_set():
            self.at_once.set()
        self.asked.set()
        return True

    async def drain(self) -> None:
        """Wait until the drain is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.drain_seconds):
                await self.at_once.wait()
        self.at_once.set()
