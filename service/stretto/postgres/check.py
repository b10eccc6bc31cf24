"""Checks the guarantees over a whole database, for `stretto check` and at the end of test runs.

Each violation is a contradiction between attempts and domain tables. All statements see one
snapshot, so a service may keep running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.postgres.queries import QUERIES
from stretto.postgres.scans import scanning

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.postgres.driver_connection import Connection

# As many as an operator can read; the first one is what matters.
VIOLATIONS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Violation:
    """A group id that violates a guarantee, and how."""

    group_id: UUID
    what: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How much was checked, and the first violations of each kind."""

    attempts: int
    groups: int
    events: int
    violations: list[Violation]


async def check_database(connection: Connection, retention_days: int) -> CheckReport:
    """Look for violations of G1 to G5."""
    async with scanning(connection):
        counts = await connection.fetchrow(QUERIES["check_counts"])
        assert counts is not None
        rows = [
            *await connection.fetch(QUERIES["check_attempts"], VIOLATIONS_MAX),
            *await connection.fetch(QUERIES["check_groups"], VIOLATIONS_MAX, retention_days, None),
            *await connection.fetch(QUERIES["check_conversations"], VIOLATIONS_MAX),
            *await connection.fetch(QUERIES["check_members"], VIOLATIONS_MAX),
            *await connection.fetch(QUERIES["check_events"], VIOLATIONS_MAX),
            *await connection.fetch(QUERIES["check_changes"], VIOLATIONS_MAX, retention_days, None),
        ]
    return CheckReport(**counts, violations=[Violation(**row) for row in rows])
