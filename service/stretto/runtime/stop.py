"""Stop: what signals have asked of this process so far: to drain, and to stop.

A load balancer learns only from health checks that a process is stopping. So the first SIGTERM
begins a drain: `/readyz` is red, and everything is still served. SIGINT comes from a terminal,
where there is no load balancer: it skips the drain. A second signal ends a drain.

A worker's drain ends by SIGINT alone, which its supervisor sends once its own drain is over. A second
SIGTERM is the same order as the first: whatever stops all processes of a service at once, such as
systemd or `timeout`, sends the worker one, and the supervisor passes its own on.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress


class Stop:
    """Two steps, each taken once: `asked`, then `at_once`."""

    def __init__(self, drain_seconds: float, *, is_worker: bool = False) -> None:
        self.drain_seconds = drain_seconds
        self._is_worker = is_worker
        self.asked = asyncio.Event()
        """The process must stop, after its drain."""
        self.at_once = asyncio.Event()
        """The drain is over, or skipped."""

    def take(self, number: signal.Signals) -> bool:
        """Take the step that a signal asks for; return whether one was left."""
        if self.at_once.is_set():
            return False
        if number is signal.SIGINT or (self.asked.is_set() and not self._is_worker):
            self.at_once.set()
        self.asked.set()
        return True

    async def drain(self) -> None:
        """Wait until the drain is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.drain_seconds):
                await self.at_once.wait()
        self.at_once.set()
