"""Sweeps as of days to come."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from stretto.postgres.retention import PARTITIONS, sweep
from stretto.postgres.settings import Retention
from support.database import commit_event

if TYPE_CHECKING:
    from uuid import UUID

    from support.database import Connection

RETENTION: Final = Retention(30, 7)
START: Final = datetime.now(UTC)


async def swept(connection: Connection, days: float) -> int:
    """Sweep so many days after the start; return how many partitions were truncated."""
    now = START + timedelta(days=days)
    deleted = await sweep(lambda: nullcontext(connection), RETENTION, now, lambda *_: None)
    return deleted[PARTITIONS]


async def truncated_log(connection: Connection) -> UUID:
    """Commit two events and have the first one truncated; return the second one's id."""
    await commit_event(connection)
    await swept(connection, 1.1)
    kept = await commit_event(connection)
    assert await swept(connection, 9) == 1
    return kept
