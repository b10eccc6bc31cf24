"""The sweeper's clock and its end, with a sweep of the test's own."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from stretto.observations import ActorCrashed, ActorRestarted, RowsSwept, UpkeepFailed
from stretto.postgres import retention as sweeper_module
from stretto.postgres.queries import QUERIES
from stretto.postgres.retention import RANGE_BLOCKS, STATEMENTS, RetentionSweeper, sweep
from stretto.postgres.settings import Retention
from stretto.runtime.runner import Run
from stretto.store_errors import ReadCancelled, Unreachable

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


BLOCKS: Final = 5 * RANGE_BLOCKS - 7
BAD_BLOCK: Final = 2 * RANGE_BLOCKS + 1


class Tables:
    """A database of tables with a row a block; some ranges of `attempt` cannot be swept."""

    def __init__(self) -> None:
        self.swept: dict[str, list[int]] = {table: [] for table in STATEMENTS}
        self.fail: Callable[[int, int], object] = lambda _first, _last: None
        """Raises an error for a range of `attempt` that fails."""

    async def fetchrow(self, statement: str, *arguments: Any) -> Mapping[str, int]:
        if statement == QUERIES["table_blocks"]:
            return {"blocks": BLOCKS, "parts": 1}
        (table,) = (name for name in STATEMENTS if STATEMENTS[name] == statement)
        (first, _), (last, _), *_ = arguments
        if table == "attempt":
            self.fail(first, last)
        self.swept[table] += range(first, last)
        return {"is_ours": True, "rows": last - first}

    async def execute(self, *_: object) -> None:
        """Begin no partition."""

    async def fetch(self, *_: object) -> list[object]:
        """No partition is old."""
        return []

    async def sweep(self) -> Mapping[str, int]:
        connection: Any = self
        return await sweep(lambda: nullcontext(connection), Retention(), None, lambda *_: None)


async def test_a_sweep_goes_through_each_table_once_wherever_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Round to its beginning."""
    begins: list[list[int]] = []
    for number in range(5):
        monkeypatch.setattr("random.randrange", lambda ranges, n=number: min(n, ranges - 1))
        tables = Tables()
        assert {**dict.fromkeys(STATEMENTS, BLOCKS), "outbox": 0} == await tables.sweep()
        assert all(list(range(BLOCKS)) == sorted(swept) for swept in tables.swept.values())
        begins.append([swept[0] for swept in tables.swept.values()])
    assert [[number * RANGE_BLOCKS] * len(STATEMENTS) for number in range(5)] == begins


async def test_a_range_that_takes_too_long_is_swept_in_parts() -> None:
    """Of long rows, on a slow disk: down to a block, whose failure is one."""
    tables = Tables()

    def too_long(first: int, last: int) -> None:
        if last - first > limit:
            raise ReadCancelled

    tables.fail = too_long
    limit = 5
    await tables.sweep()
    assert list(range(BLOCKS)) == sorted(tables.swept["attempt"])
    limit = 0
    with pytest.raises(ReadCancelled):
        await tables.sweep()


async def test_a_range_that_fails_keeps_nothing_else_from_being_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other tables are swept in the same sweep, and the rest of its own by the next ones."""
    tables = Tables()

    def vetoed(first: int, last: int) -> None:
        if first <= BAD_BLOCK < last:
            raise Unreachable

    tables.fail = vetoed
    draws = count()
    monkeypatch.setattr("random.randrange", lambda ranges: next(draws) % ranges)
    with pytest.raises(Unreachable):
        await tables.sweep()
    assert all(list(range(BLOCKS)) == sorted(tables.swept[name]) for name in [*STATEMENTS][1:])
    for _ in range(4):
        with pytest.raises(Unreachable):
            await tables.sweep()
    kept = set(range(BLOCKS)) - {*tables.swept["attempt"]}
    assert set(range(2 * RANGE_BLOCKS, 3 * RANGE_BLOCKS)) == kept
