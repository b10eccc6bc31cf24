"""Bytes of a body are never taken for a head, however a request is cut, and each has its answer."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING

import pytest

from stretto.http.front.connection import ClientConnection
from stretto.http.front.heads import HEAD_BYTES_MAX
from stretto.http.settings import ConnectionLimits
from support.api_client import Api, api_for, token_of
from support.raw_client import PING, RawClients, creation, creation_head, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS = 30
LARGE = b'{"name": "Team"}' + b" " * 6 * HEAD_BYTES_MAX
# More than a head may have, and not so much that reading pauses until the body is read.
MEDIUM = b'{"name": "Team"}'.ljust(HEAD_BYTES_MAX * 3 // 2)
LAST = PING.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(LARGE)
EARLY = {
    "bad token": (401, creation_head("no token of ours", "k") + LENGTH),
    "bad key": (400, creation_head(token_of("alice"), "") + LENGTH),
    "unknown route": (404, b"POST /x HTTP/1.1\r\nHost: x\r\n" + LENGTH),
}


@pytest.fixture
async def raw(api: Api) -> AsyncIterator[RawClients]:
    """Clients of that service."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        yield clients


@pytest.mark.parametrize("body", [LARGE, MEDIUM], ids=["large", "medium"])
async def test_the_rest_of_a_body_may_come_in_any_turn_of_the_loop(
    body: bytes, raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between those in which aiohttp takes the message from its queue and begins to work."""
    request = creation(token_of("alice"), "k", body)
    receive = ClientConnection.data_received
    arrived = b""
    turns = first = 0

    def later(client: ClientConnection, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(later, client, left - 1)
        else:
            receive(client, request[first:])

    def receive_in_two(client: ClientConnection, data: bytes) -> None:
        nonlocal arrived
        if data in (b"", PING):
            receive(client, data)
            return
        arrived += data
        if len(arrived) == len(request):
            arrived = b""
            receive(client, request[:first])
            later(client, turns)

    monkeypatch.setattr(ClientConnection, "data_received", receive_in_two)
    for plan in product(range(8), (0, 10, HEAD_BYTES_MAX)):
        turns, cut = plan
        first = len(request) - len(body) + cut
        client = await raw.connect(request)
        assert (await client.answer())[0] == 201
        # A rest that counted as a head would be too large a one: the connection would end here.
        client.send(PING)
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize(("status", "head"), EARLY.values(), ids=EARLY)
async def test_what_comes_behind_an_early_answer_is_no_body(
    status: int, head: bytes, raw: RawClients
) -> None:
    """A proxy may never send the rest, and send another client's request over the connection."""
    client = await raw.connect(head + LARGE[:100])
    answered, fields, _ = await client.answer()
    assert (status, "close") == (answered, fields["connection"])
    client.send(PING)
    assert b"" == await client.closed()


@pytest.mark.parametrize(("status", "head"), EARLY.values(), ids=EARLY)
async def test_a_connection_goes_on_behind_a_refused_body_that_is_whole(
    status: int, head: bytes, raw: RawClients
) -> None:
    """The twin."""
    client = await raw.connect(head.replace(LENGTH, b"Content-Length: 2\r\n\r\n{}"))
    assert (await client.answer())[0] == status
    client.send(PING)
    assert (await client.answer())[0] == 200


@pytest.mark.parametrize(("status", "head"), EARLY.values(), ids=EARLY)
async def test_the_rest_of_chunks_is_not_read_after_the_answer(
    status: int, head: bytes, raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of a byte cost as much as requests: the connection ends, and what comes is dropped."""
    monkeypatch.setattr("stretto.http.front.writing.LINGER_SECONDS", 0.1)
    read = 0
    read_request = ClientConnection._read_request

    def count(client: ClientConnection, data: bytes) -> bool:
        nonlocal read
        read += len(data)
        return read_request(client, data)

    first = head.replace(LENGTH, CHUNKS) + b"1\r\n{\r\n"
    client = await raw.connect(first)
    answered, fields, _ = await client.answer()
    assert (status, "close") == (answered, fields["connection"])
    monkeypatch.setattr(ClientConnection, "_read_request", count)
    client.send(b"1\r\n \r\n" * 1000 + b"0\r\n\r\n" + PING)
    assert (b"", 0) == (await client.closed(), read)


async def test_the_last_answer_arrives_although_more_is_sent(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is closed over unread bytes would reset the connection under it."""
    monkeypatch.setattr("stretto.http.front.writing.LINGER_SECONDS", DEADLINE_SECONDS)
    dropped = 0
    is_over = asyncio.Event()
    drop, lose = ClientConnection.drop, ClientConnection.connection_lost

    def drop_counted(client: ClientConnection, data: bytes) -> None:
        nonlocal dropped
        drop(client, data)
        dropped += len(data)
        if dropped == len(LARGE):
            is_over.set()

    def connection_lost(client: ClientConnection, error: BaseException | None) -> None:
        lose(client, error)
        is_over.set()

    monkeypatch.setattr(ClientConnection, "drop", drop_counted)
    monkeypatch.setattr(ClientConnection, "connection_lost", connection_lost)
    async with asyncio.timeout(DEADLINE_SECONDS):
        reader, writer = await _opened(api)
        writer.write(b"no request at all\r\n\r\n")
        # Up to the end of what the service sends; our half stays open.
        assert b" 400 " in await reader.read()
        writer.write(LARGE)
        await is_over.wait()
        assert len(LARGE) == dropped
        writer.close()


@pytest.mark.parametrize(
    ("linger_seconds", "leaves", "last"),
    [
        (0.01, False, LAST),
        (0.01, False, creation_head("no token of ours", "k") + CHUNKS),
        (DEADLINE_SECONDS, True, LAST),
    ],
)
async def test_a_client_is_not_waited_for_after_the_last_answer(
    linger_seconds: float,
    leaves: bool,
    last: bytes,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it closes its half too, or keeps that open, or has not sent its body."""
    monkeypatch.setattr("stretto.http.front.writing.LINGER_SECONDS", linger_seconds)
    async with asyncio.timeout(DEADLINE_SECONDS), api_for(database_url) as api:
        lost = asyncio.Event()
        lose = ClientConnection.connection_lost

        def connection_lost(client: ClientConnection, error: BaseException | None) -> None:
            lose(client, error)
            lost.set()

        monkeypatch.setattr(ClientConnection, "connection_lost", connection_lost)
        reader, writer = await _opened(api)
        writer.write(last)
        assert b"\r\nConnection: close\r\n" in await reader.read()
        if leaves:
            writer.close()
        await lost.wait()
        writer.close()


async def test_a_head_behind_a_request_that_is_worked_for_is_timed_when_that_is_answered(
    database_url: str,
) -> None:
    """Not before: it is we who let the client wait until then."""
    limits = ConnectionLimits(read_timeout_seconds=0.01)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=limits) as api,
        raw_clients(api.url) as raw,
    ):
        client = await raw.connect(PING + PING[:10])
        assert (await client.answer())[0] == 200
        assert (await client.answer())[0] == 408
        assert await client.closed() == b""


async def _opened(api: Api) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection whose half stays open when the service closes its own."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))
