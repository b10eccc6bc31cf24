"""Clients that take nothing of their answers: they are not waited for, and they make room."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from stretto.http.front.connection import ClientConnection
from stretto.http.settings import ConnectionLimits
from support.api_client import api_for, token_of
from support.raw_client import PING, RawClient, RawClients, creation, raw_clients

if TYPE_CHECKING:
    from stretto.http.front.runner import ContractServer

DEADLINE_SECONDS = 60
MUTE_MAX = 5
LARGE = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Blocked:
    """The connections that have been seen to wait for their clients to read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clients: set[ClientConnection] = set()
        self.lost: set[ClientConnection] = set()
        self.changed = asyncio.Event()
        pause, lose = ClientConnection.pause_writing, ClientConnection.connection_lost

        def pause_writing(client: ClientConnection) -> None:
            pause(client)
            self.clients.add(client)
            self.changed.set()

        def connection_lost(client: ClientConnection, error: BaseException | None) -> None:
            lose(client, error)
            self.lost.add(client)
            self.changed.set()

        monkeypatch.setattr(ClientConnection, "pause_writing", pause_writing)
        monkeypatch.setattr(ClientConnection, "connection_lost", connection_lost)

    async def until(self, seen: set[ClientConnection], count: int) -> None:
        """Wait until so many were seen."""
        while len(seen) < count:
            self.changed.clear()
            await self.changed.wait()


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Blocked:
    """Watches them."""
    return Blocked(monkeypatch)


async def mute(raw: RawClients) -> RawClient:
    """Ask for a large answer eight times, and read nothing."""
    client = await raw.connect()
    client.transport.pause_reading()
    client.send(LARGE * 8)
    return client


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_clients_that_do_not_read_make_room(
    is_guarded: bool, database_url: str, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without their being waited for, the newcomer would be closed instead."""
    if not is_guarded:
        monkeypatch.setattr(ClientConnection, "waiting_since", None)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=ConnectionLimits(connections_max=MUTE_MAX)) as api,
        raw_clients(api.url) as raw,
    ):
        clients = [await mute(raw) for _ in range(MUTE_MAX)]
        await blocked.until(blocked.clients, MUTE_MAX)
        newcomer = await raw.connect(PING)
        if is_guarded:
            assert (await newcomer.answer())[0] == 200
            # Its socket is gone as well, not only its place; and before the newcomer was read.
            assert 1 == len(blocked.lost & blocked.clients)
        else:
            assert await newcomer.closed() == b""
        for client in clients:
            client.transport.abort()


async def test_a_client_that_does_not_read_is_cut_off(database_url: str, blocked: Blocked) -> None:
    """After a bounded time, and although the kernel would go on trying."""
    limits = ConnectionLimits(write_seconds=0.01)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=limits) as api,
        raw_clients(api.url) as raw,
    ):
        client = await mute(raw)
        await blocked.until(blocked.lost, 1)
        client.transport.resume_reading()
        assert len(await client.closed()) < 8 * 1_000_000
        assert (await (await raw.connect(PING)).answer())[0] == 200


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_what_waits_for_all_clients_together_is_bounded(
    is_guarded: bool, database_url: str, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few they are: answers may be large. Without that, all of them are waited for."""
    if is_guarded:
        monkeypatch.setattr("stretto.http.front.limits.UNREAD_BYTES_MAX", 0)
        monkeypatch.setattr("stretto.http.front.unread.COUNTED_BYTES_MIN", 1)
    # Longer than the test: none is cut off for being slow.
    limits = ConnectionLimits(write_seconds=2 * DEADLINE_SECONDS)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=limits) as api,
        raw_clients(api.url) as raw,
    ):
        clients = [await mute(raw) for _ in range(MUTE_MAX)]
        await blocked.until(blocked.clients, MUTE_MAX)
        if is_guarded:
            await blocked.until(blocked.lost, MUTE_MAX)
        assert (await (await raw.connect(PING)).answer())[0] == 200
        assert is_guarded == bool(blocked.lost)
        for client in clients:
            client.transport.abort()


async def test_an_answer_is_known_as_its_users(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its token is verified for the first time, and behind another user's."""
    users: list[str | None] = []
    finish = ClientConnection.finish_response

    async def finish_response(
        client: ClientConnection, *others: Any
    ) -> tuple[web.StreamResponse, bool]:
        users.append(client.user)
        return await finish(client, *others)

    monkeypatch.setattr(ClientConnection, "finish_response", finish_response)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        alice, bob, false = token_of("alice"), token_of("bob"), token_of("mallory")[:-8]
        for tokens in [(alice, bob, None, alice, false), (bob,)]:
            client = await raw.connect()
            for token in tokens:
                field = f"Authorization: Bearer {token}\r\n" if token else ""
                client.send(f"GET /v1/groups HTTP/1.1\r\nHost: x\r\n{field}\r\n".encode())
                await client.answer()
            client.send(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
            assert 404 == (await client.answer())[0]
    assert ["alice", "bob", None, "alice", None, None, "bob", None] == users


async def test_a_large_answer_waits_in_parts_for_its_reader(
    database_url: str, blocked: Blocked
) -> None:
    """What lies in the process for one client is a part of the file; the rest comes as it reads."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        whole = (await api.get("/docs/swagger-ui-bundle.js")).body
        client = await mute(raw)
        await blocked.until(blocked.clients, 1)
        (connection,) = blocked.clients
        assert connection.transport is not None
        assert 0 < connection.transport.get_write_buffer_size() <= 2 * 64 * 1024
        client.transport.resume_reading()
        for _ in range(8):
            await client.until(b"\r\n\r\n")
            while len(client.answered) < len(whole):
                await client._change()
            assert client.answered[: len(whole)] == whole
            client.answered = client.answered[len(whole) :]


async def test_nothing_is_kept_of_a_request_that_is_answered(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection may be idle for a minute, and so may thousands of others."""
    answered: list[tuple[web.BaseRequest, web.StreamResponse]] = []
    finish = ClientConnection.finish_response

    async def finish_response(
        client: ClientConnection,
        request: web.BaseRequest,
        response: web.StreamResponse,
        started: float | None,
    ) -> tuple[web.StreamResponse, bool]:
        answered.append((request, response))
        return await finish(client, request, response, started)

    monkeypatch.setattr(ClientConnection, "finish_response", finish_response)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        # In quotes, so that a handler takes it.
        client = await raw.connect(creation(token_of("alice"), '"k"'))
        assert (await client.answer())[0] == 201
        client.send(PING.replace(b"/livez", b"/livez?"))
        assert (await client.answer())[0] == 200
        (request, response), _ = answered
        assert isinstance(response, web.Response)
        assert (None, None) == (request._read_bytes, response.body)


async def test_the_first_byte_that_a_client_does_not_take_is_noticed(
    database_url: str, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little waits for it: many such clients would be much."""
    made, linger = ClientConnection.connection_made, ClientConnection.linger

    def connection_made(client: ClientConnection, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        made(client, transport)

    async def linger_noted(client: ClientConnection) -> None:
        # The last answer has been written, taken or not.
        blocked.changed.set()
        await linger(client)

    monkeypatch.setattr(ClientConnection, "connection_made", connection_made)
    monkeypatch.setattr(ClientConnection, "linger", linger_noted)
    async with asyncio.timeout(DEADLINE_SECONDS), api_for(database_url) as api:
        loop = asyncio.get_running_loop()
        host, _, port = api.url.removeprefix("http://").partition(":")
        with socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            await loop.sock_connect(client, (host, int(port)))
            # Their answers are more than the kernel takes, and less than asyncio keeps by itself.
            await loop.sock_sendall(client, PING * 100 + LAST)
            await blocked.changed.wait()
            assert blocked.clients


async def test_newcomers_of_one_turn_make_room_for_each_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that has never asked is not worked for, even before its task has begun."""
    server: list[ContractServer] = []
    made = ClientConnection.connection_made

    def connection_made(client: ClientConnection, transport: asyncio.BaseTransport) -> None:
        made(client, transport)
        assert client.waiting_since is not None
        server.append(client._manager)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientConnection, "connection_made", connection_made)
    async with api_for(database_url) as api:
        assert (await api.get("/livez")).status == 200
    assert server


async def test_those_of_a_file_share_its_bytes(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them would each keep a part of it."""
    written: list[object] = []
    write = web.StreamResponse.write

    async def watched(response: web.StreamResponse, data: bytes) -> None:
        written.append(data)
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", watched)
    async with asyncio.timeout(DEADLINE_SECONDS), api_for(database_url) as api:
        for _ in range(2):
            await api.get("/docs/swagger-ui-bundle.js")
    assert len(written) > 2
    assert 1 == len({id(each.obj) for each in written if isinstance(each, memoryview)})
    assert all(isinstance(each, memoryview) for each in written)
