"""Baton: which of a process's writers takes the next batch.

Two writers that take whatever has arrived split what one would write together: each batch costs the
database and the loop more than its share of a larger one. So one writer takes batch after batch, and the
next one grows while it writes. Another writer helps only where the time is spent elsewhere, on the way to
a far database or by its disk: then this process is idle although requests wait.

So the holder passes the baton on once the loop's thread has been idle for `IDLE_SECONDS` during its batch.
How fast the machine is does not matter, nor how large the batch: a loop that has work is not idle. Nor is
one that waits for a processor: another batch would only take that from it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from stretto.runtime.thread_clock import ThreadClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.creation.ports import Write, WriteRequest, WriteResult
    from stretto.runtime.mailbox import Mailbox

IDLE_SECONDS: Final = 0.001
# A batch that takes so long waits for a lock or for a server that hangs: the others go on, however busy
# the loop is. Several times what the largest batch takes.
BATCH_SECONDS_MAX: Final = 0.1


class Baton:
    """Shared by the writers of a process, with their mailbox; each writer is known by itself."""

    def __init__(
        self,
        mailbox: Mailbox[Write, WriteResult],
        busy_seconds: Callable[[], float] | None = None,
    ) -> None:
        """Take the clock of the time for which the event loop's thread has had work."""
        self.mailbox = mailbox
        self._busy_seconds = busy_seconds or ThreadClock().busy_seconds
        self._holder: object = None
        self._waiting: deque[tuple[object, asyncio.Future[None]]] = deque()
        self._began = self._busy_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def take(
        self, writer: object, batch_max: int, rows_of: Callable[[Write], int], rows_max: int
    ) -> list[WriteRequest]:
        """Return a batch for this writer, which keeps the baton until it is passed on."""
        if self._holder not in (None, writer):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((writer, granted))
            await granted
        self._holder = writer
        batch = await self.mailbox.take(batch_max, rows_of, rows_max)
        # From now on the writer waits for the database.
        loop = asyncio.get_running_loop()
        self._began, self._busy_before = loop.time(), self._busy_seconds()
        self._timer = loop.call_later(IDLE_SECONDS, self._judge, loop)
        return batch

    def rest(self, writer: object) -> None:
        """Note that the writer's batch is written: it does not wait for the database any more."""
        if self._holder is writer and self._timer is not None:
            self._timer.cancel()

    def pass_on(self, writer: object) -> None:
        """Give the baton to the writer that waits longest, if this one has it."""
        if self._holder is not writer:
            return
        self.rest(writer)
        self._holder = None
        while self._waiting and self._holder is None:
            following, granted = self._waiting.popleft()
            if not granted.done():
                self._holder = following
                granted.set_result(None)

    def _judge(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass the baton on if the process has been idle, else look again when it may have been."""
        seconds = loop.time() - self._began
        idle_seconds = seconds - (self._busy_seconds() - self._busy_before)
        if idle_seconds >= IDLE_SECONDS or seconds >= BATCH_SECONDS_MAX:
            self.pass_on(self._holder)
        else:
            pause = max(IDLE_SECONDS - idle_seconds, IDLE_SECONDS / 4)
            self._timer = loop.call_later(pause, self._judge, loop)
