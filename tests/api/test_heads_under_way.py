"""Heads count among what has arrived until they are answered, and nothing of them is kept then."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.web_protocol import _ErrInfo

from stretto.http.front.chunks import CHUNK_MEMORY
from stretto.http.front.connection import ClientConnection
from stretto.http.front.head_memory import FIELD_MEMORY, MEMORY_SHARE, memory_of, memory_of_part
from stretto.runtime.turns import Turns
from support.api_client import token_of
from support.counted_arrival import Counted, watched_connections
from support.database import pend
from support.raw_client import PING, RawClient, RawClients, creation, creation_head, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.api_client import Api
    from support.database import Connection

DEADLINE_SECONDS = 30
ALICE = token_of("alice")
FIELDS = b"".join(b"X-%03d: %b\r\n" % (n, b"v" * 230) for n in range(120))
STALLED = PING[:-2] + FIELDS
HEAD = STALLED + b"\r\n"
BODY = b'{"name": "Team"}'.ljust(100_000)
# Of four such heads.
BYTES_MAX = 4 * memory_of_part(STALLED) + 1
AUTHORIZED = b"Host: x\r\nAuthorization: Bearer %b\r\n" % ALICE.encode() + FIELDS
LOOKUP = b"GET /v1/attempts/k HTTP/1.1\r\nPrefer: wait=30\r\n" + AUTHORIZED + b"\r\n"
STREAM = b"GET /v1/events HTTP/1.1\r\nAccept: text/event-stream\r\n" + AUTHORIZED + b"\r\n"
SMALL_LOOKUP = LOOKUP.replace(FIELDS, b"")
LAST = HEAD.replace(b"Host: x", b"Host: x\r\nConnection: close")
REFUSED = b"GET /v1/groups HTTP/1.1\r\n" + HEAD.partition(b"\r\n")[2]
NOWHERE = b"GET /v1/groups/%b HTTP/1.1\r\n" % (b"x" * 4_000) + HEAD.partition(b"\r\n")[2]


@pytest.fixture
def database_url(server_url: str) -> str:
    """Without PgBouncer: nothing here is about the database."""
    return server_url


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The service's side of all connections."""
    monkeypatch.setattr("stretto.http.front.limits.ARRIVED_BYTES_MAX", BYTES_MAX)
    monkeypatch.setattr("stretto.http.front.arrived.USER_BYTES_MIN", memory_of_part(STALLED))
    return watched_connections(monkeypatch)


class Kept:
    """A field of the newest large head: as the parser has it, and its value as the request has it."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.memory = 0

    async def until_dropped(self) -> None:
        """Wait until nothing else refers to them than this list and the call."""
        await until(lambda: self.parts and sys.getrefcount(self.parts[0]) == 2)
        await until(lambda: sys.getrefcount(self.parts[1]) == 2)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """What is kept of the newest large head."""
    seen = Kept()

    def watched(message: Any, head_bytes: int) -> int:
        seen.parts = [message.raw_headers[-1], message.headers["X-119"]]
        seen.memory = memory_of(message, head_bytes)
        return seen.memory

    monkeypatch.setattr("stretto.http.front.counted_heads.memory_of", watched)
    return seen


@pytest.fixture
async def raw(counted: Counted, api: Api) -> AsyncIterator[RawClients]:
    """Clients of a service with a small bound."""
    assert not counted.clients
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        yield clients


async def require_refused(client: RawClient, before: int | None = None) -> None:
    """Have a client see the one answer that ends its connection; another status may come `before`."""
    status, fields, problem = await client.answer()
    if before is not None:
        assert before == status
        status, fields, problem = await client.answer()
    assert (503, "overloaded", "same-key") == (status, problem["code"], problem["retry"])
    assert ("1", "close") == (fields["retry-after"], fields["connection"])
    assert b"" == await client.closed()


@pytest.mark.parametrize("before", [b"", PING], ids=["first", "behind another"])
async def test_a_head_counts_while_it_arrives(
    before: bytes, raw: RawClients, counted: Counted
) -> None:
    """However it is cut; it is counted no longer once it is answered."""
    client = await raw.connect(before + STALLED[:10_000])
    await counted.until_all(memory_of_part(STALLED[:10_000]))
    client.send(STALLED[10_000:])
    await counted.until_all(memory_of_part(STALLED))
    client.send(b"\r\n")
    for _ in range(1 + bool(before)):
        assert 200 == (await client.answer())[0]
    await counted.until_all(0)
    client.send(PING)
    assert 200 == (await client.answer())[0]


async def test_what_came_of_one_head_counts_for_no_other(raw: RawClients, counted: Counted) -> None:
    """The next one begins with the end of it."""
    client = await raw.connect(STALLED[:-2])
    await counted.until_all(memory_of_part(STALLED[:-2]))
    client.send(b"\r\n\r\n" + STALLED[:9_000])
    assert 200 == (await client.answer())[0]
    await counted.until_all(memory_of_part(STALLED[:9_000]))


async def test_a_body_counts_for_no_head_behind_it(raw: RawClients, counted: Counted) -> None:
    """It counts by itself, while it is kept."""
    body = b" " * 100
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    client = await raw.connect(head + body + STALLED[:9_000])
    assert 200 == (await client.answer())[0]
    await counted.until_all(memory_of_part(STALLED[:9_000]))


async def test_a_small_head_that_arrives_is_not_counted(raw: RawClients, counted: Counted) -> None:
    """Few clients send any but in one packet."""
    client = await raw.connect(PING[:-2])
    await until(lambda: bool(counted.clients) and counted.clients[0].is_in_head)
    assert 0 == counted.arrived.bytes
    client.send(b"\r\n")
    assert 200 == (await client.answer())[0]


async def test_the_first_of_too_many_heads_are_refused(raw: RawClients, counted: Counted) -> None:
    """With an answer; the parser that has them is dropped, and the others come to their end."""
    heads = []
    for n in range(1, 5):
        heads.append(await raw.connect(STALLED))
        await counted.until_all(n * memory_of_part(STALLED))
    parsers = [client._parser for client in counted.clients]
    heads.append(await raw.connect(STALLED))
    for client in heads[:2]:
        await require_refused(client)
    await counted.until_all(3 * memory_of_part(STALLED))
    for refused, parser in zip(counted.clients[:2], parsers, strict=False):
        assert refused._parser is not parser
    for client in heads[2:]:
        client.send(b"\r\n")
        assert 200 == (await client.answer())[0]
    await counted.until_all(0)


async def test_a_user_is_not_refused_for_heads_of_strangers(
    raw: RawClients, counted: Counted
) -> None:
    """Its body came first, and it has less than all of those together."""
    alice = await raw.connect(creation(ALICE, "k", BODY)[:-1])
    await counted.until_all(len(BODY) - 1)
    await until(lambda: counted.clients[0].user is not None)
    heads = [await raw.connect(STALLED) for _ in range(5)]
    await until(lambda: any(client.is_closed or client.answered for client in heads))
    alice.send(b" ")
    assert 201 == (await alice.answer())[0]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        *((HEAD, 200), (LAST, 200), (REFUSED, 401), (NOWHERE, 401), (LOOKUP, 404)),
        *((HEAD + b"\r\n", 200), (REFUSED + b"\r", 401)),
    ],
    ids=[
        *("health check", "last one", "no token", "large target", "lookup"),
        *("an empty line behind it", "half of one"),
    ],
)
async def test_nothing_is_kept_of_a_large_head_that_is_answered(
    request_: bytes,
    status: int,
    raw: RawClients,
    counted: Counted,
    kept: Kept,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While its connection is idle, or waits for its client to close."""
    monkeypatch.setattr("stretto.http.front.writing.LINGER_SECONDS", DEADLINE_SECONDS)
    client = await raw.connect(request_)
    assert status == (await client.answer())[0]
    await kept.until_dropped()
    await counted.until_all(0)
    assert counted.clients[0].transport is not None
    if request_ is not LAST:
        client.send(PING)
        assert 200 == (await client.answer())[0]


@pytest.mark.parametrize("behind", [b"", b"\r\n"], ids=["nothing behind", "an empty line"])
async def test_nothing_is_kept_of_a_session_s_head(
    behind: bytes, raw: RawClients, counted: Counted, kept: Kept
) -> None:
    """It may go on for a day; thousands of them would fill the bound."""
    client = await raw.connect(STREAM + behind)
    await client.until(b"\r\n\r\n")
    await kept.until_dropped()
    await counted.until_all(0)
    await client.until(b"id: ")


async def test_a_large_head_that_cannot_be_read_is_not_kept(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """Nor what its error refers to, while it waits behind another request."""
    await pend(connection, "k", owner="alice")
    client = await raw.connect(SMALL_LOOKUP)
    await until(lambda: bool(counted.clients) and counted.clients[0]._has_turn)
    parser = counted.clients[0]._parser
    client.send(STALLED + b"no field\r\n\r\n")
    await until(lambda: bool(counted.clients[0]._messages))
    ((error, _),) = counted.clients[0]._messages
    assert counted.clients[0]._parser is not parser
    assert isinstance(error, _ErrInfo)
    assert error.exc is not None
    assert error.exc.__traceback__ is None
    await connection.execute("DELETE FROM attempt")
    assert [404, 400] == [(await client.answer())[0] for _ in range(2)]


async def test_a_head_that_is_too_large_counts_no_longer(
    raw: RawClients, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its client has not closed yet, after the answer."""
    counted_at_end = []
    linger = ClientConnection.linger

    async def watched(client: ClientConnection) -> None:
        counted_at_end.append(client.arrived_bytes)
        await linger(client)

    monkeypatch.setattr(ClientConnection, "linger", watched)
    client = await raw.connect(STALLED)
    await counted.until_all(memory_of_part(STALLED))
    parser = counted.clients[0]._parser
    client.send(b"X-Pad: %b\r\n" % (b"v" * 5_000))
    assert 431 == (await client.answer())[0]
    await until(lambda: counted_at_end)
    assert [0] == counted_at_end
    assert counted.clients[0]._parser is not parser


@pytest.mark.parametrize("request_", [HEAD, REFUSED, LOOKUP], ids=["check", "stranger", "user"])
async def test_a_large_head_that_waits_for_its_turn_is_refused(
    request_: bytes,
    raw: RawClients,
    counted: Counted,
    kept: Kept,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it is kept until then: thousands may wait."""
    may_go = asyncio.Event()

    async def take_later(*_: Any) -> None:
        await may_go.wait()

    client = await raw.connect(PING)
    assert 200 == (await client.answer())[0]
    monkeypatch.setattr(Turns, "take", take_later)
    client.send(request_)
    await until(lambda: bool(kept.memory) and counted.clients[0]._large is not None)
    assert kept.memory == counted.arrived.bytes
    counted.clients[0].refuse_arrived()
    await kept.until_dropped()
    may_go.set()
    await require_refused(client)


async def test_a_large_head_that_is_worked_on_is_refused_without_an_answer(
    raw: RawClients, counted: Counted, kept: Kept, connection: Connection
) -> None:
    """Its work may read it until its answer, and a lookup may wait for half a minute."""
    await pend(connection, "k", owner="alice")
    client = await raw.connect(LOOKUP)
    await until(lambda: bool(kept.memory) and counted.clients[0]._has_turn)
    assert kept.memory == counted.arrived.bytes
    counted.clients[0].refuse_arrived()
    assert b"" == await client.closed()
    await kept.until_dropped()
    await connection.execute("DELETE FROM attempt")


async def test_a_body_behind_a_large_head_is_refused_with_an_answer(
    raw: RawClients, counted: Counted, kept: Kept
) -> None:
    """As any body: its request has claimed nothing."""
    length = b"Content-Length: %d\r\n\r\n" % len(BODY)
    request = creation_head(ALICE, "k") + FIELDS + length + BODY[:-1]
    client = await raw.connect(request)
    await until(lambda: bool(kept.memory) and counted.clients[0]._refusal is not None)
    await counted.until_all(kept.memory + len(BODY) - 1)
    counted.clients[0].refuse_arrived()
    await require_refused(client)
    await kept.until_dropped()


@pytest.mark.parametrize("queued", [HEAD, STALLED], ids=["complete", "not complete"])
async def test_a_large_head_behind_a_request_is_refused(
    queued: bytes, raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """Behind the answer of the request that is worked on; one is enough."""
    await pend(connection, "k", owner="alice")
    client = await raw.connect(SMALL_LOOKUP)
    await until(lambda: bool(counted.clients) and counted.clients[0]._has_turn)
    client.send(queued)
    await until(lambda: counted.arrived.bytes > 2 * len(FIELDS))
    parser = counted.clients[0]._parser
    counted.clients[0].refuse_arrived()
    assert counted.clients[0]._parser is not parser
    await connection.execute("DELETE FROM attempt")
    await require_refused(client, before=404)
    await counted.until_all(0)


async def test_queued_heads_count_together(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """Each may be too small to count."""
    await pend(connection, "k", owner="alice")
    client = await raw.connect(SMALL_LOOKUP)
    await until(lambda: bool(counted.clients) and counted.clients[0]._has_turn)
    padded = PING[:-2] + b"X-Pad: %b\r\n\r\n" % (b"v" * 1_500)
    client.send(padded * 2)
    await until(lambda: len(counted.clients[0]._messages) == 2)
    await counted.until_all(2 * (MEMORY_SHARE * len(padded) + 2 * FIELD_MEMORY))
    await connection.execute("DELETE FROM attempt")
    assert [404, 200, 200] == [(await client.answer())[0] for _ in range(3)]
    await counted.until_all(0)


async def test_bodies_count_with_what_their_chunks_take(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """A byte in a chunk of its own takes some hundred; queued behind a request or read by none."""
    await pend(connection, "k", owner="alice")
    small = b"1\r\nx\r\n" * 200 + b"0\r\n\r\n"
    chunked = PING[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + small
    client = await raw.connect(SMALL_LOOKUP[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + small)
    await until(lambda: bool(counted.clients) and counted.clients[0]._has_turn)
    await counted.until_all(200 * (1 + CHUNK_MEMORY))
    client.send(chunked * 2)
    await until(lambda: len(counted.clients[0]._messages) == 2)
    heads = counted.arrived.bytes - 3 * 200 * (1 + CHUNK_MEMORY)
    assert 0 < heads < CHUNK_MEMORY * 200
    await connection.execute("DELETE FROM attempt")
    assert [404, 200, 200] == [(await client.answer())[0] for _ in range(3)]
    await counted.until_all(0)


async def test_a_lost_connection_keeps_no_large_head(
    raw: RawClients, counted: Counted, kept: Kept, connection: Connection
) -> None:
    """Nor is it counted."""
    await pend(connection, "k", owner="alice")
    await raw.connect(LOOKUP)
    await until(lambda: bool(kept.memory) and counted.clients[0]._has_turn)
    counted.clients[0].close_at_once()
    await kept.until_dropped()
    await counted.until_all(0)
