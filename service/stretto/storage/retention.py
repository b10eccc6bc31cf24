"""Deletes what is past its retention, in batches short enough to disturb nobody.

Only settled attempts so far: a group outlives its attempt, and its key still finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.storage.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from stretto.storage.database import Connection

# A batch is one transaction of a few milliseconds.
BATCH_ROWS: Final = 1000


async def sweepable(connection: Connection, retention_days: int, now: datetime | None) -> int:
    """Return how many attempts a sweep would delete."""
    count: int = await connection.fetchval(QUERIES["sweepable_attempts"], retention_days, now)
    return count


async def sweep(
    connection: Connection,
    retention_days: int,
    now: datetime | None,
    progress: Callable[[int], None],
) -> int:
    """Delete batch after batch, telling `progress` how many each had; return how many in all."""
    deleted = 0
    while True:
        batch = await connection.fetch(QUERIES["sweep_attempts"], retention_days, BATCH_ROWS, now)
        deleted += len(batch)
        progress(len(batch))
        if len(batch) < BATCH_ROWS:
            return deleted
