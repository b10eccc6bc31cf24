"""RetentionSweeper deletes what is past its retention, in batches short enough to delay no request.

Four tables are swept: old attempts (a group outlives its attempt, and its key still finds it; a failed
one leaves a tombstone, and its key still fails),
their trails, the inbox, and deliveries that no reader serves any more, or that are dead letters.
None has an index on its age, which would make every write more expensive: a sweep reads each table
once, block range by block range. Each range is a short transaction under a lock that ends with it,
so that of all replicas' sweepers one works at a time, also behind PgBouncer.

The log of events is kept in partitions by time, which are truncated whole.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from stretto.observations import RowsSwept
from stretto.postgres.driver_errors import DRIVER_ERRORS
from stretto.postgres.queries import QUERIES
from stretto.postgres.scans import scanning
from stretto.runtime.actor import Actor, Pace
from stretto.store_errors import Locked, ReadCancelled, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from stretto.observations import Observer
    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.log import Acquire
    from stretto.postgres.settings import Retention

    Progress: TypeAlias = Callable[[str, int], object]

# The statement that sweeps a range of each table.
STATEMENTS: Final = MappingProxyType(
    {
        "attempt": QUERIES["sweep_attempts"],
        "attempt_trail": QUERIES["sweep_trail"],
        "inbox": QUERIES["sweep_inbox"],
        "outbox_delivery": QUERIES["sweep_deliveries"],
    }
)
# What may fail of one table alone.
FAILURES: Final = (StoreError, *DRIVER_ERRORS)
# Beside the tables: how many partitions of the log were truncated.
PARTITIONS: Final = "outbox"
# A sweep reads the tables once. What it deletes is days old, so there is no hurry.
SWEEP_SECONDS: Final = 600.0
# A few thousand rows at most, and a few milliseconds.
RANGE_BLOCKS: Final = 64
# The pause of a sweep that waits for another one: about as long as one range takes.
TURN_SECONDS: Final = 0.05
# A tenth of one core's time deletes faster than a service creates, and leaves it the rest. A range
# that took long, on a busy disk, is followed by a longer rest, up to a bound.
REST_RATIO: Final = 9.0
REST_SECONDS_MAX: Final = 1.0
# Each partition of the log holds a seventh of what is kept, so that a sweep truncates one at a time.
# A read that is under way is waited for no longer: all others queue behind the truncation.
TRUNCATION_LOCK_SECONDS: Final = 0.1
# Several sweeps in a row have met a reader by then: a transaction that was left open.
OVERDUE_SECONDS: Final = 3600.0


async def sweepable(
    connection: Connection, retention: Retention, now: datetime | None
) -> dict[str, int]:
    """Return how many rows of each table a sweep would delete, and how many partitions."""
    async with scanning(connection):
        row = await connection.fetchrow(QUERIES["sweepable_rows"], retention.retention_days, now)
    slots = await _sweepable_slots(connection, retention.event_retention_days, now)
    assert row is not None
    return {**row, PARTITIONS: len(slots)}


async def sweep(
    acquire: Acquire,
    retention: Retention,
    now: datetime | None,
    progress: Progress,
    *,
    is_patient: bool = False,
) -> dict[str, int]:
    """Sweep every table once, calling `progress` for each batch; return how many rows each lost.

    While another sweeper works, this one ends, or waits if it is patient. What fails ends the sweep of
    its own table alone, and is raised after the others.
    """
    deleted = dict.fromkeys((*STATEMENTS, PARTITIONS), 0)
    failures: list[Exception] = []

    def swept(table: str, rows: int) -> None:
        deleted[table] += rows
        progress(table, rows)

    try:
        await _sweep_log(acquire, retention.event_retention_days, now, swept)
    except FAILURES as error:
        failures.append(error)
    for table in STATEMENTS:
        try:
            walk = _TableSweep(acquire, table, retention.retention_days, now)
            if not await walk.run(swept, is_patient=is_patient):
                break
        except FAILURES as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return deleted


@dataclass(slots=True)
class _TableSweep:
    """Goes through a table once, range by range, from any range round to it.

    A sweep may be broken off, by a range that fails or a process that ends: if each began with the
    first range, what lies behind would never be swept.
    """

    acquire: Acquire
    table: str
    days: int
    now: datetime | None
    step: int = 0
    """Blocks of a range."""

    async def run(self, swept: Progress, *, is_patient: bool) -> bool:
        """Sweep; return False where another sweeper works, unless this one is patient."""
        async with self.acquire() as connection:
            size = await connection.fetchrow(QUERIES["table_blocks"], self.table)
        assert size is not None
        # A range is taken of every partition: together as many blocks as a range of a plain table.
        self.step = max(RANGE_BLOCKS // size["parts"], 1)
        begin = self.step * random.randrange(-(-size["blocks"] // self.step) or 1)
        for first, end in ((begin, size["blocks"]), (0, begin)):
            next_first = first
            while next_first < end:
                started = time.perf_counter()
                next_first, rows = await self._sweep_range(next_first, end)
                if rows is not None:
                    swept(self.table, rows)
                    worked_seconds = time.perf_counter() - started
                    await asyncio.sleep(min(REST_RATIO * worked_seconds, REST_SECONDS_MAX))
                elif is_patient:
                    await asyncio.sleep(TURN_SECONDS)
                else:
                    return False
        return True

    async def _sweep_range(self, first: int, end: int) -> tuple[int, int | None]:
        """Return where the next range begins, and how many rows went; None beside another sweeper.

        A range that takes longer than a statement may is swept in halves.
        """
        while True:
            last = min(first + self.step, end)
            try:
                async with self.acquire() as connection:
                    row = await connection.fetchrow(
                        STATEMENTS[self.table], (first, 0), (last, 0), self.days, self.now
                    )
            except (ReadCancelled, asyncpg.QueryCanceledError):
                if self.step == 1:
                    raise
                self.step //= 2
                continue
            assert row is not None
            return (last, row["rows"]) if row["is_ours"] else (first, None)


async def _sweep_log(acquire: Acquire, days: int, now: datetime | None, swept: Progress) -> None:
    """Truncate partitions whose events are too old; begin the next one if it is time.

    One that is being read is left to the next sweep. Raises `Locked` if it is overdue.
    """
    async with acquire() as connection:
        await connection.execute(QUERIES["set_slots_back"], now)
        slots = await _sweepable_slots(connection, days, now)
    held: asyncpg.Record | None = None
    for slot in slots:
        async with acquire() as connection:
            try:
                is_truncated = await _truncate(connection, slot, days, now)
            except asyncpg.LockNotAvailableError:
                held = slot if slot["is_overdue"] else None
                break
        swept(PARTITIONS, int(is_truncated))
    async with acquire() as connection:
        await connection.execute(QUERIES["begin_slot"], days, now)
    if held:
        raise Locked(
            f"outbox_{held['slot']} should have been truncated more than {OVERDUE_SECONDS / 60:.0f}"
            " minutes ago: transactions that have read it stay open (pg_locks, pg_stat_activity)"
        )


async def _sweepable_slots(
    connection: Connection, days: int, now: datetime | None
) -> list[asyncpg.Record]:
    return await connection.fetch(QUERIES["sweepable_slots"], days, now, OVERDUE_SECONDS)


async def _truncate(
    connection: Connection, slot: asyncpg.Record, days: int, now: datetime | None
) -> bool:
    """Truncate a partition, unless another sweeper works."""
    async with connection.transaction():
        timeout = f"{TRUNCATION_LOCK_SECONDS * 1000:.0f}ms"
        if not await connection.fetchval(QUERIES["begin_truncation"], timeout):
            return False
        await connection.execute(slot["lock"])
        # Once more, now that nothing can be written to it. The start is kept with the snapshot of this
        # very statement: a reader that waits for what ends behind it has not had a chance to look.
        left = await _sweepable_slots(connection, days, now)
        running = {each["slot"]: each["running"] for each in left}.get(slot["slot"])
        if running is None:
            return False
        await connection.execute(QUERIES["empty_slot"], slot["slot"], running)
        await connection.execute(slot["truncate"])
    return True


class _Stopped(Exception):
    """The sweep is interrupted between two batches."""


class RetentionSweeper(Actor):
    """Runs `sweep`, which calls back with the table and the number of rows of every batch."""

    failures = (StoreError,)

    def __init__(
        self,
        sweep: Callable[[Callable[[str, int], None]], Awaitable[Mapping[str, int]]],
        observe: Observer,
    ) -> None:
        super().__init__("sweeper")
        self.pace = Pace(seconds=SWEEP_SECONDS, spread=0.5, rests_first=True)
        self._sweep = sweep
        self._observe = observe

    async def run_once(self) -> int:
        """Sweep, until the end or until stopped; return how many rows were deleted.

        Raises a `StoreError`.
        """
        deleted = 0

        def progress(table: str, rows: int) -> None:
            nonlocal deleted
            deleted += rows
            if rows:
                self._observe(RowsSwept(table, rows))
            if self.is_stopping:
                raise _Stopped

        with suppress(_Stopped):
            await self._sweep(progress)
        return deleted
