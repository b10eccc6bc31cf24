"""A write that hangs in the server is ended by the server; a server that hangs blames no owner (G4, G6)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import DatabaseUnavailable, Failure
from stretto.observations import Observation, OwnerPaused, WriteFailed
from stretto.postgres import stalls
from stretto.postgres.queries import QUERIES
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Locked, OutcomeUnknown, Stalled, Transient
from support.both_stores import write
from support.database import connect
from support.frozen_server import Frozen
from support.hooked_stores import running
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.postgres.connections import Database
    from support.database import Connection

# Longer than a busy machine takes for a write that does not hang.
SOON_SECONDS: Final = 0.3
# Of a write that is slow: long enough for the server to be asked meanwhile.
SLOW: Final = f"PERFORM pg_sleep({5 * SOON_SECONDS})"
# Far beyond what a write may take.
HANG: Final = "PERFORM pg_sleep(60)"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stalls noticed soon."""
    monkeypatch.setattr(stalls, "STALL_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(stalls, "STALL_RATIO", 0.0)
    monkeypatch.setattr(stalls, "LOOK_SECONDS", SOON_SECONDS)


async def trigger(connection: Connection, table: str, when: str, does: str) -> None:
    """Have a trigger do something for every row of the table."""
    kind = "CONSTRAINT TRIGGER" if when.startswith("AFTER") else "TRIGGER"
    deferred = "DEFERRABLE INITIALLY DEFERRED" if when.startswith("AFTER") else ""
    await connection.execute(
        f"""CREATE FUNCTION does() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN {does}; RETURN NEW; END$$;
            CREATE {kind} does {when} ON {table} {deferred} FOR EACH ROW EXECUTE FUNCTION does()"""
    )


async def untrack(connection: Connection) -> None:
    """Have new sessions show neither what they do nor since when."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET track_activities = off")


async def state(connection: Connection, store: PostgresWriteStore) -> str:
    """Return what the server says of a writer's session."""
    assert store._connection is not None
    statement = "SELECT state FROM pg_stat_activity WHERE pid = $1"
    return str(await connection.fetchval(statement, store._connection.get_server_pid()))


@asynccontextmanager
async def store_of(
    database: Database, *, others_wait: bool = True, **options: object
) -> AsyncIterator[PostgresWriteStore]:
    """Provide a writer's store, with or without requests behind its writes."""
    store = PostgresWriteStore(database, lambda: None, others_wait=lambda: others_wait, **options)  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("is_shared", [False, True], ids=["direct", "pooler"])
@pytest.mark.parametrize(
    ("table", "when"),
    [
        ("chat_group", "BEFORE INSERT"),
        ("attempt", "BEFORE UPDATE"),
        ("chat_group", "AFTER INSERT"),
    ],
)
async def test_a_write_that_hangs_is_ended_and_was_not_committed(
    table: str, when: str, is_shared: bool, database: Database, connection: Connection
) -> None:
    """Its attempt is free at once, and its connection lives: the server has answered.

    The trigger after the insert is deferred, and hangs in the commit. Behind a pooler its process is found by the attempts that it leads.
    """
    await trigger(connection, table, when, HANG)
    database.is_shared = is_shared
    async with asyncio.timeout(10), store_of(database) as store:
        ours = write("k")
        assert {ours.claim_token} == await store.claim([ours])
        with pytest.raises(Stalled):
            await store.lead([ours])
        kept = store._connection
        assert {ours.claim_token} == await store.unlocked([ours])
        await connection.execute(f"DROP TRIGGER does ON {table}")
        assert {ours.claim_token} == await store.lead([ours])
        assert kept is store._connection


@pytest.mark.parametrize("is_shared", [False, True], ids=["direct", "pooler"])
async def test_a_commit_that_hangs_behind_a_hook_is_ended(
    is_shared: bool, database: Database, connection: Connection
) -> None:
    """By a deferred trigger, once the hook has ended. The attempt is free, and nothing was committed."""
    await trigger(connection, "chat_group", "AFTER INSERT", HANG)
    database.is_shared = is_shared
    async with asyncio.timeout(10), store_of(database, on_create=running()) as store:
        ours = write("k")
        await store.claim([ours])
        with pytest.raises(Stalled):
            await store.lead([ours])
        kept = store._connection
        assert {ours.claim_token} == await store.unlocked([ours])
        assert 0 == await connection.fetchval("SELECT count(*) FROM chat_group")
        await connection.execute("DROP TRIGGER does ON chat_group")
        assert {ours.claim_token} == await store.lead([ours])
        assert kept is store._connection


async def test_a_failure_that_hangs_is_not_recorded(
    database: Database, connection: Connection
) -> None:
    """The attempt stays pending, and free."""
    await trigger(connection, "attempt", "BEFORE UPDATE", HANG)
    async with asyncio.timeout(10), store_of(database) as store:
        ours = write("k")
        await store.claim([ours])
        with pytest.raises(Stalled):
            await store.fail(ours, Failure("quota", "Ten groups are enough."))
        assert {ours.claim_token} == await store.unlocked([ours])


async def test_a_trigger_that_asks_for_a_lock_again_and_again_is_ended(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait is bounded, all together are not. Twin: the one wait of a lead is left to its bound."""
    monkeypatch.setattr(stalls, "LOCKED_SECONDS", SOON_SECONDS)
    waits = "SET LOCAL lock_timeout = 0; PERFORM pg_advisory_xact_lock(7)"
    await trigger(connection, "chat_group", "BEFORE INSERT", waits)
    async with asyncio.timeout(10), store_of(database) as store, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(7)")
        with pytest.raises(Stalled):
            await store.claim_and_lead([write("k")])


@pytest.mark.parametrize("is_shared", [False, True], ids=["direct", "pooler"])
async def test_a_write_that_hangs_is_ended_where_the_server_tracks_no_activities(
    is_shared: bool, database: Database, connection: Connection
) -> None:
    """`track_activities` is a setting of the server's, the database's or the role's."""
    await untrack(connection)
    await trigger(connection, "chat_group", "BEFORE INSERT", HANG)
    database.is_shared = is_shared
    async with asyncio.timeout(10), store_of(database) as store:
        ours = write("k")
        assert {ours.claim_token} == await store.claim([ours])
        assert "disabled" == await state(connection, store)
        kept = store._connection
        with pytest.raises(Stalled):
            await store.lead([ours])
        assert kept is store._connection
        assert {ours.claim_token} == await store.unlocked([ours])


@pytest.mark.parametrize("is_ended", [True, False])
async def test_waits_for_locks_are_bounded_alike_where_the_server_tracks_no_activities(
    is_ended: bool, database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All together by the time of the write, as the server knows none; each by its own bound."""
    if is_ended:
        monkeypatch.setattr(stalls, "LOCKED_SECONDS", SOON_SECONDS)
    await untrack(connection)
    waits = "SET LOCAL lock_timeout = 0" if is_ended else "PERFORM 1"
    lock = "PERFORM pg_advisory_xact_lock(7)"
    await trigger(connection, "chat_group", "BEFORE INSERT", f"{waits}; {lock}")
    async with asyncio.timeout(10), store_of(database) as store:
        ours = write("k")
        assert {ours.claim_token} == await store.claim([ours])
        assert "disabled" == await state(connection, store)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(7)")
            with pytest.raises(Stalled if is_ended else Locked):
                await store.lead([ours])


async def test_a_session_that_waits_for_its_client_is_left_alone(
    database_url: str, connection: Connection
) -> None:
    """Also where the server tracks no activities. The twin is one that works."""

    async def is_ended(seen: str) -> bool:
        pid, wait = other.get_server_pid(), "SELECT wait_event FROM pg_stat_activity WHERE pid = $1"
        await until(lambda: is_seen(wait, pid, seen))
        return bool(await connection.fetchval(QUERIES["end_stalled"], pid, [], [], 2.0, 9.0))

    async def is_seen(wait: str, pid: int, seen: str) -> bool:
        return bool(seen == await connection.fetchval(wait, pid))

    await untrack(connection)
    other = await connect(database_url)
    await other.execute("BEGIN")
    assert not await is_ended("ClientRead")
    working = asyncio.create_task(other.execute("SELECT pg_sleep(60)"))
    assert await is_ended("PgSleep")
    with pytest.raises(asyncpg.QueryCanceledError):
        await working
    await other.close()


async def test_a_claim_that_hangs_is_ended(database: Database, connection: Connection) -> None:
    """Nothing is claimed."""
    await trigger(connection, "attempt", "BEFORE INSERT", HANG)
    async with asyncio.timeout(10), store_of(database) as store:
        with pytest.raises(Stalled):
            await store.claim([write("k")])
        with pytest.raises(Stalled):
            await store.claim_and_lead([write("k")])
        assert 0 == await connection.fetchval("SELECT count(*) FROM attempt")


async def test_a_lead_that_hangs_before_a_hook_is_ended(
    database: Database, connection: Connection
) -> None:
    """The transaction is rolled back; the hook, which has a time of its own, was not called."""
    await trigger(connection, "chat_group", "BEFORE INSERT", HANG)
    async with asyncio.timeout(10), store_of(database, on_create=running()) as store:
        ours = write("k")
        await store.claim([ours])
        with pytest.raises(Stalled):
            await store.lead([ours])
        assert {ours.claim_token} == await store.unlocked([ours])


async def test_a_slow_write_is_waited_for_while_no_other_waits(
    database: Database, connection: Connection
) -> None:
    """Up to the patience; a hasty one keeps others waiting in any case."""
    await trigger(connection, "chat_group", "BEFORE INSERT", SLOW)
    async with store_of(database, others_wait=False) as store:
        ours = write("k")
        with pytest.raises(Stalled):
            await store.claim_and_lead([ours], is_hasty=True)
        assert {ours.claim_token} == await store.lead([ours])


async def test_what_no_other_waits_for_is_ended_before_its_connection_is_cut(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server's process would go on, and keep the attempt."""
    monkeypatch.setattr(stalls, "PATIENCE_SECONDS", 3 * SOON_SECONDS)
    await trigger(connection, "chat_group", "BEFORE INSERT", HANG)
    async with asyncio.timeout(10), store_of(database, others_wait=False) as store:
        with pytest.raises(Stalled):
            await store.claim_and_lead([write("k")])


async def test_where_writes_are_slow_a_slow_write_is_no_stall(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is usual lately counts: taking batches apart would make a slow server slower."""
    monkeypatch.setattr(stalls, "STALL_RATIO", 5.0)
    await trigger(connection, "chat_group", "BEFORE INSERT", SLOW)
    async with store_of(database) as store:
        with pytest.raises(Stalled):
            await store.claim_and_lead([write("k")])
        store._stalls._times.of("lead").note([UserId("bob")], 0.5)
        assert await store.claim_and_lead([write("l")])


async def test_a_write_that_waits_for_a_lock_is_left_to_its_time_out(
    database: Database, connection: Connection
) -> None:
    """The same is true of the disk and a standby: all writes would wait for those."""
    async with store_of(database) as store:
        ours = write("k")
        await store.claim([ours])
        async with connection.transaction():
            await connection.execute("SELECT FROM attempt FOR UPDATE")
            with pytest.raises(Locked):
                await store.lead([ours])


async def test_a_success_that_comes_while_the_server_is_asked_is_not_believed(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that waited for a standby may have been broken off: the next lead, or a look, shows it."""
    statement = (
        "SELECT true WHERE $1::integer > 0 AND $2::uuid[] IS NOT NULL AND $3::uuid[] IS NOT PERFORM 1"
        " AND $4::float8 > 0 AND $5::float8 > 0"
    )
    monkeypatch.setattr(stalls, "QUERIES", {"end_stalled": statement})
    await trigger(connection, "chat_group", "BEFORE INSERT", SLOW)
    async with store_of(database) as store:
        ours = write("k")
        with pytest.raises(OutcomeUnknown):
            await store.claim_and_lead([ours])
        assert store._connection is None
        assert set() == await store.lead([ours])
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")


async def test_what_others_have_cancelled_is_no_stall(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator, or a time-out of the role's: the same write may succeed in a moment."""
    monkeypatch.setattr(stalls, "STALL_SECONDS", 60.0)
    raises = "RAISE EXCEPTION 'cancelled' USING ERRCODE = '57014'"
    await trigger(connection, "chat_group", "BEFORE INSERT", raises)
    async with store_of(database) as store:
        with pytest.raises(Transient):
            await store.claim_and_lead([write("k")])


async def test_a_server_that_hangs_pauses_no_owner(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be asked to end anything: all are answered 503, and nothing is known."""
    monkeypatch.setattr("stretto.postgres.writes.WRITE_SECONDS", 1.0)
    events: list[Observation] = []
    settings = ComponentSettings(writers=1)
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(Frozen(database_url).running())
        component = await stack.enter_async_context(
            open_component(way.url, settings=settings, observe=events.append)
        )
        create = component.creator.create
        await create(IdempotencyKey("k"), NewGroup.parse(UserId("alice"), {"name": "Team"}))
        way.freeze()
        owners = [UserId("alice"), UserId("bob")]
        results = await asyncio.gather(
            *(create(IdempotencyKey("l"), NewGroup.parse(o, {"name": "Team"})) for o in owners),
            return_exceptions=True,
        )
    assert [DatabaseUnavailable] * 2 == [type(each) for each in results]
    errors = [type(each.error) for each in events if isinstance(each, WriteFailed)]
    assert OutcomeUnknown in errors
    assert Stalled not in errors
    assert not any(isinstance(each, OwnerPaused) for each in events)
