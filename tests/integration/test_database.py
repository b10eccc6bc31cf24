"""Where connections come from: several hosts, a server that hangs, and the end."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from stretto.postgres import connections as database_module
from stretto.postgres.connections import Database
from stretto.postgres.driver_connection import DriverConnection, watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS, store_error
from stretto.postgres.lanes import CONNECTIONS_MAX, Lane
from stretto.postgres.tail import PostgresTail
from stretto.store_errors import (
    Locked,
    Misconfigured,
    OutcomeUnknown,
    ReadCancelled,
    StoreError,
    Unreachable,
)
from support.frozen_server import Frozen
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.database import Connection

SLEEP = "SELECT pg_sleep(60)"
SOON_SECONDS = 0.05
# Nothing here takes as long: what hangs must not hang the suite.
DEADLINE_SECONDS = 60


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this host that refuses connections, and that stays taken meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def hosts(database_url: str, closed_port: int) -> str:
    """A URL that names a host that refuses, and then the real one."""
    parts = urlsplit(database_url)
    account, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{account}@127.0.0.1:{closed_port},{place}").geturl()


def order(database: Database) -> list[int | None]:
    """Return the ports as they would be tried."""
    return [port for _, port in database._connector.hosts]


async def test_the_next_host_is_tried_when_the_first_refuses(hosts: str) -> None:
    """For a connection to keep as for a short read."""
    async with Database(hosts) as database:
        connection = await database.acquire()
        assert await connection.fetchval("SELECT 1") == 1
        await database.release(connection)
        await database.ping()


async def test_the_host_that_served_last_is_tried_first(hosts: str, closed_port: int) -> None:
    """Also when many connect at once, each while the others change the order."""
    async with Database(hosts) as database:
        assert closed_port == order(database)[0]
        held = await asyncio.gather(*(database.acquire() for _ in range(6)))
        assert closed_port == order(database)[-1]
        assert len(order(database)) == 2
        for connection in held:
            await database.release(connection)


async def test_a_doubted_server_is_tried_last_and_its_connection_cut(hosts: str) -> None:
    """Where it is still the primary, it serves on."""
    async with Database(hosts) as database:
        connection = await database.acquire()
        served, refused = order(database)
        database._connector.doubt(connection)
        assert connection.is_closed()
        assert [refused, served] == order(database)
        again = await database.acquire()
        assert [served, refused] == order(database)
        await database.release(again)


async def test_a_closed_database_looks_for_a_newer_primary_no_more(database_url: str) -> None:
    """It leaves no task behind; until then the older one serves."""
    async with Database(database_url) as database:
        connection = await database.acquire()
        opened = database._connector._opened
        (older,) = opened._primaries.values()
        opened._lived_at[older._replace(timeline="FFFFFFFF")] = float("-inf")
        before = asyncio.all_tasks()
        await database.release(await database.acquire())
        (search,) = asyncio.all_tasks() - before
        await database.release(connection)
    assert search.done()


@pytest.mark.parametrize("kind", ["pooler", "hosts_pool"])
async def test_a_doubted_server_keeps_connections_that_show_nothing_or_are_not_ours(
    kind: str, hosts: str, database_url: str
) -> None:
    """What leads to the server is a pooler's matter, or the host's."""
    async with (
        asyncpg.create_pool(database_url, min_size=0, max_size=1) as pool,
        Database(f"{hosts}&pgbouncer=true")
        if kind == "pooler"
        else Database(pool=pool) as database,
    ):
        connection = await database.acquire()
        before = order(database)
        database.standby._doubt(connection)
        assert not connection.is_closed()
        assert before == order(database)
        await database.release(connection)


async def test_where_every_host_refuses_the_failure_is_reported(closed_port: int) -> None:
    """With its cause kept."""
    twice = f"127.0.0.1:{closed_port},127.0.0.1:{closed_port}"
    async with Database(f"postgresql://x@{twice}/x") as database:
        with pytest.raises(Unreachable, match="Connection refused") as error:
            await database.acquire()
        assert isinstance(error.value.__cause__, ConnectionRefusedError)


def test_addresses_with_colons_are_distinguished_from_their_ports() -> None:
    """An IPv6 address stands in brackets; without a port it is PostgreSQL's own."""
    database = Database("postgresql://u:p@[::1]:6000,[::2],db.test:6001/x")
    expected = [("::1", 6000), ("::2", 5432), ("db.test", 6001)]
    assert expected == database._connector.hosts


async def test_a_statement_that_hangs_is_cut_off(database_url: str) -> None:
    """Its caller gets a driver's error, which leaves the outcome of a write unknown."""
    async with Database(database_url) as database:
        connection = await database.acquire()
        with pytest.raises(DRIVER_ERRORS) as error, watchdog(connection, SOON_SECONDS):
            await connection.execute(SLEEP)
        raised = store_error(error.value, connection_lives=not connection.is_closed())
        assert isinstance(raised, OutcomeUnknown)
        await database.release(connection)


async def test_a_statement_that_is_cut_off_between_two_steps_is_a_lost_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver then fails on the protocol that it has dropped, with an error of no database."""
    driver: Any = DriverConnection
    prepare = driver._get_statement

    async def prepare_and_lose(self: Any, *args: object, **kwargs: object) -> object:
        statement = await prepare(self, *args, **kwargs)
        self.terminate()
        return statement

    async def read(database: Database) -> None:
        async with database.connection(Lane.GROUPS) as connection:
            await connection.fetch("SELECT $1::int", 1)

    async with Database(database_url) as database:
        with monkeypatch.context() as patch:
            patch.setattr(driver, "_get_statement", prepare_and_lose)
            with pytest.raises(Unreachable):
                await read(database)
        with pytest.raises(AttributeError):
            async with database.connection(Lane.GROUPS):
                raise AttributeError


async def test_a_question_to_the_server_gets_between_no_steps_of_a_statement(
    database_url: str,
) -> None:
    """Another task uses the connection: the driver takes one operation at a time."""
    connection = await asyncpg.connect(database_url, connection_class=DriverConnection)

    async def use() -> None:
        for number in range(50):
            # New to the driver: it is prepared first, which is another step.
            assert number == await connection.fetchval(f"SELECT {number} + $1::int", 0)
            await connection.execute("SELECT 1")

    using = asyncio.create_task(use())
    while not using.done():
        connection.ask()
        await asyncio.sleep(0)
    await using
    connection.ask()
    assert 1 == await connection.fetchval("SELECT 1")
    connection.ask()
    await connection.execute("SELECT 1")
    await connection.close()


async def test_a_connection_knows_when_its_server_has_answered_last(database_url: str) -> None:
    """A statement, or a question that nothing else was waiting for; not where it has frozen."""
    async with Frozen(database_url).running() as way:
        connection = await asyncpg.connect(way.url, connection_class=DriverConnection)
        answered = [connection.answered_at]
        await connection.fetchval("SELECT 1")
        answered.append(connection.answered_at)
        await connection.execute("SELECT 1")
        answered.append(connection.answered_at)
        connection.ask()
        await until(lambda: connection.answered_at > answered[-1])
        assert answered == sorted({*answered})
        last = connection.answered_at
        way.freeze()
        connection.ask()
        with pytest.raises(DRIVER_ERRORS), watchdog(connection, SOON_SECONDS):
            await connection.fetchval("SELECT 1")
        assert last == connection.answered_at
        assert connection.is_closed()


async def test_a_watchdog_that_was_not_needed_does_nothing(database_url: str) -> None:
    """The connection is good for the next statement."""
    async with Database(database_url) as database:
        connection = await database.acquire()
        with watchdog(connection, SOON_SECONDS):
            await connection.execute("SELECT 1")
        await connection.execute("SELECT pg_sleep($1)", 2 * SOON_SECONDS)
        assert not connection.is_closed()
        await database.release(connection)


async def test_transactions_are_bounded_but_for_those_of_commands(
    database_url: str, connection: Connection
) -> None:
    """A check or a migration of a large database takes its time, whatever bound a role has."""
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"""ALTER DATABASE "{name}" SET transaction_timeout = '7s'""")
    async with Database(database_url) as database:
        writer, command = await database.acquire(), await database.acquire(may_take_long=True)
        async with database.connection(Lane.LOOKS) as reader:
            shown = [
                await c.fetchval("SHOW transaction_timeout") for c in (writer, reader, command)
            ]
        assert ["30s", "30s", "0"] == shown
        for each in (writer, command):
            await database.release(each)


async def test_reads_alone_have_a_statement_timeout_whatever_the_role_has(
    database_url: str, connection: Connection
) -> None:
    """A write that is cancelled while it waits for a standby would pass for one that has it."""
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"""ALTER DATABASE "{name}" SET statement_timeout = '7s'""")
    async with Database(database_url) as database:
        writer, command = await database.acquire(), await database.acquire(may_take_long=True)
        async with database.connection(Lane.LOOKS) as reader:
            shown = [await c.fetchval("SHOW statement_timeout") for c in (writer, reader, command)]
        assert ["0", "5s", "0"] == shown
        # A hook's session is reset to what it began with.
        await writer.execute("SET statement_timeout = '3s'; RESET ALL")
        assert "0" == await writer.fetchval("SHOW statement_timeout")
        for each in (writer, command):
            await database.release(each)


async def test_a_connection_that_waits_for_work_is_ended_by_no_setting(
    database_url: str, connection: Connection
) -> None:
    """A role's `idle_session_timeout` would end all of them, again and again."""
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"""ALTER DATABASE "{name}" SET idle_session_timeout = '1s'""")
    async with Database(database_url) as database:
        writer = await database.acquire()
        async with database.connection(Lane.LOOKS) as reader:
            shown = [await each.fetchval("SHOW idle_session_timeout") for each in (writer, reader)]
        assert ["0", "0"] == shown
        await database.release(writer)


async def test_no_kind_of_work_takes_the_connections_of_another(database_url: str) -> None:
    """However busy one lane is, the others have their own; together they are as many as documented."""
    async with Database(database_url) as database, AsyncExitStack() as stack:
        acquired = {
            (await stack.enter_async_context(database.connection(lane))).get_server_pid()
            for lane, connections_max in CONNECTIONS_MAX.items()
            for _ in range(connections_max)
        }
        assert set(Lane) == set(CONNECTIONS_MAX)
        assert sum(CONNECTIONS_MAX.values()) == len(acquired) == 15


async def test_no_lane_takes_more_of_a_hosts_pool_than_its_part(database_url: str) -> None:
    """One owner's statements that hang would take all of it."""

    async def ask(lane: Lane) -> None:
        async with database.connection(lane):
            pass

    async with (
        asyncpg.create_pool(database_url, min_size=0, max_size=20) as pool,
        Database(pool=pool) as database,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS_MAX[Lane.FOLLOWERS]):
                await stack.enter_async_context(database.connection(Lane.FOLLOWERS))
            more = asyncio.create_task(ask(Lane.FOLLOWERS))
            await ask(Lane.LOOKS)
            await asyncio.wait((more,), timeout=2 * SOON_SECONDS)
            assert not more.done()
        await more


async def test_health_is_asked_on_a_connection_of_its_own(database_url: str) -> None:
    """However busy everything else is, and for however long: no watchdog makes room for it."""
    database = Database(database_url, cut_seconds=100 * DEADLINE_SECONDS)
    async with database, AsyncExitStack() as stack:
        for lane, connections_max in CONNECTIONS_MAX.items():
            if lane is not Lane.PROBE:
                for _ in range(connections_max):
                    await stack.enter_async_context(database.connection(lane))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await database.ping()


async def test_a_hosts_pool_is_waited_for_against_a_time_out(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may keep all its connections, and we cannot know for how long."""
    monkeypatch.setattr(database_module, "CONNECT_SECONDS", SOON_SECONDS)
    async with (
        asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool,
        pool.acquire(),
        Database(pool=pool) as database,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        with pytest.raises(Unreachable, match="the host's pool gave no connection within"):
            await database.ping()


async def test_a_read_that_the_server_cancels_is_known_as_one(database_url: str) -> None:
    """The connection lives: what shared the statement may be read alone."""
    async with Database(database_url) as database:
        with pytest.raises(ReadCancelled):
            async with database.connection(Lane.LOOKS) as connection:
                await connection.execute(f"SET statement_timeout = '10ms'; {SLEEP}")
        with pytest.raises(Unreachable) as error:
            async with database.connection(Lane.LOOKS) as connection:
                await connection.execute("SELECT * FROM nothing")
        assert type(error.value) is Unreachable


async def test_a_read_that_hangs_is_unreachable(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own time-out comes first; where it does not come, the connection is cut."""
    monkeypatch.setattr(database_module, "READ_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(database_module, "GRACE_SECONDS", 0.0)
    async with Database(database_url) as database:
        with pytest.raises(Unreachable):
            async with database.connection(Lane.LOOKS) as connection:
                await connection.execute(f"SET statement_timeout = 0; {SLEEP}")
        # The next read gets another connection.
        monkeypatch.undo()
        await database.ping()


@pytest.mark.parametrize(
    ("expected", "statement"),
    [
        (r"\"nothing\" does not exist \(SQLSTATE 42P01\)", "SELECT * FROM nothing"),
        ("due to statement timeout", f"SET statement_timeout = '10ms'; {SLEEP}"),
        ("SQLSTATE (57P01|08003)", "SELECT pg_terminate_backend(pg_backend_pid())"),
    ],
)
async def test_every_failure_of_a_read_is_unreachable(
    expected: str, statement: str, database_url: str
) -> None:
    """Nothing was written, so there is nothing else to distinguish."""
    async with Database(database_url) as database:
        with pytest.raises(Unreachable, match=expected):
            async with database.connection(Lane.LOOKS) as connection:
                await connection.execute(statement)
        await database.ping()


@pytest.mark.parametrize("lane", [Lane.UPKEEP, Lane.HISTORY])
async def test_upkeep_reports_what_it_has_met_by_its_kind(
    lane: Lane, database_url: str, connection: Connection
) -> None:
    """An operator looks for a lock elsewhere than for a server that is away; requests need not know."""

    async def kind(lane: Lane, statement: str) -> type[StoreError]:
        with pytest.raises(StoreError) as error:
            async with database.connection(lane) as session:
                await session.execute(statement)
        return type(error.value)

    read = "SELECT FROM outbox"
    async with Database(database_url) as database, connection.transaction():
        await connection.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        assert [Locked, Unreachable] == [await kind(lane, read), await kind(Lane.LOOKS, read)]
        assert Misconfigured is await kind(lane, "SELECT FROM nothing")
        assert Unreachable is await kind(lane, "SELECT pg_terminate_backend(pg_backend_pid())")


async def test_the_log_tail_reports_a_lock_as_one(
    database_url: str, connection: Connection
) -> None:
    """It has a connection of its own."""
    async with Database(database_url) as database, connection.transaction():
        await connection.execute("LOCK TABLE outbox_history IN ACCESS EXCLUSIVE MODE")
        tail = PostgresTail(database, uuid4())
        await tail.listen(lambda: None)
        with pytest.raises(Locked):
            await tail.present()
        await tail.close()


async def test_a_database_without_tables_learns_what_to_do(
    database_url: str, connection: Connection
) -> None:
    """Not as a missing table somewhere later."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    async with Database(database_url) as database:
        with pytest.raises(Unreachable, match="stretto migrate"):
            await database.ping()


async def test_a_statement_that_the_end_of_the_service_breaks_is_unreachable(
    database_url: str,
) -> None:
    """It fails once the pools are gone, and must not fail on that."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database(database_url))

        async def read() -> None:
            async with database.connection(Lane.LOOKS) as connection:
                closing.set_result(asyncio.create_task(stack.aclose()))
                await asyncio.sleep(0)
                await connection.execute("SELECT * FROM nothing")

        closing = asyncio.get_running_loop().create_future()
        with pytest.raises(Unreachable):
            await read()
        await (await closing)


async def test_a_closed_database_is_unreachable(database_url: str) -> None:
    """A request that comes during the shutdown is answered, and no connection is opened behind it."""
    async with Database(database_url) as database:
        await database.ping()
    with pytest.raises(Unreachable, match="shutting down"):
        await database.acquire()
    with pytest.raises(Unreachable, match="shutting down"):
        await database.ping()


async def test_a_close_that_is_cancelled_again_and_again_closes_all(
    database_url: str, connection: Connection
) -> None:
    """As an `anyio` scope cancels: before a step of its parts has begun."""
    database, pids = Database(database_url), []
    await database.__aenter__()
    for lane in Lane:
        async with database.connection(lane) as idle:
            pids.append(await idle.fetchval("SELECT pg_backend_pid()"))
    closing = asyncio.create_task(database.__aexit__())
    await asyncio.sleep(0)
    while not closing.done():
        closing.cancel()
        await asyncio.sleep(0)
    left = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)"
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await connection.fetchval(left, pids):
            await asyncio.sleep(0.05)


async def test_a_hosts_pool_gets_its_connection_back_alive(database_url: str) -> None:
    """It is neither closed nor leaked, and the pool stays the host's."""
    settings = {"search_path": "stretto"}
    async with asyncpg.create_pool(
        database_url, min_size=1, max_size=1, server_settings=settings
    ) as pool:
        pids = []
        for _ in range(2):
            async with Database(pool=pool) as database:
                held = await database.acquire()
                pids.append(await held.fetchval("SELECT pg_backend_pid()"))
                await database.release(held)
                await database.ping()
        assert pids[0] == pids[1]
    with pytest.raises(Unreachable):
        await Database(pool=pool).acquire()


async def test_a_roles_isolation_is_not_taken_over(
    database_url: str, connection: Connection
) -> None:
    """Above READ COMMITTED, a claim that waits for another one fails."""
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(
        f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable'
    )
    async with Database(database_url) as database:
        await database.inspect()
        kept = await database.acquire()
        assert "read committed" == await kept.fetchval("SHOW transaction_isolation")
        await database.release(kept)


@pytest.mark.parametrize("durability", ["off", "local"])
async def test_a_role_whose_commits_are_not_flushed_is_refused(
    durability: str, database_url: str, connection: Connection
) -> None:
    """A crash would take back what was answered; the twin flushes, and waits for no standby."""
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = {durability}')
    async with Database(database_url) as database:
        if durability == "off":
            with pytest.raises(Unreachable, match="SET synchronous_commit = 'on'"):
                await database.inspect()
        else:
            await database.inspect()


async def test_a_url_with_another_encoding_is_refused(database_url: str) -> None:
    """With what to do about it."""
    async with Database(f"{database_url}&client_encoding=LATIN1") as database:
        with pytest.raises(Unreachable, match="client_encoding is LATIN1 and must be UTF8"):
            await database.inspect()
