"""How each connection ends while the service drains: with an answer that says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from stretto.http.app import ROUTES
from stretto.http.front.connection import ClientConnection
from stretto.http.front.runner import ContractServer
from stretto.http.service import SERVICE
from support.api_client import token_of
from support.live_service import live_service
from support.raw_client import BODY, RawClients, creation, creation_head, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from support.live_service import LiveService
    from support.raw_client import RawClient

DEADLINE_SECONDS = 60
TOKEN = token_of("alice")
READ = f"GET /v1/groups HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
# Each with the status of its answer.
REQUESTS = {
    "created": (201, creation(TOKEN, "new")),
    "replayed on the fast path": (201, creation(TOKEN, "known")),
    "rejected on the fast path": (503, creation(TOKEN, "rejected")),
    "read": (200, READ),
    "rejected": (401, READ.replace(b"Bearer", b"Basic")),
    "unknown": (404, READ.replace(b"/v1", b"/v2")),
    "document": (200, READ.replace(b"/v1/groups", b"/openapi.json")),
}
# As they are, where a part of one is not filled in: its answer is a problem document.
PATHS = sorted({route.path for route in ROUTES} | {"/docs/swagger-ui.css"})


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("is_draining", [True, False], ids=["draining", "serving"])
async def test_every_answer_of_a_drain_is_the_last_of_its_connection(
    is_draining: bool, request_: tuple[int, bytes], database_url: str
) -> None:
    """Before, none is: the connection answers once more."""
    expected, sent = request_
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        client = await raw.connect(creation(TOKEN, "known"))
        await client.answer()
        service = live.app[SERVICE]
        if is_draining:
            service.draining.set()
        with patch.object(service.shedder, "has_room", return_value=expected != 503):
            client.send(sent)
            status, headers, _ = await client.answer()
        assert (expected, "close" if is_draining else None) == (status, headers.get("connection"))
        if is_draining:
            assert b"" == await client.closed()
        else:
            client.send(READ)
            assert 200 == (await client.answer())[0]


async def test_the_last_answer_of_the_fast_path_arrives_although_more_is_sent(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is closed over unread bytes would reset the connection under it."""
    monkeypatch.setattr("stretto.http.front.writing.LINGER_SECONDS", DEADLINE_SECONDS)
    more = b"x" * 100_000
    dropped: list[bytes] = []
    connections: list[ClientConnection] = []
    is_over, is_lost = asyncio.Event(), asyncio.Event()
    drop, lose = ClientConnection.drop, ClientConnection.connection_lost

    def drop_counted(connection: ClientConnection, data: bytes) -> None:
        drop(connection, data)
        connections.append(connection)
        dropped.append(data)
        if len(more) == len(b"".join(dropped)):
            is_over.set()

    def connection_lost(connection: ClientConnection, error: BaseException | None) -> None:
        lose(connection, error)
        is_over.set()
        is_lost.set()

    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        await (await raw.connect(creation(TOKEN, "known"))).answer()
        live.app[SERVICE].draining.set()
        monkeypatch.setattr(ClientConnection, "drop", drop_counted)
        monkeypatch.setattr(ClientConnection, "connection_lost", connection_lost)
        host, _, port = live.api.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(creation(TOKEN, "known"))
        # Up to the end of what the service sends; our half stays open.
        assert b"\r\nConnection: close\r\n" in await reader.read()
        writer.write(more)
        await is_over.wait()
        assert more == b"".join(dropped)
        # So a stop waits for it, as for any last answer.
        assert not connections[0].is_idle
        assert not is_lost.is_set()
        writer.close()
        await is_lost.wait()


async def test_what_comes_behind_a_rejection_is_answered_before_the_end(database_url: str) -> None:
    """The rejection waits for its turn until more has come; then it is not the last answer."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        shedder = live.app[SERVICE].shedder
        client = await raw.connect()
        live.app[SERVICE].draining.set()
        with (
            patch.object(shedder, "has_room", return_value=False),
            patch.object(shedder, "_send_some"),
        ):
            client.send(creation(TOKEN, "shed"))
            await until(lambda: shedder._pending)
            client.send(READ)
            answers = [await client.answer() for _ in range(2)]
        assert [(503, None), (200, "close")] == [
            (status, headers.get("connection")) for status, headers, _ in answers
        ]
        await client.closed()


@pytest.mark.parametrize("is_draining", [True, False], ids=["draining", "serving"])
async def test_every_route_says_so(is_draining: bool, database_url: str) -> None:
    """Also one that writes its own answer, part by part."""
    async with live_service(database_url) as live:
        if is_draining:
            live.app[SERVICE].draining.set()
        said = {
            (method, path): (await live.api.request(method, path)).headers.get("Connection")
            for path in PATHS
            for method in ("GET", "HEAD")
        }
    assert {("close" if is_draining else None)} == {*said.values()}, said


async def test_of_requests_that_were_sent_together_the_last_answer_says_so(
    database_url: str,
) -> None:
    """All of them have been read, so all of them are answered."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        live.app[SERVICE].draining.set()
        client = await raw.connect(READ * 3)
        said = [(await client.answer())[1].get("connection") for _ in range(3)]
        assert [None, None, "close"] == said
        await client.closed()


async def test_what_is_idle_stays_until_the_stop(database_url: str) -> None:
    """A request may still come, also on a connection that was made before the drain."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with live_service(database_url) as live, raw_clients(live.api.url) as raw:
            idle = [await raw.connect(), await _used(live, await raw.connect())]
            live.app[SERVICE].draining.set()
            for client in idle:
                client.send(READ)
                assert 200 == (await client.answer())[0]
            left = await raw.connect()
        await left.closed()


async def test_a_stop_without_a_drain_ends_connections_alike(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has begun to arrive is answered, and the answer says that it is the last."""
    begun = asyncio.Event()
    begin, stop = ClientConnection.begin, ContractServer.pre_shutdown

    def begin_noted(connection: ClientConnection) -> None:
        begin(connection)
        begun.set()

    def send_the_rest(server: ContractServer) -> None:
        stop(server)
        client.send(BODY[1:])

    async with asyncio.timeout(DEADLINE_SECONDS):
        async with live_service(database_url) as live:
            monkeypatch.setattr(ClientConnection, "begin", begin_noted)
            monkeypatch.setattr(ContractServer, "pre_shutdown", send_the_rest)
            length = b"Content-Length: %d\r\n\r\n" % len(BODY)
            head = creation_head(TOKEN, "slow") + length
            client = await RawClients(live.api.url).connect(head + BODY[:1])
            await begun.wait()
        assert "close" == (await client.answer())[1].get("connection")
        await client.closed()


async def _used(live: LiveService, client: RawClient) -> RawClient:
    client.send(READ)
    await client.answer()
    assert not live.app[SERVICE].draining.is_set()
    return client
