"""The trimmer gives back what a burst has left, and walks the heap for nothing less."""

from __future__ import annotations

import ctypes

from stretto.runtime.memory import (
    AGAIN,
    GROWTH_BYTES_MIN,
    LOOK_SECONDS,
    MemoryTrimmer,
    resident_bytes,
    trim,
)

MIB = 2**20


class Process:
    """One that has some memory, of which a trim gives back what is not used."""

    def __init__(self, used: int) -> None:
        self.used = self.resident = used
        self.now = 0.0
        self.trims: list[float] = []
        self.trimmer = MemoryTrimmer(lambda: self.resident, self.trim, lambda: self.now)

    def trim(self) -> None:
        """Keep what is used."""
        self.trims.append(self.now)
        self.resident = self.used

    def grow(self, grown_bytes: int) -> None:
        """Need more than before."""
        self.used += grown_bytes
        self.resident = max(self.resident, self.used)

    async def look(self, seconds: float) -> None:
        """Have the trimmer look for so long."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            await self.trimmer.run_once()
            self.now += LOOK_SECONDS


async def test_a_burst_that_is_over_is_given_back_once() -> None:
    """At the next look, and then the heap is left alone."""
    process = Process(80 * MIB)
    process.resident += GROWTH_BYTES_MIN
    await process.look(3600)
    assert (80 * MIB, [0.0]) == (process.resident, process.trims)


async def test_little_growth_is_not_worth_a_walk() -> None:
    """The twin: one byte less."""
    process = Process(80 * MIB)
    process.resident += GROWTH_BYTES_MIN - 1
    await process.look(3600)
    assert [] == process.trims


async def test_a_burst_that_lasts_is_given_back_after_it() -> None:
    """While it lasts there is little to give back, which is tried ever more seldom."""
    process = Process(80 * MIB)
    process.grow(60 * MIB)
    await process.look(3600)
    assert 8 <= len(process.trims) <= 25
    assert process.trims[-1] - process.trims[-2] >= AGAIN.seconds_max / 2
    process.used = 80 * MIB
    await process.look(AGAIN.seconds_max + LOOK_SECONDS)
    assert 80 * MIB == process.resident


async def test_a_burst_after_another_is_not_waited_for() -> None:
    """The pauses begin anew, however long they were."""
    process = Process(80 * MIB)
    process.grow(GROWTH_BYTES_MIN)
    await process.look(3600)
    process.grow(GROWTH_BYTES_MIN)
    began = process.now
    await process.look(60)
    assert [trim for trim in process.trims if trim >= began][:1] == [began]
    assert len([trim for trim in process.trims if trim >= began]) >= 3


async def test_growth_counts_from_the_smallest_size() -> None:
    """A start that needs much, and gives it back by itself, hides no later burst."""
    process = Process(200 * MIB)
    process.used = process.resident = 80 * MIB
    await process.look(LOOK_SECONDS)
    assert [] == process.trims
    process.resident += GROWTH_BYTES_MIN
    await process.look(LOOK_SECONDS)
    assert 80 * MIB == process.resident


def test_freed_memory_leaves_the_process() -> None:
    """Blocks of C's allocator with others between them, which keep it from shrinking by itself."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [ctypes.c_void_p(libc.malloc(16_384)) for _ in range(4_000)]
    for block in blocks:
        ctypes.memset(block, 1, 16_384)
    for number, block in enumerate(blocks):
        if number % 10:
            libc.free(block)
    full = resident_bytes()
    trim()
    assert full - resident_bytes() > 20 * MIB
    for block in blocks[::10]:
        libc.free(block)
