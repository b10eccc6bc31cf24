"""Real service processes on one database, killed, stopped, continued and cut off."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import asyncpg
import pytest

from stretto.commands.help import EXIT_PORT
from stretto.creation.outcomes import UNCONFIRMED_SECONDS_MAX
from stretto.domain import group_id
from support.api_client import Api, settled_create, token_of
from support.database import LEADER, first_row, sound, writes_held_up
from support.raw_client import raw_clients
from support.service_process import ServiceProcess, apis
from support.waiting import until

if TYPE_CHECKING:
    from support.database import Connection
    from support.service_process import StartService

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
# More than the 128 that a listening socket has by default; no more than Linux had for long.
NEWCOMERS = 400
# The kernel answers each of them at once.
NEWCOMERS_SECONDS = 20.0


async def test_two_hundred_requests_to_two_processes_make_one_group(
    start_service: StartService, connection: Connection
) -> None:
    """Eight connections, one key: one group, equal answers, one that created it."""
    services = [await start_service(), await start_service()]
    async with AsyncExitStack() as stack:
        clients = [
            Api(
                await stack.enter_async_context(
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
                ),
                service.url,
            )
            for service in services * 4
        ]
        replies = await asyncio.gather(*(clients[n % 8].create("k") for n in range(200)))
    assert {201} == {reply.status for reply in replies}
    assert len({reply.body for reply in replies}) == 1
    assert sum("Idempotent-Replayed" not in reply.headers for reply in replies) == 1
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 1
    assert await sound(connection)


async def test_what_a_killed_process_left_pending_is_recovered(
    start_service: StartService, connection: Connection
) -> None:
    """After the lease the next request with the key finishes it, at any replica."""
    killed, survivor = await start_service(), await start_service()
    async with apis(killed, survivor) as (dying, living):
        async with writes_held_up(connection):
            lost = asyncio.ensure_future(dying.create("k"))
            leader = await first_row(connection, LEADER)
            killed.signal(signal.SIGKILL)
            await killed.exited()
            with pytest.raises(aiohttp.ClientError):
                await lost
            # With its host its backend dies too; a backend that lived on would commit.
            await connection.execute("SELECT pg_terminate_backend($1, 5000)", leader["pid"])
        assert await connection.fetchval("SELECT status FROM attempt") == "pending"
        reply = await living.create("k")
    assert (201, "recovered") == (reply.status, reply.headers["Idempotency-Status"])
    assert "Idempotent-Replayed" not in reply.headers
    assert await sound(connection)


async def test_a_write_that_outlives_its_process_is_replayed(
    start_service: StartService, connection: Connection
) -> None:
    """The backend still holds the row: it is not taken over, and its commit counts."""
    killed, survivor = await start_service(), await start_service()
    async with apis(killed, survivor) as (dying, living):
        async with writes_held_up(connection):
            lost = asyncio.ensure_future(dying.create("k"))
            await first_row(connection, LEADER)
            killed.signal(signal.SIGKILL)
            with pytest.raises(aiohttp.ClientError):
                await lost
            # Well past the lease, while the backend waits on.
            pending = await living.create("k", wait=1)
            assert (409, "attempt_pending") == (pending.status, pending.json["code"])
        reply = await settled_create(living, "k")
    assert (201, "replayed") == (reply.status, reply.headers["Idempotency-Status"])
    assert await sound(connection)


async def test_a_stopped_leader_that_was_reclaimed_writes_nothing(
    start_service: StartService, connection: Connection
) -> None:
    """SIGSTOP past the lease, another process reclaims, SIGCONT: the token fences it."""
    stopped, other = await start_service(), await start_service()
    async with apis(stopped, other) as (sleeping, awake):
        async with writes_held_up(connection):
            late = asyncio.ensure_future(sleeping.create("k", wait=30))
            leader = await first_row(connection, LEADER)
            stopped.signal(signal.SIGSTOP)
            await connection.execute("SELECT pg_terminate_backend($1, 5000)", leader["pid"])
        recovered = await awake.create("k")
        assert (201, "recovered") == (
            recovered.status,
            recovered.headers["Idempotency-Status"],
        )
        written = await connection.fetchval("SELECT xmin::text FROM chat_group")
        # It wakes, finds its connection broken, and leads again with its old token.
        stopped.signal(signal.SIGCONT)
        reply = await late
    assert (201, "replayed") == (reply.status, reply.headers["Idempotency-Status"])
    assert recovered.body == reply.body
    assert written == await connection.fetchval("SELECT xmin::text FROM chat_group")
    assert await connection.fetchval("SELECT count(*) FROM conversation") == 1
    assert await sound(connection)


async def test_a_stopped_process_does_not_replay_what_was_deleted_meanwhile(
    start_service: StartService, connection: Connection
) -> None:
    """SIGSTOP, another process deletes the group, SIGCONT: its requests come before its look."""
    stopped, other = await start_service(), await start_service()
    async with apis(stopped, other) as (sleeping, awake):
        for status in ("created", "replayed"):
            assert status == (await sleeping.create("k")).headers["Idempotency-Status"]
        stopped.signal(signal.SIGSTOP)
        try:
            path = f"/v1/groups/{group_id('alice', 'k')}"
            assert 204 == (await awake.request("DELETE", path)).status
            await asyncio.sleep(UNCONFIRMED_SECONDS_MAX)
            late = asyncio.ensure_future(sleeping.create("k"))
            # Sent by the time that this is answered.
            await awake.get("/readyz")
        finally:
            stopped.signal(signal.SIGCONT)
        reply = await late
    assert (410, "group_deleted") == (reply.status, reply.json["code"])
    assert await sound(connection)


async def test_a_process_that_lags_resets_no_newcomer(start_service: StartService) -> None:
    """SIGSTOP, more newcomers than a default backlog holds, SIGCONT: each is answered."""
    lagging = await start_service()
    async with raw_clients(lagging.url) as clients:
        lagging.signal(signal.SIGSTOP)
        try:
            # The kernel drops those that it has no room for: they would wait here for a second.
            async with asyncio.timeout(NEWCOMERS_SECONDS):
                newcomers = [await clients.connect(LIVEZ) for _ in range(NEWCOMERS)]
        finally:
            lagging.signal(signal.SIGCONT)
        statuses = {(await newcomer.answer())[0] for newcomer in newcomers}
    assert statuses == {200}


async def test_truncating_attempts_under_load_makes_no_duplicate(
    start_service: StartService, connection: Connection
) -> None:
    """Every key is answered with one group, before, during and after."""
    services = [await start_service(), await start_service()]
    keys = [f"k{number}" for number in range(100)]
    truncations = 0
    async with apis(*services) as clients:
        load = asyncio.gather(
            *(settled_create(clients[n % 2], key) for n in range(6) for key in keys)
        )
        while not load.done():
            await connection.execute("TRUNCATE attempt")
            truncations += 1
        replies = await load
    assert truncations > 1
    assert {201} == {reply.status for reply in replies}
    expected = {str(group_id("alice", key)) for key in keys}
    assert expected == {reply.json["group_id"] for reply in replies}
    assert len({reply.body for reply in replies}) == len(keys)
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == len(keys)
    assert await sound(connection)


async def test_sigterm_finishes_what_was_claimed_and_then_exits(
    start_service: StartService, connection: Connection
) -> None:
    """The request in flight is answered 201, the process ends by itself with 0."""
    service = await start_service()
    async with apis(service) as (api,):
        await api.get("/livez")
        async with writes_held_up(connection):
            request = asyncio.ensure_future(api.create("k"))
            await first_row(connection, LEADER)
            service.signal(signal.SIGTERM)
            await service.logged(b"service.stopping")
            # No request is admitted any more.
            with pytest.raises(aiohttp.ClientError):
                await api.create("another")
        reply = await request
    assert (201, "created") == (reply.status, reply.headers["Idempotency-Status"])
    async with asyncio.timeout(10):
        assert await service.exited() == 0
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 1
    assert await sound(connection)


async def test_sigterm_sends_sessions_away_and_then_exits(start_service: StartService) -> None:
    """Clients are asked to retry; one that reads nothing holds up no other."""
    service = await start_service(SESSIONS_PER_USER="3")
    host, _, port = service.url.removeprefix("http://").partition(":")
    mute = socket.create_connection((host, int(port)))
    stream = {"Accept": "text/event-stream", "Authorization": f"Bearer {token_of('alice')}"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in stream.items())
    mute.sendall(f"GET /v1/events HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    async with (
        asyncio.timeout(20),
        apis(service) as (api,),
        api.session.get(f"{api.url}/v1/events", headers=stream) as reader,
        api.session.ws_connect(f"{api.url}/v1/events", headers=stream) as websocket,
    ):
        assert "position" in await websocket.receive_json()
        service.signal(signal.SIGTERM)
        assert aiohttp.WSMsgType.CLOSE == (await websocket.receive()).type
        assert websocket.close_code == 1001
        assert b'event: close\ndata: {"code":1001' in await reader.read()
        assert await service.exited() == 0
    mute.close()
    assert b"request.crashed" not in b"".join(service.log)


async def test_a_database_that_goes_away_is_reported_and_recovered_from(
    start_service: StartService, connection: Connection, database_url: str
) -> None:
    """503 with Retry-After and unready meanwhile, then as before, without a restart."""
    service = await start_service()
    name = await connection.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(database_url.replace(name, "postgres"))
    async with apis(service) as (api,):
        assert (await api.create("before")).status == 201
        await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
        )
        for reply in (await api.create("k"), await api.get("/readyz")):
            assert (503, "database_unavailable", "1") == (
                reply.status,
                reply.json["code"],
                reply.headers["Retry-After"],
            )
        assert (await api.get("/livez")).status == 200
        await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
        assert (await settled_create(api, "k")).status == 201
        assert (await api.get("/readyz")).status == 200
        assert (await api.create("before")).headers["Idempotent-Replayed"] == "true"
    await admin.close()


async def test_workers_share_one_port_and_are_replaced_when_they_die(
    database_url: str, connection: Connection
) -> None:
    """Several processes, one address, one group per key."""
    # The supervisor itself serves nothing; its workers say when they do.
    async with ServiceProcess({"DATABASE_URL": database_url, "WORKERS": "2"}) as service:
        async with apis(service) as (api,):
            replies = await asyncio.gather(*(settled_create(api, "k") for _ in range(50)))
        assert len({reply.body for reply in replies}) == 1
        service.signal(signal.SIGTERM)
        assert await service.exited() == 0
    assert await sound(connection)


async def test_one_scrape_shows_what_all_workers_have_done_also_one_that_was_killed(
    database_url: str,
) -> None:
    """Whichever worker answers; a counter never goes back while one dies and another one starts."""
    created, workers = 'stretto_attempts_total{outcome="created"}', "stretto_workers"
    async with (
        ServiceProcess({"DATABASE_URL": database_url, "WORKERS": "2"}) as service,
        AsyncExitStack() as stack,
    ):
        await service.logged(b"service.started", times=2)
        connector = aiohttp.TCPConnector(force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        api = Api(session, service.url)

        async def scrape() -> dict[str, float]:
            text = (await api.get("/metrics", user=None)).body.decode()
            rows = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
            return {name: float(value) for name, _, value in rows}

        for number in range(20):
            assert (await settled_create(api, f"k{number}")).status == 201
        # The kernel chooses a worker for each connection.
        assert {(20, 2)} == {
            (series[created], series[workers]) for series in [await scrape() for _ in range(10)]
        }
        os.kill(service.workers()[0], signal.SIGKILL)
        seen: list[dict[str, float]] = []

        async def is_replaced() -> bool:
            try:
                seen.append(await scrape())
            except aiohttp.ClientError:
                # Its connections end with it.
                return False
            return seen[-1]["stretto_workers_died_total"] == 1 and seen[-1][workers] == 2

        await until(is_replaced)
        assert {20} == {series[created] for series in seen}
        assert (await settled_create(api, "after")).status == 201
        assert 21 == (await scrape())[created]


async def test_workers_end_with_a_supervisor_that_was_killed(database_url: str) -> None:
    """None is left to serve beside the next service: the port is free for it."""
    settings = {"DATABASE_URL": database_url, "WORKERS": "2"}
    async with ServiceProcess(settings) as service:
        await service.logged(b"service.started", times=2)
        service.signal(signal.SIGKILL)
        await service.workers_ended()
    assert 2 == b"".join(service.log).count(b'"worker.orphaned"')
    assert 2 == b"".join(service.log).count(b'"service.stopped"')
    with socket.create_server(("127.0.0.1", int(service.url.rpartition(":")[2]))):
        pass


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_terminal_that_closes_stops_the_service(workers: str, database_url: str) -> None:
    """SIGHUP is SIGTERM, for the workers as well."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    async with ServiceProcess({"DATABASE_URL": database_url, "WORKERS": workers}) as service:
        await service.logged(b"service.started", times=int(workers))
        os.killpg(service.process.pid, signal.SIGHUP)
        assert 0 == await service.exited()
        await service.workers_ended()
    assert int(workers) == b"".join(service.log).count(b'"service.draining"')


@pytest.mark.parametrize("first", ["1", "2"])
@pytest.mark.parametrize("second", ["1", "2"])
async def test_two_services_never_share_a_port(
    first: str, second: str, database_url: str, connection: Connection
) -> None:
    """The second one ends with its own exit code, however many workers both have."""
    settings = {"DATABASE_URL": database_url, "WORKERS": first}
    async with ServiceProcess(settings) as service:
        port = service.url.rpartition(":")[2]
        late = ServiceProcess({**settings, "WORKERS": second, "PORT": port})
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}"):
            await late.__aenter__()
        assert EXIT_PORT == await late.exited()
    assert await sound(connection)
