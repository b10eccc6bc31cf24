"""Garbage is collected by the clock: also what has survived a collection already."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from stretto.runtime import memory
from stretto.runtime.memory import (
    COLLECT_SECONDS,
    COLLECTIONS_TO_FULL,
    YOUNG_OBJECTS_MAX,
    GarbageCollector,
    collecting,
)
from stretto.runtime.runner import Run, Runner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself: object = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as it was, in the end; until then it does nothing by itself."""
    thresholds = gc.get_threshold()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


async def collect(times: int) -> list[float]:
    """Let the clock strike so often; return the pauses before, and the one that is left."""
    steps: list[float] = []
    collector = GarbageCollector()

    async def wait(_: asyncio.Event, seconds: float) -> bool:
        steps.append(seconds)
        if len(steps) > times:
            collector.stop()
        return False

    await Run(collector, lambda _: None, wait).turns()
    return steps


@pytest.mark.parametrize("is_older", [False, True])
async def test_a_cycle_is_freed_when_the_clock_strikes(is_older: bool) -> None:
    """One that was made since, also if the interpreter has found it in use meanwhile."""
    cycle = Cycle()
    left = weakref.ref(cycle)
    if is_older:
        # As the interpreter does by itself, each time that there are `YOUNG_OBJECTS_MAX`.
        gc.collect(0)
    del cycle
    assert left() is not None
    steps = await collect(1)
    assert left() is None
    assert [COLLECT_SECONDS] * 2 == steps


async def test_what_was_in_use_at_one_strike_is_freed_by_the_next_full_collection() -> None:
    """As a session's objects: the collections before it pass over them, the full one does not."""
    collector, cycle = GarbageCollector(), Cycle()
    left = weakref.ref(cycle)
    await collector.run_once()
    del cycle
    for _ in range(COLLECTIONS_TO_FULL - 2):
        await collector.run_once()
    assert left() is not None
    await collector.run_once()
    assert left() is None


async def test_a_bound_in_objects_alone_would_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a few thousand objects are far below the threshold, and older ones farther."""
    monkeypatch.setattr(memory, "MIDDLE_GENERATION", 0)
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    gc.enable()
    cycle = Cycle()
    left = weakref.ref(cycle)
    gc.collect(0)
    del cycle
    burst = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    await collect(1)
    assert left() is not None
    assert len(burst) == 1000


async def test_collecting_begins_and_ends_with_the_service() -> None:
    """What is there at the start is passed over from then on; no task is left."""
    before = gc.get_threshold()
    runner = Runner(lambda _: None)
    async with collecting(runner):
        assert {"garbage collector": 1, "memory trimmer": 1} == runner.up
        assert (YOUNG_OBJECTS_MAX, *before[1:]) == gc.get_threshold()
        assert gc.get_freeze_count() > 0
    assert {} == runner.up
