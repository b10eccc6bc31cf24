"""What `stretto check` knows of groups that a host has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import stretto
from stretto.domain import IdempotencyKey
from stretto.postgres.check import check_database
from support.changed_groups import TEAM, changed

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.assembly.component import Component
    from support.database import Connection

RETENTION_DAYS = 30
LOST = "change without its event"


async def violations(connection: Connection) -> set[str]:
    """Return what the check finds."""
    report = await check_database(connection, RETENTION_DAYS)
    return {violation.what for violation in report.violations}


@pytest.fixture
async def group(component: Component, connection: Connection) -> UUID:
    """A group that was changed three times; the one who has created it has left."""
    group = (await component.creator.create(IdempotencyKey("k"), TEAM)).group.group_id
    await changed(connection, stretto.add_members, group, {"dave": "owner"})
    await changed(connection, stretto.remove_members, group, ["alice"])
    await changed(connection, stretto.rename_group, group, name="Crew")
    return group


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("expected", "violation"),
    [
        (LOST, "DELETE FROM outbox WHERE change -> 'revision' = '3'"),
        (LOST, "DELETE FROM outbox WHERE change -> 'revision' = '2'"),
        # As one written by hand may have it: what follows is checked all the same.
        (
            LOST,
            "UPDATE outbox SET change = change || '{\"revision\": \"x\"}' WHERE change -> 'revision' = '2'",
        ),
        (LOST, "DELETE FROM outbox WHERE change IS NULL"),
        (LOST, "DELETE FROM outbox"),
        ("event of a change that its group has not had", "UPDATE chat_group SET revision = 2"),
        (
            "group without its owner as a member",
            "UPDATE conversation_member SET role = 'admin' WHERE user_id = 'dave'",
        ),
        (
            "event names another owner than its group",
            "UPDATE outbox SET change = jsonb_set(change, '{owner_id}', '\"dave\"')",
        ),
        (
            "group with more than one event",
            """INSERT INTO outbox (slot, history, event_id, event_type, subject, recipients,
                                   conversation_id, group_name, change)
               SELECT slot, history, gen_random_uuid(), event_type, subject, recipients,
                      conversation_id, group_name, change
               FROM outbox WHERE change -> 'revision' = '2'""",
        ),
    ],
)
async def test_the_check_finds_what_is_wrong_with_a_changed_group(
    expected: str, violation: str, connection: Connection
) -> None:
    """The twin: neither other members nor a creator who has left is a violation."""
    assert set() == await violations(connection)
    await connection.execute(violation)
    assert {expected} == await violations(connection)


async def test_members_that_a_host_writes_itself_are_no_violation(
    group: UUID, connection: Connection
) -> None:
    """Its statements may be older than our functions."""
    await connection.execute(
        """UPDATE chat_group SET name = 'Gang';
           INSERT INTO conversation_member (conversation_id, user_id, role)
           SELECT conversation_id, 'zoe', 'member' FROM chat_group"""
    )
    assert set() == await violations(connection)
    for role in ("admin", "owner"):
        assert await changed(connection, stretto.set_role, group, "zoe", role)
    assert set() == await violations(connection)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("kept", [1, 2, 3])
async def test_events_that_were_truncated_are_not_missed(kept: int, connection: Connection) -> None:
    """Of a group that is older than what is kept, while its last changes are not."""
    await connection.execute(
        """UPDATE chat_group SET created_at = created_at - interval '20 days';
           DELETE FROM outbox WHERE coalesce((change ->> 'revision')::integer, 0) < """
        f"{kept}"
    )
    # Nothing was truncated: then they would be there.
    assert {LOST} == await violations(connection)
    await connection.execute(
        """UPDATE history_start SET (history, position) = (
               SELECT history, position FROM outbox ORDER BY history, position LIMIT 1)"""
    )
    assert set() == await violations(connection)


@pytest.mark.usefixtures("group")
async def test_a_change_past_its_retention_is_not_missed(connection: Connection) -> None:
    """Its event was delivered and swept."""
    await connection.execute(
        """DELETE FROM outbox;
           UPDATE chat_group SET changed_at = changed_at - interval '31 days'"""
    )
    assert set() == await violations(connection)


@pytest.mark.usefixtures("group")
async def test_a_session_that_reads_texts_otherwise_finds_the_same(connection: Connection) -> None:
    """A backslash in a pattern would be another one."""
    await connection.execute("SET standard_conforming_strings = off")
    assert set() == await violations(connection)
