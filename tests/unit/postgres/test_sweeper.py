"""The sweeper's clock and its end, with a sweep of the test's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.observations import ActorCrashed, ActorRestarted, RowsSwept, UpkeepFailed
from stretto.postgres import retention as sweeper_module
from stretto.postgres.retention import RetentionSweeper
from stretto.runtime.runner import Run
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stretto.observations import Observation

DEADLINE_SECONDS = 30


class ScriptedSweep:
    """Sweeps in batches of seven rows, as many as the test wants; the first sweeps may fail."""

    def __init__(self, *errors: Exception, batches: int = 1) -> None:
        self.errors = list(errors)
        self.batches = batches
        self.begun = 0
        self.ended = 0
        self.until_ended = 1
        self.is_done = asyncio.Event()
        self.in_batch: Callable[[], object] = lambda: None

    async def __call__(self, progress: Callable[[str, int], None]) -> Mapping[str, int]:
        self.begun += 1
        if self.errors:
            raise self.errors.pop(0)
        for _ in range(self.batches):
            await asyncio.sleep(0)
            self.in_batch()
            progress("attempt", 7)
        self.ended += 1
        if self.ended == self.until_ended:
            self.is_done.set()
        return {"attempt": 7 * self.batches}


async def ended(task: asyncio.Task[None]) -> None:
    """Wait for the actor's end."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        await task


async def test_it_sweeps_time_and_again_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing wakes it."""
    monkeypatch.setattr(sweeper_module, "SWEEP_SECONDS", 0.001)
    observed: list[Observation] = []
    sweep = ScriptedSweep(batches=2)
    sweep.until_ended = 3
    sweeper = RetentionSweeper(sweep, observed.append)
    task = asyncio.create_task(Run(sweeper, observed.append).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await sweep.is_done.wait()
    sweeper.stop()
    await ended(task)
    assert [RowsSwept("attempt", 7)] * 6 == observed[:6]


@pytest.mark.parametrize(("draw", "seconds"), [(0.0, 300), (1.0, 900)])
async def test_it_waits_at_random_so_that_replicas_take_turns(
    monkeypatch: pytest.MonkeyPatch, draw: float, seconds: float
) -> None:
    """From half of its interval to one and a half, also before its first sweep."""
    waited: list[float] = []

    async def stop_instead(_: asyncio.Event, delay: float) -> bool:
        waited.append(delay)
        sweeper.stop()
        return True

    monkeypatch.setattr("random.uniform", lambda low, high: low + draw * (high - low))
    sweep = ScriptedSweep()
    sweeper = RetentionSweeper(sweep, lambda _: None)
    await Run(sweeper, lambda _: None, stop_instead).turns()
    assert ([seconds], 0) == (waited, sweep.begun)


async def test_it_stops_at_once_while_it_waits_and_before_it_has_begun() -> None:
    """And may be stopped as often as one likes."""
    observed: list[Observation] = []
    for is_begun in (True, False):
        sweep = ScriptedSweep()
        sweeper = RetentionSweeper(sweep, lambda _: None)
        task = asyncio.create_task(Run(sweeper, observed.append).turns())
        if is_begun:
            await asyncio.sleep(0)
        sweeper.stop()
        sweeper.stop()
        await ended(task)
        assert sweep.begun == 0


async def test_it_stops_between_two_batches_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is under way is still reported; nothing is cancelled in the midst of a statement."""
    monkeypatch.setattr(sweeper_module, "SWEEP_SECONDS", 0.001)
    observed: list[Observation] = []
    sweep = ScriptedSweep(batches=1000)
    sweeper = RetentionSweeper(sweep, observed.append)
    sweep.in_batch = lambda: sweeper.stop() if len(observed) == 2 else None
    await ended(asyncio.create_task(Run(sweeper, observed.append).turns()))
    assert (1, 0) == (sweep.begun, sweep.ended)
    assert [RowsSwept("attempt", 7)] * 3 == observed


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ([UpkeepFailed], Unreachable()),
        ([ActorCrashed, ActorRestarted], ZeroDivisionError()),
    ],
)
async def test_no_error_ends_the_sweeping(
    expected: list[type[Observation]], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported, and the next sweep comes."""
    monkeypatch.setattr(sweeper_module, "SWEEP_SECONDS", 0.001)
    observed: list[Observation] = []
    sweep = ScriptedSweep(error, batches=0)
    sweeper = RetentionSweeper(sweep, observed.append)
    task = asyncio.create_task(Run(sweeper, observed.append).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await sweep.is_done.wait()
    sweeper.stop()
    await ended(task)
    assert expected == [type(event) for event in observed]


async def test_a_batch_that_found_nothing_is_not_reported() -> None:
    """Most of a table is younger than its retention."""
    observed: list[Observation] = []

    async def sweep(progress: Callable[[str, int], None]) -> Mapping[str, int]:
        for rows in (0, 3, 0):
            progress("inbox", rows)
        return {"inbox": 3}

    assert 3 == await RetentionSweeper(sweep, observed.append).run_once()
    assert [RowsSwept("inbox", 3)] == observed
