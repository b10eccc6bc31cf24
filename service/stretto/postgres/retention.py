"""RetentionSweeper deletes what is past its retention, in batches short enough to delay no request.

Three tables are swept: settled attempts (a group outlives its attempt, and its key still finds it),
published events, and the inbox. None has an index on its age, which would make every write more
expensive: a sweep reads each table once, block range by block range. Each range is a short
transaction under a lock that ends with it, so that of all replicas' sweepers one works at a time,
also behind PgBouncer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from stretto.errors import StoreError
from stretto.observations import RowsSwept
from stretto.postgres.queries import QUERIES
from stretto.runtime.actor import Actor, Pace
from stretto.setting import setting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from stretto.observations import Observer
    from stretto.postgres.driver_connection import Connection

    Acquire: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]
    Progress: TypeAlias = Callable[[str, int], object]

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


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long rows of each swept table are kept."""

    retention_days: int = setting(
        30, "how long settled attempts and the inbox are kept", ge=1, le=3650
    )
    """Attempts since they were settled, messages since a consumer has processed them."""
    event_retention_days: int = setting(7, "how long published events are kept", ge=1, le=3650)
    """Events since they were published: a session can resume from no older position."""


async def sweepable(
    connection: Connection, retention: Retention, now: datetime | None
) -> dict[str, int]:
    """Return how many rows of each table a sweep would delete."""
    row = await connection.fetchrow(
        QUERIES["sweepable_rows"], retention.retention_days, retention.event_retention_days, now
    )
    assert row is not None
    return dict(row)


async def sweep(
    acquire: Acquire,
    retention: Retention,
    now: datetime | None,
    progress: Progress,
    *,
    is_patient: bool = False,
) -> dict[str, int]:
    """Sweep every table once, calling `progress` for each batch; return how many rows each lost.

    While another sweeper works, this one ends, or waits if it is patient.
    """
    deleted = {"attempt": 0, "outbox": 0, "inbox": 0}
    for table, statement, days in (
        ("attempt", QUERIES["sweep_attempts"], retention.retention_days),
        ("outbox", QUERIES["sweep_events"], retention.event_retention_days),
        ("inbox", QUERIES["sweep_inbox"], retention.retention_days),
    ):
        async with acquire() as connection:
            size = await connection.fetchrow(QUERIES["table_blocks"], table)
        assert size is not None
        # A range is taken of every partition: together as many blocks as a range of a plain table.
        step = max(RANGE_BLOCKS // size["parts"], 1)
        blocks, first = size["blocks"], 0
        while first < blocks:
            started = time.perf_counter()
            async with acquire() as connection:
                places = (first, 0), (first + step, 0)
                row = await connection.fetchrow(statement, *places, days, now)
            assert row is not None
            if row["is_ours"]:
                first += step
                deleted[table] += row["rows"]
                progress(table, row["rows"])
                worked_seconds = time.perf_counter() - started
                await asyncio.sleep(min(REST_RATIO * worked_seconds, REST_SECONDS_MAX))
            elif is_patient:
                await asyncio.sleep(TURN_SECONDS)
            else:
                return deleted
    return deleted


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
