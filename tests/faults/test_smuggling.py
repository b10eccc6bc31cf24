"""Requests that two readers could understand differently: a proxy before us, and us.

Where a proxy sees one request and we see two, the second is smuggled past it; where we see one answer
too many, another client gets it. So what is ambiguous is refused, and its connection is closed.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from support.api_client import connected_api, token_of
from support.proxies import haproxy_before, running_haproxy
from support.raw_client import BODY, PING, creation, creation_head, raw_clients

if TYPE_CHECKING:
    from support.database import Connection
    from support.service_process import StartService

DEADLINE_SECONDS = 60
HEAD = creation_head(token_of("mallory"), "outer")
# What would be smuggled: a creation of its own.
INNER = creation(token_of("mallory"), "inner")
CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


def answers(answered: bytes) -> list[bytes]:
    """Return the statuses of all answers."""
    return re.findall(rb"HTTP/1\.[01] (\d+) ", answered)


AMBIGUOUS = {
    # Two framings at once (RFC 9112, 6.1 and 6.3).
    "length, then chunked": LENGTH + CHUNKED + b"\r\n" + WHOLE,
    "chunked, then length": CHUNKED + LENGTH + b"\r\n" + WHOLE,
    "chunked, length of nothing": CHUNKED + b"Content-Length: 0\r\n\r\n" + WHOLE,
    "two lengths": b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + BODY,
    "twice the same length": LENGTH + LENGTH + b"\r\n" + BODY,
    "list of lengths": b"Content-Length: 16, 16\r\n\r\n" + BODY,
    "two encodings": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + WHOLE,
    "chunked is not the last": b"Transfer-Encoding: chunked, identity\r\n\r\n" + WHOLE,
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n" + WHOLE,
    "unknown encoding": b"Transfer-Encoding: xchunked\r\n\r\n" + WHOLE,
    "encoding in quotes": b'Transfer-Encoding: "chunked"\r\n\r\n' + WHOLE,
    # Fields that one reader sees and another does not (RFC 9112, 5).
    "space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + WHOLE,
    "space before the name": b" X: a\r\n" + LENGTH + b"\r\n" + BODY,
    "vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + WHOLE,
    "zero in a value": LENGTH + b"X: a\0b\r\n\r\n" + BODY,
    "folded value": LENGTH + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n" + BODY,
    "folded encoding": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + WHOLE,
    "line feed alone after a field": b"X: a\nTransfer-Encoding: chunked\r\n\r\n" + WHOLE,
    "line feed alone at the end": LENGTH + b"\n" + BODY,
    "carriage return alone": b"X: a\rTransfer-Encoding: chunked\r\n\r\n" + WHOLE,
    # Lengths that are no numbers (RFC 9112, 6.2).
    "length with a sign": b"Content-Length: +16\r\n\r\n" + BODY,
    "negative length": b"Content-Length: -16\r\n\r\n" + BODY,
    "hexadecimal length": b"Content-Length: 0x10\r\n\r\n" + BODY,
    "length with an underscore": b"Content-Length: 1_6\r\n\r\n" + BODY,
    "length with a space": b"Content-Length: 1 6\r\n\r\n" + BODY,
    "length beyond all numbers": b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
    # Chunks that are no chunks (RFC 9112, 7.1).
    "chunk with a sign": CHUNKED + b"\r\n+" + WHOLE,
    "hexadecimal prefix": CHUNKED + b"\r\n0x" + WHOLE,
    "chunk with an underscore": CHUNKED + b"\r\n0_" + WHOLE,
    "negative chunk": CHUNKED + b"\r\n-" + WHOLE,
    "chunk beyond all numbers": CHUNKED + b"\r\nffffffffffffffff0\r\n" + BODY,
    "chunk with a space": CHUNKED + b"\r\n" + WHOLE.replace(b"10\r\n", b"10 \r\n"),
    "chunks with line feeds alone": CHUNKED + b"\r\n" + WHOLE.replace(b"\r\n", b"\n"),
    "line feed in an extension": CHUNKED + b"\r\n" + WHOLE.replace(b"10\r\n", b"10;a\nb\r\n"),
    "chunk longer than it says": CHUNKED + b"\r\n" + WHOLE.replace(b"10\r\n", b"f\r\n"),
    "length in a trailer": CHUNKED + b"\r\n" + WHOLE[:-2] + b"Content-Length: 40\r\n\r\n",
    # Hosts that a proxy may route by (RFC 9112, 3.2).
    "two hosts": b"Host: y\r\n" + LENGTH + b"\r\n" + BODY,
}


async def test_an_ambiguous_request_is_refused_with_all_that_follows(
    start_service: StartService, connection: Connection
) -> None:
    """One answer, 400; the connection is closed; nothing was created."""
    service = await start_service()
    answered = {}
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(service.url) as raw:
        for name, rest in AMBIGUOUS.items():
            client = await raw.connect(HEAD + rest + INNER)
            answered[name] = answers(await client.closed())
    assert {name: [b"400"] for name in AMBIGUOUS} == answered
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0


async def test_the_same_byte_by_byte_is_refused_as_well(
    start_service: StartService, connection: Connection
) -> None:
    """The bytes that show it may come when a handler already waits for the body."""
    service = await start_service(READ_TIMEOUT_SECONDS="600")
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(service.url) as raw:
        clients = [(await raw.connect(HEAD), rest) for rest in AMBIGUOUS.values()]
        for place in range(max(map(len, AMBIGUOUS.values()))):
            for client, rest in clients:
                client.send(rest[place : place + 1])
            # What was sent is on its way before there is more.
            await (await raw.connect(PING)).answer()
        for client, _ in clients:
            client.send(INNER)
            # A connection that is closed under what is still being sent may lose the answer.
            assert answers(await client.closed()) in ([b"400"], [])
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0


async def test_a_body_that_breaks_off_is_answered_once(start_service: StartService) -> None:
    """Its reader does not wait for ever, and nothing behind it is read."""
    service = await start_service(READ_TIMEOUT_SECONDS="600")
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(service.url) as raw:
        client = await raw.connect(HEAD + CHUNKED + b"\r\n1\r\n{\r\n")
        await (await raw.connect(PING)).answer()
        client.send(b"nonsense\r\n")
        answered = await client.closed()
    assert answers(answered) == [b"400"]
    assert b"breaks off" not in answered
    assert not any(b"Unhandled" in line or b"request.crashed" in line for line in service.log)


async def test_a_body_that_breaks_off_behind_a_chunk_is_not_taken_for_complete(
    start_service: StartService, connection: Connection
) -> None:
    """The end of that chunk wakes its reader in the same turn of the loop."""
    service = await start_service(READ_TIMEOUT_SECONDS="600")
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(service.url) as raw:
        client = await raw.connect(HEAD + CHUNKED + b"\r\n%x\r\n%b" % (len(BODY), BODY))
        await (await raw.connect(PING)).answer()
        client.send(b"\r\nnonsense\r\n")
        assert answers(await client.closed()) == [b"400"]
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0


# Each would change the request behind it, if it became a field of its head.
TRAILERS = [
    b"Connection: close",
    b"Authorization: Bearer x",
    b"Content-Encoding: gzip",
    b"Content-Length: 40",
    b"Expect: nothing",
    b"Host: y",
    b"Idempotency-Key: another",
    b"Transfer-Encoding: gzip",
    b"Upgrade: h2c",
]


async def test_a_trailer_comes_into_no_other_request_behind_a_proxy(
    start_service: StartService,
) -> None:
    """A proxy sends requests of several clients over one connection, and passes trailers on."""
    service = await start_service()
    sharing = haproxy_before(service.url) + "    http-reuse always\n"
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        running_haproxy(sharing) as url,
        raw_clients(url) as raw,
        connected_api(url) as api,
    ):
        for trailer in TRAILERS:
            request = HEAD.replace(b"outer", b"t") + CHUNKED + b"\r\n" + WHOLE[:-2] + trailer
            mallory = await raw.connect(request + b"\r\n\r\n")
            # haproxy refuses some of them itself.
            await mallory.head()
            key = trailer.split(b":")[0].decode()
            for number in range(3):
                reply = await api.create(f"{key}-{number}")
                created = (reply.status, reply.headers.get("Idempotency-Status"))
                assert (201, "created") == created, trailer


HTTP_1_0 = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")


FOREIGN = {
    "1.0 with chunks": HTTP_1_0 + CHUNKED + b"\r\n" + WHOLE,
    "1.0 kept": HTTP_1_0 + CHUNKED + b"Connection: keep-alive\r\n\r\n" + WHOLE,
    "line feeds alone": HEAD.replace(b"\r\n", b"\n") + LENGTH + b"\r\n" + BODY,
    "0.9": b"POST /v1/groups\r\n\r\n",
    "2.0": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "zero": b"P\0ST /v1/groups HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
}
CLEAR = {
    "length": LENGTH + b"\r\n" + BODY,
    "chunked": CHUNKED + b"\r\n" + WHOLE,
    "tab": b"Transfer-Encoding:\tCHUNKED\r\n\r\n" + WHOLE,
    "extension": CHUNKED + b"\r\n" + WHOLE.replace(b"10\r\n", b"10;a=b\r\n"),
}


async def test_another_protocol_or_a_broken_first_line_is_refused(
    start_service: StartService, connection: Connection
) -> None:
    """As above."""
    service = await start_service()
    answered = {}
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(service.url) as raw:
        for name, request in FOREIGN.items():
            client = await raw.connect(request + INNER)
            answered[name] = answers(await client.closed())
    assert {name: [b"400"] for name in FOREIGN} == answered
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0


async def test_what_has_one_meaning_is_answered_once_each(start_service: StartService) -> None:
    """The same requests without the ambiguity: two requests, two answers, in their order."""
    service = await start_service()
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(service.url) as raw:
        for name, rest in CLEAR.items():
            outer = (HEAD + rest).replace(b"outer", name.encode())
            client = await raw.connect(outer + INNER.replace(b"inner", name.encode()))
            first, second = await client.answer(), await client.answer()
            assert (201, 201, first[2]) == (first[0], second[0], second[2]), name
            statuses = [headers["idempotency-status"] for _, headers, _ in (first, second)]
            assert ["created", "replayed"] == statuses
