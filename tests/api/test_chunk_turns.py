"""Bodies in chunks that wait for their turn to be parsed: others are answered meanwhile, and they are afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.http.front import chunks, reading_turns
from support.api_client import token_of
from support.counted_arrival import Counted, watched_connections
from support.raw_client import BODY, PING, RawClients, creation_head, hurried_clients
from support.reading_turns import Turns
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS = 30
READ_SECONDS = 0.5
POST = creation_head(token_of("alice"), "k") + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"


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


async def test_chunks_wait_for_their_turn_and_a_newcomer_does_not(
    raw: RawClients, turns: Turns
) -> None:
    """Its first request is answered meanwhile. In its turn, the body costs what its chunks do."""
    turns.spend()
    client = await raw.connect(POST + CHUNKS)
    await turns.until_waits()
    # Which the parser reads.
    newcomer = await raw.connect(PING.replace(b"/livez", b"/nowhere"))
    assert 404 == (await newcomer.answer())[0]
    assert b"" == client.answered
    turns.begin()
    assert 201 == (await client.answer())[0]
    left = min(turns.all[0]._users.left, turns.all[0]._others.left)
    assert left <= reading_turns.CHUNKS_A_TURN - len(BODY)


async def test_a_connection_whose_body_is_complete_waits_for_no_turn(
    raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """Nothing is left to be read."""
    client = await raw.connect(POST + CHUNKS)
    assert 201 == (await client.answer())[0]
    turns.spend()
    assert not counted.clients[0]._is_held_up
    assert not turns.all[0]._places


async def test_the_rest_may_come_after_the_turn(
    raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """The connection is read again, although its handler has taken all that has come."""
    client = await raw.connect(POST)
    await until(lambda: bool(counted.clients) and counted.clients[0]._refusal is not None)
    turns.spend()
    client.send(CHUNKS[:-1])
    await turns.until_waits()
    turns.begin()
    client.send(CHUNKS[-1:])
    assert 201 == (await client.answer())[0]


@pytest.mark.parametrize("cut", [1, len(POST), len(POST) + 1, len(POST) + len(CHUNKS) - 1])
async def test_they_are_answered_however_they_are_cut(
    cut: int, raw: RawClients, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn by turn, with what comes behind them: in each, however short, something is read."""
    monkeypatch.setattr(reading_turns, "CHUNKS_A_TURN", 1)
    turns.spend()
    data = POST + CHUNKS + PING
    client = await raw.connect(data[:cut])
    await (await raw.connect(PING)).answer()
    client.send(data[cut:])
    for _ in range(len(CHUNKS)):
        await (await raw.connect(PING)).answer()
        turns.begin()
    assert [201, 200] == [(await client.answer())[0] for _ in range(2)]


@pytest.mark.parametrize("left", [0, reading_turns.CHUNKS_OF_READ + 1], ids=["unread", "parsed"])
async def test_a_client_that_waits_for_its_turn_is_not_timed(
    left: int, raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """It waits for us: it is neither cut off nor idle. From its turn on, what was left of its time goes on."""
    loop = asyncio.get_running_loop()
    client = await raw.connect(POST)
    await until(lambda: bool(counted.clients) and counted.clients[0]._read_timer is not None)
    (ours,) = counted.clients
    assert ours._read_timer is not None
    # As if most of it was over.
    ours._read_timer.cancel()
    ours._read_timer = loop.call_later(READ_SECONDS / 4, ours._cut_off, "too_slow")
    turns.spend(left)
    client.send(CHUNKS[:-1])
    await turns.until_waits()
    assert ours._read_timer is None
    assert not ours.is_idle
    # It makes room where there are too many, by what it has taken itself.
    assert ours.waiting_since is not None
    assert READ_SECONDS / 2 < loop.time() - ours.waiting_since < READ_SECONDS
    turns.begin()
    assert ours._read_timer is not None
    assert ours._read_timer.when() - loop.time() < READ_SECONDS / 2
    assert 408 == (await client.answer())[0]


async def test_the_next_request_has_its_whole_time(
    raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """However little was left to the one before."""
    client = await raw.connect(POST)
    await until(lambda: bool(counted.clients) and counted.clients[0]._read_timer is not None)
    (ours,) = counted.clients
    turns.spend()
    client.send(CHUNKS)
    await turns.until_waits()
    ours._read_left_seconds = 0.0
    turns.begin()
    assert 201 == (await client.answer())[0]
    client.send(PING[:9])
    await until(lambda: ours._read_timer is not None)
    client.send(PING[9:])
    assert 200 == (await client.answer())[0]


async def test_the_end_of_an_earlier_answer_begins_no_timer_for_what_waits(
    raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """Of a request that was sent before it."""
    turns.spend()
    client = await raw.connect(PING + POST + CHUNKS)
    assert 200 == (await client.answer())[0]
    await turns.until_waits()
    (ours,) = counted.clients
    await until(lambda: ours._answered == 1)
    assert ours._read_timer is None
    turns.begin()
    assert 201 == (await client.answer())[0]


async def test_a_client_that_closes_its_half_meanwhile_is_answered(
    raw: RawClients, turns: Turns
) -> None:
    """It is read no further until its turn, so that its end comes behind its request."""
    turns.spend()
    client = await raw.connect(POST + CHUNKS)
    client.transport.write_eof()
    await turns.until_waits()
    await (await raw.connect(PING)).answer()
    turns.begin()
    assert 201 == (await client.answer())[0]


@pytest.mark.parametrize("half", [True, False], ids=["its half", "both"])
async def test_a_client_that_closes_while_a_large_body_waits_leaves_nothing(
    half: bool, raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """Its handler has read a part: what flow control resumes then is not read before its turn."""
    body = b'{"name": "Team"}'.ljust(200_000)
    data = b"".join(b"40\r\n%b\r\n" % body[at : at + 64] for at in range(0, len(body), 64))
    client = await raw.connect(POST + data + b"0\r\n\r\n")
    if half:
        client.transport.write_eof()
    else:
        await turns.until_waits()
        client.transport.close()
    while not (client.answered or client.is_closed):
        await (await raw.connect(PING)).answer()
        turns.begin()
    if half:
        assert 201 == (await client.answer())[0]
    (ours, *_) = counted.clients
    while ours.transport is not None:
        await (await raw.connect(PING)).answer()
        turns.begin()
    assert 0 == counted.arrived.bytes


async def test_what_comes_as_the_service_stops_is_not_refused_for_good(
    raw: RawClients, turns: Turns, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it reaches the parser any more: it would seem to be around the chunks."""
    monkeypatch.setattr(chunks, "FRAMING_BYTES_MAX", 1)
    client = await raw.connect(POST)
    await until(lambda: bool(counted.clients) and counted.clients[0]._is_in_body)
    (ours,) = counted.clients
    monkeypatch.setattr(ours, "_force_close", True)
    client.send(CHUNKS[:-1])
    await (await raw.connect(PING)).answer()
    assert not ours._has_all
    assert b"" == client.answered


async def test_what_waits_is_counted_and_refused_where_it_is_too_much(
    raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """It is not worked on yet."""
    turns.spend()
    client = await raw.connect(POST + CHUNKS)
    await turns.until_waits()
    (ours,) = counted.clients
    assert ours.arrived_bytes == len(CHUNKS)
    ours.refuse_arrived()
    assert 503 == (await client.answer())[0]
    turns.begin()
    assert b"" == await client.closed()


async def test_a_head_that_came_in_pieces_is_complete_while_its_chunks_wait(
    raw: RawClients, turns: Turns, counted: Counted
) -> None:
    """Where it is too much, the request gets one answer, not another one for its head."""
    client = await raw.connect(POST[:9])
    await until(lambda: bool(counted.clients) and counted.clients[0].is_in_head)
    (ours,) = counted.clients
    # Enough for the head.
    turns.all[0]._others.left = 1
    client.send(POST[9:] + CHUNKS)
    await turns.until_waits()
    assert not ours.is_in_head
    ours.refuse_arrived()
    assert 503 == (await client.answer())[0]
    assert b"" == await client.closed()


async def test_a_client_that_has_gone_has_no_turn(raw: RawClients, turns: Turns) -> None:
    """Nothing refers to it any more."""
    turns.spend()
    client = await raw.connect(POST + CHUNKS)
    await turns.until_waits()
    for each in turns.all[0]._places:
        each.transport.abort()  # type: ignore[attr-defined]
    await turns.until_waits(0)
    assert b"" == await client.closed()
