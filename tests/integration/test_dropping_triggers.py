"""A trigger of the operator's that drops a row by returning NULL: no group is ever half made (G5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.flight import Answer
from stretto.creation.settings import CreatorSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import AttemptFailed, AttemptPending, DatabaseUnavailable
from stretto.observations import Observation, WriteFailed
from support.database import sound

if TYPE_CHECKING:
    from support.database import Connection

TABLES = ("chat_group", "conversation_member", "outbox")


async def drop_rows(connection: Connection, table: str, when: str = "BEFORE INSERT") -> None:
    """Have the rows of alice's group dropped, but all of those that show no user."""
    condition = {
        "attempt": "WHEN (NEW.owner_id = 'alice')",
        "chat_group": "WHEN (NEW.owner_id = 'alice')",
        "conversation_member": "WHEN (NEW.user_id = 'bob')",
        "outbox": "WHEN ('bob' = ANY (NEW.recipients))",
    }.get(table, "")
    await connection.execute(
        f"""CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RETURN NULL; END$$;
            CREATE TRIGGER drop_row {when} ON {table} FOR EACH ROW {condition}
            EXECUTE FUNCTION drop_row()"""
    )


async def create_both(database_url: str, events: list[Observation]) -> list[object]:
    """Ask for a group of alice's with bob, and for one of carol's, in one batch."""
    settings = ComponentSettings(creator=CreatorSettings(lease_seconds=0.1))
    async with open_component(database_url, settings=settings, observe=events.append) as component:
        return await asyncio.gather(
            *(
                component.creator.create(
                    IdempotencyKey("k"),
                    NewGroup.parse(UserId(owner), {"name": "Team", "members": members}),
                    wait_seconds=1,
                )
                for owner, members in (("alice", ["bob"]), ("carol", ["dave"]))
            ),
            return_exceptions=True,
        )


@pytest.mark.parametrize("table", TABLES)
async def test_a_dropped_row_drops_the_group_and_is_named(
    table: str, database_url: str, connection: Connection
) -> None:
    """Its request is answered 503 and stays pending; the neighbour is created."""
    await drop_rows(connection, table)
    events: list[Observation] = []
    alice, carol = await create_both(database_url, events)
    assert isinstance(alice, DatabaseUnavailable)
    assert isinstance(carol, Answer)
    errors = {str(each.error) for each in events if isinstance(each, WriteFailed)}
    assert {
        "a trigger has dropped a row of stretto's tables: it must return NEW (SQLSTATE 39P01)"
    } == errors
    for each in ("conversation", "chat_group", "outbox"):
        assert 1 == await connection.fetchval(f"SELECT count(*) FROM {each}")
    assert await sound(connection)
    await connection.execute(f"DROP TRIGGER drop_row ON {table}")
    assert all(isinstance(each, Answer) for each in await create_both(database_url, []))


async def test_a_dropped_conversation_is_refused_by_its_groups(
    database_url: str, connection: Connection
) -> None:
    """By a foreign key, which the failure names."""
    await drop_rows(connection, "conversation")
    for refused in await create_both(database_url, []):
        assert isinstance(refused, AttemptFailed)
        assert "chat_group_conversation_id_fkey" in refused.failure.detail
    assert await sound(connection)


async def test_a_dropped_settlement_is_named_too(database_url: str, connection: Connection) -> None:
    """The attempt stays pending."""
    await drop_rows(connection, "attempt", "BEFORE UPDATE")
    events: list[Observation] = []
    alice, carol = await create_both(database_url, events)
    assert isinstance(alice, DatabaseUnavailable)
    assert isinstance(carol, Answer)
    assert any("39P01" in str(each.error) for each in events if isinstance(each, WriteFailed))


async def test_a_dropped_attempt_ends_as_pending(database_url: str, connection: Connection) -> None:
    """It looks like one that is swept again and again: the turns of a flight are bounded."""
    await drop_rows(connection, "attempt")
    alice, carol = await create_both(database_url, [])
    assert isinstance(alice, AttemptPending)
    assert isinstance(carol, Answer)
