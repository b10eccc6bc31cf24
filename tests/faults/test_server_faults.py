"""The database server crashes, restarts, stalls and runs out of room: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from chaos.server import OwnServer, fill, small_disk
from chaos.steps import LEADER, apis, first_row, settled_create, sound, writes_held_up
from stretto.domain import group_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import asyncpg

    from api_client import Api
    from service_process import ServiceProcess

    Connection = asyncpg.Connection[asyncpg.Record]
    StartService = Callable[..., Awaitable[ServiceProcess]]

# As big as a group may be: a few of them need room on the disk.
BIG = {"name": "Big", "members": [f"user-{number:0100}" for number in range(1000)]}
FILE_BYTES = 17 * 2**20
# Rows of the biggest table that fill a file of that size; WAL's files stay below it.
FILLER = """INSERT INTO conversation (conversation_id, kind)
                VALUES ('00000000-0000-0000-0000-000000000000', 'direct');
            INSERT INTO conversation_member (conversation_id, user_id, role)
                SELECT '00000000-0000-0000-0000-000000000000', repeat('x', 100) || n, 'member'
                FROM generate_series(1, $ROWS$) AS n"""


@pytest_asyncio.fixture
async def database_url(server: OwnServer) -> str:
    """The services of these tests run on the server that is broken."""
    return server.dsn


@pytest_asyncio.fixture
async def connection(server: OwnServer) -> AsyncIterator[Connection]:
    """A connection to it."""
    connection = await server.connect()
    yield connection
    connection.terminate()


async def kill_backend(server: OwnServer, connection: Connection) -> None:
    """Kill the backend that leads: the server ends all others and recovers."""
    leader = await first_row(connection, LEADER)
    os.kill(leader["pid"], signal.SIGKILL)


async def terminate_backend(server: OwnServer, connection: Connection) -> None:
    """End the backend that leads, and no other."""
    leader = await first_row(connection, LEADER)
    await connection.execute("SELECT pg_terminate_backend($1, 5000)", leader["pid"])
    connection.terminate()


async def restart_fast(server: OwnServer, connection: Connection) -> None:
    """End all backends, write a checkpoint, start again."""
    await first_row(connection, LEADER)
    await server.stop("fast")
    assert await server.start()


async def restart_immediate(server: OwnServer, connection: Connection) -> None:
    """Drop everything, start again and recover."""
    await first_row(connection, LEADER)
    await server.stop("immediate")
    assert await server.start()


async def kill_postmaster(server: OwnServer, connection: Connection) -> None:
    """Kill the server's parent, whose children end by themselves; start again."""
    await first_row(connection, LEADER)
    processes = server.processes
    os.kill(server.pid, signal.SIGKILL)
    while any(os.path.exists(f"/proc/{pid}/cmdline") and is_alive(pid) for pid in processes):  # noqa: PTH110
        await asyncio.sleep(0)
    assert await server.start()


def is_alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "crash",
    [kill_backend, terminate_backend, restart_fast, restart_immediate, kill_postmaster],
    ids=lambda crash: crash.__name__,
)
async def test_a_crash_under_a_lead_neither_loses_nor_doubles(
    crash: Callable[[OwnServer, Connection], Awaitable[None]],
    server: OwnServer,
    start_service: StartService,
    connection: Connection,
) -> None:
    """What was acknowledged before is there after; what was under way is finished once."""
    service = await start_service()
    async with apis(service) as (api,):
        before = await api.create("before")
        await connection.execute("SELECT 1")
        holding = writes_held_up(connection)
        await holding.__aenter__()
        under_way = asyncio.ensure_future(settled_create(api, "k"))
        await crash(server, connection)
        reply = await under_way
    fresh = await start_service()
    async with apis(fresh) as (api,):
        replayed = [await api.create("before"), await api.create("k")]
    assert 201 == reply.status
    assert [before.body, reply.body] == [again.body for again in replayed]
    after = await server.connect()
    assert await after.fetchval("SELECT count(*) FROM chat_group") == 2
    assert await sound(after)
    await after.close()


@pytest.mark.parametrize("who", ["children", "everybody"])
async def test_a_stalled_server_is_told_and_waited_for(
    who: str, server: OwnServer, start_service: StartService, connection: Connection
) -> None:
    """Stopped past a write's deadline: the client gets an answer; then all goes on by itself."""
    service = await start_service()
    async with apis(service) as (api,):
        before = await api.create("before")
        stopped = server.processes[1:] if who == "children" else server.processes
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        unknown = await api.create("k", wait=7)
        assert before.body == (await api.create("before")).body
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        reply = await settled_create(api, "k")
    assert unknown.status in (201, 409, 503)
    assert unknown.status == 201 or "same-key" == unknown.json["retry"]
    assert 201 == reply.status
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 2
    assert await sound(connection)


async def until_full(api: Api) -> int:
    """Create big groups until one is not created; return how many were."""
    for number in range(1000):
        reply = await api.create(f"big-{number}", BIG)
        if reply.status != 201:
            assert (503, "database_unavailable") == (reply.status, reply.json["code"])
            return number
    raise AssertionError


async def finished(api: Api, created: int) -> None:
    """Create what there was no room for, and a few more."""
    for number in range(created, created + 3):
        reply = await settled_create(api, f"big-{number}", BIG)
        assert 201 == reply.status
        assert str(group_id("alice", f"big-{number}")) == reply.json["group_id"]


async def no_room_for_files(server: OwnServer, connection: Connection) -> Callable[[], None]:
    """Fill the biggest table's file to what a file may have; return what makes room."""
    size = 0
    while size < FILE_BYTES - 2**20:
        rows = 20_000 if size == 0 else 2_000
        statement = FILLER.replace("$ROWS$", str(rows)).replace("|| n", f"|| n + {size}")
        await connection.execute(statement + " ON CONFLICT DO NOTHING" if size == 0 else
            statement.split(";")[1])
        size = await connection.fetchval("SELECT pg_relation_size('conversation_member')")
    server.limit_files(FILE_BYTES)
    return lambda: server.limit_files(2**40)


async def test_x() -> None:
    pass
