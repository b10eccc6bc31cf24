"""Instances of older versions write to the schema by which events carry traces, kinds and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from uuid_utils.compat import uuid7

from stretto.creation.ports import Write
from stretto.domain import NewGroup, UserId, group_id
from stretto.postgres.write_columns import attempt_columns, group_columns

if TYPE_CHECKING:
    from support.database import Connection

TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})


# What each of them hands over: conversations, names, descriptions, recipients, ids of events, traces.
OLDER = {
    "first": (5, "claim_and_lead_1", "lead_groups_1"),
    "with traces": (6, "claim_and_lead_2", "lead_groups_2"),
}


@pytest.mark.parametrize(("columns_count", "both", "lead"), OLDER.values(), ids=OLDER)
async def test_an_older_version_writes_to_the_new_schema(
    columns_count: int, both: str, lead: str, connection: Connection
) -> None:
    """Its instances run until the last one is replaced."""
    ids = [group_id("alice", key) for key in ("one", "two")]
    writes = [
        Write(each, uuid4(), uuid7(), TEAM, TEAM.fingerprint(), is_claimed=False) for each in ids
    ]
    one, two = (attempt_columns([write]) for write in writes)
    numbers = ", ".join(f"${number}" for number in range(5, 5 + columns_count))
    await connection.fetchval(
        f"CALL {both}($1, $2, $3, $4, '1s', {numbers}, '1s', NULL)",
        *one,
        *group_columns(writes[:1])[:columns_count],
    )
    columns = group_columns(writes[1:])[:columns_count]
    await connection.fetchval("SELECT claim_attempts_1($1, $2, $3, $4, '1s')", *two)
    numbers = ", ".join(f"${number}" for number in range(1, 3 + columns_count))
    assert [writes[1].claim_token] == await connection.fetchval(
        f"SELECT {lead}({numbers}, '1s')", two[0], two[3], *columns
    )
    rows = await connection.fetch(
        "SELECT subject, group_kind, metadata, trace_context FROM outbox ORDER BY position"
    )
    assert [(each, None, None, None) for each in ids] == [tuple(row) for row in rows]
    members = await connection.fetch("SELECT user_id, role FROM conversation_member")
    expected = [("alice", "owner"), ("bob", "member")]
    assert sorted(expected * 2) == sorted(map(tuple, members))
