"""A service that is asked to stop: what is served meanwhile, and how its connections end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from rolling import roll
from support.api_client import settled_create, token_of
from support.database import LEADER, first_row, sound, writes_held_up
from support.ports import free_port
from support.raw_client import BODY, creation, creation_head, raw_clients
from support.service_process import ServiceProcess, apis

if TYPE_CHECKING:
    from support.database import Connection
    from support.service_process import StartService

DEADLINE_SECONDS = 60
# Longer than any test: what ends sooner was not waited for.
NEVER = "600"
TOKEN = token_of("alice")
READ = f"GET /v1/groups HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


async def test_a_rolling_restart_behind_haproxy_fails_no_request(database_url: str) -> None:
    """Its defaults, a health check, and clients that keep their connection and never retry."""
    answered = await roll(database_url, 1, {"DRAIN_SECONDS": "10"})
    assert {"200", "201"} == set(answered), answered


async def test_while_it_drains_it_is_unready_and_serves_everything(
    start_service: StartService, connection: Connection
) -> None:
    """Newcomers too; a live session is not sent away to come back to a replica that is going."""
    service = await start_service(DRAIN_SECONDS=NEVER)
    stream = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        apis(service) as (api,),
        api.session.ws_connect(f"{api.url}/v1/events", headers=stream) as session,
    ):
        assert "position" in await session.receive_json()
        assert 200 == (await api.get("/readyz")).status
        service.signal(signal.SIGTERM)
        await service.logged(b"service.draining")
        unready = await api.get("/readyz")
        assert (503, "overloaded", "1") == (
            unready.status,
            unready.json["code"],
            unready.headers["Retry-After"],
        )
        assert 200 == (await api.get("/livez")).status
        assert ["created", "replayed"] == [
            (await api.create("k")).headers["Idempotency-Status"] for _ in range(2)
        ]
        async with api.session.ws_connect(f"{api.url}/v1/events", headers=stream) as late:
            assert "position" in await late.receive_json()
        assert "event" in await session.receive_json()
        service.signal(signal.SIGINT)
        assert aiohttp.WSMsgType.CLOSE == (await session.receive()).type
        assert 1001 == session.close_code
        assert 0 == await service.exited()
    assert await sound(connection)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGINT)], ids=str)
async def test_a_person_need_not_wait_for_the_drain(
    numbers: tuple[signal.Signals, ...], workers: str, database_url: str
) -> None:
    """Ctrl-C skips it, also of workers, and a second signal ends it."""
    settings = {"DATABASE_URL": database_url, "DRAIN_SECONDS": NEVER, "WORKERS": workers}
    async with ServiceProcess(settings) as service, apis(service) as (api,):
        assert 201 == (await settled_create(api, "k")).status
        for number in numbers[:-1]:
            service.signal(number)
            await service.logged(b"service.draining")
        service.signal(numbers[-1])
        assert 0 == await service.exited()


async def test_workers_drain_though_all_processes_get_the_signal(database_url: str) -> None:
    """As from systemd; `timeout` signals the supervisor twice as well."""
    settings = {"DATABASE_URL": database_url, "DRAIN_SECONDS": NEVER, "WORKERS": "2"}
    async with ServiceProcess(settings) as service, apis(service) as (api,):
        await service.logged(b"service.started", times=2)
        workers = service.workers()
        for pid in (workers[0], service.process.pid, *workers, service.process.pid):
            os.kill(pid, signal.SIGTERM)
        await service.logged(b"service.draining", times=2)
        # Each worker has got the supervisor's SIGTERM too: it was sent before these answers.
        assert {200} == {(await api.get("/livez")).status for _ in range(20)}
        service.signal(signal.SIGINT)
        assert 0 == await service.exited()
    log = b"".join(service.log)
    assert (2, 2) == (log.count(b'"service.draining"'), log.count(b'"service.stopped"'))


async def test_all_that_was_read_before_the_stop_is_answered(
    start_service: StartService, connection: Connection
) -> None:
    """Pipelined behind a write under way, or in the middle of a body; the last answer says so."""
    service = await start_service()
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(service.url) as raw:
        async with writes_held_up(connection):
            idle = await raw.connect(READ)
            await idle.answer()
            slow = await raw.connect(
                creation_head(TOKEN, "slow") + b"Content-Length: %d\r\n\r\n{" % len(BODY)
            )
            piped = await raw.connect(creation(TOKEN, "k") + READ)
            await first_row(connection, LEADER)
            service.signal(signal.SIGTERM)
            await service.logged(b"service.stopping")
            slow.send(BODY[1:])
            # Before the others have their answers.
            await idle.closed()
        # Flights have four seconds to end: nothing is waited for before the write may go on.
        status, headers, _ = await piped.answer()
        assert (201, None) == (status, headers.get("connection"))
        status, headers, _ = await piped.answer()
        assert (status, headers["connection"]) in ((200, "close"), (503, "close"))
        # Created, or rejected, whichever the stop has come to by then; but answered.
        status, headers, _ = await slow.answer()
        assert (status, headers["connection"]) in ((201, "close"), (503, "close"))
        assert 0 == await service.exited()
    assert await sound(connection)


async def test_more_workers_start_on_a_port_whose_old_connections_linger(
    database_url: str,
) -> None:
    """The process that closes first keeps its side of a connection for a minute (TIME_WAIT)."""
    port = free_port()
    settings = {"DATABASE_URL": database_url, "PORT": str(port)}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        ServiceProcess(settings) as service,
        raw_clients(service.url) as raw,
    ):
        client = await raw.connect(READ)
        await client.answer()
        service.signal(signal.SIGTERM)
        assert 0 == await service.exited()
        await client.closed()
    # Its state is 06, its port hexadecimal.
    lingering = f"0100007F:{port:04X} 0100007F:"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    assert ["06"] == [line[3] for line in lines if lingering in f"{line[1]} {line[2]}"]
    async with (
        ServiceProcess({**settings, "WORKERS": "2"}) as service,
        apis(service) as (api,),
    ):
        assert 201 == (await settled_create(api, "k")).status
        service.signal(signal.SIGTERM)
        assert 0 == await service.exited()
