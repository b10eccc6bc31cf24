"""A thread is busy while it runs, or waits for a processor; not while it sleeps."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from stretto.runtime.thread_clock import SCHEDULE, ThreadClock

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 0.05


def test_a_thread_that_computes_is_busy_all_the_time() -> None:
    """Also where it has to wait for a processor: together that is the whole time."""
    if not os.path.exists(SCHEDULE):  # noqa: PTH110 a kernel's file
        pytest.skip("the kernel does not count waiting for a processor")
    clock = ThreadClock()
    before, began = clock.busy_seconds(), time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        pass
    seconds = time.perf_counter() - began
    assert 0.9 * seconds <= clock.busy_seconds() - before <= 1.1 * seconds


def test_a_thread_that_sleeps_is_idle() -> None:
    """What it waits for is no processor."""
    clock = ThreadClock()
    before = clock.busy_seconds()
    time.sleep(SECONDS)
    assert clock.busy_seconds() - before < SECONDS


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
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 a kernel's folder
    for _ in range(5):
        ThreadClock()
    assert before == len(os.listdir("/proc/self/fd"))  # noqa: PTH208 a kernel's folder
