"""Clients that send slowly, endlessly or by the thousand; all others stay served."""

from __future__ import annotations

import asyncio
import gzip
import re
import resource
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from stretto.codec import BODY_BYTES_MAX
from stretto.http.front.heads import HEAD_BYTES_MAX
from support.api_client import Api, connected_api, token_of
from support.database import pend
from support.raw_client import BODY, PING, RawClient, RawClients, creation_head, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection
    from support.service_process import ServiceProcess, StartService

DEADLINE_SECONDS = 60
IDLE_MAX = 10_000
# What a test needs beside them: its own connections, pipes, and what pytest holds.
FILES_OWN = 500
TOKEN = token_of("mallory")
HEAD = creation_head(TOKEN, "k")
LOOKUP = HEAD.replace(b"POST /v1/groups", b"GET /v1/attempts/k") + b"Prefer: wait=30\r\n\r\n"
SESSION = HEAD.replace(b"POST /v1/groups", b"GET /v1/events") + b"Accept: text/event-stream\r\n\r\n"
SLOW = {
    "head": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "body": HEAD + b"Content-Length: 200000\r\n\r\n{",
    "chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n{",
    "second head": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /liv",
}


@asynccontextmanager
async def clients_of(service: ServiceProcess) -> AsyncIterator[tuple[Api, RawClients]]:
    """Open an honest client and dishonest ones, for a bounded time."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        connected_api(service.url) as api,
        raw_clients(service.url) as raw,
    ):
        yield api, raw


def counted(line: bytes) -> int:
    """Return how many events a line of the log stands for."""
    count: int = orjson.loads(line).get("folded", 1)
    return count


async def logged(service: ServiceProcess, event: bytes, times: int = 1) -> int:
    """Wait until an event has been logged so often, folded lines included; return how often it was."""

    def count() -> int:
        return sum(counted(line) for line in service.log if event in line)

    await service.until(lambda: count() >= times)
    return count()


@pytest.mark.parametrize("request_bytes", SLOW.values(), ids=SLOW)
async def test_a_client_that_sends_too_slowly_is_cut_off(
    request_bytes: bytes, start_service: StartService, connection: Connection
) -> None:
    """A byte now and then gives no delay; others are served meanwhile, nothing was claimed."""
    service = await start_service(READ_TIMEOUT_SECONDS="0.5")
    async with clients_of(service) as (api, raw):
        slow = [await raw.connect(request_bytes) for _ in range(50)]
        served = 0
        while not all(client.is_closed for client in slow):
            assert (await api.create(f"k{served}")).status == 201
            served += 1
            for client in slow:
                client.send(b"x")
    assert served
    owners = "SELECT array_agg(DISTINCT owner_id) FROM attempt"
    assert ["alice"] == await connection.fetchval(owners)
    assert len(slow) == await logged(service, b'"too_slow"', len(slow))


@pytest.mark.parametrize("part", ["head", "body"])
async def test_without_the_limit_a_slow_client_would_be_waited_for(
    part: str, start_service: StartService
) -> None:
    """It is the limit that cuts it off; a client within it is answered."""
    start, rest = SLOW["head"], b"\r\n\r\n"
    if part == "body":
        start, rest = HEAD + b"Content-Length: %d\r\n\r\n{" % len(BODY), BODY[1:]
    strict = await start_service(READ_TIMEOUT_SECONDS="0.5")
    patient = await start_service(READ_TIMEOUT_SECONDS="600")
    async with clients_of(strict) as (_, raw), clients_of(patient) as (_, raw_to_patient):
        waiting = await raw_to_patient.connect(start)
        # The same at the other one, begun later.
        await (await raw.connect(start)).closed()
        waiting.send(rest)
        assert (await waiting.answer())[0] in (200, 201)


async def test_a_connection_outlives_the_time_of_its_requests(start_service: StartService) -> None:
    """A request that is complete stops the clock, and the next one starts it anew."""
    service = await start_service(READ_TIMEOUT_SECONDS="0.5")
    async with clients_of(service) as (_, raw):
        kept = await raw.connect()
        for first, rest in ((b"GET /li", b"vez HTTP/1.1\r\nHost: x\r\n\r\n"),) * 2:
            kept.send(first)
            await (await raw.connect(PING)).answer()
            kept.send(rest)
            assert (await kept.answer())[0] == 200
            # The time of what was begun after it is over.
            await (await raw.connect(SLOW["head"])).closed()
        assert not kept.is_closed


@pytest.mark.parametrize("endless", [b"X-Many: 1\r\n", b"x" * 100], ids=["many", "long"])
async def test_an_endless_head_is_cut_off_early(
    endless: bytes, start_service: StartService
) -> None:
    """Many fields, or one long one: what is kept of it is bounded."""
    service = await start_service()
    async with clients_of(service) as (api, raw):
        client = await raw.connect(HEAD if b"Many" in endless else SLOW["head"])
        sent = 0
        while not client.is_closed:
            client.send(endless)
            sent += len(endless)
            assert (await api.get("/livez")).status == 200
        assert sent <= 2 * HEAD_BYTES_MAX


async def test_a_head_of_many_middling_fields_is_cut_off(start_service: StartService) -> None:
    """Each field and their number are within aiohttp's bounds; the whole is not within ours."""
    service = await start_service()
    async with clients_of(service) as (_, raw):
        client = await raw.connect(HEAD)
        for number in range(100):
            client.send(b"X-%d: %s\r\n" % (number, b"x" * 8000))
        await client.closed()
    assert await logged(service, b'"head_too_large"') == 1


async def test_ten_thousand_idle_connections_keep_no_client_out(
    start_service: StartService,
) -> None:
    """They cost memory, but neither time nor places; and the service still stops in time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = IDLE_MAX + FILES_OWN if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        service = await start_service()
        async with clients_of(service) as (api, raw):
            for number in range(min(IDLE_MAX, files - FILES_OWN)):
                await raw.connect()
                if number % 100 == 0:
                    assert (await api.create(f"k{number}")).status == 201
            replies = await asyncio.gather(*(api.create(f"l{number}") for number in range(200)))
            assert {201} == {reply.status for reply in replies}
            service.signal(signal.SIGTERM)
            assert await service.exited() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("request_bytes", [b"", *SLOW.values()], ids=["nothing", *SLOW])
async def test_where_it_is_crowded_those_that_owe_a_request_make_room(
    request_bytes: bytes, start_service: StartService
) -> None:
    """The longest first; newcomers are served although none has timed out."""
    service = await start_service(CONNECTIONS_MAX="50", READ_TIMEOUT_SECONDS="600")

    async def connect() -> RawClient:
        client = await raw.connect(request_bytes)
        if request_bytes == SLOW["second head"]:
            # One whose first request waits for its turn owes nothing yet, and makes room before all that do.
            await client.answer()
        return client

    async with clients_of(service) as (api, raw):
        first = [await connect() for _ in range(50)]
        await (await raw.connect(PING)).answer()
        more = [await connect() for _ in range(50)]
        for client in first:
            await client.closed()
        assert (await api.create("k")).status == 201
        assert sum(client.is_closed for client in more) < len(more) / 2
        metrics = (await api.get("/metrics")).body.decode()
    (closed,) = re.findall(r"^stretto_connections_closed_total (\S+)$", metrics, re.MULTILINE)
    assert float(closed) >= len(first)
    # One line a second for all of them: fewer than there were newcomers.
    assert await logged(service, b"server.crowded") < 50


async def test_who_is_worked_for_is_never_closed_for_a_newcomer(
    start_service: StartService, connection: Connection
) -> None:
    """Where all places are taken by such, each of another user, the newcomer is closed at once."""
    users = [f"user-{number}" for number in range(10)]
    for user in users:
        await pend(connection, "k", owner=user)
    service = await start_service(CONNECTIONS_MAX="10", LEASE_SECONDS="600")
    async with clients_of(service) as (_, raw):
        waiting = [await raw.connect(PING) for _ in users]
        for client, user in zip(waiting, users, strict=True):
            await client.answer()
            client.send(LOOKUP.replace(TOKEN.encode(), token_of(user).encode()))
        for _ in range(20):
            assert await (await raw.connect(PING)).closed() == b""
        await connection.execute("DELETE FROM attempt")
        assert [404] * 10 == [(await client.answer())[0] for client in waiting]


async def test_sessions_leave_places_for_other_requests(start_service: StartService) -> None:
    """The session that would take the last is rejected, whatever their own bound is."""
    service = await start_service(CONNECTIONS_MAX="10", SESSIONS_MAX="1000")
    async with clients_of(service) as (api, raw):
        for _ in range(9):
            await (await raw.connect(SESSION)).until(b"\nid: ")
        status, _, document = await (await raw.connect(SESSION)).answer()
        assert (503, "overloaded") == (status, document["code"])
        assert (await api.create("k")).status == 201


def peak_bytes(service: ServiceProcess) -> int:
    """Return the most memory that the process has ever had."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_compressed_bomb_is_refused_and_not_unpacked(
    framing: str, start_service: StartService, connection: Connection
) -> None:
    """A hundred megabytes of nothing, of which no more is unpacked than what is allowed."""
    service = await start_service()
    packed = gzip.compress(b" " * (100 << 20))
    assert len(packed) < BODY_BYTES_MAX
    bomb = HEAD + b"Content-Encoding: gzip\r\n"
    if framing == "length":
        bomb += b"Content-Length: %d\r\n\r\n%s" % (len(packed), packed)
    else:
        chunk = b"%x\r\n%s\r\n" % (len(packed), packed)
        bomb += b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    async with clients_of(service) as (api, raw):
        assert (await api.create("k")).status == 201
        before = peak_bytes(service)
        for _ in range(5):
            status, _, document = await (await raw.connect(bomb)).answer()
            assert (413, "body_too_large") == (status, document["code"])
        assert peak_bytes(service) - before < 20 << 20
        assert (await api.create("l")).status == 201
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 2


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: %d\r\n\r\n{" % (BODY_BYTES_MAX + 1),
        b"Content-Length: 999999999999\r\n\r\n{",
        b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n" + b" " * (BODY_BYTES_MAX + 1),
    ],
    ids=["length", "great length", "chunked"],
)
async def test_an_oversized_body_is_refused_before_it_has_come(
    body: bytes, start_service: StartService
) -> None:
    """By its length, or once more has come than is allowed; the connection is not kept for it."""
    service = await start_service(READ_TIMEOUT_SECONDS="0.5")
    async with clients_of(service) as (_, raw):
        client = await raw.connect(HEAD + body)
        status, _, document = await client.answer()
        assert (413, "body_too_large") == (status, document["code"])
        await client.closed()
