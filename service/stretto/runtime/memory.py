"""MemoryTrimmer: gives memory that was freed back to the system.

C's allocator keeps nearly all that a burst has needed. 2,000 connections at once make a process grow by
47 MiB; when they have gone, 28 of these are free, and stay with the process until it ends.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.runtime.actor import Actor, Pace
from stretto.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS: Final = 10.0
# A trim walks the heap and keeps the loop for 10 to 20 ms, so there has to be something to gain.
GROWTH_BYTES_MIN: Final = 16 * 2**20
# What a trim does not give back is in use, but not for ever: its connections go.
AGAIN: Final = Backoff(10.0, 600.0)
_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return how much memory the process has; 0 where the system does not say."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Give back what is free; does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class MemoryTrimmer(Actor):
    """Trims once the process has grown by a good deal, and while it stays larger, ever more seldom.

    The size to grow from is the smallest one that it had.
    """

    pace = Pace(seconds=LOOK_SECONDS)

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("memory trimmer")
        self._resident = resident
        self._trim = trim
        self._clock_seconds = clock_seconds
        self._smallest_bytes = self._left_bytes = resident()
        self._trims = 0
        """Since the process was small, or has grown again."""
        self._again_at = 0.0

    async def run_once(self) -> int:
        """Look once; return whether there was a trim."""
        size = self._resident()
        self._smallest_bytes = min(self._smallest_bytes, size)
        if size - self._left_bytes >= GROWTH_BYTES_MIN:
            self._trims = 0
        elif (
            size - self._smallest_bytes < GROWTH_BYTES_MIN or self._clock_seconds() < self._again_at
        ):
            return 0
        self._trim()
        self._left_bytes = self._resident()
        self._again_at = self._clock_seconds() + AGAIN.seconds(self._trims)
        self._trims += 1
        return 1
