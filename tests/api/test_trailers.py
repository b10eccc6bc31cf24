"""Fields behind a body in chunks: refused, and no byte of them reaches the parser.

The parser would put the last one into the head of the connection's next request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.http.front.connection import ClientConnection
from stretto.http.front.parsing import NO_TRAILERS
from support.api_client import Api, token_of
from support.counted_arrival import watched_connections
from support.raw_client import (
    BODY,
    PING,
    RawClient,
    RawClients,
    creation,
    creation_head,
    raw_clients,
)
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

DEADLINE_SECONDS = 30
TOKEN = token_of("alice")
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
POST = creation_head(TOKEN, "outer") + CHUNKED
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + CHUNKED
CHUNKS = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
TRAILERS = [
    b"Connection: close",
    b"Authorization: Bearer x",
    b"Content-Encoding: gzip",
    b"Content-Length: 40",
    b"Transfer-Encoding: gzip",
    b"Idempotency-Key: other",
    b"Expect: 100-continue",
    b"Connection: upgrade\r\nUpgrade: websocket",
    b"0: x",
    b": x",
    b"x",
]
BEHIND = PING + creation(TOKEN, "inner")


@pytest.fixture
async def raw(api: Api) -> AsyncIterator[RawClients]:
    """Clients of that service."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        yield clients


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """All that a parser was given."""
    seen = bytearray()
    read_part = ClientConnection._read_part

    def read(client: ClientConnection, data: bytes) -> bool:
        seen.extend(data)
        return read_part(client, data)

    monkeypatch.setattr(ClientConnection, "_read_part", read)
    return seen


async def require_refused(client: RawClient, *before: int) -> None:
    """Have a client see one refusal, behind these other statuses, and the end of its connection."""
    for status in before:
        assert status == (await client.answer())[0]
    status, fields, problem = await client.answer()
    assert (400, "request_invalid", "close") == (status, problem["code"], fields["connection"])
    assert NO_TRAILERS == problem["detail"]
    assert b"" == await client.closed()


@pytest.mark.parametrize("trailer", TRAILERS)
@pytest.mark.parametrize("head", [POST, GET], ids=["POST", "GET"])
async def test_a_trailer_is_refused_with_all_behind_it(
    head: bytes, trailer: bytes, raw: RawClients, parsed: bytearray, connection: Connection
) -> None:
    """No work is done for its request, nor for any behind it; those before it are answered."""
    request = head + CHUNKS + trailer + b"\r\n\r\n"
    await require_refused(await raw.connect(request + BEHIND))
    await require_refused(await raw.connect(PING * 2 + request + BEHIND), 200, 200)
    assert (head + CHUNKS) + PING * 2 + (head + CHUNKS) == parsed
    assert 0 == await connection.fetchval("SELECT count(*) FROM attempt")


@pytest.mark.parametrize("trailer", [*TRAILERS[:3], b"~x"])
async def test_a_trailer_is_refused_wherever_it_is_cut(
    trailer: bytes, raw: RawClients, parsed: bytearray, connection: Connection
) -> None:
    """Its handler waits for the body then."""
    end = CHUNKS + trailer + b"\r\n\r\n" + BEHIND
    places = range(len(CHUNKS) + len(trailer) + 2)
    clients = [await raw.connect(POST + end[:at]) for at in places]
    # What was sent is on its way before there is more.
    await (await raw.connect(PING)).answer()
    for at, client in enumerate(clients):
        client.send(end[at:])
        await require_refused(client)
    assert trailer not in parsed
    assert 0 == await connection.fetchval("SELECT count(*) FROM attempt")


async def test_a_trailer_byte_by_byte_is_refused(raw: RawClients, parsed: bytearray) -> None:
    """At its first byte: what comes behind that is never read."""
    client = await raw.connect()
    for at in range(len(POST + CHUNKS)):
        client.send((POST + CHUNKS)[at : at + 1])
        await (await raw.connect(PING)).answer()
    client.send(b"X")
    await require_refused(client)
    assert bytes(parsed).replace(PING, b"").endswith(b"0\r\n")


async def test_a_body_that_came_with_its_head_and_is_refused_costs_no_work(
    api: Api, raw: RawClients
) -> None:
    """No deletion reads its body. The same request with a whole body deletes the group."""
    group = (await api.create("k")).json["group_id"]
    head = f"DELETE /v1/groups/{group} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    request = head.encode() + CHUNKED + CHUNKS
    await require_refused(await raw.connect(request + b"X: y\r\n\r\n"))
    broken = await raw.connect(head.encode() + CHUNKED + b"1\r\nxx\r\n0\r\n\r\n" + PING)
    assert 400 == (await broken.answer())[0]
    assert b"" == await broken.closed()
    assert 200 == (await api.request("GET", f"/v1/groups/{group}")).status
    client = await raw.connect(request + b"\r\n")
    await client.until(b" 204 ")
    assert 404 == (await api.request("GET", f"/v1/groups/{group}")).status


async def test_chunks_without_a_trailer_are_taken_however_they_are_cut(raw: RawClients) -> None:
    """The twin; so are the requests behind them."""
    first = creation(TOKEN, "outer")
    assert 201 == (await (await raw.connect(first)).answer())[0]
    sent = (POST + CHUNKS + b"\r\n") * 2 + PING + first
    clients = [await raw.connect(sent[:at]) for at in range(len(POST) - 5, len(sent))]
    await (await raw.connect(PING)).answer()
    for at, client in enumerate(clients, len(POST) - 5):
        client.send(sent[at:])
        assert [201, 201, 200, 201] == [(await client.answer())[0] for _ in range(4)]


async def test_a_connection_keeps_nothing_of_a_trailer(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the parser that has read the request, while the client does not close."""
    counted = watched_connections(monkeypatch)
    client = await raw.connect(POST)
    await until(lambda: counted.clients and counted.clients[0]._is_in_body)
    parser = counted.clients[0]._parser
    client.send(CHUNKS + b"X: " + b"y" * 5000)
    assert 400 == (await client.answer())[0]
    kept = counted.clients[0]
    assert (b"", b"", b"") == (kept._rest, kept._unparsed, kept._message_tail)
    assert kept._parser is not parser
