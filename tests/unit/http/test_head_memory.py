"""What a head takes in memory is what the parser makes of it, and not much more."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from aiohttp.test_utils import make_mocked_request
from aiohttp.web_protocol import RequestPayloadError

from stretto.http.front.chunks import CHUNKS_MAX, memory_of_body
from stretto.http.front.head_memory import (
    LargeHead,
    drop_fields,
    drop_head,
    least_memory,
    memory_of,
    memory_of_part,
)
from stretto.http.front.heads import head_bytes

LINE = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
FIELDS = {
    "many": b"".join(b"X-%03d: %b\r\n" % (n, b"v" * 230) for n in range(126)),
    "tiny": b"".join(b"X-%03d: v\r\n" % n for n in range(126)),
    "long names": b"".join(b"X-%03d%b: v\r\n" % (n, b"n" * 230) for n in range(126)),
    "few": b"".join(b"X-%03d: %b\r\n" % (n, b"v" * 7_900) for n in range(4)),
    "no text": b"".join(b"X-%03d: %b\xff\r\n" % (n, b"v" * 7_900) for n in range(4)),
    "emoji": b"".join(
        b"X-%03d: %b%b\r\n" % (n, b"v" * 230, "\U0001f600".encode()) for n in range(126)
    ),
    "long emoji": b"".join(
        b"X-%03d: %b%b\r\n" % (n, b"v" * 7_900, "\U0001f600".encode()) for n in range(4)
    ),
}
# Beside what a head makes: a parser, its lists, a message.
SPARE_BYTES = 6 * 1024
# With as many, few tuples are those that the interpreter keeps for later use.
PARSERS = 50


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
async def test_a_head_takes_what_is_counted(fields: bytes, is_complete: bool) -> None:
    """At most, and far from several times that: users with large heads are not refused for nothing."""
    loop = asyncio.get_running_loop()
    head = LINE + fields + b"\r\n" * is_complete
    parsers = [
        HttpRequestParser(
            BaseProtocol(loop),
            loop,
            2**15,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=1,
        )
        for _ in range(PARSERS)
    ]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        read = [parser.feed_data(head)[0] for parser in parsers]
        taken = (tracemalloc.get_traced_memory()[0] - before) // PARSERS
    finally:
        tracemalloc.stop()
    messages = read[0]
    assert is_complete == bool(messages)
    counted = memory_of_part(head)
    if messages:
        message = messages[0][0]
        counted = memory_of(message, head_bytes(message))
    assert taken - SPARE_BYTES <= counted <= 2.5 * taken


@pytest.mark.parametrize("size", [2, 3, 64])
async def test_a_body_in_chunks_takes_what_is_counted(size: int) -> None:
    """At most, and far from several times that."""
    loop = asyncio.get_running_loop()
    head = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    parsers = [HttpRequestParser(BaseProtocol(loop), loop, 2**15) for _ in range(PARSERS)]
    bodies = [parser.feed_data(head)[0][0][1] for parser in parsers]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for parser in parsers:
            parser.feed_data(chunk * CHUNKS_MAX)
        taken = (tracemalloc.get_traced_memory()[0] - before) // PARSERS
    finally:
        tracemalloc.stop()
    counted = memory_of_body(bodies[0])
    assert taken <= counted + SPARE_BYTES
    assert counted <= 2 * taken


async def test_a_large_head_keeps_no_message_that_was_taken() -> None:
    """What takes it from the queue keeps the rest until the next request."""
    loop = asyncio.get_running_loop()
    ((message, _),) = HttpRequestParser(BaseProtocol(loop), loop, 2**15).feed_data(LINE + b"\r\n")[
        0
    ]
    large = LargeHead(message, least_memory(message, head_bytes(message)))
    assert message is large.take()
    assert large._message is None


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_request_keeps_what_its_work_needs(is_over: bool) -> None:
    """A session that has begun needs no fields any more, and an answered request nothing."""
    request = make_mocked_request("GET", "/v1/events?since=x", headers={"Host": "x"})
    assert request.query
    assert request.headers
    assert request.raw_headers
    (drop_head if is_over else drop_fields)(request)
    assert not request.headers
    assert not request.raw_headers
    target = "/" if is_over else "/v1/events?since=x"
    assert (target, target) == (str(request.rel_url), request._message.path)
    assert target == str(request._message.url)
    assert "query" not in request._cache
    assert is_over == (request._match_info is None)
