"""Instances of older versions run beside the migration by which events carry traces."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from uuid_utils.compat import uuid7

from stretto.creation.ports import Write
from stretto.domain import NewGroup, UserId, group_id
from stretto.postgres.write_columns import attempt_columns, group_columns

if TYPE_CHECKING:
    from support.database import Connection

TEAM = NewGroup.parse(UserId("alice"), {"name": "Team"})


async def test_an_older_version_writes_to_the_new_schema(connection: Connection) -> None:
    """Its instances run until the last one is replaced."""
    ids = [group_id("alice", key) for key in ("one", "two")]
    writes = [
        Write(each, uuid4(), uuid7(), TEAM, TEAM.fingerprint(), is_claimed=False) for each in ids
    ]
    one, two = (attempt_columns([write]) for write in writes)
    *columns, _ = group_columns(writes[:1])
    await connection.fetchval(
        "CALL claim_and_lead_1($1, $2, $3, $4, '1s', $5, $6, $7, $8, $9, '1s', NULL)",
        *one,
        *columns,
    )
    *columns, _ = group_columns(writes[1:])
    await connection.fetchval("SELECT claim_attempts_1($1, $2, $3, $4, '1s')", *two)
    assert [writes[1].claim_token] == await connection.fetchval(
        "SELECT lead_groups_1($1, $2, $3, $4, $5, $6, $7, '1s')", two[0], two[3], *columns
    )
    rows = await connection.fetch("SELECT subject, trace_context FROM outbox ORDER BY position")
    assert [(each, None) for each in ids] == [tuple(row) for row in rows]
