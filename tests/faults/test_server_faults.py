"""The database server crashes, restarts, stalls and runs out of room: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from support.api_client import settled_create
from support.database import LEADER, first_row, sound, writes_held_up
from support.service_process import apis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos.server import OwnServer
    from support.database import Connection
    from support.service_process import StartService

    Crash = Callable[[OwnServer, Connection], Awaitable[None]]


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
    await server.restart("fast")


async def restart_immediate(server: OwnServer, connection: Connection) -> None:
    """Drop everything, start again and recover."""
    await first_row(connection, LEADER)
    await server.restart("immediate")


async def kill_server(server: OwnServer, beside: Connection) -> None:
    """Kill the postmaster and all its children at once; start again."""
    await first_row(beside, LEADER)
    await server.kill()
    assert await server.start()


@pytest.mark.parametrize(
    "crash",
    [kill_backend, terminate_backend, restart_fast, restart_immediate, kill_server],
    ids=lambda crash: crash.__name__,
)
async def test_a_crash_under_a_lead_neither_loses_nor_doubles(
    crash: Crash,
    server: OwnServer,
    start_on_server: StartService,
    beside: Connection,
) -> None:
    """What was acknowledged before is there after; what was under way is finished once."""
    service = await start_on_server()
    async with apis(service) as (api,):
        before = await api.create("before")
        holding = writes_held_up(beside)
        await holding.__aenter__()
        under_way = asyncio.ensure_future(settled_create(api, "k"))
        await crash(server, beside)
        reply = await under_way
    fresh = await start_on_server()
    async with apis(fresh) as (api,):
        replayed = [await settled_create(api, key) for key in ("before", "k")]
    assert 201 == reply.status
    assert [before.body, reply.body] == [again.body for again in replayed]
    after = await server.connect()
    assert await after.fetchval("SELECT count(*) FROM chat_group") == 2
    assert await sound(after)
    await after.close()


@pytest.mark.parametrize("who", ["children", "all"])
async def test_a_stalled_server_is_reported_and_waited_for(
    who: str, server: OwnServer, start_on_server: StartService, beside: Connection
) -> None:
    """Stopped past a write's deadline: the client gets an answer; then all goes on by itself."""
    service = await start_on_server(WRITERS="1")
    async with apis(service) as (api,):
        before = await api.create("before")
        stopped = server.processes[1:] if who == "children" else server.processes
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        unknown = await api.create("k", wait=7)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        reply = await settled_create(api, "k")
        assert before.body == (await settled_create(api, "before")).body
    assert unknown.status in (201, 409, 503)
    assert unknown.status == 201 or "same-key" == unknown.json["retry"]
    assert 201 == reply.status
    assert await beside.fetchval("SELECT count(*) FROM chat_group") == 2
    assert await sound(beside)
