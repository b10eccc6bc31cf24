"""Claim and lead in one round trip, on a real database: two commits, with what is seen between them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from stretto.postgres.connections import Database
from stretto.postgres.queries import QUERIES
from stretto.postgres.write_columns import attempt_columns, group_columns
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Locked, Misconfigured, OutcomeUnknown, Refused
from support.both_stores import write
from support.database import (
    WAL_END,
    connect,
    is_durable,
    lock_waiters,
    wal_flushes,
    writes_held_up,
)
from support.routines import change_routine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

ATTEMPTS = "SELECT status FROM attempt ORDER BY group_id"
VETO = """CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS
          $$BEGIN RAISE EXCEPTION 'no'; END$$;
          CREATE TRIGGER veto BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION veto()"""


@pytest_asyncio.fixture
async def store(database: Database) -> AsyncIterator[PostgresWriteStore]:
    """A writer's store."""
    store = PostgresWriteStore(database, on_lost=lambda: None)
    yield store
    await store.close()


async def statuses(connection: Connection) -> list[str]:
    """Return the statuses of all attempts."""
    return [row["status"] for row in await connection.fetch(ATTEMPTS)]


@pytest.mark.parametrize(("seen", "commit"), [(["pending"], "COMMIT;"), ([], "")])
async def test_pending_is_visible_between_the_two_commits(
    seen: list[str], commit: str, store: PostgresWriteStore, connection: Connection
) -> None:
    """Followers see it while its leader writes; as one commit it would make other claims wait."""
    await change_routine(connection, "claim_and_lead_4", "    COMMIT;", f"    {commit}")
    ours = write("k")
    async with writes_held_up(connection):
        leading = asyncio.ensure_future(store.claim_and_lead([ours]))
        await lock_waiters(connection, 1)
        assert seen == await statuses(connection)
    assert {ours.claim_token} == await leading
    assert ["succeeded"] == await statuses(connection)


async def test_a_lead_that_fails_leaves_the_claims(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """They are ours to lead: another statement with the same tokens goes on from there."""
    batch = [write("a"), write("b")]
    await connection.execute(VETO)
    with pytest.raises(Refused):
        await store.claim_and_lead(batch)
    assert ["pending"] * 2 == await statuses(connection)
    tokens = {each.claim_token for each in batch}
    assert tokens == await store.unlocked(batch)
    await connection.execute("DROP TRIGGER veto ON chat_group")
    assert tokens == await store.lead(batch)


@pytest.mark.parametrize("scans", [False, True])
async def test_a_session_without_our_settings_finds_rows_by_index(
    *, scans: bool, database_url: str, connection: Connection
) -> None:
    """Behind a pooler; a routine without them keeps the plans that it has made for small tables."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET search_path = stretto")
    if scans:
        for routine in ("claim_attempts_1", "lead_groups_4"):
            await connection.execute(f"ALTER FUNCTION {routine} RESET ALL")
    async with Database(f"{database_url}&pgbouncer=true") as database:
        store = PostgresWriteStore(database, on_lost=lambda: None)
        for number in range(10):
            batch = [write(f"{number}-{each}") for each in range(20)]
            assert {each.claim_token for each in batch} == await store.claim_and_lead(batch)
        assert store._connection is not None
        await store._connection.execute("SELECT pg_stat_force_next_flush()")
        await store.close()
    read = await connection.fetchval(
        "SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = ANY ($1)",
        ["attempt", "chat_group", "conversation", "conversation_member"],
    )
    assert scans == (read > 0)


async def test_a_claim_that_fails_leaves_nothing(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """Another claim of one of the keys is not committed: none of the batch is claimed."""
    ours, free = write("a"), write("b")
    async with connection.transaction():
        await connection.execute(
            """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
               VALUES ($1, 'alice', $2, gen_random_uuid())""",
            ours.group_id,
            ours.fingerprint,
        )
        with pytest.raises(Locked):
            await store.claim_and_lead([ours, free])
        assert set() == await store.unlocked([ours, free])
    assert ["pending"] == await statuses(connection)
    # The claim's time-out was not the lead's, and has gone with its transaction.
    assert store._connection is not None
    assert "1s" == await store._connection.fetchval("SHOW lock_timeout")


async def test_a_backend_that_ends_between_the_commits_leaves_the_claims(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """The outcome is unknown; the same tokens lead on another connection."""
    ours = write("k")
    async with writes_held_up(connection):
        leading = asyncio.ensure_future(store.claim_and_lead([ours]))
        await lock_waiters(connection, 1)
        assert store._connection is not None
        pid = store._connection.get_server_pid()
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(OutcomeUnknown):
            await leading
    assert ["pending"] == await statuses(connection)
    assert {ours.claim_token} == await store.lead([ours])


async def test_a_round_trip_waits_for_the_disk_once(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """For its lead, whatever the size of its batch; never for its claim."""
    rounds = 10
    await store.claim_and_lead([write("warm")])
    assert store._connection is not None
    before = await wal_flushes(store._connection)
    for number in range(rounds):
        batch = [write(f"{number}-{key}") for key in range(32)]
        wal_end = await connection.fetchval(WAL_END)
        assert 32 == len(await store.claim_and_lead(batch))
        assert await is_durable(connection, wal_end)
    assert await wal_flushes(store._connection) - before < 1.5 * rounds


async def test_inside_a_transaction_it_is_refused_and_leaves_nothing(
    connection: Connection,
) -> None:
    """A hook's transaction has a lead of its own; a mistake must not claim without a commit."""
    writes = [write("k")]
    arguments = (*attempt_columns(writes), "1s", *group_columns(writes), "1s")
    with pytest.raises(asyncpg.InvalidTransactionTerminationError):
        async with connection.transaction():
            await connection.fetchval(QUERIES["claim_and_lead"], *arguments)
    assert [] == await statuses(connection)


async def test_the_routines_run_where_the_search_path_leads(database_url: str) -> None:
    """In any schema, beside another one's: they name none, and follow their caller."""
    ours = write("k")
    arguments = (*attempt_columns([ours]), "1s", *group_columns([ours]), "1s")
    connection = await connect(database_url)
    await connection.execute("CREATE SCHEMA other; CREATE TABLE other.attempt (LIKE attempt)")
    other = await asyncpg.connect(
        database_url, server_settings={"search_path": '"$user", stretto, other'}
    )
    assert [ours.claim_token] == await other.fetchval(QUERIES["claim_and_lead"], *arguments)
    assert ["succeeded"] == await statuses(connection)
    for each in (other, connection):
        await each.close()


async def test_a_role_without_the_procedure_still_writes_in_two_steps(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """Nothing was done: the error says that, and the two statements remain."""
    ours = write("k")
    await connection.execute("ALTER PROCEDURE claim_and_lead_4 RENAME TO gone")
    with pytest.raises(Misconfigured, match="claim_and_lead_4"):
        await store.claim_and_lead([ours])
    assert {ours.claim_token} == await store.claim([ours])
    assert {ours.claim_token} == await store.lead([ours])
