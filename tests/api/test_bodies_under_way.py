"""Bodies that are under way are bounded, of all clients together, and each is counted until its end."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any

import pytest

from stretto.codec import BODY_BYTES_MAX
from stretto.creation.creator import GroupCreator
from stretto.domain import NewGroup
from stretto.http.front.connection import ClientConnection
from stretto.http.settings import ConnectionLimits
from support.api_client import api_for, token_of
from support.counted_arrival import Counted, watched_connections
from support.database import first_row, pend, writes_held_up
from support.raw_client import PING, RawClient, RawClients, creation, creation_head, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto.creation.flight import Answer
    from support.api_client import Api
    from support.database import Connection

DEADLINE_SECONDS = 30
BODY = b'{"name": "Team"}'.ljust(100_000)
PACKED = gzip.compress(BODY.ljust(BODY_BYTES_MAX))
BYTES_MAX = 6 * len(BODY)
ALICE, MALLORY = token_of("alice"), token_of("mallory")
LOOKUP = (
    f"GET /v1/attempts/k HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {MALLORY}\r\n"
    "Prefer: wait=30\r\n\r\n"
).encode()
HANDSHAKE = (
    b"GET /v1/events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)


@pytest.fixture
def database_url(server_url: str) -> str:
    """Without PgBouncer: nothing here is about the database."""
    return server_url


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The service's side of all connections."""
    return watched_connections(monkeypatch)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many bytes may be under way: of six bodies."""
    monkeypatch.setattr("stretto.http.front.limits.ARRIVED_BYTES_MAX", BYTES_MAX)
    return BYTES_MAX


@pytest.fixture
async def raw(bound: int, api: Api) -> AsyncIterator[RawClients]:
    """Clients of a service with that bound."""
    assert bound
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        yield clients


def stalled(token: str, key: str, body: bytes = BODY) -> bytes:
    """Return a creation without its last byte."""
    return creation(token, key, body)[:-1]


async def require_refused(client: RawClient, before: int | None = None) -> None:
    """Have a client see the one answer that ends its connection; another status may come `before`."""
    status, fields, problem = await client.answer()
    if status == before:
        status, fields, problem = await client.answer()
    assert (503, "overloaded", "same-key") == (status, problem["code"], problem["retry"])
    assert ("1", "close") == (fields["retry-after"], fields["connection"])
    assert b"" == await client.closed()


@pytest.mark.parametrize("is_bounded", [True, False])
async def test_who_has_most_bodies_under_way_is_refused(
    is_bounded: bool, database_url: str, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other user, who has one or two. Without the bound, all are waited for."""
    monkeypatch.setattr(
        "stretto.http.front.limits.ARRIVED_BYTES_MAX", BYTES_MAX if is_bounded else 2 * BYTES_MAX
    )
    monkeypatch.setattr("stretto.http.front.arrived.USER_BYTES_MIN", 2 * len(BODY))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        alice = [await raw.connect(stalled(ALICE, f"a-{n}")) for n in range(2)]
        mallory = [await raw.connect(stalled(MALLORY, f"m-{n}")) for n in range(4)]
        await counted.until_all(6 * (len(BODY) - 1))
        bob = await raw.connect(stalled(token_of("bob"), "b"))
        refused = mallory[2:] if is_bounded else []
        for client in refused:
            await require_refused(client)
        await counted.until_all((7 - len(refused)) * (len(BODY) - 1))
        for client in {*alice, *mallory, bob} - {*refused}:
            client.send(b" ")
            assert 201 == (await client.answer())[0]
        # The refused request has claimed nothing.
        assert 201 == (await (await raw.connect(creation(MALLORY, "m-3", BODY))).answer())[0]
        await counted.until_all(0)


async def test_what_is_answered_counts_no_longer(raw: RawClients, counted: Counted) -> None:
    """Whatever the answer, one behind the other on one connection."""
    client = await raw.connect()
    for key in ("first", "second", "second"):
        client.send(stalled(ALICE, key))
        await counted.until_all(len(BODY) - 1)
        # Also where its token is verified for the first time.
        assert "alice" == counted.clients[0].user
        client.send(b" ")
        assert 201 == (await client.answer())[0]
        await counted.until_all(0)
    client.send(stalled(ALICE, "third", BODY[1:]))
    await counted.until_all(len(BODY) - 2)
    client.send(b" ")
    assert 400 == (await client.answer())[0]
    await counted.until_all(0)


async def test_a_body_counts_however_it_comes(raw: RawClients, counted: Counted) -> None:
    """A proxy sends the head by itself, and the body in small pieces."""
    request = stalled(ALICE, "k")
    at = len(request) - (len(BODY) - 1)
    client = await raw.connect(request[:at])
    await until(lambda: bool(counted.clients) and counted.clients[0]._begun is not None)
    while at < len(request):
        piece = request[at : at + 16_384]
        client.send(piece)
        at += len(piece)
        await counted.until_all(len(BODY) - 1 - (len(request) - at))
    client.send(b" ")
    assert 201 == (await client.answer())[0]
    await counted.until_all(0)


async def test_whose_client_has_left_counts_no_longer(raw: RawClients, counted: Counted) -> None:
    """It may reset the connection, or close its half in the middle of the body."""
    clients = [await raw.connect(stalled(ALICE, f"k-{n}")) for n in range(2)]
    await counted.until_all(2 * len(BODY) - 2)
    clients[0].transport.abort()
    await counted.until_all(len(BODY) - 1)
    clients[1].transport.write_eof()
    await counted.until_all(0)


async def test_what_comes_too_slowly_counts_no_longer(database_url: str, counted: Counted) -> None:
    """It is answered 408."""
    limits = ConnectionLimits(read_timeout_seconds=0.1)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=limits) as api,
        raw_clients(api.url) as raw,
    ):
        client = await raw.connect(stalled(ALICE, "k"))
        await counted.until_all(len(BODY) - 1)
        assert 408 == (await client.answer())[0]
        await counted.until_all(0)


async def test_what_is_under_way_when_the_service_stops_counts_no_longer(
    database_url: str, counted: Counted
) -> None:
    """Its task is cancelled at the end."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with api_for(database_url) as api, raw_clients(api.url) as raw:
            await raw.connect(stalled(ALICE, "k"))
            await counted.until_all(len(BODY) - 1)
        await counted.until_all(0)


async def test_a_body_that_is_worked_on_is_kept_no_longer(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """Its group may wait for the database for as long as its client does."""
    async with writes_held_up(connection):
        client = await raw.connect(creation(ALICE, "k"))
        client.send(creation(ALICE, "k", BODY))
        other = await raw.connect(creation(ALICE, "other", BODY))
        await first_row(connection, "SELECT 1 FROM attempt WHERE status = 'pending'")
        await until(lambda: any(each._current_request for each in counted.clients))
        current = counted.clients[1]._current_request
        await until(lambda: counted.clients[1]._begun is None)
        assert current is not None
        assert current._read_bytes is None
    assert [201, 201] == [(await client.answer())[0], (await client.answer())[0]]
    assert 201 == (await other.answer())[0]
    await counted.until_all(0)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda key: creation(MALLORY, key, BODY),
        lambda key: (
            creation_head(MALLORY, key)
            + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(PACKED), PACKED)
        ),
    ],
    ids=["as it is", "gzip"],
)
async def test_bodies_that_wait_for_their_turns_are_refused(
    request_of: Callable[[str], bytes],
    raw: RawClients,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are complete, and thousands may be at once; a compressed one is as large as it becomes."""
    may_go = asyncio.Event()
    create_from = GroupCreator.create_from

    async def create_later(*given: Any, **by_name: Any) -> Answer:
        await may_go.wait()
        return await create_from(*given, **by_name)

    monkeypatch.setattr(GroupCreator, "create_from", create_later)
    waiting = [await raw.connect(request_of("0"))]
    await until(lambda: bool(counted.clients) and counted.arrived.bytes >= len(BODY))
    size = counted.arrived.bytes
    for n in range(1, BYTES_MAX // size):
        waiting.append(await raw.connect(request_of(f"{n}")))
        await counted.until_all((n + 1) * size)
    newest = await raw.connect(request_of("newest"))
    try:
        await require_refused(newest)
    finally:
        # Else the service would wait for them at its end.
        may_go.set()
    assert 201 == (await waiting[0].answer())[0]
    await counted.until_all(0)


async def test_what_is_refused_in_the_turn_in_which_it_is_parsed_claims_nothing(
    raw: RawClients, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told that nothing was done."""
    parse = NewGroup.parse

    def parse_and_refuse(*given: Any) -> NewGroup:
        counted.clients[0].refuse_arrived()
        return parse(*given)

    monkeypatch.setattr(NewGroup, "parse", parse_and_refuse)
    client = await raw.connect(stalled(ALICE, "k"))
    await counted.until_all(len(BODY) - 1)
    client.send(b" ")
    await require_refused(client)
    monkeypatch.setattr(NewGroup, "parse", parse)
    answer = await (await raw.connect(creation(ALICE, "k"))).answer()
    assert (201, None) == (answer[0], answer[1].get("idempotent-replayed"))


async def test_what_is_queued_behind_a_request_is_refused(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """With one answer, behind that of the request that is worked on."""
    await pend(connection, "k", owner="mallory")
    clients = [
        await raw.connect(LOOKUP + creation(MALLORY, f"{n}-1", BODY) + stalled(MALLORY, f"{n}-2"))
        for n in range(6)
    ]
    await until(lambda: any(each._is_refused for each in counted.clients))
    await connection.execute("DELETE FROM attempt")
    refused = [n for n, each in enumerate(counted.clients) if each._is_refused]
    assert refused
    for n in refused:
        # Where that is missing, none of its requests had begun.
        await require_refused(clients[n], before=404)
    for client in clients:
        client.transport.abort()
    await counted.until_all(0)


async def test_a_queued_body_that_is_refused_is_dropped(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """The parser keeps the one that is not complete until the connection ends."""
    await pend(connection, "k", owner="mallory")
    client = await raw.connect(LOOKUP + stalled(MALLORY, "k-2"))
    await until(lambda: bool(counted.clients) and counted.arrived.bytes >= len(BODY) - 1)
    ((_, body),) = counted.clients[0]._messages
    counted.clients[0].refuse_arrived()
    assert b"" == body.read_nowait()
    await connection.execute("DELETE FROM attempt")
    assert 404 == (await client.answer())[0]
    client.transport.abort()
    await counted.until_all(0)


async def test_what_is_held_behind_a_creation_is_dropped(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """The creation itself is answered, as the last request of its connection."""
    client = await raw.connect(creation(MALLORY, "first"))
    assert 201 == (await client.answer())[0]
    async with writes_held_up(connection):
        client.send(creation(MALLORY, "second"))
        await first_row(connection, "SELECT 1 FROM attempt WHERE status = 'pending'")
        behind = stalled(MALLORY, "third")
        client.send(behind)
        await counted.until_all(len(behind))
        counted.clients[0].refuse_arrived()
        assert b"" == counted.clients[0]._held
    status, fields, _ = await client.answer()
    assert (201, "close") == (status, fields["connection"])
    assert b"" == await client.closed()


async def test_what_was_held_behind_a_creation_counts_no_longer(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """Also where the fast path answers all of it."""
    first = creation(ALICE, "first", BODY[:20_000])
    client = await raw.connect(first)
    assert 201 == (await client.answer())[0]
    async with writes_held_up(connection):
        client.send(creation(ALICE, "second"))
        await first_row(connection, "SELECT 1 FROM attempt WHERE status = 'pending'")
        client.send(first)
        await counted.until_all(len(first))
    assert [201, 201] == [(await client.answer())[0] for _ in range(2)]
    await counted.until_all(0)


async def test_a_handshake_with_frames_in_front_of_its_session_is_closed(
    raw: RawClients, counted: Counted, connection: Connection
) -> None:
    """No session goes on behind a gap."""
    await pend(connection, "k", owner="mallory")
    client = await raw.connect(LOOKUP + HANDSHAKE + bytes(20_000))
    await until(lambda: bool(counted.clients) and counted.arrived.bytes >= 20_000)
    counted.clients[0].refuse_arrived()
    assert b"" == await client.closed()
    await counted.until_all(0)


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_body_that_nothing_reads_yet_is_refused_when_it_is_read(
    is_begun: bool, raw: RawClients, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has arrived of it is dropped: its request may wait for its turn for long."""
    begin = ClientConnection.begin

    def begin_refused(client: ClientConnection) -> None:
        request = client._current_request
        is_creation = request is not None and request.body_exists
        if is_creation and not is_begun:
            client.refuse_arrived()
        begin(client)
        if is_creation and is_begun:
            client.refuse_arrived()
        assert request is not None
        assert request.content.at_eof()

    monkeypatch.setattr(ClientConnection, "begin", begin_refused)
    # The first comes in one piece with its head.
    for body in (creation(ALICE, "k", BODY[:20_000]), stalled(ALICE, "k")):
        await require_refused(await raw.connect(body))
    assert 200 == (await (await raw.connect(PING)).answer())[0]
    await counted.until_all(0)
