"""A plain creation is in flight without a task: its answers are those of the way through the routes."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from stretto.creation.ports import Led, SettledAsFailed
from stretto.errors import Failure, Overloaded
from stretto.http.front.connection import ClientConnection
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.service import SERVICE
from stretto.store_errors import HookError, OutcomeUnknown
from support.api_client import token_of
from support.live_service import LiveService, live_service
from support.raw_client import PING, RawClient, RawClients, creation, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.creation.flights import Flights
    from stretto.creation.ports import Write, WriteResult

DEADLINE_SECONDS = 60
TOKEN = token_of("alice")
NEW = creation(TOKEN, "new")
OTHER = creation(TOKEN, "new", b'{"name": "Other"}')
OLD = NEW.replace(b"Host: x", b"Host: x\r\nIdempotency-First-Sent: @1")
YOUNG = OLD.replace(b"@1", b"@%d" % time.time())
OUTCOMES: dict[str, WriteResult | Exception] = {
    "led": Led(),
    "failed": SettledAsFailed(Failure("no", "never")),
    "unknown": OutcomeUnknown("the connection broke"),
    "displaced": Overloaded(retry_after_seconds=3),
    "hook": HookError("it raised"),
    "bug": RuntimeError("it is ours"),
}
REFUSED = {
    "key": NEW.replace(b"Key: new", b"Key: n w"),
    "no key": NEW.replace(b"Key: new", b"Key: "),
    "body": creation(TOKEN, "b", b'{"name": ""}'),
    "no body": creation(TOKEN, "b", b""),
    "no JSON": creation(TOKEN, "b", b"{"),
    "no time": OLD.replace(b"@1", b"1"),
    "two times": OLD.replace(b": @1", b": @1\r\nIdempotency-First-Sent: @1"),
}


class Writers:
    """Writers that answer when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Write, asyncio.Future[WriteResult]]] = []

    def ask(self, write: Write) -> asyncio.Future[WriteResult]:
        """Queue a write."""
        self.asked.append((write, asyncio.get_running_loop().create_future()))
        return self.asked[-1][1]

    def settle(self, outcome: WriteResult | Exception) -> None:
        """Answer all writes."""
        for _, answered in self.asked:
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result(outcome)
        self.asked.clear()


class World:
    """A service that has seen the token, its writers and its connections."""

    def __init__(
        self, live: LiveService, raw: RawClients, made: list[ClientConnection] | None = None
    ) -> None:
        self.live, self.raw = live, raw
        self.writers = Writers()
        self.made = [] if made is None else made
        self.flights._writers = self.writers

    @property
    def flights(self) -> Flights:
        """What is in flight."""
        return self.live.app[SERVICE].creator._flights

    @property
    def in_flight(self) -> int:
        """How many requests are in flight without a task."""
        return sum(connection._in_flight is not None for connection in self.made)

    @property
    def waiting(self) -> int:
        """How many requests wait for a flight, with a task or without."""
        return sum(len(flight.waiters) for flight in self.flights._flights.values())

    def _have_come(self, waiting: int) -> bool:
        return self.waiting == waiting

    async def flying(self, *requests: bytes) -> list[RawClient]:
        """Send requests on connections of their own; return when each waits for a flight."""
        clients = []
        for request in requests:
            waiting = self.waiting + 1
            clients.append(await self.raw.connect(request))
            await until(partial(self._have_come, waiting))
        return clients


@pytest_asyncio.fixture
async def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A service whose writes a test settles."""
    made: list[ClientConnection] = []
    make = ClientConnection.connection_made

    def connection_made(client: ClientConnection, transport: asyncio.BaseTransport) -> None:
        make(client, transport)
        made.append(client)

    monkeypatch.setattr(ClientConnection, "connection_made", connection_made)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        world = World(live, raw, made)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await live.api.get("/v1/groups", headers=headers)).status == 200
        yield world


async def lines_of(client: RawClient) -> list[bytes]:
    """Return the lines of an answer, but for what differs between two equal answers."""
    while not client.answered.endswith(b"}"):
        await client._change()
    answer, client.answered = client.answered, b""
    answer = re.sub(rb'(conversation_id":")[^"]+', rb"\1", answer)
    return re.sub(rb"(Date|X-Request-Id): [^\r]+", rb"\1", answer).splitlines()


@pytest.mark.parametrize("is_draining", [False, True], ids=["serving", "draining"])
@pytest.mark.parametrize("name", OUTCOMES)
async def test_both_ways_answer_the_same(
    name: str, is_draining: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that starts a flight and one that joins it, line by line."""
    answers = []
    for reads, count in ((PlainRequests.read, 2), (lambda *_: None, 0)):
        monkeypatch.setattr(PlainRequests, "read", reads)
        clients = await world.flying(NEW, NEW)
        assert count == world.in_flight
        if is_draining:
            world.live.app[SERVICE].draining.set()
        world.writers.settle(OUTCOMES[name])
        answers.append([await lines_of(client) for client in clients])
        world.live.app[SERVICE].draining.clear()
        world.live.app[SERVICE].creator.forget()
        assert 0 == world.waiting == world.in_flight
    assert answers[0] == answers[1]
    assert is_draining == (b"Connection: close" in answers[0][0])
    assert (name == "led") == (answers[0][0] != answers[0][1])
    metrics = (await world.live.api.get("/metrics")).body.decode()
    code = answers[0][0][0].split()[1].decode()
    counted = f'stretto_http_requests_total{{method="POST",route="/v1/groups",status="{code}"}} 4.0'
    assert counted in metrics
    assert 'stretto_http_request_seconds_count{method="POST",route="/v1/groups"} 4.0' in metrics


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
async def test_what_is_refused_is_refused_by_the_routes(
    data: bytes, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing starts, and the answer is the same whether the request was read as plain or not."""
    answers = []
    for reads in (PlainRequests.read, lambda *_: None):
        monkeypatch.setattr(PlainRequests, "read", reads)
        answers.append(await lines_of(await world.raw.connect(data)))
    assert answers[0] == answers[1]
    assert b"HTTP/1.1 400 Bad Request" == answers[0][0]
    assert [] == world.writers.asked


async def test_a_request_that_is_too_old_starts_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same whether the request was read as plain or not."""
    answers = []
    for reads in (PlainRequests.read, lambda *_: None):
        monkeypatch.setattr(PlainRequests, "read", reads)
        answers.append(await lines_of(await world.raw.connect(OLD)))
    assert answers[0] == answers[1]
    assert answers[0][0].startswith(b"HTTP/1.1 422 ")
    assert b'"code":"first_sent_out_of_range"' in answers[0][-1]
    assert [] == world.writers.asked


@pytest.mark.parametrize("request_bytes", [YOUNG, OLD], ids=["young", "old"])
async def test_a_request_that_says_when_it_was_first_sent_needs_no_task(
    request_bytes: bytes, world: World
) -> None:
    """A young one starts a flight, and an old one of the same body joins it."""
    clients = await world.flying(YOUNG, request_bytes)
    assert 2 == world.in_flight
    world.writers.settle(Led())
    statuses = [await status_of(client) for client in clients]
    assert [(201, "created"), (201, "replayed")] == statuses


async def test_a_creation_that_is_not_parsed_shows_whose_connection_it_is(world: World) -> None:
    """Where connections are scarce, a stranger's is closed first, until one has had its turn."""
    (client,) = await world.flying(NEW)
    (connection,) = (each for each in world.made if each._in_flight)
    assert connection.user is not None
    world.writers.settle(Led())
    assert 201 == (await client.answer())[0]
    client.send(b"GET /v1/groups HTTP/1.1\r\nHost: x\r\n\r\n")
    assert 401 == (await client.answer())[0]
    assert not connection.waits_for_turn


async def test_another_body_does_not_share_the_flight(world: World) -> None:
    """It waits in a task for the outcome, which decides whose key it is."""
    first, other = await world.flying(NEW, OTHER)
    assert 1 == world.in_flight
    world.writers.settle(Led())
    assert [201, 422] == [(await client.answer())[0] for client in (first, other)]


@pytest.mark.parametrize("is_draining", [False, True], ids=["serving", "draining"])
async def test_what_comes_behind_a_creation_in_flight_is_answered_behind_it(
    is_draining: bool, world: World
) -> None:
    """Never in pieces or out of order; the last answer of a drain is the last request's."""
    (client,) = await world.flying(NEW)
    (connection,) = (each for each in world.made if each._in_flight)
    client.send(PING + NEW + PING[:9])
    await until(lambda: connection._held)
    assert (await world.live.api.get("/livez")).status == 200
    assert (None, False, b"") == (connection.waiting_since, connection.is_idle, client.answered)
    if is_draining:
        world.live.app[SERVICE].draining.set()
    else:
        client.send(PING[9:])
    world.writers.settle(Led())
    answers = [await client.answer() for _ in range(3 if is_draining else 4)]
    assert [201, 200, 201, 200][: len(answers)] == [status for status, _, _ in answers]
    said = [headers.get("connection") for _, headers, _ in answers]
    assert [None, None, "close" if is_draining else None] == said[:3]


async def test_a_creation_in_flight_behind_another_is_held_again(world: World) -> None:
    """The connection is the order of its answers."""
    (client,) = await world.flying(NEW)
    for key in ("second", "third"):
        client.send(creation(TOKEN, key))
        await until(lambda: any(each._held for each in world.made))
        world.writers.settle(Led())
        assert (201, "created") == await status_of(client)
        await until(lambda: bool(world.writers.asked))
        assert 1 == world.in_flight
    world.writers.settle(Led())
    assert (201, "created") == await status_of(client)


async def status_of(client: RawClient) -> tuple[int, str]:
    """Return what an answer says."""
    status, headers, _ = await client.answer()
    return status, headers["idempotency-status"]


async def test_a_client_that_has_closed_its_half_is_answered(world: World) -> None:
    """It may do so at once; its connection ends with the answer."""
    (client,) = await world.flying(NEW)
    client.transport.write_eof()
    await until(lambda: any(each._has_all for each in world.made))
    world.writers.settle(Led())
    assert "close" == (await client.answer())[1]["connection"]
    await client.closed()


async def test_a_client_that_hangs_up_is_waited_for_no_more(world: World) -> None:
    """Its write goes on, and the next request with its key finds the group."""
    (client,) = await world.flying(NEW)
    (flight,) = world.flights._flights.values()
    (waiter,) = flight.waiters
    # Reset: a client that only closes may be one that has closed its half, and reads on.
    connected = client.transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()
    await until(waiter.done)
    # Its time was not over.
    assert waiter.cancelled()
    assert flight.is_abandoned
    assert 0 == world.in_flight
    world.writers.settle(Led())
    assert (201, "replayed") == await status_of(await world.raw.connect(NEW))


async def test_a_request_waits_as_long_as_it_says(world: World) -> None:
    """One that has started the flight waits for its own write."""
    hasty = NEW.replace(b"Host: x", b"Host: x\r\nPrefer: wait=0")
    (first,) = await world.flying(hasty)
    assert 1 == world.in_flight
    second = await world.raw.connect(hasty)
    status, headers, document = await second.answer()
    assert (409, "attempt_pending", "1") == (status, document["code"], headers["retry-after"])
    world.writers.settle(Led())
    assert (201, "created") == await status_of(first)


async def test_a_stop_answers_what_is_in_flight(database_url: str) -> None:
    """Every request that was read is answered; it may have been written, or not."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with live_service(database_url) as live:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            assert (await live.api.get("/v1/groups", headers=headers)).status == 200
            world = World(live, RawClients(live.api.url))
            world.flights._stop_seconds = 0.01
            (client,) = await world.flying(NEW)
        status, answered, document = await client.answer()
        assert (503, "overloaded", "close") == (status, document["code"], answered["connection"])
        await client.closed()


async def test_a_creation_in_flight_counts_once(world: World) -> None:
    """As admitted when it begins, and by what its client got."""
    (client,) = await world.flying(NEW)
    assert 1 == world.live.app[SERVICE].shedder._admitted
    world.writers.settle(Overloaded(retry_after_seconds=1))
    assert 503 == (await client.answer())[0]
    metrics = (await world.live.api.get("/metrics")).body.decode()
    assert 'stretto_attempts_total{outcome="overloaded"} 1.0' in metrics
