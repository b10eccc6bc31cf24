"""A place in the log outlives crashes, lost tails and restores: no event behind it is passed over (G9)."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from chaos.server import OwnServer, backup_of, own_server, standby_of
from stretto.assembly.opening import open_component
from stretto.domain import IdempotencyKey, NewGroup, UserId, event_id
from stretto.events.place import PositionLost
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.connections import Database
from stretto.postgres.log import PostgresLogStore
from stretto.store_errors import Unreachable
from support.database import commit_event, first_row
from support.waiting import WAIT_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from uuid import UUID

    from stretto.events.place import Place
    from support.database import Connection

TEAM: Final = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})
STREAMING: Final = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
CAUGHT_UP: Final = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"


async def create(server: OwnServer, *keys: str) -> list[UUID]:
    """Create groups, one after the other; return the ids of their events."""
    async with open_component(server.dsn) as component:
        answers = [await component.creator.create(IdempotencyKey(key), TEAM) for key in keys]
    return [event_id(answer.group.conversation_id) for answer in answers]


@asynccontextmanager
async def log_of(server: OwnServer) -> AsyncIterator[PostgresLogStore]:
    """The log as a process reads it that has just been started."""
    async with Database(server.dsn) as database:
        yield PostgresLogStore(database.upkeep)


async def present(server: OwnServer) -> Place:
    """Return the place that a client would get now."""
    async with log_of(server) as log:
        return await log.present()


async def resumed(server: OwnServer, place: Place) -> list[UUID]:
    """Return the events that come to a client that resumes; raises `PositionLost`."""
    async with log_of(server) as log:
        page = await log.page(place, 1000)
    page.present.require(place)
    return [logged.event.event_id for logged in page.events]


async def newest_id(connection: Connection) -> int:
    """Return the transaction id that is given out next."""
    id_: int = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())")
    return id_


async def position_of(connection: Connection, id_: UUID) -> int:
    """Return an event's position."""
    position: int = await connection.fetchval(
        "SELECT position FROM outbox WHERE event_id = $1", id_
    )
    return position


async def run(*command: str | Path) -> None:
    """Run a program; it must succeed."""
    process = await asyncio.create_subprocess_exec(*command)
    assert 0 == await process.wait()


async def kill_a_backend(server: OwnServer) -> None:
    """Kill one: the server ends all others, and recovers under its old postmaster."""
    victim = await server.connect()
    os.kill(await victim.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
    await until(lambda: asyncio.sleep(0, victim.is_closed()))
    await (await server.connect()).close()


async def kill_and_start(server: OwnServer) -> None:
    """Kill all processes at once; start again."""
    await server.kill()
    assert await server.start()


@pytest.mark.parametrize("crash", [kill_a_backend, kill_and_start], ids=lambda each: each.__name__)
async def test_a_place_rests_on_what_a_crash_keeps(crash: object) -> None:
    """The server gives the ids of forgotten commits out again; a place at the newest id skips events."""
    assert callable(crash)
    # So that asynchronous commits are not flushed meanwhile.
    async with own_server(wal_writer_delay="10s") as server:
        await create(server, "before")
        connection = await server.connect()
        await connection.execute("SET synchronous_commit = off")
        for _ in range(20):
            await connection.execute("INSERT INTO inbox VALUES ('c', gen_random_uuid())")
        place, newest = await present(server), await newest_id(connection)
        assert place.xmax < newest
        await crash(server)
        ids = await create(server, *(f"k{number}" for number in range(30)))
        connection = await server.connect()
        positions = [await position_of(connection, id_) for id_ in ids]
        # The premise: ids were given out again.
        assert positions[0] < newest < positions[-1]
        assert ids == await resumed(server, place)
        if crash is kill_a_backend:
            assert ids[0] not in await resumed(server, replace(place, xmax=newest))
        await connection.close()


async def test_a_place_outlives_a_failover_that_loses_the_tail(
    server: OwnServer, beside: Connection
) -> None:
    """The new primary numbers anew from before the place: a history of its own comes after it."""
    async with standby_of(server) as standby:
        await first_row(beside, STREAMING)
        kept = await create(server, "kept")
        await first_row(beside, CAUGHT_UP)
        between = await present(server)
        await standby.fall_behind()
        await create(server, "lost")
        for _ in range(10):
            await beside.execute("SELECT pg_current_xact_id()")
        await create(server, "lost-too")
        given = await present(server)
        await server.stop("immediate")
        await standby.promote()
        # Before anything is written there, the place is not lost either.
        assert [] == await resumed(standby, given)
        ids = await create(standby, "lost", "new")
        connection = await standby.connect()
        assert await position_of(connection, ids[0]) < given.xmax
        assert ids == await resumed(standby, given) == await resumed(standby, between)
        own = await present(standby)
        assert own.history.number > given.history.number
        # The twin: of one history, its position alone would be beyond the new event.
        await create(standby, *(f"k{number}" for number in range(15)))
        assert ids[0] not in await resumed(standby, replace(given, history=own.history))
        assert kept[0] not in await resumed(standby, given)
        await connection.close()


async def test_a_place_outlives_files_that_were_put_back(server: OwnServer) -> None:
    """An older copy of the disk, started as it is: the same timeline, and ids that go back."""
    await create(server, "kept")
    copy = server.place.cluster.with_name("copy")
    server.signal(signal.SIGSTOP)
    await run("cp", "-a", server.place.cluster, copy)
    server.signal(signal.SIGCONT)
    await create(server, "lost", "k")
    given = await present(server)
    await server.stop("immediate")
    await run("rm", "-r", server.place.cluster)
    copy.rename(server.place.cluster)
    (server.place.cluster / "postmaster.pid").unlink()
    assert await server.start()
    # Before anything is written there, the place is not lost either.
    assert [] == await resumed(server, given)
    ids = await create(server, "lost", "new")
    connection = await server.connect()
    assert await position_of(connection, ids[0]) < given.xmax
    await connection.close()
    assert ids == await resumed(server, given)


async def test_a_place_outlives_a_recovery_to_a_point_in_time(server: OwnServer) -> None:
    """From a base backup and the WAL: a timeline of its own, and ids that go back."""
    async with backup_of(server) as backup:
        await create(server, "kept")
        await server.mark("here")
        await create(server, "lost", "k")
        given = await present(server)
        await server.kill()
        await backup.recover("here", server.place.cluster / "pg_wal")
        # Before anything is written there, the place is not lost either.
        assert [] == await resumed(backup, given)
        ids = await create(backup, "lost", "new")
        connection = await backup.connect()
        assert await position_of(connection, ids[0]) < given.xmax
        await connection.close()
        assert ids == await resumed(backup, given)


async def test_a_place_outlives_a_restore_into_another_server(server: OwnServer) -> None:
    """Which has fewer ids behind it: what was restored comes first, then what is new."""
    connection = await server.connect()
    for _ in range(2000):
        await connection.execute("SELECT pg_current_xact_id()")
    await create(server, "had")
    given = await present(server)
    restored = await create(server, "missed")
    file = await server.dump()
    async with own_server(has_tables=False) as other:
        await other.restore(file)
        assert restored == await resumed(other, given)
        ids = await create(other, "new")
        there = await other.connect()
        assert await position_of(there, ids[0]) < given.xmax
        assert restored + ids == await resumed(other, given)
        assert (await present(other)).history.number > given.history.number
        await there.close()
    await connection.close()


async def test_two_servers_with_one_past_do_not_take_each_others_places(
    server: OwnServer, beside: Connection
) -> None:
    """Both were promoted from one primary: their newest histories have one number and two ids."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(standby_of(server, "one"))
        other = await stack.enter_async_context(standby_of(server, "other"))
        await create(server, "k")
        await until(
            lambda: beside.fetchval(
                "SELECT count(*) = 2 FROM pg_stat_replication"
                " WHERE replay_lsn >= pg_current_wal_lsn()"
            )
        )
        await server.stop("immediate")
        for standby in (one, other):
            await standby.promote()
            await create(standby, "new")
        place, elsewhere = await present(one), await present(other)
        assert place.history.number == elsewhere.history.number
        with pytest.raises(PositionLost):
            await resumed(other, place)
        assert [] == await resumed(one, place)


@pytest.mark.parametrize("is_synchronous", [True, False])
async def test_no_event_is_read_before_the_standby_has_it(
    is_synchronous: bool, server: OwnServer, beside: Connection
) -> None:
    """Not from the log, nor as a delivery; without a synchronous standby it is read at once."""
    async with standby_of(server) as standby, Database(server.dsn) as database:
        await first_row(beside, STREAMING)
        await server.set_synchronous(is_synchronous=True)
        store = PostgresBusStore(database)
        await store.open()
        place = await store.present()
        await standby.stop()
        # Visible here, as after a restart of the primary.
        await beside.execute("SET synchronous_commit = local")
        event = await commit_event(beside)
        await beside.execute(
            """INSERT INTO outbox_delivery (reader, created_at, event_id, subject,
                                            conversation_id, recipients, group_name, due_at)
               SELECT 'bus', created_at, event_id, subject, conversation_id, recipients,
                      group_name, now()
               FROM outbox"""
        )
        if not is_synchronous:
            await server.set_synchronous(is_synchronous=False)
        assert [] == (await store.page(await store.present(), 10)).events
        page = asyncio.create_task(store.page(place, 10))
        taken = asyncio.create_task(store.take(10, 60.0))
        # Nothing signals that they wait.
        seconds = 1.0 if is_synchronous else WAIT_SECONDS
        done, _ = await asyncio.wait({page, taken}, timeout=seconds)
        assert (set() if is_synchronous else {page, taken}) == done
        assert await standby.start()
        assert [event] == [logged.event.event_id for logged in (await page).events]
        assert [event] == [delivery.event.event_id for delivery in await taken]


async def test_a_standby_gives_no_place_in_the_log(server: OwnServer) -> None:
    """It knows of no running transaction: the place would cover events that nobody has read.

    A pooler leads a connection that was opened to the primary there.
    """
    async with standby_of(server) as standby, Database(server.dsn) as database:
        begin = await PostgresLogStore(database.upkeep).present()
        connection = await standby.connect()

        @asynccontextmanager
        async def acquire() -> AsyncIterator[Connection]:
            yield connection

        log = PostgresLogStore(acquire)
        for reading in (log.present(), log.page(begin, 9), log.deletions(begin, 9)):
            with pytest.raises(Unreachable, match="the database is read-only"):
                await reading
        await connection.close()
