"""A head that begins together with the end of another request: it has no more time than any."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import pytest

from stretto.http.front.connection import ClientConnection
from stretto.http.front.heads import HEAD_BYTES_MAX
from stretto.http.front.parsing import BODY_BUFFER_BYTES
from stretto.http.front.queueing import QUEUED_MAX
from support.api_client import token_of
from support.raw_client import BODY, PING, RawClients, creation, creation_head, hurried_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS = 60
# Long enough for a body of several reads, also on a busy machine.
READ_SECONDS = 1.0
TOKEN = token_of("alice")
ZIPPED = creation_head(TOKEN, "z") + b"Content-Encoding: gzip\r\n"
# More than a body's buffer, once it is decompressed.
UNPACKED_BYTES = 200_000
CHUNKED = creation_head(TOKEN, "c") + b"Transfer-Encoding: chunked\r\n\r\n"


def with_body(head: bytes, body: bytes) -> bytes:
    """Return a request with a body of that length."""
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


REQUESTS = {
    "GET": PING,
    "of another form": PING.replace(b"Host: x", b"Host:x"),
    "creation": creation(TOKEN, "k"),
    "chunks": CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "several reads": creation(TOKEN, "l", BODY.ljust(100_000)),
    "compressed": with_body(ZIPPED, gzip.compress(BODY.ljust(UNPACKED_BYTES))),
    "as many as may queue": PING * QUEUED_MAX,
    "more than may queue": PING * (QUEUED_MAX + 3),
    "rejected": creation("no token", "k"),
}


@pytest.fixture
async def raw(database_url: str) -> AsyncIterator[RawClients]:
    """Clients of a service that waits for no request for long."""
    async with hurried_clients(
        database_url, read_seconds=READ_SECONDS, deadline_seconds=DEADLINE_SECONDS
    ) as clients:
        yield clients


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("begun", [PING[:1], PING[:-1]], ids=["begun", "almost complete"])
async def test_a_head_that_has_begun_with_the_end_of_a_request_is_timed(
    begun: bytes, request_: bytes, raw: RawClients
) -> None:
    """Although nothing more of it ever comes."""
    client = await raw.connect(request_ + begun)
    for _ in range(request_.count(b" HTTP/1.1\r\n")):
        assert (await client.answer())[0] in (200, 201, 401)
    assert 408 == (await client.answer())[0]
    assert b"" == await client.closed()


async def test_a_head_behind_a_body_that_is_not_read_yet_is_timed(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser keeps both until the body is read, however much arrives before that."""
    request = creation(TOKEN, "k", BODY.ljust(2 * BODY_BUFFER_BYTES + 1)) + PING[:9]
    receive = ClientConnection.data_received
    arrived = b""

    def receive_in_one_turn(client: ClientConnection, data: bytes) -> None:
        nonlocal arrived
        arrived += data
        if data and len(arrived) < len(request):
            return
        pieces, arrived = arrived, b""
        receive(client, pieces)

    monkeypatch.setattr(ClientConnection, "data_received", receive_in_one_turn)
    # Less than an idle connection may have.
    async with asyncio.timeout(DEADLINE_SECONDS / 2):
        client = await raw.connect(request)
        assert 201 == (await client.answer())[0]
        assert 408 == (await client.answer())[0]
        assert b"" == await client.closed()


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("cut", [0, 1, 4], ids=["in one piece", "in two", "before its last line"])
async def test_a_connection_between_two_requests_is_not_timed(
    cut: int, request_: bytes, raw: RawClients
) -> None:
    """The twin: it may be idle for longer than a request may take."""
    if request_ == REQUESTS["rejected"]:
        # Its answer would not wait for its end, and would be the connection's last.
        cut = 0
    client = await raw.connect(request_[: len(request_) - cut])
    # What was sent is on its way before there is more.
    await (await raw.connect(PING)).answer()
    client.send(request_[len(request_) - cut :])
    for _ in range(request_.count(b" HTTP/1.1\r\n")):
        assert (await client.answer())[0] in (200, 201, 401)
    # A newcomer is timed from now on, and cut off.
    await (await raw.connect(PING[:9])).closed()
    client.send(PING + PING[:9])
    assert 200 == (await client.answer())[0]
    client.send(PING[9:])
    assert 200 == (await client.answer())[0]


@pytest.mark.parametrize("blanks", [b"\r\n", b"\n\r\r\n", b"\r"])
async def test_a_connection_between_two_requests_may_have_empty_lines(
    blanks: bytes, raw: RawClients
) -> None:
    """RFC 9112, 2.2. They are no head that has begun."""
    client = await raw.connect(PING + blanks)
    assert 200 == (await client.answer())[0]
    # A newcomer is timed from now on, and cut off.
    await (await raw.connect(PING[:9])).closed()
    client.send(blanks + PING)
    assert 200 == (await client.answer())[0]


async def test_empty_lines_do_not_go_on_for_ever(raw: RawClients) -> None:
    """As many bytes as of a head are passed over."""
    client = await raw.connect(PING + b"\r\n" * (HEAD_BYTES_MAX // 2) + PING)
    assert [200, 200] == [(await client.answer())[0] for _ in range(2)]
    client.send(b"\r\n" * (HEAD_BYTES_MAX // 2))
    await (await raw.connect(PING)).answer()
    client.send(b"\r" + PING)
    assert 431 == (await client.answer())[0]
    assert b"" == await client.closed()
