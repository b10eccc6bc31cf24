"""Verifies the guarantees over a whole database: what `stretto check` runs.

Each fault is one row of a contradiction between attempts and domain tables. All statements see one
snapshot, so a service may go on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.postgres.driver_connection import Connection

# As many as an operator can read; that there is one is what matters.
FAULTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Fault:
    """A group id that breaks a guarantee."""

    group_id: UUID
    fault: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was looked at, and the first faults of each kind."""

    attempts: int
    groups: int
    events: int
    faults: list[Fault]


async def check_database(connection: Connection, retention_days: int) -> CheckReport:
    """Look for violations of G1 to G5."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute(QUERIES["allow_scans"])
        counts = await connection.fetchrow(QUERIES["check_counts"])
        assert counts is not None
        rows = [
            *await connection.fetch(QUERIES["check_attempts"], FAULTS_MAX),
            *await connection.fetch(QUERIES["check_groups"], FAULTS_MAX, retention_days, None),
            *await connection.fetch(QUERIES["check_conversations"], FAULTS_MAX),
            *await connection.fetch(QUERIES["check_events"], FAULTS_MAX),
        ]
    return CheckReport(**counts, faults=[Fault(**row) for row in rows])
