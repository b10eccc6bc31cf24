"""How long the present thread has had work to do: it ran, or waited for a processor.

The rest of the time it was idle. CPU time alone does not show that: on a machine whose processors
are all taken, a thread with work stands still as well.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Final

# Linux: nanoseconds that the thread ran and that it waited for a processor, and how often it ran.
# https://docs.kernel.org/scheduler/sched-stats.html
SCHEDULE: Final = "/proc/thread-self/schedstat"


class ThreadClock:
    """The clock of the thread that makes it."""

    def __init__(self, path: str = SCHEDULE) -> None:
        """Take where the kernel says it; where it does not, waiting for a processor is not counted."""
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        weakref.finalize(self, os.close, self._file)

    def busy_seconds(self) -> float:
        """Return for how long the thread has had work, since it began."""
        waited_nanoseconds = 0
        if self._file is not None:
            waited_nanoseconds = int(os.pread(self._file, 64, 0).split()[1])
        # The kernel's first number lacks what has run since its last tick; this clock does not.
        return time.thread_time() + waited_nanoseconds / 1e9
