"""The trails of attempts in the database, and how this process is named there."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from stretto.creation.trail import TrailEntry
from stretto.postgres.connections import Lane
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.observations import AttemptStrayed
    from stretto.postgres.connections import Database


class PostgresTrailStore:
    """Adds to trails and reads them; each statement raises `Unreachable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, strays: Sequence[tuple[AttemptStrayed, float]]) -> None:
        """Add what happened so many seconds ago, in one statement."""
        async with self._database.upkeep() as connection:
            await connection.execute(
                QUERIES["append_trail"],
                [stray.group_id for stray, _ in strays],
                [seconds_ago for _, seconds_ago in strays],
                [stray.what for stray, _ in strays],
                instance(),
                [stray.claim_token for stray, _ in strays],
                [stray.code for stray, _ in strays],
                [stray.trace_id for stray, _ in strays],
            )

    async def read(self, group_id: UUID) -> list[TrailEntry]:
        """Return the trail of an attempt, oldest first."""
        async with self._database.connection(Lane.LOOKS) as connection:
            rows = await connection.fetch(QUERIES["read_trail"], group_id)
        return [TrailEntry(**row) for row in rows]


def instance() -> str:
    """Return how trails name this process: its host, and its number there."""
    return f"{socket.gethostname()}/{os.getpid()}"
