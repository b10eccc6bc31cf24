"""A body in many small chunks costs the service little: most of them are never parsed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import StreamReader

from stretto.codec import BODY_BYTES_MAX
from stretto.http.front.chunks import CHUNK_BYTES_MIN, CHUNKS_MAX, FRAMING_BYTES_MAX, PART_BYTES
from stretto.http.front.connection import ClientConnection
from stretto.http.front.parsing import BODY_BUFFER_BYTES
from stretto.http.front.queueing import QUEUED_MAX
from stretto.http.requests import BODY_UNREADABLE
from support.api_client import Api, token_of
from support.database import first_row, pend, writes_held_up
from support.raw_client import (
    BODY,
    PING,
    RawClient,
    RawClients,
    creation,
    creation_head,
    raw_clients,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

DEADLINE_SECONDS = 30
TOKEN = token_of("alice")
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
POST = creation_head(TOKEN, "k") + CHUNKED
# Its body is read by no handler.
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + CHUNKED
# More than one read of the socket holds.
SMALL_BYTES = 8_000


def chunks(body: bytes, size: int) -> bytes:
    """Return a body in chunks of a size."""
    parts = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


# Waits for an attempt that is never settled, until its row is gone.
LOOKUP = (
    f"GET /v1/attempts/p HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Prefer: wait=30\r\n\r\n"
).encode()
HANDSHAKE = (
    b"GET /v1/events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)
MANY = chunks(BODY.ljust(SMALL_BYTES), 1)
# With the head or behind it; in pieces, each of which has fewer chunks than are too many.
SENT = {"at once": 10**6, "in pieces": 6 * (CHUNKS_MAX - 10)}


@pytest.fixture
async def raw(api: Api) -> AsyncIterator[RawClients]:
    """Clients of that service."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        yield clients


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[StreamReader]:
    """The body of each chunk that was parsed."""
    bodies: list[StreamReader] = []
    end = StreamReader.end_http_chunk_receiving

    def count(body: StreamReader) -> None:
        bodies.append(body)
        end(body)

    monkeypatch.setattr(StreamReader, "end_http_chunk_receiving", count)
    return bodies


async def send(client: RawClient, data: bytes, piece_bytes: int, raw: RawClients) -> None:
    """Send pieces, each of which is read before the next."""
    for at in range(0, len(data), piece_bytes):
        client.send(data[at : at + piece_bytes])
        # What was sent is on its way before there is more.
        await (await raw.connect(PING)).answer()


@pytest.mark.parametrize("piece_bytes", SENT.values(), ids=SENT)
@pytest.mark.parametrize("split", [False, True], ids=["with the head", "behind the head"])
@pytest.mark.parametrize(("head", "expected"), [(POST, 400), (GET, 200)], ids=["POST", "GET"])
async def test_of_too_many_chunks_few_are_parsed(
    head: bytes,
    expected: int,
    split: bool,
    piece_bytes: int,
    raw: RawClients,
    parsed: list[StreamReader],
) -> None:
    """However they arrive; the request is answered, and the connection ends."""
    client = await raw.connect(head if split else b"")
    await send(client, MANY if split else head + MANY, piece_bytes, raw)
    status, fields, document = await client.answer()
    assert (expected, "close") == (status, fields["connection"])
    if expected == 400:
        assert BODY_UNREADABLE == document["errors"][0]["detail"]
    assert b"" == await client.closed()
    assert len(parsed) <= 2 * CHUNKS_MAX


async def test_chunks_behind_other_requests_are_as_few(
    raw: RawClients, parsed: list[StreamReader]
) -> None:
    """Those have their answers."""
    client = await raw.connect(PING * 2 + POST + MANY)
    assert [200, 200, 400] == [(await client.answer())[0] for _ in range(3)]
    assert b"" == await client.closed()
    assert len(parsed) <= 2 * CHUNKS_MAX


async def test_chunks_behind_a_creation_in_flight_are_as_few(
    raw: RawClients, connection: Connection, parsed: list[StreamReader]
) -> None:
    """They are held until that is answered, and bounded then."""
    # Its token is known from then on.
    client = await raw.connect(creation(TOKEN, "first"))
    assert 201 == (await client.answer())[0]
    async with writes_held_up(connection):
        client.send(creation(TOKEN, "second"))
        await first_row(connection, "SELECT 1 FROM attempt WHERE status = 'pending'")
        await send(client, POST + MANY, 10**6, raw)
    assert [201, 400] == [(await client.answer())[0] for _ in range(2)]
    assert len(parsed) <= 2 * CHUNKS_MAX


@pytest.mark.parametrize(
    ("body_bytes", "size"),
    [(CHUNKS_MAX, 1), (BODY_BYTES_MAX, CHUNK_BYTES_MIN), (BODY_BYTES_MAX, 4096)],
)
@pytest.mark.parametrize("split", [False, True], ids=["with the head", "behind the head"])
async def test_a_body_in_few_or_larger_chunks_is_taken(
    split: bool, body_bytes: int, size: int, raw: RawClients
) -> None:
    """The twin; the connection goes on."""
    body = chunks(BODY.ljust(body_bytes), size)
    client = await raw.connect(POST if split else POST + body)
    if split:
        client.send(body)
    assert 201 == (await client.answer())[0]
    client.send(PING)
    assert 200 == (await client.answer())[0]


async def test_lines_are_no_chunks(raw: RawClients) -> None:
    """Of a body in large chunks, and of one with a length."""
    body = b'{"name":\r\n"Team"' + b"\r\n" * 60_000 + b"}"
    client = await raw.connect(POST + chunks(body, 8192) + creation(TOKEN, "l", body))
    assert [201, 201] == [(await client.answer())[0] for _ in range(2)]


# What is taken whole, whatever its lines: a body with a length, and all that a full queue keeps.
TAKEN_WHOLE = {
    "a body": creation(TOKEN, "l", BODY.ljust(PART_BYTES)),
    "a body of many lines": creation(TOKEN, "l", BODY + b"\r\n" * 5000),
    "a full queue": PING * (QUEUED_MAX + 2),
    "a queue that is full many times": PING * 600,
}


@pytest.mark.parametrize("first", TAKEN_WHOLE.values(), ids=TAKEN_WHOLE)
async def test_chunks_behind_what_is_taken_whole_are_as_few(
    first: bytes, raw: RawClients, parsed: list[StreamReader]
) -> None:
    """Each request before them has its answer."""
    client = await raw.connect(first + POST + MANY)
    count = first.count(b" HTTP/1.1\r\n")
    assert {200, 201} > {(await client.answer())[0] for _ in range(count)}
    assert 400 == (await client.answer())[0]
    assert b"" == await client.closed()
    assert len(parsed) <= 2 * CHUNKS_MAX


async def test_chunks_behind_a_body_that_is_not_read_yet_are_as_few(
    raw: RawClients, connection: Connection, parsed: list[StreamReader]
) -> None:
    """Nothing is parsed then: the parser would keep all of them, and parse them at once."""
    await pend(connection, "p")
    client = await raw.connect(LOOKUP + POST + chunks(BODY.ljust(100_000), 50_000) + POST + MANY)
    await (await raw.connect(PING)).answer()
    assert len(parsed) <= 2
    await connection.execute("DELETE FROM attempt")
    assert [404, 201, 400] == [(await client.answer())[0] for _ in range(3)]
    assert len(parsed) <= 2 * CHUNKS_MAX


async def test_chunks_that_wait_for_their_reader_are_no_error(
    raw: RawClients, connection: Connection
) -> None:
    """The parser stops before the end of a body that is not read, and goes on when that is."""
    await pend(connection, "p")
    body = BODY.ljust(2 * BODY_BUFFER_BYTES + 2_500)
    sent = chunks(body[:60_000], 60_000).removesuffix(b"0\r\n\r\n") + chunks(body[60_000:], 100)
    client = await raw.connect(LOOKUP + POST + sent + PING)
    await (await raw.connect(PING)).answer()
    await connection.execute("DELETE FROM attempt")
    assert [404, 201, 200] == [(await client.answer())[0] for _ in range(3)]


async def test_chunks_behind_a_handshake_with_an_odd_host_are_not_parsed(
    raw: RawClients, parsed: list[StreamReader]
) -> None:
    """It is declined, and they were meant for another protocol."""
    odd = HANDSHAKE.replace(b"Host: x", b"Host: x y")
    client = await raw.connect(odd + POST + MANY)
    status, fields, _ = await client.answer()
    assert (400, "close") == (status, fields["connection"])
    assert (b"", []) == (await client.closed(), parsed)


async def test_a_whole_body_of_too_many_chunks_is_the_last_of_its_connection(
    raw: RawClients,
) -> None:
    """It is complete before its last chunks are counted."""
    client = await raw.connect()
    body = chunks(BODY.ljust(CHUNKS_MAX + 80), 1)
    await send(client, POST + body + PING, SENT["in pieces"], raw)
    assert 400 == (await client.answer())[0]
    assert b"" == await client.closed()


async def test_a_body_of_many_lines_with_a_length_is_parsed_in_few_parts(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: each part costs as much as hundreds of bytes."""
    count = 0
    read_request = ClientConnection._read_request

    def read(client: ClientConnection, data: bytes) -> bool:
        nonlocal count
        count += bool(data)
        return read_request(client, data)

    monkeypatch.setattr(ClientConnection, "_read_request", read)
    head, _, body = creation(TOKEN, "l", BODY + b"\r\n" * 60_000).partition(b"\r\n\r\n")
    client = await raw.connect(head)
    await (await raw.connect(PING)).answer()
    client.send(b"\r\n\r\n" + body)
    assert 201 == (await client.answer())[0]
    assert count < 20


async def test_many_requests_at_once_queue_as_few_as_ever(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrives in parts waits where the queue is full, and each is answered in its turn."""
    queued: list[int] = []
    receive = ClientConnection.data_received

    def count(client: ClientConnection, data: bytes) -> None:
        receive(client, data)
        queued.append(len(client._messages))

    monkeypatch.setattr(ClientConnection, "data_received", count)
    client = await raw.connect(PING * 600)
    assert [200] * 600 == [(await client.answer())[0] for _ in range(600)]
    assert QUEUED_MAX == max(queued)


# Before a size that does not end, and what it goes on with.
ENDLESS = {
    "an extension": (b"1;", b"a"),
    "zeros": (b"", b"0"),
    "an extension behind a chunk": (chunks(BODY, 64)[:-5] + b"1;", b"a"),
}


@pytest.mark.parametrize(("begin", "byte"), ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize(("head", "expected"), [(POST, 400), (GET, 200)], ids=["POST", "GET"])
async def test_a_size_that_never_ends_is_not_read_for_long(
    head: bytes, expected: int, begin: bytes, byte: bytes, raw: RawClients
) -> None:
    """Nothing of it comes into the body, whose bound would never be met."""
    client = await raw.connect(head + begin)
    await send(client, byte * 10 * FRAMING_BYTES_MAX, FRAMING_BYTES_MAX, raw)
    status, fields, document = await client.answer()
    assert (expected, "close") == (status, fields["connection"])
    if expected == 400:
        assert BODY_UNREADABLE == document["errors"][0]["detail"]
    assert b"" == await client.closed()


async def test_extensions_and_fields_of_a_moderate_size_are_taken(raw: RawClients) -> None:
    """The twin. What follows in the same piece is none of the body's."""
    half = FRAMING_BYTES_MAX // 2
    body = b"%x;%b\r\n%b\r\n0\r\n\r\n" % (len(BODY), b"a" * (half - 100), BODY)
    client = await raw.connect(POST)
    client.send(body + PING * (2 * FRAMING_BYTES_MAX // len(PING)))
    assert 201 == (await client.answer())[0]
    large = BODY.ljust(4 * FRAMING_BYTES_MAX)
    client = await raw.connect(POST.replace(b": k", b": l"))
    body = b"%x;%b\r\n%b\r\n0\r\n\r\n" % (len(large), b"a" * (FRAMING_BYTES_MAX - 100), large)
    client.send(body.replace(b"0\r\n\r\n", b"0;%b\r\n\r\n" % (b"a" * (FRAMING_BYTES_MAX - 100))))
    assert 201 == (await client.answer())[0]
