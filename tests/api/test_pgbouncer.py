"""A real service behind PgBouncer in transaction mode: what an operator does and sees.

The rest of the contract passes through it in this folder's other tests.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

import stretto as stretto_module
from stretto.assembly.settings import ComponentSettings
from stretto.errors import GroupRejected
from stretto.postgres.check import check_database
from stretto.postgres.connecting import _SERVER_SETTINGS, PREPARED_MAX
from stretto.postgres.connections import Database
from stretto.postgres.lanes import Lane, connections
from stretto.postgres.migrate import migrate
from stretto.postgres.migration_steps import newest_number
from stretto.postgres.pooler import split_pooler
from stretto.postgres.writes import PostgresWriteStore
from stretto.provision import START_SECONDS
from stretto.start_errors import ConfigurationError
from stretto.store_errors import HookError, InDoubt, OutcomeUnknown, Refused, Unreachable
from support.api_client import connected_api
from support.both_stores import write
from support.command_process import stretto
from support.database import groups
from support.hooked_stores import DEADLINE_SECONDS, Stores, led_by
from support.pgbouncer import (
    SERVER_CONNECTIONS,
    give_settings,
    reconnect,
    running_pgbouncer,
    url_through,
)
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection
    from support.hooked_stores import Created

OPERATIONS = (Path(__file__).parents[2] / "docs/operations.md").read_text()
KEYS = 60
TEAM = stretto_module.NewGroup.parse(
    stretto_module.UserId("alice"), {"name": "Team", "members": []}
)
# Of each kind of connection: in some of them, transactions get another server connection.
TURNS = 200
# Clients only: the server's own autovacuum may be at work in the database as well.
BACKENDS = """SELECT count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid()
                AND backend_type = 'client backend'"""


@pytest.fixture
def url(pgbouncer: Path, server_url: str) -> str:
    """The database through PgBouncer, whose role brings no settings yet."""
    return url_through(pgbouncer, server_url)


async def test_two_services_share_fewer_connections_than_they_hold(
    url: str, server_url: str, connection: Connection
) -> None:
    """Twelve connections of theirs on three of the server, and every key has one group."""
    await give_settings(server_url)
    async with AsyncExitStack() as stack:
        apis = []
        for _ in range(2):
            service = await stack.enter_async_context(ServiceProcess({"DATABASE_URL": url}))
            apis.append(await stack.enter_async_context(connected_api(service.url)))
        calls = [(api, f"k{number}") for number in range(KEYS) for api in apis]
        replies = await asyncio.gather(*(api.create(key) for api, key in calls))
        reads = await asyncio.gather(*(api.get("/v1/groups") for api in apis * 20))
        assert await connection.fetchval(BACKENDS) <= SERVER_CONNECTIONS
    assert {201} == {reply.status for reply in replies}
    assert {200} == {reply.status for reply in reads}
    assert len({reply.body for reply in replies}) == KEYS
    assert (await check_database(connection, retention_days=30)).violations == []


async def test_commands_work_through_it(url: str, server_url: str) -> None:
    """Also those that change the schema: each change is one transaction."""
    await give_settings(server_url)
    assert (0, "up to date\n") == (await stretto("migrate", DATABASE_URL=url))[:2]
    assert (await stretto("check", DATABASE_URL=url))[0] == 0
    query = ("psql", "-Atc", "SELECT count(*) FROM attempt")
    assert (0, "0\n") == (await stretto(*query, DATABASE_URL=url))[:2]


async def test_a_new_database_can_be_migrated_through_it(
    pgbouncer: Path, url: str, server_url: str, connection: Connection
) -> None:
    """Before its role has any settings; with them, what was opened before is of no use."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    assert (0, f"applied: {newest_number()}\n") == (await stretto("migrate", DATABASE_URL=url))[:2]
    await give_settings(server_url)
    await reconnect(pgbouncer)
    assert (await stretto("check", DATABASE_URL=url))[0] == 0


@pytest.mark.parametrize("missing", ["search_path", "lock_timeout", "statement_timeout", "jit"])
async def test_a_role_without_its_settings_gets_the_statements(
    missing: str, url: str, server_url: str, connection: Connection
) -> None:
    """Each of the three is asked for before anything is served."""
    await give_settings(server_url)
    other = {
        "search_path": "public",
        "lock_timeout": "0",
        "statement_timeout": "'5s'",
        "jit": "on",
    }[missing]
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET {missing} = {other}")
    code, _, errors = await stretto("serve", DATABASE_URL=url, JWT_SECRET="s" * 32)
    assert code == 2
    assert f"IN DATABASE {name} SET {missing} = " in errors
    assert "RECONNECT" in errors


@pytest.mark.parametrize("command", ["serve", "migrate", "check"])
async def test_a_forgotten_parameter_is_answered_with_exactly_that(command: str, url: str) -> None:
    """What the service otherwise sends, PgBouncer does not take; waiting would not change that."""
    forgotten = url.replace("&pgbouncer=true", "")
    async with asyncio.timeout(START_SECONDS):
        code, _, errors = await stretto(command, DATABASE_URL=forgotten, JWT_SECRET="s" * 32)
    assert code == 3
    assert "needs the parameter pgbouncer=true" in errors
    assert "unsupported startup parameter" in errors


def documented_parameters() -> str:
    """Return the line of `pgbouncer.ini` that operations.md shows for session mode."""
    return (
        OPERATIONS[OPERATIONS.index("    ignore_startup_parameters = ") :]
        .partition("\n\n")[0]
        .strip()
    )


def test_the_documented_parameters_are_those_that_are_sent() -> None:
    """PgBouncer refuses a connection for any that it neither knows nor ignores."""
    documented = documented_parameters().partition(" = ")[2].split(", ")
    sent = {*_SERVER_SETTINGS, "search_path"} - {"application_name"}
    assert sorted(sent) == sorted(documented)


async def test_a_service_runs_behind_it_in_session_mode_as_documented(
    server_url: str, connection: Connection
) -> None:
    """Without the URL's parameter, and with prepared statements; two of it find connections enough."""
    await give_settings(server_url)
    (clients,) = re.findall(r"^ +(max_client_conn = \d+)$", OPERATIONS, re.MULTILINE)
    (pool,) = re.findall(r"`(default_pool_size = \d+)` for two\s+instances", OPERATIONS)
    held = connections(2, 1, ComponentSettings().writers)
    assert held < int(pool.split()[-1]) < int(clients.split()[-1])
    settings = ("pool_mode = session", pool, clients, documented_parameters())
    with running_pgbouncer(server_url, *settings) as folder:
        url = url_through(folder, server_url).replace("&pgbouncer=true", "")
        async with (
            ServiceProcess({"DATABASE_URL": url}) as service,
            connected_api(service.url) as api,
        ):
            assert 201 == (await api.create("k")).status
            assert 200 == (await api.get("/v1/groups")).status
            assert await groups(connection) == 1


async def test_settings_that_it_drops_are_answered_with_the_parameter(
    server_url: str, connection: Connection
) -> None:
    """The tables are there, and the session does not see them: to migrate again would not help."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET search_path = public")
    with running_pgbouncer(server_url, documented_parameters()) as folder:
        url = url_through(folder, server_url).replace("&pgbouncer=true", "")
        code, _, errors = await stretto("check", DATABASE_URL=url)
    assert code == 2
    assert "pgbouncer=true" in errors
    assert "stretto migrate" not in errors


async def test_with_prepared_statements_it_would_break(url: str, server_url: str) -> None:
    """What one transaction prepares, the next one does not find, or finds taken."""
    await give_settings(server_url)

    async def ask(database: Database) -> None:
        async def ask_in(lane: Lane) -> None:
            for _ in range(TURNS):
                async with database.connection(lane) as connection:
                    await database.require_tables(connection)

        await asyncio.gather(*map(ask_in, Lane))

    async with Database(url) as database:
        await ask(database)
    async with Database(url) as database:
        database._connector.prepared_max = PREPARED_MAX
        broken = "SQLSTATE 26000|SQLSTATE 42P05"
        with pytest.raises(Unreachable, match=f"({broken})"):
            await ask(database)


async def test_a_batch_is_one_round_trip_through_it_too(
    url: str, server_url: str, connection: Connection
) -> None:
    """The procedure's commit ends a transaction and no message: its server session stays ours."""
    await give_settings(server_url)
    async with Database(url) as database, AsyncExitStack() as stack:
        stores = [PostgresWriteStore(database, on_lost=lambda: None) for _ in range(8)]
        for store in stores:
            stack.push_async_callback(store.close)
        for _ in range(5):
            writes = [write(uuid4().hex) for _ in stores]
            led = await asyncio.gather(
                *(store.claim_and_lead([ours]) for store, ours in zip(stores, writes, strict=True))
            )
            assert [{ours.claim_token} for ours in writes] == led
    assert 5 * len(stores) == await groups(connection)
    assert (await check_database(connection, retention_days=30)).violations == []


async def test_behind_a_pooler_the_same_words_are_not_believed(
    url: str, server_url: str, connection: Connection
) -> None:
    """PgBouncer says 08P01 of a server that it has lost; the next one may be another."""
    await give_settings(server_url)
    lost: list[str] = []
    async with Database(url) as database:
        store = PostgresWriteStore(database, on_lost=lambda: lost.append("lost"))
        ours = write("k")
        await store.claim([ours])
        await connection.execute(
            """CREATE FUNCTION doubt() RETURNS trigger LANGUAGE plpgsql AS
               $$BEGIN RAISE EXCEPTION 'doubt' USING ERRCODE = '08P01'; END$$;
               CREATE TRIGGER doubt BEFORE INSERT ON chat_group FOR EACH ROW
               EXECUTE FUNCTION doubt()"""
        )
        with pytest.raises(OutcomeUnknown) as unknown:
            await store.lead([ours])
        assert not isinstance(unknown.value, InDoubt)
        assert store._connection is None
        # Its listeners are called by the loop.
        await asyncio.sleep(0)
        assert ["lost"] == lost
        await store.close()


@asynccontextmanager
async def _database_through(
    pgbouncer: Path, server_url: str, *, is_hosts_pool: bool
) -> AsyncIterator[Database]:
    """Connect through PgBouncer: by its URL, or over a pool of the host's."""
    through = url_through(pgbouncer, server_url)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        asyncpg.create_pool(
            split_pooler(through)[0], min_size=0, max_size=4, statement_cache_size=0
        ) as pool,
        Database(pool=pool) if is_hosts_pool else Database(through) as database,
    ):
        # Not by `require_database`: what is left in a session is to be seen here.
        database.is_shared = True
        yield database


@pytest.mark.parametrize("is_hosts_pool", [False, True])
async def test_a_hook_that_leaves_its_session_alone_behind_pgbouncer_too(
    is_hosts_pool: bool, pgbouncer: Path, server_url: str, connection: Connection
) -> None:
    """The session there belongs to all who share it: it is reset before the commit."""
    await give_settings(server_url)
    seen: list[tuple[str, ...]] = []

    async def hook(inner: InnerConnection, _: Created) -> None:
        row = await inner.fetchrow(
            "SELECT current_user::text, current_setting('search_path'),"
            " current_setting('work_mem'), count(*) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert row is not None
        seen.append(tuple(row))
        await inner.execute(
            "SET search_path = public; SET work_mem = '7MB'; SET ROLE pg_monitor;"
            "SELECT pg_advisory_lock(7); CREATE TEMP TABLE attempt (x int)"
        )

    async with _database_through(pgbouncer, server_url, is_hosts_pool=is_hosts_pool) as database:
        stores = Stores(database)
        store = stores(hook)
        for number in range(2 * SERVER_CONNECTIONS):
            assert len(await led_by(store, f"k{number}")) == 1
        await store.close()
    assert len(set(seen)) == 1
    assert 2 * SERVER_CONNECTIONS == await groups(connection)


async def _veto() -> None:
    raise GroupRejected("quota", "Ten groups are enough.")


async def _crash() -> None:
    raise LookupError


@pytest.mark.parametrize("is_aborted", [False, True], ids=["", "aborted"])
@pytest.mark.parametrize(("end", "error"), [(_veto, Refused), (_crash, HookError)])
@pytest.mark.parametrize("is_hosts_pool", [False, True], ids=["own", "pool"])
async def test_a_hook_that_fails_leaves_no_lock_behind_pgbouncer(
    *,
    is_hosts_pool: bool,
    end: Callable[[], Awaitable[None]],
    error: type[Exception],
    is_aborted: bool,
    pgbouncer: Path,
    server_url: str,
    connection: Connection,
) -> None:
    """It would stay with the server's session, where it is never released."""
    await give_settings(server_url)
    pids: list[int] = []

    async def hook(inner: InnerConnection, _: Created) -> None:
        pids.append(await inner.fetchval("SELECT pg_backend_pid()"))
        if len(pids) > 1:
            return
        await inner.execute("SET work_mem = '7MB'; SELECT pg_advisory_lock(7)")
        if is_aborted:
            with suppress(asyncpg.DivisionByZeroError):
                await inner.execute("SELECT 1 / 0")
        await end()

    async with _database_through(pgbouncer, server_url, is_hosts_pool=is_hosts_pool) as database:
        stores = Stores(database)
        store = stores(hook)
        with pytest.raises(error):
            await led_by(store)
        assert [] == await connection.fetch(
            """SELECT pid FROM pg_locks WHERE locktype = 'advisory'
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
        )
        # Neither the server's session nor ours to PgBouncer was given up for it.
        assert len(await led_by(store, "another")) == 1
        assert await connection.fetchval(BACKENDS) > 0
        assert await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pids[0]
        )
        await store.close()
    assert [] == stores.lost


@pytest.mark.parametrize("is_hosts_pool", [False, True])
async def test_what_a_hook_has_left_running_is_ended_behind_pgbouncer(
    *, is_hosts_pool: bool, server_url: str, connection: Connection
) -> None:
    """The request goes through it to the server, which holds no attempt locked any more.

    A PgBouncer of its own: before 1.21 one dies if its server says anything, as when its database
    is dropped, while it still passes a cancel request on (pgbouncer's issue 822).
    """
    await give_settings(server_url)

    async def hook(inner: InnerConnection, _: Created) -> None:
        slow = asyncio.ensure_future(inner.execute("SELECT pg_sleep(60)"))
        slow.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)

    with running_pgbouncer(server_url) as folder:
        async with _database_through(folder, server_url, is_hosts_pool=is_hosts_pool) as database:
            store = Stores(database)(hook)
            with pytest.raises(HookError):
                await led_by(store)
            assert 1 == len(await connection.fetch("SELECT FROM attempt FOR UPDATE SKIP LOCKED"))
            await store.close()


def documented_reset() -> list[str]:
    """Return the lines of pgbouncer.ini that a host with a pool needs."""
    return re.findall(r"(?m)^ +(server_reset_query\w* = .+)$", OPERATIONS)


async def _keep(_: object) -> None:
    """Reset nothing, as is documented for a pool behind PgBouncer."""


@pytest.mark.parametrize(
    ("is_documented", "options"), [(True, {"reset": _keep}), (False, {"reset": _keep}), (False, {})]
)
async def test_what_a_hosts_handler_sets_behind_pgbouncer_leads_no_group_elsewhere(
    is_documented: bool, options: dict[str, Any], server_url: str, connection: Connection
) -> None:
    """PgBouncer resets nothing between transactions, unless it is told to."""
    await give_settings(server_url)
    await migrate(connection, "other")
    lines = documented_reset()
    assert len(lines) == 2
    with running_pgbouncer(server_url, *lines * is_documented) as folder:
        url, _ = split_pooler(url_through(folder, server_url))
        pool = asyncpg.create_pool(url, min_size=0, max_size=9, statement_cache_size=0, **options)
        async with pool, AsyncExitStack() as stack:
            opened = stretto_module.open_component(pool=pool)
            if not is_documented:
                with pytest.raises(
                    ConfigurationError, match="server_reset_query_always = 1"
                ) as error:
                    await stack.enter_async_context(opened)
                assert lines == str(error.value).splitlines()[1:]
                return
            component = await stack.enter_async_context(opened)
            for number in range(2 * SERVER_CONNECTIONS):
                await pool.execute("SET search_path TO other")
                await component.create(str(number), TEAM)
    assert 2 * SERVER_CONNECTIONS == await groups(connection)
