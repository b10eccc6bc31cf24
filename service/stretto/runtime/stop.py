"""What signals have asked of this process so far: to drain, and to stop.

A load balancer notices that a process is going only by its health checks. So the first SIGTERM begins
a drain: `/readyz` is red, and everything is served for a while longer. SIGINT comes from a person at a
terminal, behind whom no load balancer waits: it skips the drain, and a second signal ends it.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress


class Stop:
    """Two steps, each taken once: `asked` comes first, `at_once` follows it."""

    def __init__(self, drain_seconds: float) -> None:
        self.drain_seconds = drain_seconds
        self.asked = asyncio.Event()
        """The process shall stop, after its drain."""
        self.at_once = asyncio.Event()
        """The drain is over, or skipped."""

    def take(self, number: signal.Signals) -> bool:
        """Take the step that a signal asks for; return whether there was one left."""
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
