"""MemoryTrimmer: gives memory that was freed back to the system.

C's allocator keeps nearly all that a burst has needed. 2,000 connections at once make a process grow by
47 MiB; when they have gone, 28 of these are free, and stay with the process until it ends.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.runtime.actor import Actor, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS: Final = 10.0
# A trim walks the heap and keeps the loop for 10 to 20 ms, so there has to be something to gain.
GROWTH_BYTES_MIN: Final = 16 * 2**20
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
    """Trims whenever the process has grown by a good deal since it was smallest, or was trimmed."""

    pace = Pace(seconds=LOOK_SECONDS)

    def __init__(
        self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], None] = trim
    ) -> None:
        super().__init__("memory trimmer")
        self._resident = resident
        self._trim = trim
        self._smallest_bytes = resident()

    async def run_once(self) -> int:
        """Look once; return whether there was a trim."""
        self._smallest_bytes = min(self._smallest_bytes, self._resident())
        if self._resident() - self._smallest_bytes < GROWTH_BYTES_MIN:
            return 0
        self._trim()
        # What it did not give back is in use.
        self._smallest_bytes = self._resident()
        return 1
