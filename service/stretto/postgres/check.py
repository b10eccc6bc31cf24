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

# Of each kind: some 30 MB of memory. An operator saves the rows of each one.
VIOLATIONS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Violation:
    """A group id that violates a guarantee, and how."""

    group_id: UUID
    what: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How much was checked, and the violations, of each kind so many at most."""

    attempts: int
    groups: int
    events: int
    violations: list[Violation]
    cut_kinds: list[str]
    """The kinds of which there are more."""


async def check_database(connection: Connection, retention_days: int) -> CheckReport:
    """Look for violations of G1 to G5."""
    async with scanning(connection):
        counts = await connection.fetchrow(QUERIES["check_counts"])
        assert counts is not None
        # One more than is listed says whether there are more.
        limit = VIOLATIONS_MAX + 1
        found = {
            "attempts": await connection.fetch(QUERIES["check_attempts"], limit),
            "groups": await connection.fetch(QUERIES["check_groups"], limit, retention_days, None),
            "conversations": await connection.fetch(QUERIES["check_conversations"], limit),
            "members": await connection.fetch(QUERIES["check_members"], limit),
            "events": await connection.fetch(QUERIES["check_events"], limit),
            "changes": await connection.fetch(
                QUERIES["check_changes"], limit, retention_days, None
            ),
        }
    return CheckReport(
        **counts,
        violations=[Violation(**row) for rows in found.values() for row in rows[:VIOLATIONS_MAX]],
        cut_kinds=[kind for kind, rows in found.items() if len(rows) > VIOLATIONS_MAX],
    )
