"""Deletes what is past its retention, in batches short enough to disturb nobody.

Three tables are swept: settled attempts (a group outlives its attempt, and its key still finds it),
delivered events, and the inbox. None has an index on its age, since that would make every write
dearer: a sweep goes through each table once, block range by block range. Each range is a short
transaction under a lock that ends with it, so that one sweeper works at a time, PgBouncer or not.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from stretto.postgres.driver_connection import Connection

    Lend: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]
    Progress: TypeAlias = Callable[[str, int], object]

# A few thousand rows at most, and a few milliseconds.
RANGE_BLOCKS: Final = 64
# For one who waits while another sweeper has its turn, which is about as long as one range.
TURN_SECONDS: Final = 0.05
# A tenth of one core's time deletes faster than any service creates, and leaves the rest to it. A
# range that took long, on a busy disk, is followed by a longer rest, within bounds.
REST_RATIO: Final = 9.0
REST_SECONDS_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long rows of each swept table are kept."""

    days: int = 30
    """Attempts since they were settled, messages since a consumer has dealt with them."""
    event_days: int = 7
    """Events since they were delivered: so far back can a session resume."""


async def sweepable(
    connection: Connection, retention: Retention, now: datetime | None
) -> dict[str, int]:
    """Return how many rows of each table a sweep would delete."""
    row = await connection.fetchrow(
        QUERIES["sweepable_rows"], retention.days, retention.event_days, now
    )
    assert row is not None
    return dict(row)


async def sweep(
    lend: Lend,
    retention: Retention,
    now: datetime | None,
    progress: Progress,
    *,
    is_patient: bool = False,
) -> dict[str, int]:
    """Sweep every table once, telling `progress` of each batch; return how many rows each lost.

    Where another sweeper is at work this one ends, or waits for its turn if it is patient.
    """
    deleted = {"attempt": 0, "outbox": 0, "inbox": 0}
    for table, statement, days in (
        ("attempt", QUERIES["sweep_attempts"], retention.days),
        ("outbox", QUERIES["sweep_events"], retention.event_days),
        ("inbox", QUERIES["sweep_inbox"], retention.days),
    ):
        async with lend() as connection:
            size = await connection.fetchrow(QUERIES["table_blocks"], table)
        assert size is not None
        # A range is one of every partition: together they have as many blocks as one of a plain table.
        step = max(RANGE_BLOCKS // size["parts"], 1)
        blocks, first = size["blocks"], 0
        while first < blocks:
            started = time.perf_counter()
            async with lend() as connection:
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
