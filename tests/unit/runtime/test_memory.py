"""The trimmer gives back what a burst has left, and walks the heap for nothing less."""

from __future__ import annotations

import ctypes

from stretto.runtime.memory import GROWTH_BYTES_MIN, MemoryTrimmer, resident_bytes, trim

MIB = 2**20


class Process:
    """One that has some memory, of which a trim gives a part back."""

    def __init__(self, used: int) -> None:
        self.used = self.resident = used
        self.trims = 0
        self.trimmer = MemoryTrimmer(lambda: self.resident, self.trim)

    def trim(self) -> None:
        """Keep what is used."""
        self.trims += 1
        self.resident = self.used


async def test_a_burst_is_given_back_once() -> None:
    """At the next look, and not again while the process stays as it is."""
    process = Process(80 * MIB)
    process.resident += GROWTH_BYTES_MIN
    assert [1, 0, 0] == [await process.trimmer.run_once() for _ in range(3)]
    assert (80 * MIB, 1) == (process.resident, process.trims)


async def test_little_growth_is_not_worth_a_walk() -> None:
    """The twin: one byte less, and the heap is left alone."""
    process = Process(80 * MIB)
    process.resident += GROWTH_BYTES_MIN - 1
    assert await process.trimmer.run_once() == 0
    assert process.trims == 0


async def test_what_is_used_is_not_walked_for_again() -> None:
    """A process that needs more than before is measured from there."""
    process = Process(80 * MIB)
    process.used = process.resident = 80 * MIB + GROWTH_BYTES_MIN
    assert [1, 0] == [await process.trimmer.run_once() for _ in range(2)]
    process.resident += GROWTH_BYTES_MIN
    assert await process.trimmer.run_once() == 1


async def test_growth_counts_from_the_smallest_size() -> None:
    """A start that needs much, and gives it back by itself, hides no later burst."""
    process = Process(200 * MIB)
    process.used = process.resident = 80 * MIB
    assert await process.trimmer.run_once() == 0
    process.resident += GROWTH_BYTES_MIN
    assert await process.trimmer.run_once() == 1


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
