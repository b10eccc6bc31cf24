"""A thread is busy while it runs, or waits for a processor; not while it sleeps."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stretto.runtime.thread_clock import SCHEDULE, ThreadClock

# The kernel brings its account up to date some hundred times a second.
SECONDS = 0.2


def busy_share(clock: ThreadClock) -> float:
    """Compute for a while; return the share of that time in which the thread was busy."""
    before, began = clock.busy_seconds(), time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        pass
    return (clock.busy_seconds() - before) / (time.perf_counter() - began)


def test_a_thread_that_computes_is_busy_all_the_time() -> None:
    """Also where it has to wait for a processor: together that is the whole time."""
    if not os.path.exists(SCHEDULE):  # noqa: PTH110 a kernel's file
        pytest.skip("the kernel does not count waiting for a processor")
    clock = ThreadClock()
    # A host that runs other machines may take its processors away, which the kernel does not count.
    assert any(0.9 <= busy_share(clock) <= 1.1 for _ in range(20))


def test_a_thread_that_sleeps_is_idle() -> None:
    """What it waits for is no processor; when it wakes, it may have to wait for one."""
    clock, began = ThreadClock(), time.perf_counter()
    before = clock.busy_seconds()
    time.sleep(SECONDS)
    busy_seconds = clock.busy_seconds() - before
    awake_seconds = time.perf_counter() - began - SECONDS
    assert busy_seconds < awake_seconds + SECONDS / 2


def test_waiting_for_a_processor_counts(tmp_path: Path) -> None:
    """In nanoseconds, the second of the kernel's numbers."""
    kept = tmp_path / "schedstat"
    kept.write_bytes(b"0 0 1\n")
    clock = ThreadClock(str(kept))
    before = clock.busy_seconds()
    kept.write_bytes(b"0 7000000000 2\n")
    assert 7 <= clock.busy_seconds() - before < 8


def test_without_the_kernels_word_cpu_time_counts_alone(tmp_path: Path) -> None:
    """As on other systems."""
    clock = ThreadClock(str(tmp_path / "missing"))
    assert clock.busy_seconds() == pytest.approx(time.thread_time(), abs=1)


def test_the_kernels_file_is_closed_with_the_clock() -> None:
    """A component that is opened again and again keeps none."""
    before = schedules_open()
    for _ in range(5):
        ThreadClock()
    # Those of other tests may have been closed meanwhile.
    assert schedules_open() <= before


def schedules_open() -> int:
    """Return how often this process has the kernel's file open."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 a kernel's folder
        with suppress(FileNotFoundError):
            count += Path("/proc/self/fd", descriptor).readlink().name == "schedstat"
    return count
