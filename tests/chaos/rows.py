"""What the database holds in the end, and what `stretto check` finds in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.postgres.check import Violation, check_database

if TYPE_CHECKING:
    from support.database import Connection

RETENTION_DAYS: Final = 30


@dataclass(slots=True)
class GroupRow:
    """A row of chat_group."""

    group_id: UUID
    owner: str
    name: str
    description: str | None
    conversation_id: UUID


@dataclass(slots=True)
class EventRow:
    """A row of outbox."""

    event_id: UUID
    subject: UUID
    recipients: set[str]
    group_name: str
    event_type: str = "group.created"


@dataclass(slots=True)
class AttemptRow:
    """A row of attempt."""

    group_id: UUID
    status: str


@dataclass(slots=True)
class Rows:
    """All rows, as one snapshot saw them."""

    groups: list[GroupRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    members: dict[UUID, dict[str, str]] = field(default_factory=dict)
    """Roles by user, by conversation."""
    deleted: set[UUID] = field(default_factory=set)
    """Groups of which a tombstone is left."""
    violations: list[Violation] = field(default_factory=list)
    """Rows that contradict each other."""


async def read_rows(connection: Connection, retention_days: int = RETENTION_DAYS) -> Rows:
    """Read the whole database."""
    rows = Rows()
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for row in await connection.fetch(
            "SELECT group_id, owner_id, name, description, conversation_id FROM chat_group"
            " WHERE conversation_id IS NOT NULL"
        ):
            rows.groups.append(
                GroupRow(_id(row[0]), row[1], row[2], row[3], _id(row["conversation_id"]))
            )
        for row in await connection.fetch(
            "SELECT event_id, subject, recipients, group_name,"
            " coalesce(event_type, 'group.created') FROM outbox"
        ):
            rows.events.append(EventRow(_id(row[0]), _id(row[1]), set(row[2]), row[3], row[4]))
        rows.deleted = {
            _id(row[0])
            for row in await connection.fetch(
                "SELECT group_id FROM chat_group WHERE deleted_at IS NOT NULL"
            )
        }
        for row in await connection.fetch("SELECT group_id, status FROM attempt"):
            rows.attempts.append(AttemptRow(_id(row[0]), row[1]))
        for row in await connection.fetch(
            "SELECT conversation_id, user_id, role FROM conversation_member"
        ):
            rows.members.setdefault(_id(row[0]), {})[row["user_id"]] = row["role"]
        rows.violations = (await check_database(connection, retention_days)).violations
    return rows


def _id(value: UUID) -> UUID:
    """Return the standard library's UUID, which compares with its own kind."""
    return UUID(bytes=value.bytes)
