"""How a request's body is read, over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import orjson
import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from multidict import CIMultiDict

from stretto.codec import BODIES_PER_TURN, BODY_BYTES_MAX, parse_json
from stretto.errors import StrettoError
from stretto.http.requests import MEMBERS_MAX, read_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp.typedefs import Handler, Middleware

JSON = "application/json"
ANSWER_SECONDS = 30


@pytest.mark.parametrize(
    ("transport", "error"), [(None, ConnectionError), (Mock(), RuntimeError)], ids=["ours", "bug"]
)
async def test_a_connection_that_was_closed_here_is_as_one_whose_client_has_left(
    transport: Mock | None, error: type[Exception]
) -> None:
    """Its handler comes to read in the same turn of the loop: what aiohttp raises then is no bug."""
    body = StreamReader(Mock(connected=False), 1, loop=asyncio.get_running_loop())
    request = make_mocked_request("POST", "/", {"Content-Type": JSON}, payload=body)
    request.protocol.transport = transport
    with pytest.raises(error):
        await read_body(request)


@asynccontextmanager
async def echo(
    *middlewares: Middleware, auto_decompress: bool = True
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """Serve one route that answers the document that it read, or the code of the error.

    A host's server decompresses bodies itself; our own does not.
    """

    async def answer(request: web.Request) -> web.Response:
        try:
            return web.Response(body=orjson.dumps(parse_json(await read_body(request))))
        except StrettoError as error:
            return web.Response(text=error.code)

    app = web.Application(middlewares=middlewares)
    app.router.add_post("/", answer)
    server = TestServer(app)
    await server.start_server(auto_decompress=auto_decompress)
    async with TestClient(server) as client:
        yield client


async def sent(
    body: Any,
    content_type: str | None = JSON,
    encoding: str | None = None,
    *,
    auto_decompress: bool = True,
) -> str:
    """Return what the route answers to such a body."""
    given = {"Content-Type": content_type, "Content-Encoding": encoding}
    async with echo(auto_decompress=auto_decompress) as client:
        response = await client.post(
            "/",
            data=body,
            headers={name: value for name, value in given.items() if value is not None},
            skip_auto_headers=["Content-Type"],
        )
        return await response.text()


@pytest.mark.parametrize(
    ("pieces", "encoding", "parts"),
    [
        ([], None, [b"{}"]),
        ([1], None, [b"{", b"}"]),
        ([BODIES_PER_TURN], "gzip", [gzip.compress(b"{}")]),
        ([1, BODIES_PER_TURN], "gzip", [gzip.compress(b"{}")[:5], gzip.compress(b"{}")[5:]]),
    ],
)
async def test_a_body_that_costs_time_waits_for_a_turn(
    pieces: list[int], encoding: str | None, parts: list[bytes]
) -> None:
    """One that is complete after its head, and one that is compressed: many may be at once."""
    taken: list[int] = []
    arrived = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        async def turn(count: int) -> None:
            taken.append(count)

        arrived.set()
        return web.Response(body=await read_body(request, turn))

    app = web.Application()
    app.router.add_post("/", answer)
    server = TestServer(app)
    await server.start_server(auto_decompress=False)
    assert server.port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    length = sum(map(len, parts))
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {length}\r\n"
    head += f"Content-Encoding: {encoding}\r\n" if encoding else ""
    writer.write(head.encode() + b"\r\n" + parts[0])
    await arrived.wait()
    for part in parts[1:]:
        writer.write(part)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await server.close()
    assert pieces == taken


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json;charset=utf-8",
        'application/json; charset="UTF-8"',
        "application/json ; charset=utf-8 ",
    ],
)
async def test_json_in_utf8_is_accepted(content_type: str) -> None:
    """In every spelling of its media type."""
    assert await sent(b"{}", content_type) == "{}"


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/jsonp",
        "application/problem+json",
        "application/json; charset=utf-16",
        "application/json, text/plain",
        "application/x-www-form-urlencoded",
    ],
)
async def test_another_media_type_is_refused(content_type: str | None) -> None:
    """A page of another origin can post the simple ones without asking (CORS)."""
    assert await sent(b"{}", content_type) == "unsupported_media_type"


def padded(size_bytes: int) -> bytes:
    """Return a document of exactly that size."""
    return b"{" + b" " * (size_bytes - 2) + b"}"


async def in_parts(body: bytes) -> AsyncIterator[bytes]:
    """Send a body without its length first."""
    for start in range(0, len(body), 10_000):
        yield body[start : start + 10_000]


async def test_a_body_of_the_largest_size_is_read() -> None:
    """The limit itself is allowed."""
    assert await sent(padded(BODY_BYTES_MAX)) == "{}"


async def test_a_larger_body_is_refused_by_its_length() -> None:
    """Before anything of it is kept."""
    assert await sent(padded(BODY_BYTES_MAX + 1)) == "body_too_large"


async def test_a_larger_body_is_refused_without_a_length() -> None:
    """Its bytes are counted as they come."""
    assert await sent(in_parts(padded(BODY_BYTES_MAX + 1))) == "body_too_large"


async def unfinished(*parts: bytes) -> bytes:
    """Return the first line of what is answered to a request whose end never comes."""
    async with echo() as client:
        assert client.port is not None
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        for part in parts:
            writer.write(part)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await reader.readuntil(b"body_too_large")
        finally:
            # The server would wait for the rest.
            writer.transport.abort()
        return answer.partition(b"\r\n")[0]


async def test_a_larger_body_is_refused_before_it_comes() -> None:
    """Its length is enough."""
    length = f"Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode()
    assert b"HTTP/1.1 200 OK" == await unfinished(length)


async def test_a_body_without_an_end_is_refused_once_it_is_too_large() -> None:
    """What is beyond is not waited for."""
    chunk = b"%x\r\n%b\r\n" % (BODY_BYTES_MAX + 1, padded(BODY_BYTES_MAX + 1))
    assert b"HTTP/1.1 200 OK" == await unfinished(b"Transfer-Encoding: chunked\r\n\r\n", chunk)


@pytest.mark.parametrize(
    "encodings", [["foo"], ["br"], ["x-gzip"], ["gzip, gzip"], ["gzip", "gzip"], [""]]
)
async def test_an_encoding_that_is_not_undone_is_refused(encodings: list[str]) -> None:
    """The bytes as they came would be read as JSON, and rejected as none."""
    async with echo(auto_decompress=False) as client:
        fields = [("Content-Type", JSON), *(("Content-Encoding", each) for each in encodings)]
        response = await client.post("/", data=b"{}", headers=CIMultiDict(fields))
        assert "unsupported_media_type" == await response.text()


@pytest.mark.parametrize(
    ("expected", "coding"),
    [
        (b"unsupported_media_type", b"gzip, chunked"),
        (b"unsupported_media_type", b"foo, chunked"),
        (b"{}", b"Chunked"),
    ],
)
async def test_only_chunks_are_undone(expected: bytes, coding: bytes) -> None:
    """A proxy that undoes the other coding as well would read another body (RFC 9112, 6.1)."""
    async with echo() as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Transfer-Encoding: " + coding + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await reader.read()
        writer.close()
        assert answer.endswith(expected)


async def test_a_body_as_it_is_may_say_so() -> None:
    """By the name of no encoding."""
    assert await sent(b"{}", encoding="identity") == "{}"


@pytest.mark.parametrize("auto_decompress", [True, False])
@pytest.mark.parametrize("members", [1, 2])
async def test_a_compressed_body_is_counted_decompressed(
    members: int, *, auto_decompress: bool
) -> None:
    """A small body must not become a large one inside, in one member or in several."""

    async def sent_packed(size_bytes: int) -> str:
        body = padded(size_bytes)
        part_bytes = size_bytes // members
        parts = [body[start : start + part_bytes] for start in range(0, size_bytes, part_bytes)]
        packed = b"".join(gzip.compress(part) for part in parts)
        assert len(packed) < BODY_BYTES_MAX
        return await sent(packed, encoding="gzip", auto_decompress=auto_decompress)

    assert await sent_packed(2) == await sent_packed(BODY_BYTES_MAX) == "{}"
    for size_bytes in (BODY_BYTES_MAX + members, 100 * BODY_BYTES_MAX):
        assert await sent_packed(size_bytes) == "body_too_large"


@pytest.mark.parametrize("auto_decompress", [True, False])
@pytest.mark.parametrize("body", [b"{}", gzip.compress(padded(1000), mtime=0)[:15]])
async def test_a_body_that_cannot_be_decompressed_is_refused(
    body: bytes, *, auto_decompress: bool
) -> None:
    """It is the client's error, so it is reported and not a crash."""
    refused = await sent(body, encoding="gzip", auto_decompress=auto_decompress)
    assert refused == "request_invalid"


def flushed(body: bytes, bits: int) -> bytes:
    """Return all of the body, compressed, without the block that says that it ends."""
    compressor = zlib.compressobj(wbits=bits)
    return compressor.compress(body) + compressor.flush(zlib.Z_SYNC_FLUSH)


GZIP = gzip.compress(b"{}", mtime=0)
EMPTY = gzip.compress(b"", mtime=0)
ZLIB = zlib.compress(b"{}")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", GZIP[:-1]),
        ("gzip", GZIP[:-8]),
        ("gzip", GZIP[:-8] + bytes(8)),
        ("gzip", flushed(b"{}", 31)),
        ("gzip", GZIP + b"x"),
        ("gzip", GZIP + EMPTY[:1]),
        ("gzip", GZIP + EMPTY[:-1]),
        ("gzip", GZIP + EMPTY * MEMBERS_MAX),
        ("deflate", ZLIB[:-1]),
        ("deflate", ZLIB[:-4]),
        ("deflate", ZLIB[:-4] + bytes(4)),
        ("deflate", flushed(b"{}", 15)),
        ("deflate", flushed(b"{}", -15)),
    ],
)
async def test_a_body_that_is_cut_off_is_refused_though_its_json_is_whole(
    encoding: str, body: bytes
) -> None:
    """Its end has the checksum: without it nothing says that this is what the client meant."""
    refused = await sent(body, encoding=encoding, auto_decompress=False)
    assert refused == "request_invalid"


@pytest.mark.parametrize("auto_decompress", [True, False])
@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", GZIP),
        ("GZIP", GZIP),
        ("gzip", gzip.compress(b"{", mtime=0) + gzip.compress(b"}", mtime=0)),
        ("gzip", GZIP + EMPTY * (MEMBERS_MAX - 1)),
        ("deflate", ZLIB),
        ("deflate", ZLIB[2:-4]),
    ],
)
async def test_a_whole_compressed_body_is_read(
    encoding: str, body: bytes, *, auto_decompress: bool
) -> None:
    """The twin: by our own server and by a host's."""
    assert await sent(body, encoding=encoding, auto_decompress=auto_decompress) == "{}"


async def test_a_body_that_cannot_be_decompressed_is_refused_each_time() -> None:
    """Nothing of it is kept for a handler that is called again."""

    @web.middleware
    async def call_twice(request: web.Request, handler: Handler) -> web.StreamResponse:
        await handler(request)
        return await handler(request)

    async with echo(call_twice) as client:
        headers = {"Content-Type": JSON, "Content-Encoding": "gzip"}
        response = await client.post("/", data=b"{}", headers=headers)
        assert "request_invalid" == await response.text()


@pytest.mark.parametrize(
    "body", [b'{"a":1}', in_parts(padded(30_000)), gzip.compress(b'{"a":1}', mtime=0)]
)
async def test_a_host_finds_the_body_after_us(body: Any) -> None:
    """Its middleware may call the handler again, or read the body afterwards."""
    answers = []
    seen = []

    @web.middleware
    async def call_twice(request: web.Request, handler: Handler) -> web.StreamResponse:
        first, second = await handler(request), await handler(request)
        assert isinstance(first, web.Response)
        assert isinstance(second, web.Response)
        answers.extend([first.body, second.body])
        seen.append(orjson.loads(await request.read()))
        return await handler(request)

    is_compressed = isinstance(body, bytes) and body.startswith(b"\x1f")
    headers = {"Content-Type": JSON} | ({"Content-Encoding": "gzip"} if is_compressed else {})
    async with echo(call_twice) as client:
        document = await (await client.post("/", data=body, headers=headers)).read()
    assert [document, document] == answers
    assert [orjson.loads(document)] == seen
