"""The trails of attempts in the database, and how this process is named there."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from stretto.creation.trail import TrailEntry
from stretto.postgres.lanes import Lane
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.observations import AttemptStrayed
    from stretto.postgres.connections import Database


class PostgresTrailStore:
    """Adds to trails and reads them; each statement raises a `StoreError`."""

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
        (trail,) = await self.newest([group_id], None)
        return trail

    async def newest(
        self, wanted: Sequence[UUID], entries_max: int | None
    ) -> list[list[TrailEntry]]:
        """Return the newest entries of many trails, oldest first, in one query; without a limit all."""
        async with self._database.connection(Lane.TRAILS) as connection:
            rows = await connection.fetch(QUERIES["read_trails"], wanted, entries_max)
        trails: list[list[TrailEntry]] = [[] for _ in wanted]
        for number, *entry in rows:
            trails[number - 1].append(TrailEntry(*entry))
        return trails


def instance() -> str:
    """Return how trails name this process: its host, and its number there."""
    return f"{socket.gethostname()}/{os.getpid()}"
