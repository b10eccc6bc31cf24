"""Baton: which of a process's writers takes the next batch.

Two writers that take whatever has arrived make two batches of one. Two small batches cost the
database and the loop more than one large batch. So one writer takes batch after batch,
and the next one grows while it writes. Another writer helps only where the time is spent elsewhere,
on the way to a far database or by its disk: then this process is idle although requests wait.

So where the loop's thread has lately been idle for a good part of the time, the holder passes the
baton on as soon as it has a batch. How fast the machine is does not matter, nor how large the
batch: a loop that has work is not idle. Nor is one that waits for a processor: another batch would
only take that from it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from stretto.runtime.thread_clock import ThreadClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.creation.ports import Write, WriteRequest, WriteResult, WriteStore
    from stretto.runtime.mailbox import Mailbox

# Another writer helps where the thread is idle for more than this share of the time. Measured: one
# writer creates more up to 0.30, two from 0.66 on (docs/adr/0031-writers-by-need.md).
IDLE_SHARE: Final = 0.45
# The time over which the share is taken: several batches.
WINDOW_SECONDS: Final = 0.05
# A batch that takes so long waits for a lock or for a server that hangs: the others go on, however
# busy the loop is. Several times what the largest batch takes.
BATCH_SECONDS_MAX: Final = 0.1


class Baton:
    """Shared by the writers of a process, with their mailbox; a writer is known by its identity."""

    def __init__(
        self,
        mailbox: Mailbox[Write, WriteResult],
        busy_seconds: Callable[[], float] | None = None,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take two clocks: `busy_seconds` runs only while the event loop's thread has work."""
        self.mailbox = mailbox
        self.stores: list[WriteStore] = []
        """Of all the writers."""
        self.held: list[WriteRequest] = []
        """Requests that wait for the end of a writer's probe (`writer.py`); then it releases them."""
        self._busy_seconds = busy_seconds or ThreadClock().busy_seconds
        self._writers: set[object] = set()
        self._holder: object = None
        self._waiting: deque[tuple[object, asyncio.Future[None]]] = deque()
        self._clock_seconds = clock_seconds
        self._is_idle = True
        self._window_began, self._busy_before = clock_seconds(), self._busy_seconds()
        self._timer: asyncio.TimerHandle | None = None

    def join(self, writer: object) -> None:
        """Count a writer that will take batches."""
        self._writers.add(writer)

    def leave(self, writer: object) -> None:
        """Take no more batches; after the last writer, no request must wait in vain. Idempotent."""
        self.pass_on(writer)
        self._writers.discard(writer)
        if not self._writers:
            self.mailbox.close()

    async def take(
        self, writer: object, batch_max: int, rows_of: Callable[[Write], int], rows_max: int
    ) -> list[WriteRequest]:
        """Return a batch for this writer.

        If the thread has been busy, the writer keeps the baton, but passes it on when the batch has
        taken `BATCH_SECONDS_MAX`. Else it passes the baton on at once.
        """
        if self._holder not in (None, writer):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((writer, granted))
            await granted
        self._holder = writer
        batch = await self.mailbox.take(batch_max, rows_of, rows_max)
        # From now on the writer waits for the database.
        if self._has_been_idle():
            self.pass_on(writer)
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(BATCH_SECONDS_MAX, self.pass_on, writer)
        return batch

    def release(self) -> None:
        """Put back what was held."""
        held, self.held = self.held, []
        self.mailbox.put_back(held)

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

    def _has_been_idle(self) -> bool:
        """Whether the thread was idle for more than `IDLE_SHARE` of the last window."""
        seconds = self._clock_seconds() - self._window_began
        if seconds >= WINDOW_SECONDS:
            busy_seconds = self._busy_seconds()
            self._is_idle = seconds - (busy_seconds - self._busy_before) > IDLE_SHARE * seconds
            self._window_began += seconds
            self._busy_before = busy_seconds
        return self._is_idle
