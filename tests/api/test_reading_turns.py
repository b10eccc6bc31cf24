"""Connections that wait for their turn to be read: users and newcomers are answered meanwhile, and they are afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.http.front import reading_turns
from stretto.http.front.limits import LimitedServer
from stretto.http.front.parsing import NEWCOMER_BYTES_MAX
from support.api_client import token_of
from support.counted_arrival import Counted, watched_connections
from support.raw_client import PING, RawClients, creation, hurried_clients
from support.reading_turns import Turns
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.http.front.connection import ClientConnection
    from support.raw_client import RawClient

DEADLINE_SECONDS = 30
READ_SECONDS = 0.5
CREATION = creation(token_of("alice"), "k")
FIELD = b"X: %b\r\n" % (b"x" * 8000)
LARGE = PING[:-2] + 3 * FIELD + b"\r\n"


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Those of the service."""
    return Turns(monkeypatch)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The service's side of all connections."""
    return watched_connections(monkeypatch)


@pytest.fixture
def database_url(server_url: str) -> str:
    """Without PgBouncer: nothing here is about the database."""
    return server_url


@pytest.fixture
async def raw(turns: Turns, counted: Counted, database_url: str) -> AsyncIterator[RawClients]:
    """Clients of a service that waits for no request for long."""
    async with hurried_clients(
        database_url, read_seconds=READ_SECONDS, deadline_seconds=DEADLINE_SECONDS
    ) as clients:
        yield clients


@pytest.fixture
async def stranger(raw: RawClients) -> RawClient:
    """One that has been answered, without a token."""
    client = await raw.connect(PING)
    await client.answer()
    return client


@pytest.fixture
def ours(stranger: RawClient, counted: Counted) -> ClientConnection:
    """Its connection."""
    del stranger
    return counted.clients[0]


async def test_others_wait_for_their_turn_and_users_do_not(
    raw: RawClients, turns: Turns, stranger: RawClient
) -> None:
    """Those whose token is known, and newcomers; what users have read keeps no others waiting."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        user = await raw.connect(CREATION)
        await user.answer()
        turns.all[0]._others.left = 0
        stranger.send(PING)
        await turns.until_waits()
        user.send(CREATION)
        assert 201 == (await user.answer())[0]
        assert 200 == (await (await raw.connect(PING)).answer())[0]
        assert b"" == stranger.answered
        turns.begin()
        assert 200 == (await stranger.answer())[0]
        turns.all[0]._users.left = 0
        stranger.send(PING)
        assert 200 == (await stranger.answer())[0]
        user.send(CREATION)
        await turns.until_waits()
        turns.begin()
        assert 201 == (await user.answer())[0]


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_token_that_is_known_has_its_users_turn_to_be_read(
    is_new: bool, raw: RawClients, turns: Turns, stranger: RawClient
) -> None:
    """On a connection that was another client's before, and where the first request of a new one is large."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        await (await raw.connect(CREATION)).answer()
        turns.all[0]._others.left = 0
        request = CREATION.replace(b"Host: x\r\n", b"Host: x\r\n" + FIELD)
        user = await raw.connect(request) if is_new else stranger
        if not is_new:
            user.send(CREATION)
        assert 201 == (await user.answer())[0]


async def test_answers_to_what_is_refused_have_turns(
    raw: RawClients, stranger: RawClient, ours: ClientConnection
) -> None:
    """Thousands may be due at once; a connection that waits for its own makes room."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        # As in a turn that has no more of them.
        ours._refusal_turns._per_turn = 0
        stranger.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\x00: x\r\n\r\n")
        await until(lambda: ours.waits_for_turn)
        assert 200 == (await (await raw.connect(PING)).answer())[0]
        assert b"" == stranger.answered
        ours._refusal_turns._per_turn = 1
        ours._refusal_turns._grant_next()
        assert 400 == (await stranger.answer())[0]
        assert not ours.waits_for_turn


@pytest.mark.parametrize("kind", ["large", "late", "second"])
async def test_a_newcomer_is_one_with_a_small_request_that_comes_soon(
    kind: str, raw: RawClients, turns: Turns, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that are there for long, or send much, could all send it at once."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        if kind == "late":
            monkeypatch.setattr("stretto.http.front.parsing.STRANGER_SECONDS", 0.0)
        client = await raw.connect()
        await until(lambda: bool(counted.clients))
        if kind == "second":
            client.send(PING)
            await client.answer()
        turns.spend()
        client.send(
            PING[:-2] + b"X: %b\r\n\r\n" % (b"x" * (NEWCOMER_BYTES_MAX * (kind == "large")))
        )
        await turns.until_waits()
        turns.begin()
        assert 200 == (await client.answer())[0]


async def test_a_read_costs_and_a_head_costs_by_its_bytes(
    turns: Turns, stranger: RawClient, ours: ClientConnection
) -> None:
    """What the fast path answers costs nothing for its head."""
    others = turns.all[0]._others
    async with asyncio.timeout(DEADLINE_SECONDS):
        turns.begin()
        stranger.send(PING)
        await stranger.answer()
        assert reading_turns.CHUNKS_OF_READ == reading_turns.CHUNKS_A_TURN - others.left
        turns.begin()
        stranger.send(LARGE)
        await stranger.answer()
        cost = len(LARGE) // reading_turns.BYTES_OF_CHUNK + 2 * reading_turns.CHUNKS_OF_READ
        # The head and its last byte may come to the parser apart, or in two reads.
        assert 0 <= reading_turns.CHUNKS_A_TURN - others.left - cost <= 8
        turns.begin()
        stranger.send(PING[:-2])
        await until(lambda: others.left < reading_turns.CHUNKS_A_TURN)
        assert ours.is_in_head


async def test_a_client_that_waits_to_be_read_is_not_timed(
    turns: Turns, stranger: RawClient, ours: ClientConnection
) -> None:
    """It waits for us. From its turn on, what was left of its time goes on."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE_SECONDS):
        stranger.send(PING[:9])
        await until(lambda: ours._read_timer is not None)
        assert ours._read_timer is not None
        # As if most of it was over.
        ours._read_timer.cancel()
        ours._read_timer = loop.call_later(READ_SECONDS / 4, ours._cut_off, "too_slow")
        turns.spend()
        stranger.send(PING[9:20])
        await turns.until_waits()
        assert ours._read_timer is None
        assert ours.is_in_head
        turns.begin()
        assert ours._read_timer is not None
        assert ours._read_timer.when() - loop.time() < READ_SECONDS / 2
        assert 408 == (await stranger.answer())[0]


async def test_one_that_waits_to_be_read_is_not_idle_and_makes_room_first(
    raw: RawClients, turns: Turns, stranger: RawClient, ours: ClientConnection, counted: Counted
) -> None:
    """No work has begun for it; while an answer is due, some has."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        await until(lambda: ours.is_idle)
        turns.spend()
        stranger.send(PING)
        await turns.until_waits()
        assert not ours.is_idle
        assert ours.is_of_stranger
        assert ours.is_unworked
        turns.begin()
        await stranger.answer()
        hung = await raw.connect(CREATION[:-1])
        await until(lambda: len(counted.clients) == 2 and counted.clients[1]._begun is not None)
        turns.spend()
        hung.send(CREATION[-1:])
        await turns.until_waits()
        assert not counted.clients[1].is_unworked


async def test_what_waits_to_be_read_is_counted_and_refused_where_it_is_too_much(
    turns: Turns, stranger: RawClient, ours: ClientConnection
) -> None:
    """As a head that has begun: nothing of it is known."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        turns.spend()
        stranger.send(LARGE)
        await turns.until_waits()
        await until(lambda: ours.arrived_bytes == len(LARGE))
        assert ours._arrived.bytes == len(LARGE)
        assert ours.is_in_head
        ours.refuse_arrived()
        assert 0 == ours.arrived_bytes
        assert 503 == (await stranger.answer())[0]
        turns.begin()
        assert b"" == await stranger.closed()


async def test_what_waits_of_a_body_is_refused_with_it(
    raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """One answer, not another one for a head."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        client = await raw.connect(CREATION[:-1])
        await until(lambda: bool(counted.clients) and counted.clients[0]._refusal is not None)
        (ours,) = counted.clients
        turns.spend()
        client.send(CREATION[-1:])
        await turns.until_waits()
        assert not ours.is_in_head
        ours.refuse_arrived()
        assert 503 == (await client.answer())[0]
        assert b"" == await client.closed()


async def test_more_that_comes_meanwhile_stays_behind(
    turns: Turns, stranger: RawClient, ours: ClientConnection
) -> None:
    """A read that was under way, or what was held behind a creation."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        turns.spend()
        stranger.send(PING[:9])
        await turns.until_waits()
        ours.data_received(PING[9:] + PING)
        assert ours._late == PING + PING
        turns.begin()
        assert b"" == ours._late
        assert [200, 200] == [(await stranger.answer())[0] for _ in range(2)]


async def test_more_that_a_new_connection_sends_stays_behind_its_large_request(
    raw: RawClients, turns: Turns, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small it is, and soon."""
    monkeypatch.setattr("stretto.http.front.parsing.STRANGER_SECONDS", DEADLINE_SECONDS)
    turns.spend()
    client = await raw.connect(LARGE)
    await turns.until_waits()
    (ours,) = counted.clients
    ours.data_received(PING)
    assert ours._late == LARGE + PING
    turns.begin()
    assert [200, 200] == [(await client.answer())[0] for _ in range(2)]


async def test_a_client_that_closes_its_half_while_it_waits_is_answered(
    turns: Turns, stranger: RawClient
) -> None:
    """Its end is read behind its request."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        turns.spend()
        stranger.send(PING)
        stranger.transport.write_eof()
        await turns.until_waits()
        turns.begin()
        assert 200 == (await stranger.answer())[0]
        assert b"" == await stranger.closed()


async def test_a_draining_service_answers_what_waits_to_be_read(
    turns: Turns, stranger: RawClient, ours: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer before it is not the connection's last."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        stranger.send(PING)
        await until(lambda: ours._owes_answers or bool(stranger.answered))
        turns.spend()
        stranger.send(PING)
        await turns.until_waits()
        monkeypatch.setattr(LimitedServer, "is_draining", True)
        assert not ours.is_at_last_request
        turns.begin()
        headers = [(await stranger.answer())[1] for _ in range(2)]
        assert "close" == headers[-1]["connection"]
        assert b"" == await stranger.closed()
