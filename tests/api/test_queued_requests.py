"""Requests behind one that is worked for: bounded, and none that came in full loses its answer."""

from __future__ import annotations

import asyncio
import errno
from itertools import product
from typing import TYPE_CHECKING

import pytest

from stretto.http.front.queueing import QUEUED_BYTES_MAX, QUEUED_MAX
from stretto.http.settings import ConnectionLimits
from support.api_client import Api, api_for, token_of
from support.counted_arrival import watched_connections
from support.database import pend
from support.raw_client import BODY, PING, RawClients, creation, creation_head, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from stretto.http.front.connection import ClientConnection
    from support.database import Connection

DEADLINE_SECONDS = 60
READ_BYTES_MAX = 256 * 1024
TOKEN = token_of("alice")
# Waits for an attempt that is never settled, until its row is gone.
LOOKUP = (
    f"GET /v1/attempts/k HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Prefer: wait=30\r\n\r\n"
).encode()
CHUNKED = creation_head(TOKEN, "c") + b"Transfer-Encoding: chunked\r\n\r\n5\r\n     \r\n"
FAILURES = {
    "too slow": (creation_head(TOKEN, "c") + b"Content-Length: 99\r\n\r\n{", b""),
    "broken body": (CHUNKED, b"zz\r\n"),
    "large head": (
        b"GET / HTTP/1.1\r\n",
        b"".join(b"X-%d: %4000d\r\n" % (n, n) for n in range(20)),
    ),
}
LAST = {
    "closing": PING.replace(b"Host: x", b"Host: x\r\nConnection: close"),
    "1.0": PING.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "length": creation(TOKEN, "w").replace(b"Host: x", b"Host: x\r\nConnection: close"),
    "chunks": (
        creation_head(TOKEN, "w")
        + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    ),
    "a stream elsewhere": (
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nUpgrade: websocket\r\n\r\n"
    ),
}
BEHIND = (creation(TOKEN, "u"), b"no request\r\n\r\n" + creation(TOKEN, "u"), b"POST")
# Empty ones, the client's with a mask (RFC 6455, 5.2).
PING_FRAME, PONG_FRAME = b"\x89\x80\0\0\0\0", b"\x8a\0"
UPGRADES = {
    "HTTP/2": b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "WebSocket elsewhere": (
        b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ),
    "with a body": creation(TOKEN, "w").replace(
        b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket"
    ),
    "WebSocket without a token": (
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ),
}


@pytest.fixture
async def raw(database_url: str) -> AsyncIterator[RawClients]:
    """Clients of a service that waits for no request for long."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=ConnectionLimits(read_timeout_seconds=0.01)) as api,
        raw_clients(api.url) as clients,
    ):
        yield clients


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> list[ClientConnection]:
    """The service's side of all connections."""
    return watched_connections(monkeypatch).clients


@pytest.fixture
async def pending(connection: Connection) -> UUID:
    """An attempt that does not end."""
    return await pend(connection, "k")


async def until_working(client: ClientConnection) -> None:
    """Wait until a request is worked for."""
    await until(lambda: client._current_request is not None)


@pytest.mark.parametrize(
    "request_bytes",
    [PING, creation(TOKEN, "h"), PING + creation(TOKEN, "h")],
    # Not the bytes themselves: each process that collects the tests makes a token of its own.
    ids=["GET", "POST", "GET and POST"],
)
async def test_a_client_that_has_closed_its_half_is_answered(
    request_bytes: bytes, api: Api
) -> None:
    """It has sent all that it wants, and waits; then the connection closes."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        host, _, port = api.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes)
        writer.write_eof()
        answered = await reader.read()
        assert request_bytes.count(b"HTTP/1.1\r\n") == answered.count(b"HTTP/1.1 2")
        writer.close()


@pytest.mark.parametrize("is_session", [True, False])
@pytest.mark.parametrize("before", [creation(TOKEN, "h"), PING * 2], ids=["POST", "GET"])
async def test_a_handshake_costs_no_earlier_request_its_answer(
    before: bytes, is_session: bool, api: Api
) -> None:
    """A client that closes its half has no use for the session, and no answer to its handshake."""
    handshake = (
        f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()
    async with asyncio.timeout(DEADLINE_SECONDS):
        host, _, port = api.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(before + handshake * is_session)
        writer.write_eof()
        answered = await reader.read()
        writer.close()
    assert before.count(b"HTTP/1.1\r\n") == answered.count(b"HTTP/1.1 ")
    assert before.count(b"HTTP/1.1\r\n") == answered.count(b"HTTP/1.1 2")


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_client_that_closes_its_half_gets_the_end_of_its_stream(
    is_at_once: bool, api: Api
) -> None:
    """It may have gone, and a stream has no end of its own: the answer says so, in order."""
    stream = (
        f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    ).encode()
    async with asyncio.timeout(DEADLINE_SECONDS):
        host, _, port = api.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(stream)
        begun = b"" if is_at_once else await reader.readuntil(b"id: ")
        writer.write_eof()
        answered = begun + await reader.read()
        writer.close()
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert b'event: close\ndata: {"code":1000,' in answered
    # The end of a chunked body: nothing was cut off.
    assert answered.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(("first", "rest"), FAILURES.values(), ids=FAILURES)
async def test_an_error_in_a_later_request_costs_no_earlier_one_its_answer(
    first: bytes,
    rest: bytes,
    raw: RawClients,
    made: list[ClientConnection],
    pending: UUID,
    connection: Connection,
) -> None:
    """They are answered in their order, and then the connection closes."""
    client = await raw.connect(LOOKUP)
    await until_working(made[0])
    client.send(PING + first)
    await until(lambda: made[0]._messages)
    client.send(rest)
    # A newcomer is read for later, and cut off.
    await (await raw.connect(PING[:9])).closed()
    await connection.execute("DELETE FROM attempt WHERE group_id = $1", pending)
    assert [404, 200] == [(await client.answer())[0] for _ in range(2)]
    await client.closed()


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
@pytest.mark.parametrize("is_at_once", [True, False])
async def test_nothing_behind_an_upgrade_that_is_declined_is_read(
    upgrade: bytes, is_at_once: bool, api: Api
) -> None:
    """It was meant for another protocol, and the rest of a body could look like a request."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        client = await raw.connect(upgrade + creation(TOKEN, "u") * is_at_once)
        _, headers, _ = await client.answer()
        assert headers["connection"] == "close"
        if not is_at_once:
            client.send(creation(TOKEN, "u"))
        assert await client.closed() == b""
        assert (await api.get("/v1/attempts/u")).status == 404


@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
async def test_what_follows_a_last_request_is_ignored(last: bytes, api: Api) -> None:
    """Wherever the two are cut, the request has its one answer (RFC 9112, 9.6)."""
    cuts = (0, len(last) - 1, len(last), len(last) + 1)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        for behind, cut in product(BEHIND, cuts):
            client = await raw.connect((last + behind)[:cut])
            # What was sent is on its way before there is more.
            await (await raw.connect(PING)).answer()
            client.send((last + behind)[cut:])
            status, headers, _ = await client.answer()
            # In the older version that goes without saying.
            assert ("close" if b"/1.1\r\n" in last else None) == headers.get("connection")
            assert (401 if b"/v1/events" in last else 201 if b"POST" in last else 200) == status
            assert await client.closed() == b""
        assert (await api.get("/v1/attempts/u")).status == 404


async def test_what_follows_a_last_request_is_not_queued(
    raw: RawClients, made: list[ClientConnection], pending: UUID, connection: Connection
) -> None:
    """It would hold memory for as long as the last request takes."""
    client = await raw.connect(LOOKUP.replace(b"Host: x", b"Host: x\r\nConnection: close") + PING)
    await until_working(made[0])
    client.send(PING)
    await (await raw.connect(PING)).answer()
    assert (1, True) == (made[0]._request_count, made[0].is_at_last_request)
    await connection.execute("DELETE FROM attempt WHERE group_id = $1", pending)
    assert 404 == (await client.answer())[0]
    assert b"" == await client.closed()


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_session_may_be_the_last_request_of_its_connection(
    is_at_once: bool, api: Api
) -> None:
    """What follows it is no request, and is read."""
    handshake = (
        f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).encode()
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        client = await raw.connect(handshake + PING_FRAME * is_at_once)
        await client.until(b"HTTP/1.1 101 ")
        if not is_at_once:
            client.send(PING_FRAME)
        await client.until(PONG_FRAME)


@pytest.mark.parametrize("first", [PING, creation(TOKEN, "h")], ids=["GET", "POST"])
async def test_what_cannot_be_read_costs_no_request_before_it_its_answer(
    first: bytes, api: Api
) -> None:
    """Although all comes at once; nothing behind it is read."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        client = await raw.connect(first * 2 + b"no request\r\n\r\n" + creation(TOKEN, "u"))
        status = 201 if b"POST" in first else 200
        assert [status, status, 400] == [(await client.answer())[0] for _ in range(3)]
        assert await client.closed() == b""
        assert (await api.get("/v1/attempts/u")).status == 404


async def test_a_client_that_sends_on_after_a_last_request_is_not_read(
    raw: RawClients, made: list[ClientConnection], pending: UUID, connection: Connection
) -> None:
    """It could send for as long as the request is worked for; its answer comes all the same."""
    client = await raw.connect(LOOKUP.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    await until_working(made[0])
    client.send(PING)
    transport = made[0].transport
    assert transport is not None
    await until(lambda: not transport.is_reading())
    await connection.execute("DELETE FROM attempt WHERE group_id = $1", pending)
    assert (await client.answer())[0] == 404
    assert await client.closed() == b""


@pytest.mark.parametrize("size", [len(BODY), 60_000])
async def test_all_that_came_at_once_is_answered(size: int, api: Api) -> None:
    """However often the queue is full in between, and whatever ends a body."""
    body = BODY.ljust(size)
    parts = [body[place : place + 4096] for place in range(0, size, 4096)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))
    chunked = creation_head(TOKEN, "a") + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    requests = (chunked, creation(TOKEN, "b", body), PING)
    counts = range(QUEUED_MAX, 2 * QUEUED_MAX + 2)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        for count, is_last in product(counts, (False, True)):
            sent = [requests[number % 3] for number in range(count)]
            if is_last:
                sent[-1] = sent[-1].replace(b"Host: x", b"Host: x\r\nConnection: close")
            client = await raw.connect(b"".join(sent))
            statuses = [(await client.answer())[0] for _ in range(count)]
            assert [(201, 201, 200)[number % 3] for number in range(count)] == statuses
            if is_last:
                assert await client.closed() == b""


@pytest.mark.parametrize("size", [len(BODY), 60_000, 250_000])
async def test_what_queues_behind_a_request_is_bounded(
    size: int,
    api: Api,
    made: list[ClientConnection],
    pending: UUID,
    connection: Connection,
) -> None:
    """The rest waits in the sockets, and has its answer too."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        client = await raw.connect(LOOKUP)
        await until_working(made[-1])
        count = 40
        for number in range(count):
            body = BODY + b" " * (size - len(BODY))
            client.send(creation(TOKEN, f"q{number}", body))
        await until(lambda: made[-1]._buffer_paused or made[-1]._reading_paused)
        assert len(made[-1]._messages) <= QUEUED_MAX
        queued = sum(body.total_bytes for _, body in made[-1]._messages)
        assert queued <= QUEUED_BYTES_MAX + READ_BYTES_MAX
        await connection.execute("DELETE FROM attempt WHERE group_id = $1", pending)
        answers = [(await client.answer())[0] for _ in range(count + 1)]
        assert [404] + [201] * count == answers


async def test_a_client_that_resets_its_last_request_is_no_error(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel knows of the reset before the event loop does."""

    def write_eof(_: asyncio.Transport) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", write_eof)
    client = await raw.connect(LAST["closing"])
    assert 200 == (await client.answer())[0]
    assert b"" == await client.closed()
    assert [] == caplog.records
