"""What is acknowledged is flushed, also where `synchronous_commit` is switched off meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from chaos.server import own_server
from stretto.errors import Failure
from stretto.postgres.connections import Database
from stretto.postgres.hook_transaction import HookTransaction
from stretto.postgres.writes import PostgresWriteStore
from support.both_stores import write
from support.commit_settings import (
    DEFERRED,
    have_set,
    messages_at_commits,
    see_commits,
    seen_at_commits,
)
from support.hooked_stores import led_by, open_stores, running
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.postgres.driver_connection import Connection as InnerConnection
    from stretto.postgres.sessions import SessionState
    from support.database import Connection


async def see_all(connection: Connection) -> None:
    """Have commits of leads, and of attempts of each status, seen."""
    await see_commits(connection, "chat_group")
    await see_commits(connection, "attempt", "INSERT OR UPDATE")


async def is_off(connection: Connection | InnerConnection) -> bool:
    """Whether the session's commits are not flushed."""
    return bool(await connection.fetchval("SHOW synchronous_commit") == "off")


@pytest_asyncio.fixture
async def store(database: Database) -> AsyncIterator[PostgresWriteStore]:
    """A writer's store that is connected."""
    store = PostgresWriteStore(database, on_lost=lambda: None)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("off", "on"), ("local", "local"), ("on", "on"), ("remote_apply", "remote_apply")],
)
async def test_what_is_acknowledged_is_flushed_whatever_a_living_session_has(
    setting: str, expected: str, store: PostgresWriteStore, connection: Connection
) -> None:
    """As a reload leaves it; claims are not flushed, and what is waited for stays the operator's."""
    await see_all(connection)
    assert store._connection is not None
    await store._connection.execute(f"SET synchronous_commit = {setting}")
    assert 1 == len(await store.claim_and_lead([write("both")]))
    ours = write("apart")
    await store.claim([ours])
    assert 1 == len(await store.lead([ours]))
    # Nothing was set for the session: a pooler shares it.
    assert setting == await store._connection.fetchval("SHOW synchronous_commit")
    ours = write("failed")
    await store.claim([ours])
    assert await store.fail(ours, Failure("full", "No more groups."))
    for step in ("chat_group", "succeeded", "failed"):
        assert {expected} == {*await seen_at_commits(connection, step)}, step
    assert {"off"} == {*await seen_at_commits(connection, "pending")}


@pytest.mark.parametrize(
    "statement", ["SET LOCAL synchronous_commit = off", "SET client_min_messages = error"]
)
async def test_a_failure_is_flushed_whatever_a_deferred_trigger_sets(
    statement: str, store: PostgresWriteStore, connection: Connection
) -> None:
    """A crash after 410 would have the key create a group. So with the warning of an unsure commit."""
    await see_all(connection)
    await have_set(connection, f"AFTER UPDATE ON attempt {DEFERRED}", statement)
    for key in ("a", "b"):
        ours = write(key)
        await store.claim([ours])
        assert await store.fail(ours, Failure("full", "No more groups."))
    assert ["on"] * 2 == await seen_at_commits(connection, "failed")
    assert {"notice"} == await messages_at_commits(connection)


async def test_a_reload_between_a_lead_and_its_commit_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also behind the last look at the session; another setting shows that it was reloaded."""
    commit = HookTransaction.commit

    async def reload_and_commit(self: HookTransaction, after: SessionState) -> None:
        admin = await server.connect()
        for setting in ("synchronous_commit = off", "deadlock_timeout = '1234ms'"):
            await admin.execute(f"ALTER SYSTEM SET {setting}")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.close()
        await until(lambda: is_reloaded(self.connection))
        await commit(self, after)

    async def is_reloaded(connection: InnerConnection) -> bool:
        return bool(await connection.fetchval("SHOW deadlock_timeout") == "1234ms")

    monkeypatch.setattr(HookTransaction, "commit", reload_and_commit)
    async with own_server() as server:
        connection = await server.connect()
        await see_all(connection)
        async with open_stores(server.dsn, is_hosts_pool=False) as stores:
            assert 1 == len(await led_by(stores(running("SELECT 1"))))
        assert ["on"] == await seen_at_commits(connection)
        # The premise: a session that nothing protects commits without a flush now.
        await until(lambda: is_off(connection))
        await connection.close()


async def test_a_writer_goes_on_durably_after_a_reload_that_switches_the_flush_off() -> None:
    """On its living connection; `/readyz` says the rest."""
    async with own_server() as server, Database(server.dsn) as database:
        connection = await server.connect()
        await see_all(connection)
        store = PostgresWriteStore(database, on_lost=lambda: None)
        await store.open()
        await connection.execute("ALTER SYSTEM SET synchronous_commit = off")
        await connection.execute("SELECT pg_reload_conf()")
        inner = store._connection
        assert inner is not None
        await until(lambda: is_off(inner))
        assert 1 == len(await store.claim_and_lead([write("k")]))
        assert inner is store._connection
        assert ["on"] == await seen_at_commits(connection)
        await store.close()
        await connection.close()
