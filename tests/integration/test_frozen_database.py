"""A database that has stopped answering, and closes nothing either: everything still ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest
import pytest_asyncio

import stretto
from stretto.postgres import connecting
from stretto.postgres.connections import Database
from stretto.postgres.lanes import Lane
from stretto.store_errors import Unreachable
from support.frozen_server import Frozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.postgres.driver_connection import Connection

# Nothing here takes as long; without the mends it takes for ever.
DEADLINE_SECONDS: Final = 30
KEY: Final = stretto.IdempotencyKey("k")
NEW_GROUP: Final = stretto.NewGroup.parse(stretto.UserId("alice"), {"name": "Team"})


@pytest_asyncio.fixture
async def way(database_url: str) -> AsyncIterator[Frozen]:
    """A way to the database that still flows."""
    async with Frozen(database_url).running() as way:
        yield way


@asynccontextmanager
async def _one_try(
    way: Frozen, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Database, asyncio.Task[Connection]]]:
    """A database that has not answered a connection, and does not answer the next one either."""
    way.freeze()
    async with asyncio.timeout(DEADLINE_SECONDS), Database(way.url) as database:
        with monkeypatch.context() as patched:
            patched.setattr(connecting, "CONNECT_SECONDS", 0.01)
            with pytest.raises(Unreachable):
                await database.acquire()
        way.asked.clear()
        trying = asyncio.create_task(database.acquire())
        await way.asked.wait()
        yield database, trying
        way.thaw()
        await database.release(await trying)


async def test_one_alone_waits_for_a_database_that_does_not_answer(
    way: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are refused while a proxy has time left to ask another instance."""
    monkeypatch.setattr(connecting, "SILENT_SECONDS", 0.0)
    async with _one_try(way, monkeypatch) as (database, trying):
        with pytest.raises(Unreachable, match=connecting.SILENT):
            await database.acquire()
        assert not trying.done()


async def test_who_comes_as_the_database_answers_again_is_not_refused(
    way: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the try that is under way, and makes its own then."""
    monkeypatch.setattr(connecting, "SILENT_SECONDS", DEADLINE_SECONDS)
    async with _one_try(way, monkeypatch) as (database, _):
        others = [asyncio.create_task(database.acquire()) for _ in range(3)]
        way.thaw()
        for other in others:
            await database.release(await other)
        # Nothing is held against a database that has answered.
        monkeypatch.setattr(connecting, "SILENT_SECONDS", 0.0)
        for connection in await asyncio.gather(database.acquire(), database.acquire()):
            await database.release(connection)


async def _read(database: Database, began: asyncio.Event) -> None:
    async with database.connection(Lane.LOOKS) as connection:
        began.set()
        await connection.execute("SELECT pg_sleep(60)")


async def test_a_read_that_is_cancelled_ends_though_the_server_is_frozen(way: Frozen) -> None:
    """The pool would wait until the server has cancelled the statement."""
    began = asyncio.Event()
    async with asyncio.timeout(DEADLINE_SECONDS), Database(way.url) as database:
        reading = asyncio.create_task(_read(database, began))
        await began.wait()
        way.freeze()
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()


async def test_a_release_that_is_cancelled_ends_as_cancelled(way: Frozen) -> None:
    """The driver's own error would pass for a crash of the actor that is stopped."""
    async with asyncio.timeout(DEADLINE_SECONDS), Database(way.url) as database:
        connection = await database.acquire()
        began = asyncio.Event()

        async def hold() -> None:
            try:
                began.set()
                await asyncio.Event().wait()
            finally:
                await database.release(connection)

        way.freeze()
        holding = asyncio.create_task(hold())
        await began.wait()
        holding.cancel()
        await asyncio.wait({holding})
        assert holding.cancelled()
        assert connection.is_closed()


async def test_a_release_is_cancelled_while_it_waits(way: Frozen) -> None:
    """As by a runner whose time to stop is over: the driver makes a time-out of it."""
    async with asyncio.timeout(DEADLINE_SECONDS), Database(way.url) as database:
        connection = await database.acquire()
        way.freeze()
        releasing = asyncio.create_task(database.release(connection))
        await way.asked.wait()
        releasing.cancel()
        await asyncio.wait({releasing})
        assert releasing.cancelled()
        assert connection.is_closed()


@pytest.mark.parametrize("source", ["dsn", "pool"])
async def test_a_component_stops_though_the_server_is_frozen(source: str, way: Frozen) -> None:
    """While one of its actors waits for an answer that does not come."""
    async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as stack:
        pool = asyncpg.create_pool(
            way.url, min_size=0, max_size=8, server_settings={"search_path": "stretto"}
        )
        if source == "pool":
            await pool
            stack.callback(pool.terminate)
            opened = stretto.open_component(pool=pool)
        else:
            opened = stretto.open_component(way.url)
        async with opened as component:
            await component.creator.create(KEY, NEW_GROUP)
            way.freeze()
            await way.asked.wait()


async def test_a_start_that_is_cancelled_leaves_no_connection(
    way: Frozen, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was there, and its first statement under way."""
    connect = asyncpg.connect

    async def connect_and_freeze(*arguments: object, **options: object) -> object:
        opened = await connect(*arguments, **options)  # type: ignore[call-overload]
        way.freeze()
        made.append(opened)
        return opened

    made: list[Connection] = []
    monkeypatch.setattr(asyncpg, "connect", connect_and_freeze)
    async with asyncio.timeout(DEADLINE_SECONDS), Database(way.url) as database:
        acquiring = asyncio.create_task(database.acquire())
        await way.asked.wait()
        acquiring.cancel()
        await asyncio.wait({acquiring})
    assert [True] == [opened.is_closed() for opened in made]
