"""Members belong to a conversation that exists, and go with it: by triggers, not by a foreign key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest

from stretto.postgres.migrate import migrate
from support.database import connect, lock_waiters

if TYPE_CHECKING:
    from support.database import Connection

ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))
ADD = """INSERT INTO conversation_member (conversation_id, user_id, role)
         SELECT id, user_id, 'member' FROM unnest($1::uuid[], $2::text[]) AS added (id, user_id)"""
GROUP = """INSERT INTO chat_group (group_id, owner_id, name, fingerprint, conversation_id)
           VALUES ($1, 'alice', 'Team', '0123456789abcdef', $1)"""
ALL = "SELECT conversation_id, user_id FROM conversation_member ORDER BY 1, 2"
HASHED = """ALTER TABLE conversation_member RENAME TO plain;
            CREATE TABLE conversation_member (LIKE plain INCLUDING ALL)
                PARTITION BY HASH (conversation_id);
            CREATE TABLE member_0 PARTITION OF conversation_member
                FOR VALUES WITH (MODULUS 2, REMAINDER 0);
            CREATE TABLE member_1 PARTITION OF conversation_member
                FOR VALUES WITH (MODULUS 2, REMAINDER 1);
            DROP TABLE plain"""


async def converse(connection: Connection, *ids: UUID) -> None:
    """Insert conversations."""
    await connection.execute("INSERT INTO conversation SELECT unnest($1::uuid[])", ids)


async def members(connection: Connection) -> list[tuple[UUID, str]]:
    """Return all members."""
    return [tuple(row) for row in await connection.fetch(ALL)]


async def into_partitions(connection: Connection) -> None:
    """Put the members into hash partitions, with the triggers of the table, as an operator may."""
    triggers = await connection.fetch(
        """SELECT pg_get_triggerdef(oid) FROM pg_trigger
           WHERE tgrelid = 'conversation_member'::regclass"""
    )
    await connection.execute(HASHED)
    for (trigger,) in triggers:
        await connection.execute(trigger)


@pytest.mark.parametrize("is_partitioned", [False, True])
async def test_a_statement_with_one_member_of_no_conversation_adds_none(
    is_partitioned: bool, connection: Connection
) -> None:
    """The error names the conversation; without that member the others are added."""
    if is_partitioned:
        await into_partitions(connection)
    await converse(connection, ONE, TWO)
    ids, users = [ONE, TWO, THREE, ONE], ["alice", "alice", "alice", "bob"]
    with pytest.raises(asyncpg.ForeignKeyViolationError, match=f"{THREE} does not exist") as error:
        await connection.execute(ADD, ids, users)
    assert "conversation_member_has_conversation" == error.value.constraint_name
    assert [] == await members(connection)
    assert "INSERT 0 3" == await connection.execute(ADD, [ONE, TWO, ONE], ["alice", "alice", "bob"])


@pytest.mark.parametrize("is_partitioned", [False, True])
async def test_deleted_conversations_take_their_own_members_along(
    is_partitioned: bool, connection: Connection
) -> None:
    """Those of others stay."""
    if is_partitioned:
        await into_partitions(connection)
    await converse(connection, ONE, TWO, THREE)
    await connection.execute(ADD, [ONE, ONE, TWO, THREE], ["alice", "bob", "alice", "bob"])
    await connection.execute("DELETE FROM conversation WHERE conversation_id <> $1", TWO)
    assert [(TWO, "alice")] == await members(connection)


async def test_truncated_conversations_take_all_members_along(connection: Connection) -> None:
    """As TRUNCATE … CASCADE does by foreign keys."""
    await converse(connection, ONE)
    await connection.execute(ADD, [ONE], ["alice"])
    await connection.execute("TRUNCATE conversation CASCADE")
    assert [] == await members(connection)


@pytest.mark.parametrize("theirs", ["public", "pg_temp"])
async def test_the_triggers_mean_their_own_schema(theirs: str, connection: Connection) -> None:
    """Whoever writes, such as a host whose own tables have these names, or pg_restore."""
    await converse(connection, ONE)
    for table in ("conversation", "conversation_member"):
        await connection.execute(f"CREATE TABLE {theirs}.{table} (LIKE stretto.{table})")
    await connection.execute("SET search_path = public")
    await connection.execute(
        f"INSERT INTO {theirs}.conversation VALUES ($1, 'group', 0, now())", TWO
    )
    ours = ADD.replace("INTO ", "INTO stretto.")
    with pytest.raises(asyncpg.ForeignKeyViolationError, match=str(TWO)):
        await connection.execute(ours, [TWO], ["alice"])
    await connection.execute(ours, [ONE], ["alice"])
    await connection.execute(
        f"INSERT INTO {theirs}.conversation_member VALUES ($1, 'alice', 'member', now())", ONE
    )
    await connection.execute("DELETE FROM stretto.conversation")
    count = "SELECT count(*) FROM {}.conversation_member"
    assert 0 == await connection.fetchval(count.format("stretto"))
    assert 1 == await connection.fetchval(count.format(theirs))


async def test_the_triggers_follow_a_schema_that_was_renamed(connection: Connection) -> None:
    """Whoever has its old name by now, such as another deployment."""
    await connection.execute("ALTER SCHEMA stretto RENAME TO chat; SET search_path = chat")
    await migrate(connection, "stretto")
    await connection.execute("SET search_path = chat")
    await converse(connection, ONE, TWO)
    await connection.execute(ADD, [ONE, TWO], ["alice", "bob"])
    with pytest.raises(asyncpg.ForeignKeyViolationError, match=str(THREE)):
        await connection.execute(ADD, [THREE], ["alice"])
    await connection.execute("DELETE FROM conversation WHERE conversation_id = $1", ONE)
    assert [(TWO, "bob")] == await members(connection)


async def test_the_triggers_leave_the_search_path_alone(connection: Connection) -> None:
    """What comes after them in the transaction means what it did."""
    await connection.execute("SET search_path = stretto, public")
    async with connection.transaction():
        await converse(connection, ONE)
        await connection.execute(ADD, [ONE], ["alice"])
        assert "stretto, public" == await connection.fetchval("SHOW search_path")
        await connection.execute("DELETE FROM conversation")
        assert "stretto, public" == await connection.fetchval("SHOW search_path")


@pytest.mark.parametrize("table", ["conversation", "conversation_member"])
async def test_a_conversation_keeps_its_id_and_its_members(
    table: str, connection: Connection
) -> None:
    """An update that changes neither goes through."""
    await converse(connection, ONE, TWO)
    await connection.execute(ADD, [ONE], ["alice"])
    change = f"UPDATE {table} SET conversation_id = $1 WHERE conversation_id = $2"
    with pytest.raises(asyncpg.RestrictViolationError, match=f"{ONE} keeps its id"):
        await connection.execute(change, THREE if table == "conversation" else TWO, ONE)
    assert "UPDATE 1" == await connection.execute(change, ONE, ONE)
    assert [(ONE, "alice")] == await members(connection)


async def test_members_and_conversations_are_found_by_index(connection: Connection) -> None:
    """In any session, such as a host's: a plan for small tables would scan them ever after."""

    async def scans(table: str) -> int:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        count = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = $1"
        return int(await connection.fetchval(count, table))

    await converse(connection, ONE, TWO)
    await connection.execute(ADD, [ONE], ["carol"])
    # To be known as small.
    await connection.execute("ANALYZE conversation, conversation_member")
    # Each statement reads by itself only the other table, if any.
    before = await scans("conversation")
    await connection.execute(ADD, [ONE, TWO], ["alice", "bob"])
    assert before == await scans("conversation")
    before = await scans("conversation_member")
    await connection.execute("DELETE FROM conversation WHERE conversation_id = $1", ONE)
    assert before == await scans("conversation_member")


@pytest.mark.parametrize("is_locked", [True, False])
async def test_a_deletion_waits_for_who_adds_members_under_the_groups_lock(
    is_locked: bool, connection: Connection, database_url: str
) -> None:
    """As all changes of a group do. Twin: a host's own INSERT without it leaves a member behind.

    A foreign key would lock the conversation; `stretto check` finds such members.
    """
    await converse(connection, ONE)
    await connection.execute(GROUP, ONE)
    deleter = await connect(database_url)
    async with connection.transaction():
        if is_locked:
            await connection.execute("SELECT FROM chat_group FOR UPDATE")
        await connection.execute(ADD, [ONE], ["alice"])
        deletion = asyncio.create_task(deleter.execute("DELETE FROM conversation"))
        if is_locked:
            await lock_waiters(connection, 1)
        else:
            await deletion
    assert "DELETE 1" == await deletion
    await deleter.close()
    assert ([] if is_locked else [(ONE, "alice")]) == await members(connection)
