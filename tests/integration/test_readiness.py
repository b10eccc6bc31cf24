"""Ready is who can write: whatever keeps writers away turns it red, and nobody need write to mend it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from chaos.steps import END_OURS, set_read_only
from pgbouncer import give_settings, reconnect, running_pgbouncer, url_through
from stretto.protocol.ports import Unreachable
from stretto.storage.attempts import PostgresWriteStore
from stretto.storage.database import READ_ONLY, Database, Lane
from stretto.storage.readiness import PROBE_SECONDS, Readiness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Connection = asyncpg.Connection[asyncpg.Record]


class Clock:
    """Stands still unless it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def closed(connection: Connection, server_url: str) -> AsyncIterator[None]:
    """Have the database take no connection any more; those that it has live on."""
    name = await connection.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(server_url.replace(f"/{name}", "/postgres"))
    await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
    try:
        yield
    finally:
        await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
        await admin.close()


async def test_a_read_only_database_is_not_ready_until_it_takes_writes(
    database_url: str, connection: Connection
) -> None:
    """Neither to be read, nor to be written; a client's write is not needed for it to recover."""
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store])
        await store.open()
        await readiness.check()
        await set_read_only(connection, is_read_only=True)
        await connection.execute(END_OURS)
        for _ in range(2):
            with pytest.raises(Unreachable):
                await readiness.check()
        with pytest.raises(Unreachable, match=READ_ONLY):
            await database.lend()
        await set_read_only(connection, is_read_only=False)
        await readiness.check()
        await store.close()


async def test_a_session_that_has_become_read_only_is_given_up(database_url: str) -> None:
    """Another one may lead to a server that takes writes."""
    async with Database(database_url) as database:
        readiness = Readiness(database, [])
        async with database.reading(Lane.PROBE) as reader:
            await reader.execute("SET default_transaction_read_only = on")
        with pytest.raises(Unreachable, match=READ_ONLY):
            await readiness.check()
        await Readiness(database, [PostgresWriteStore(database, lambda: None)]).check()


async def test_writers_that_reach_nothing_are_known_until_a_connection_can_be_had(
    database_url: str, server_url: str, connection: Connection
) -> None:
    """Reads go on meanwhile; the database is asked once a second, however often we are."""
    clock = Clock()
    async with Database(database_url) as database:
        stores = [PostgresWriteStore(database, lambda: None) for _ in range(2)]
        readiness = Readiness(database, stores, clock)
        await readiness.check()
        async with closed(connection, server_url):
            for store in stores:
                # One writer that is well is enough.
                await readiness.check()
                with pytest.raises(Unreachable):
                    await store.claim([])
            with pytest.raises(Unreachable, match="not currently accepting connections"):
                await readiness.check()
        clock.now += PROBE_SECONDS / 2
        with pytest.raises(Unreachable, match="not currently accepting connections"):
            await readiness.check()
        clock.now += PROBE_SECONDS / 2
        await readiness.check()
        assert [False, False] == [store.is_cut_off for store in stores]
        async with database.reading(Lane.PROBE) as reader:
            assert 1 == await reader.fetchval("SELECT 1")


async def test_a_writer_that_connects_again_is_no_longer_cut_off(
    database_url: str, server_url: str, connection: Connection
) -> None:
    """By its own next statement."""
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        async with closed(connection, server_url):
            with pytest.raises(Unreachable):
                await store.claim([])
        assert store.is_cut_off
        await store.claim([])
        assert not store.is_cut_off
        await store.close()


async def test_behind_pgbouncer_what_it_reported_once_does_not_count(
    server_url: str, connection: Connection
) -> None:
    """The server itself is asked, at every connection."""
    with running_pgbouncer(server_url) as folder:
        await give_settings(server_url)
        async with Database(url_through(folder, server_url)) as database:
            store = PostgresWriteStore(database, lambda: None)
            readiness = Readiness(database, [store])
            await readiness.check()
            for is_read_only in (True, False):
                await set_read_only(connection, is_read_only=is_read_only)
                await reconnect(folder)
                if is_read_only:
                    with pytest.raises(Unreachable, match=READ_ONLY):
                        await readiness.check()
                    with pytest.raises(Unreachable, match=READ_ONLY):
                        await database.lend()
                else:
                    await readiness.check()
                    await store.claim([])
            await store.close()


async def test_behind_pgbouncer_a_server_that_once_refused_writes_is_asked_again(
    server_url: str, connection: Connection
) -> None:
    """PgBouncer greets clients with what its first connection was told, until an operator steps in."""
    # It looks at each connection before it is used: one that has just ended is replaced.
    with running_pgbouncer(server_url, "server_check_delay = 0") as folder:
        await give_settings(server_url)
        async with Database(url_through(folder, server_url)) as database:
            await set_read_only(connection, is_read_only=True)
            with pytest.raises(Unreachable, match=READ_ONLY):
                await database.lend()
            await set_read_only(connection, is_read_only=False)
            await connection.execute(END_OURS)
            await database.give_back(await database.lend())
