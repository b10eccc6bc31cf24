"""Gives memory back: GarbageCollector by the clock to the process, MemoryTrimmer to the system."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.runtime.actor import Actor, Pace
from stretto.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto.runtime.runner import Runner

# Reference counts free nearly everything that a request makes. At Python's 700 young objects the
# collector would run every dozen requests and find nothing. At 20,000 it would walk the requests of
# a full mailbox again and again, which was a sixth of an overloaded process's time.
YOUNG_OBJECTS_MAX: Final = 100_000
# Little is left to collect (some objects of a request for an unknown path), but a bound in objects
# is no bound in time. Walking the objects of the last 10 s takes milliseconds, even with a full
# mailbox.
COLLECT_SECONDS: Final = 10.0
# The young, and those that the interpreter's own collections of the young have left since.
MIDDLE_GENERATION: Final = 1
# What is in use when the clock strikes, such as a session or a request, counts as old from then on.
# The old are walked once in ten minutes, so that no leak there is for ever. Those of the start are
# frozen; those of 9,000 open connections (342,000 objects) take the loop 0.2 s.
FULL_GENERATION: Final = 2
COLLECTIONS_TO_FULL: Final = 60

LOOK_SECONDS: Final = 10.0
# A trim walks the heap and blocks the loop for 10 to 20 ms, so it must have something to gain.
GROWTH_BYTES_MIN: Final = 16 * 2**20
# Memory that a trim cannot return is in use, but not for ever: its connections go.
AGAIN: Final = Backoff(10.0, 600.0)
_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return how much memory the process has; 0 if the system does not say."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Return free memory to the system; does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class GarbageCollector(Actor):
    """Collects by the clock the garbage of what the last pause has made, and now and then all."""

    pace = Pace(seconds=COLLECT_SECONDS, rests_first=True)

    def __init__(self) -> None:
        super().__init__("garbage collector")
        self._numbers = itertools.count(1)

    async def run_once(self) -> int:
        """Collect; return how many objects were unreachable."""
        is_full = next(self._numbers) % COLLECTIONS_TO_FULL == 0
        return gc.collect(FULL_GENERATION if is_full else MIDDLE_GENERATION)


class MemoryTrimmer(Actor):
    """Trims when the process has grown, and again while it stays larger, with growing pauses.

    C's allocator keeps nearly all memory that a burst needed. 2,000 connections at once make a
    process grow by 47 MiB; when they are gone, 28 of these are free, and stay with the process
    until it ends. Growth counts from the smallest size that the process had.
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
        """Since the process was small, or grew again."""
        self._again_at = 0.0

    async def run_once(self) -> int:
        """Look at the size once; return whether it trimmed."""
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


@asynccontextmanager
async def collecting(runner: Runner) -> AsyncIterator[None]:
    """Exempt all objects that exist now from collection; collect and trim from then on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
    async with runner.running(GarbageCollector()), runner.running(MemoryTrimmer()):
        yield
