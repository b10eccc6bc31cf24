"""What only a real database can show of the stores; the rest is in `tests/contract`."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
import pytest_asyncio

from stretto.errors import Failure
from stretto.postgres import writes
from stretto.postgres.queries import QUERIES
from stretto.postgres.write_columns import attempt_columns, group_columns
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import InDoubt, Locked, Misconfigured, OutcomeUnknown, Refused
from support.both_stores import write
from support.database import WAL_END, is_durable, wal_flushes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from stretto.domain import CreatedGroup, NewGroup
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection


@pytest_asyncio.fixture
async def store(database: Database) -> AsyncIterator[PostgresWriteStore]:
    """A writer's store."""
    store = PostgresWriteStore(database, on_lost=lambda: None)
    yield store
    await store.close()


async def test_a_connection_that_breaks_during_a_write_leaves_its_outcome_unknown(
    database: Database, connection: Connection
) -> None:
    """The store says so, reports that what was learnt counts no more, and connects again."""
    lost: list[str] = []
    store = PostgresWriteStore(database, on_lost=lambda: lost.append("lost"))
    ours = write("k")
    await store.claim([ours])
    await connection.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END$$;"
        "CREATE TRIGGER die BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION die()"
    )
    with pytest.raises(OutcomeUnknown):
        await store.lead([ours])
    assert ["lost"] == lost
    await connection.execute("DROP TRIGGER die ON chat_group")
    assert {ours.claim_token} == await store.lead([ours])
    await store.close()


async def doubt(connection: Connection, state: str) -> None:
    """Have the database raise that state for every group."""
    await connection.execute(
        f"""CREATE FUNCTION doubt() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RAISE EXCEPTION 'doubt' USING ERRCODE = '{state}'; END$$;
            CREATE TRIGGER doubt BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION doubt()"""
    )


@pytest.mark.parametrize("state", ["XX000", "58030", "08P01"])
async def test_a_connection_that_leads_to_the_same_backend_is_kept(
    state: str, database: Database, connection: Connection
) -> None:
    """Whatever the server has said on it: nothing of ours is left under way there."""
    lost: list[str] = []
    store = PostgresWriteStore(database, on_lost=lambda: lost.append("lost"))
    ours = write("k")
    await store.claim([ours])
    kept = store._connection
    await doubt(connection, state)
    with pytest.raises(InDoubt):
        await store.lead([ours])
    assert kept is store._connection
    assert [] == lost
    await connection.execute("DROP TRIGGER doubt ON chat_group")
    assert {ours.claim_token} == await store.lead([ours])
    await store.close()


async def test_a_claim_waits_for_another_only_briefly(
    store: PostgresWriteStore, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a session that would wait for ever; it is replaced, were it not kept here."""
    monkeypatch.setattr(writes, "is_changed", AsyncMock(return_value=False))
    ours = write("k")
    await store.claim([])
    assert store._connection is not None
    await store._connection.execute("SET lock_timeout = 0")
    async with connection.transaction():
        await connection.execute(
            """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
               VALUES ($1, 'alice', $2, $3)""",
            ours.group_id,
            ours.fingerprint,
            ours.claim_token,
        )
        with pytest.raises(Locked):
            await store.claim([ours])
    assert "0" == await store._connection.fetchval("SHOW lock_timeout")


async def test_a_table_that_is_locked_is_a_passing_failure(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """The lock time-out comes before any client's patience ends."""
    ours = write("k")
    await store.claim([ours])
    async with connection.transaction():
        await connection.execute("LOCK TABLE conversation IN SHARE MODE")
        with pytest.raises(Locked):
            await store.lead([ours])
        # It is not the attempt's row.
        assert {ours.claim_token} == await store.unlocked([ours])
    assert {ours.claim_token} == await store.lead([ours])


async def test_a_lock_on_any_table_that_a_lead_needs_is_recognized(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """Partitions included, also an operator's. Other locks are of no table."""
    await connection.execute(
        """CREATE TABLE member_part () INHERITS (conversation_member);
           CREATE TABLE member_part_of_part () INHERITS (member_part)"""
    )
    await store.claim([])
    needed = await _needed_by_a_lead(connection)
    assert {"attempt", "outbox", "outbox_0", "outbox_history", "outbox_slot"} < needed
    for table in {*needed, "outbox_7", "member_part", "member_part_of_part"}:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            assert await store.are_tables_locked(), table
    async with connection.transaction():
        await connection.execute("LOCK TABLE outbox_reader IN ACCESS EXCLUSIVE MODE")
        await connection.execute("LOCK TABLE attempt, outbox IN ROW EXCLUSIVE MODE")
        await connection.execute("UPDATE outbox_slot SET slot = slot")
        assert not await store.are_tables_locked()


async def _needed_by_a_lead(connection: Connection) -> set[str]:
    """Return the tables that a lead locks, read from the server after one that is rolled back."""
    ours, transaction = write("needs"), connection.transaction()
    await transaction.start()
    await connection.fetchval(QUERIES["claim"], *attempt_columns([ours]), "1s")
    tokens = [ours.claim_token]
    await connection.fetchval(
        QUERIES["lead"], [ours.group_id], tokens, *group_columns([ours]), "1s"
    )
    rows = await connection.fetch(
        """SELECT relation::regclass::text AS name FROM pg_locks
           JOIN pg_class ON pg_class.oid = relation
           WHERE pid = pg_backend_pid() AND relkind IN ('r', 'p')
             AND relnamespace = (SELECT relnamespace FROM pg_class
                                 WHERE oid = 'attempt'::regclass)"""
    )
    await transaction.rollback()
    return {row["name"] for row in rows}


async def test_in_haste_a_lead_gives_up_soon(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """While other requests wait, a lock is waited for no longer than they can bear."""
    await connection.execute(
        """CREATE TABLE seen (lock_timeout text);
           CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN INSERT INTO seen VALUES (current_setting('lock_timeout')); RETURN NEW; END$$;
           CREATE TRIGGER see BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION see()"""
    )
    for key, is_hasty in (("a", True), ("b", False)):
        ours = write(key)
        await store.claim([ours])
        await store.lead([ours], is_hasty=is_hasty)
    seen = await connection.fetch("SELECT lock_timeout FROM seen")
    assert ["220ms", "1s"] == [row["lock_timeout"] for row in seen]


async def test_bad_data_is_refused_with_the_constraints_name(store: PostgresWriteStore) -> None:
    """What a parser would have let through is the request's own error, with no row data in it."""
    ours = write("k")
    await store.claim([ours])
    new_group = copy(ours.new_group)
    # As a bug could leave it: whatever is made in the usual way is read first.
    object.__setattr__(new_group, "name", "n" * 65)
    poisoned = replace(ours, new_group=new_group)
    with pytest.raises(Refused) as refused:
        await store.lead([poisoned])
    expected = "The database refused the group (chat_group_name_check)."
    assert Failure("refused_by_database", expected) == refused.value.failure


NEW_COLUMN = """
    ALTER TABLE chat_group ADD tenant text NOT NULL DEFAULT 'x';
    ALTER TABLE chat_group ALTER tenant DROP DEFAULT"""
NO_PARTITION = """
    CREATE TABLE host_rows (name text) PARTITION BY LIST (name);
    CREATE FUNCTION copy_name() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO host_rows VALUES (NEW.name); RETURN NEW; END$$;
    CREATE TRIGGER copy_name AFTER INSERT ON chat_group
    FOR EACH ROW EXECUTE FUNCTION copy_name()"""


@pytest.mark.parametrize(
    ("expected", "damage"),
    [("column tenant of chat_group", NEW_COLUMN), ("table host_rows", NO_PARTITION)],
)
async def test_a_row_without_a_place_is_no_requests_failure(
    expected: str, damage: str, store: PostgresWriteStore, connection: Connection
) -> None:
    """A column that has become NOT NULL, or a detached partition: an operator mends both."""
    ours = write("k")
    await store.claim([ours])
    await connection.execute(damage)
    with pytest.raises(Misconfigured, match=expected):
        await store.lead([ours])


async def test_a_missing_table_is_no_requests_failure(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """An operator's mistake must not fail keys for good."""
    ours = write("k")
    await store.claim([ours])
    await connection.execute("ALTER TABLE outbox RENAME TO gone")
    with pytest.raises(Misconfigured):
        await store.lead([ours])


async def test_a_hooks_rows_are_committed_with_the_group(
    database: Database, connection: Connection
) -> None:
    """It is called inside the transaction, for just the groups that were led."""
    await connection.execute("CREATE TABLE channel (group_id uuid, name text)")

    async def add_channels(
        inner: InnerConnection, created: Sequence[tuple[CreatedGroup, NewGroup]]
    ) -> None:
        for group, new_group in created:
            await inner.execute(
                "INSERT INTO channel VALUES ($1, $2)", group.group_id, new_group.name
            )

    store = PostgresWriteStore(database, on_lost=lambda: None, on_create=add_channels)
    ours, unclaimed = write("a"), write("b")
    await store.claim([ours])
    assert {ours.claim_token} == await store.lead([ours, unclaimed])
    rows = await connection.fetch("SELECT * FROM channel")
    assert [(ours.group_id, "Team")] == [tuple(row) for row in rows]
    await store.close()


async def test_tokens_from_the_driver_equal_our_own(store: PostgresWriteStore) -> None:
    """The driver's UUID type is its own; comparing must not depend on that."""
    ours = write("k")
    (token,) = await store.claim([ours])
    assert type(token) is not UUID
    assert ours.claim_token == token


async def test_a_failure_waits_for_the_disk(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """It is durable before it is reported (G4)."""
    await store.claim([write("warm")])
    # Without a wait, the server's own WAL writer would be faster now and then.
    for number in range(10):
        ours = write(f"k{number}")
        await store.claim([ours])
        wal_end = await connection.fetchval(WAL_END)
        assert await store.fail(ours, Failure("full", "No more groups."))
        assert await is_durable(connection, wal_end)


async def test_only_the_lead_waits_for_the_disk(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """A claim flushes nothing, a lead flushes the WAL once, whatever the size of its batch."""
    rounds, claims, leads = 10, 0, 0
    await store.claim([write("warm")])
    assert store._connection is not None
    for number in range(rounds):
        batch = [write(f"{number}-{key}") for key in range(32)]
        before = await wal_flushes(store._connection)
        assert 32 == len(await store.claim(batch))
        between = await wal_flushes(store._connection)
        wal_end = await connection.fetchval(WAL_END)
        assert 32 == len(await store.lead(batch))
        assert await is_durable(connection, wal_end)
        claims += between - before
        leads += await wal_flushes(store._connection) - between
    assert claims < rounds / 2
    assert leads < 1.5 * rounds
