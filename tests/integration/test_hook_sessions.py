"""What a host's hook leaves behind in a writer's session, and what the next creation sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from stretto.errors import GroupRejected
from stretto.postgres import writes
from stretto.postgres.connections import Database
from stretto.postgres.queries import QUERIES
from stretto.store_errors import HookError, OutcomeUnknown, Refused, Transient, Unreachable
from support.both_stores import write
from support.commit_settings import (
    DEFERRED,
    have_set,
    messages_at_commits,
    see_commits,
    seen_at_commits,
)
from support.database import END_OURS, groups
from support.hooked_stores import Stores, led_by, running
from support.waiting import until

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection as InnerConnection
    from stretto.postgres.hook import OnCreate
    from support.database import Connection
    from support.hooked_stores import Created

# Of groups, at the end of their transaction.
AT_THE_END: Final = f"AFTER INSERT ON chat_group {DEFERRED}"
SESSION: Final = """
    SELECT name, setting FROM pg_settings
    UNION ALL VALUES ('user', current_user::text), ('session user', session_user::text)
    UNION ALL SELECT 'temporary', relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()
    UNION ALL SELECT 'lock', objid::text FROM pg_locks
              WHERE locktype = 'advisory' AND pid = pg_backend_pid()
    UNION ALL SELECT 'statement', name FROM pg_prepared_statements WHERE from_sql
    UNION ALL SELECT 'cursor', name FROM pg_cursors WHERE name <> ''
"""
LEFT_BEHIND: Final[dict[str, object]] = {
    "search_path": running("SET search_path = public"),
    "read only": running("SET default_transaction_read_only = on"),
    "time-out": running("SET statement_timeout = '3s'"),
    "no triggers": running("SET session_replication_role = replica"),
    "no flush": running("SET synchronous_commit = off"),
    "role": running("SET ROLE pg_monitor"),
    "session": running("SET SESSION AUTHORIZATION pg_monitor"),
    "temporary table": running("CREATE TEMP TABLE attempt (x int)"),
    "lock": running("SELECT pg_advisory_lock(7)"),
    "statement": running("PREPARE mine AS SELECT 1"),
    "cursor": running("DECLARE mine CURSOR WITH HOLD FOR SELECT 1"),
    "channel": running("LISTEN mine"),
    "all": running("DISCARD SEQUENCES", "RESET ALL", "SET ROLE pg_monitor"),
}


@pytest.mark.parametrize("hook", LEFT_BEHIND.values(), ids=LEFT_BEHIND.keys())
async def test_what_a_hook_leaves_in_the_session_harms_no_other_creation(
    hook: OnCreate, stores: Stores, connection: Connection
) -> None:
    """It is done each time, also where it fails the second time in one session."""
    seen = []

    async def look_and_leave(inner: InnerConnection, created: Created) -> None:
        seen.append([tuple(row) for row in await inner.fetch(SESSION)])
        await hook(inner, created)

    store = stores(look_and_leave)
    for key in ("a", "b", "c"):
        assert len(await led_by(store, key)) == 1
    assert await groups(connection) == 3
    assert [seen[0]] * 3 == seen
    # The connection was given up by us, not lost: what was learnt through it is still true.
    assert [] == stores.lost


@pytest.mark.parametrize("left", ["SET ROLE pg_monitor", "SELECT pg_advisory_lock(7)"])
async def test_what_a_failing_hook_leaves_in_the_session_harms_no_other_either(
    left: str, stores: Stores, connection: Connection
) -> None:
    """Locks of a session outlive the transaction that took them."""
    ours = write("k")
    for key, ended in (("a", "SELECT 1 / 0"), ("b", "ROLLBACK")):
        store = stores(running(left, ended))
        with pytest.raises(HookError):
            await led_by(store, key)
    store = stores(running(left, "COMMIT", left))
    await store.claim([ours])
    assert {ours.claim_token} == await store.lead([ours])
    is_free = """SELECT count(*) = 0 FROM pg_locks
                 WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
                   AND database = (SELECT oid FROM pg_database
                                   WHERE datname = current_database())"""
    await until(lambda: connection.fetchval(is_free))


async def test_a_hook_that_leaves_nothing_keeps_its_connection(stores: Stores) -> None:
    """Also one that uses settings, locks, tables and savepoints of the transaction."""
    pids: list[int] = []

    async def hook(inner: InnerConnection, _: Created) -> None:
        pids.append(await inner.fetchval("SELECT pg_backend_pid()"))
        # A warning of the same class as that of a commit that its standby lacks.
        assert not await inner.fetchval("SELECT pg_cancel_backend(2147483647)")
        await inner.execute(
            "SET LOCAL statement_timeout = '3s'; SELECT pg_advisory_xact_lock(7);"
            "CREATE TEMP TABLE mine ON COMMIT DROP AS SELECT 1; SAVEPOINT mine;"
            "DECLARE mine CURSOR FOR SELECT 1"
        )
        if len(pids) == 3:
            raise GroupRejected("quota", "Three are enough.")

    store = stores(hook)
    for key in ("a", "b"):
        await led_by(store, key)
    with pytest.raises(Refused):
        await led_by(store, "c")
    await led_by(store, "d")
    assert len(set(pids)) == 1


async def test_a_hosts_pool_keeps_its_own_settings(database_url: str) -> None:
    """Those that its `setup` has made by hand: a reset would take them away."""
    seen: list[tuple[int, str]] = []

    async def set_up(connection: InnerConnection) -> None:
        await connection.execute("SET search_path = stretto, public; SET work_mem = '5MB'")

    async def hook(inner: InnerConnection, created: Created) -> None:
        row = await inner.fetchrow("SELECT pg_backend_pid(), current_setting('work_mem')")
        assert row is not None
        seen.append(tuple(row))
        if len(seen) == 2:
            await inner.execute("SET work_mem = '7MB'; SET search_path = public")

    async with (
        asyncpg.create_pool(database_url, min_size=0, max_size=4, setup=set_up) as pool,
        Database(pool=pool) as database,
    ):
        stores = Stores(database)
        store = stores(hook)
        for key in ("a", "b", "c"):
            assert len(await led_by(store, key)) == 1
        await store.close()
        assert pool.get_size() == pool.get_idle_size()
    (first, *settings), (second, *again), (third, *at_last) = seen
    assert [["5MB"]] * 3 == [settings, again, at_last]
    assert (True, False) == (first == second, second == third)


@pytest.mark.parametrize("scope", ["LOCAL", "SESSION"])
async def test_a_hook_does_not_decide_whether_a_commit_waits_for_the_disk(
    scope: str, stores: Stores, connection: Connection
) -> None:
    """A crash after 201 loses no group."""
    await see_commits(connection, "chat_group")
    usual = await connection.fetchval("SHOW synchronous_commit")
    other = "local" if usual == "off" else "off"
    assert len(await led_by(stores(running(f"SET {scope} synchronous_commit = {other}")))) == 1
    assert [usual] == await seen_at_commits(connection)


@pytest.mark.parametrize("is_deferred", [False, True])
async def test_the_server_warns_of_an_unsure_commit_whatever_is_set(
    is_deferred: bool, stores: Stores, connection: Connection
) -> None:
    """By the hook, or by what is deferred: without the warning, 201 would be told of what a standby lacks."""
    await see_commits(connection, "chat_group")
    quiet = "SET LOCAL client_min_messages = error"
    usual = await connection.fetchval("SHOW client_min_messages")
    if is_deferred:
        await have_set(connection, AT_THE_END, quiet)
    assert len(await led_by(stores(running("SELECT 1" if is_deferred else quiet)))) == 1
    assert {usual} == await messages_at_commits(connection)


async def test_a_deferred_trigger_does_not_decide_what_a_commit_behind_a_hook_waits_for(
    stores: Stores, connection: Connection
) -> None:
    """A crash after 201 would lose the group."""
    await see_commits(connection, "chat_group")
    await have_set(connection, AT_THE_END, "SET LOCAL synchronous_commit = off")
    usual = await connection.fetchval("SHOW synchronous_commit")
    assert len(await led_by(stores(running("SELECT 1")))) == 1
    assert [usual] == await seen_at_commits(connection)


async def test_what_is_deferred_and_takes_too_long_behind_a_hook_is_not_blamed_on_it(
    stores: Stores, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off as a commit is: what became of it is not known."""
    monkeypatch.setattr(writes, "WRITE_SECONDS", 1.0)
    await have_set(connection, AT_THE_END, "PERFORM pg_sleep(3)")
    with pytest.raises(OutcomeUnknown) as error:
        await led_by(stores(running("SELECT 1")))
    assert not isinstance(error.value, HookError)


@pytest.mark.parametrize("state", ["23514", "55000", "P0001"])
async def test_what_a_hosts_deferred_trigger_raises_is_the_hosts(
    state: str, stores: Stores, connection: Connection
) -> None:
    """Nothing of ours is checked at the commit; the group is not refused for good."""
    await connection.execute(
        "CREATE FUNCTION public.stumble() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        f" RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END$$;"
        "CREATE CONSTRAINT TRIGGER stumble AFTER INSERT ON chat_group DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.stumble()"
    )
    with pytest.raises(HookError):
        await led_by(stores(running("SELECT 1")))


async def test_a_writer_whose_hook_changes_its_session_still_hears_of_a_loss(
    stores: Stores, connection: Connection
) -> None:
    """Between two writes as well: what a failover has lost is not replayed until the next one."""
    store = stores(running("SET work_mem = '5MB'"))
    assert await led_by(store)
    assert [] == stores.lost
    await connection.execute(END_OURS)
    await until(lambda: bool(stores.lost))


async def test_a_writer_that_cannot_connect_anew_counts_as_one_that_was_lost(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not watched until it can; the write has its outcome."""

    async def away(*_: object) -> None:
        raise Unreachable

    async def hook(connection: InnerConnection, _: Created) -> None:
        await connection.execute("SET work_mem = '5MB'")
        monkeypatch.setattr(Database, "acquire", away)

    assert await led_by(stores(hook))
    assert ["lost"] == stores.lost


@pytest.mark.parametrize("is_other", [False, True])
async def test_a_writer_that_finds_another_server_forgets(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, *, is_other: bool
) -> None:
    """A connection that was given up is not watched: a failover meanwhile shows in what is found."""
    store = stores(running())
    assert await led_by(store)
    await store.close()
    if is_other:
        answer = (
            "SELECT 'another' AS server, false AS is_elsewhere,"
            " 'on' AS synchronous_commit, 'notice' AS client_min_messages"
        )
        other = {**QUERIES, "server": answer}
        monkeypatch.setattr("stretto.postgres.servers.QUERIES", other)
    assert await led_by(store, "k2")
    assert ["lost"] * is_other == stores.lost


@pytest.mark.parametrize("is_shared", [True, False])
async def test_no_history_of_events_waits_for_a_hook_behind_a_pooler(
    is_shared: bool, stores: Stores, connection: Connection
) -> None:
    """After the server's restart all other leads wait for its row; the twin is no pooler's session."""
    stores.database.is_shared = is_shared
    seen: list[int] = []

    async def look(_: InnerConnection, __: Created) -> None:
        seen.append(await connection.fetchval("SELECT count(*) FROM outbox_history"))

    store = stores(look)
    await led_by(store, "before")
    # As if the server had been started since, under a connection that lives.
    await connection.execute(
        "UPDATE outbox_history SET server_started_at = server_started_at - interval '1 second'"
    )
    if is_shared:
        with pytest.raises(Transient):
            await led_by(store, "first")
    assert len(await led_by(store, "second")) == 1
    before, after = seen
    assert is_shared is (before < after)
