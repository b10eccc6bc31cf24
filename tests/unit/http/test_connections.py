"""Connections without a network: which are closed where there are too many, or when they are idle."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast
from unittest.mock import Mock

import pytest
from aiohttp import web

from stretto.domain import UserId
from stretto.http.front import runner
from stretto.http.front.connection import ClientConnection
from stretto.http.front.reading_turns import CHUNKS_A_TURN
from stretto.http.front.runner import SEARCH_AGAIN_SECONDS, ContractRunner, ContractServer
from stretto.http.front.writing import STRANGER_SECONDS
from stretto.http.settings import ConnectionLimits
from stretto.runtime.turns import Turns
from support.raw_client import PING
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONNECTIONS_MAX = 10
READ = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
# Of a client that does something else than to wait for an answer.
FIRST = {
    "is silent": b"",
    "is rejected": b"",
    "waits for a check's": PING,
    "sends a head": PING[:20],
}
EXPECTANT = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"


class Crowd:
    """A server, and its clients' connections."""

    def __init__(self, server: ContractServer) -> None:
        self.server = server
        self.made: list[ClientConnection] = []

    def connect(self, first: bytes = b"") -> ClientConnection:
        """Connect a client, which sends what is given."""
        client = self.server()
        assert isinstance(client, ClientConnection)
        self.made.append(client)
        transport = Mock(spec=asyncio.Transport)
        transport.get_extra_info.return_value = None
        transport.is_closing.return_value = False
        transport.get_write_buffer_size.return_value = 0
        client.connection_made(transport)
        if first:
            client.data_received(first)
        return client


def make_new(clients: list[ClientConnection]) -> None:
    """Have them connected just now, however busy the machine is."""
    for client in clients:
        client.connected_at = asyncio.get_running_loop().time()


async def wait_for_ever(*_: object) -> None:
    """Have no turn."""
    await asyncio.Event().wait()


async def no_answer(_: web.Request) -> web.StreamResponse:
    """Fail the test: nothing comes as far."""
    raise NotImplementedError


@asynccontextmanager
async def crowd() -> AsyncIterator[Crowd]:
    """Serve a few clients."""
    app = web.Application()
    app.router.add_post("/", no_answer)
    runner = ContractRunner(app, ConnectionLimits(connections_max=CONNECTIONS_MAX))
    await runner.setup()
    crowd = Crowd(cast("ContractServer", runner.server))
    try:
        yield crowd
    finally:
        # Their tasks begin.
        await asyncio.sleep(0)
        for client in crowd.made:
            client.connection_lost(None)
        await runner.cleanup()


async def test_where_nobody_can_make_room_newcomers_are_closed_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a short time: to look at thousands of connections for each of them would stop the loop."""
    loop, now, looks = asyncio.get_running_loop(), 1000.0, 0
    waiting_since = cast("property", ClientConnection.waiting_since)

    def look(client: ClientConnection) -> object:
        nonlocal looks
        looks += 1
        assert waiting_since.fget is not None
        return waiting_since.fget(client)

    log = Mock()
    async with crowd() as clients:
        with monkeypatch.context() as patches:
            patches.setattr(loop, "time", lambda: now)
            patches.setattr(ClientConnection, "waiting_since", property(look))
            # Not what is logged: that is folded.
            patches.setattr("stretto.http.front.runner.logger", log)
            for _ in range(CONNECTIONS_MAX):
                clients.connect(PING)
            newcomers = [clients.connect() for _ in range(3)]
            assert CONNECTIONS_MAX == looks == len(clients.server.connections)
            assert [None] * 3 == [each.transport for each in newcomers]
            assert 1 == log.warning.call_count

            now += SEARCH_AGAIN_SECONDS
            idle = clients.made[0]
            idle._answered += 1
            newcomer = clients.connect()
            assert (None, False) == (idle.transport, newcomer.transport is None)
            assert 2 * CONNECTIONS_MAX == looks
            assert 2 == log.warning.call_count


async def test_a_search_that_makes_room_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While there are clients that owe us something, no newcomer is closed."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1000.0)
    async with crowd() as clients:
        newcomers = [clients.connect() for _ in range(2 * CONNECTIONS_MAX)]
        left = [each.transport is None for each in newcomers]
        monkeypatch.undo()
    assert [True] * CONNECTIONS_MAX + [False] * CONNECTIONS_MAX == left


@pytest.mark.parametrize(
    "does",
    [
        "is silent",
        "is idle",
        "waits for its turn",
        "waits for a check's",
        "is rejected",
        "sends a head",
    ],
)
async def test_connections_of_strangers_make_room_before_all_others(
    does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients without a known token that ask again and again are never idle for as long as a user is."""
    async with crowd() as clients:
        user = clients.connect(PING)
        await until(lambda: user.is_idle)
        user.user = UserId("alice")
        user.connected_at -= STRANGER_SECONDS
        # They may be users, whose requests are on their way.
        newcomers = [clients.connect() for _ in range(CONNECTIONS_MAX - 2)]
        with monkeypatch.context() as patches:
            if does.startswith("waits"):
                # As where many do.
                patches.setattr(Turns, "take", wait_for_ever)
            stranger = clients.connect(FIRST.get(does, READ))
            await until(lambda: stranger.is_idle or stranger.waits_for_turn or stranger.is_in_head)
            # Its answer waits for the turn in which it is sent.
            stranger._is_rejected = does == "is rejected"
        stranger.connected_at -= STRANGER_SECONDS
        make_new(newcomers)
        clients.connect()
        assert [stranger] == [client for client in clients.made if client.transport is None]


async def test_a_connection_that_has_just_been_made_is_no_strangers() -> None:
    """Many come in one turn of the loop: each would close those before it, and not what is idle."""
    async with crowd() as clients:
        user = clients.connect(PING)
        await until(lambda: user.is_idle)
        user.user = UserId("alice")
        newcomers = [clients.connect() for _ in range(CONNECTIONS_MAX - 1)]
        await until(lambda: all(client.is_idle for client in clients.made))
        make_new(newcomers)
        clients.connect()
        assert [user] == [client for client in clients.made if client.transport is None]


async def test_connections_that_are_made_again_and_again_push_out_no_users() -> None:
    """On which nothing is sent; a user has its own for longer than each of them."""
    async with crowd() as clients:
        user = clients.connect(PING)
        await until(lambda: user.is_idle)
        user.user = UserId("alice")
        silent = [clients.connect() for _ in range(CONNECTIONS_MAX - 1)]
        await until(lambda: all(client.is_idle for client in clients.made))
        silent[0].connected_at -= 0.25
        clients.connect()
        assert [silent[0]] == [client for client in clients.made if client.transport is None]


async def test_the_oldest_connections_of_strangers_make_room() -> None:
    """A user who is new has come after those that keep them."""
    async with crowd() as clients:
        strangers = [clients.connect() for _ in range(CONNECTIONS_MAX)]
        await until(lambda: all(stranger.is_idle for stranger in strangers))
        for number, stranger in enumerate(strangers):
            # The last one has connected first.
            stranger.connected_at -= STRANGER_SECONDS + number
        clients.connect()
        assert [strangers[-1]] == [client for client in clients.made if client.transport is None]


async def test_where_all_have_requests_under_way_the_user_who_has_most_makes_room() -> None:
    """The oldest of that user's. With as few as others, no user does."""
    async with crowd() as clients:
        for user in "bacaabaada":
            clients.connect(READ).user = UserId(user)
        newcomer = clients.connect()
        assert newcomer.transport is not None
        assert [clients.made[1]] == [each for each in clients.made if each.transport is None]
        newcomer.user = UserId("e")
        newcomer.data_received(READ)
        for number, client in enumerate(clients.made):
            client.user = UserId(f"user {number}")
        assert clients.connect().transport is None
        assert [clients.made[1], clients.made[-1]] == [
            each for each in clients.made if each.transport is None
        ]


async def test_one_users_connections_make_room_before_the_last_few_that_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newcomers whose requests have not come yet would close each other. With as few as are closed at once, no user does."""
    monkeypatch.setattr(runner, "CLOSED_AT_ONCE_SHARE", 5)
    async with crowd() as clients:
        strangers = [clients.connect() for _ in range(2)]
        await until(lambda: all(stranger.is_idle for stranger in strangers))
        for stranger in strangers:
            stranger.connected_at -= STRANGER_SECONDS
        for _ in range(CONNECTIONS_MAX - 2):
            clients.connect(READ).user = UserId("alice")
        make_new(clients.made[2:])
        clients.connect(READ).user = UserId("bob")
        assert clients.made[2:5] == [each for each in clients.made if each.transport is None]
        for number, client in enumerate(clients.made[8:10]):
            client.user = UserId(f"user {number}")
        for number in range(3):
            clients.connect(READ).user = UserId(f"new {number}")
        assert strangers == [each for each in clients.made[:2] if each.transport is None]
        assert 3 == len([each for each in clients.made[2:] if each.transport is None])


async def test_a_search_that_finds_few_is_not_made_for_each_newcomer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is idle now and then would have thousands looked at for each."""
    loop, now = asyncio.get_running_loop(), 1000.0
    monkeypatch.setattr(runner, "CLOSED_AT_ONCE_SHARE", 5)
    async with crowd() as clients:
        idle = [clients.connect() for _ in range(2)]
        await until(lambda: all(client.is_idle for client in idle))
        with monkeypatch.context() as patches:
            patches.setattr(loop, "time", lambda: now)
            for _ in range(CONNECTIONS_MAX - 2):
                clients.connect(READ)
            newcomers = [clients.connect(READ) for _ in range(2)]
            assert [None, None] == [each.transport for each in idle]
            clients.made[5]._answered += 1
            newcomers.append(clients.connect(READ))
            # There were places for two.
            assert [False, False, True] == [each.transport is None for each in newcomers]


@pytest.mark.parametrize("why", ["it arrives", "it waits unparsed", "it is idle"])
async def test_a_connection_is_not_idle_while_its_request_arrives_or_waits(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again later; a client whose connection just closes cannot know what was done."""
    async with crowd() as clients:
        client = clients.connect(PING[:20] if why == "it arrives" else b"")
        # Its task begins.
        await asyncio.sleep(0)
        if why == "it waits unparsed":
            monkeypatch.setattr(ClientConnection, "_owes_unparsed", True)
        client._next_keepalive_close_time = 0.0
        client._process_keepalive()
        is_idle = why == "it is idle"
        assert is_idle == (client.transport is None) == (client._keepalive_handle is None)


@pytest.mark.parametrize("turns", [0, 1])
async def test_what_has_come_when_a_connection_is_accepted_is_read_at_once(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the turn of the loop is in which that is."""
    monkeypatch.setattr("stretto.http.front.parsing.STRANGER_SECONDS", 0.0)
    async with crowd() as clients:
        client = clients.connect()
        monkeypatch.setattr(clients.server.reading_turns, "_begin", Mock())
        clients.server.reading_turns.take(client, CHUNKS_A_TURN)
        for _ in range(turns):
            await asyncio.sleep(0)
        client.data_received(PING)
        assert bool(client._late) == (turns > 0)


@pytest.mark.parametrize("has_left", [True, False])
async def test_a_client_that_leaves_before_its_body_is_no_error(
    has_left: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked for the body when it has gone. Another connection's loss is an error."""
    caplog.set_level(logging.INFO)
    async with crowd() as clients:
        client = clients.connect()
        assert client.transport is not None
        gone = cast("Mock", client.transport)
        gone.is_closing.return_value = has_left
        if not has_left:
            gone.write.side_effect = ConnectionResetError
        client.data_received(EXPECTANT)
        assert client.answering is not None
        await asyncio.wait((client.answering,))
    logged = [vars(each).get("event") for each in caplog.records]
    assert has_left == ("request.unreadable" not in logged)
