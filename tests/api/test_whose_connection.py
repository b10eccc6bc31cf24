"""Whose turn a request takes, and whose connection it is, wherever its token comes and however old it is."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from stretto.http.admission import _PLACES, LoadShedder, UnknownOwner
from stretto.http.event_streams import SUBPROTOCOL
from stretto.http.service import SERVICE
from stretto.http.tokens.authenticator import VERIFIED_SECONDS_MAX, Authenticator
from stretto.http.tokens.keys import TokenKey
from stretto.runtime.turns import Turns
from support.api_client import token_of
from support.counted_arrival import watched_connections
from support.full_service import WAIT_SECONDS, full_service
from support.live_service import DEADLINE_SECONDS, live_service
from support.raw_client import creation, raw_clients

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import AbstractAsyncContextManager

    from stretto.domain import UserId
    from stretto.http.front.connection import ClientConnection
    from support.database import Connection
    from support.live_service import LiveService, SseClient, WebSocketClient
    from support.raw_client import RawClient

KINDS = ("users", "others", "newcomers", "checks")
WAITING = b"Host: x\r\nPrefer: wait=%d" % WAIT_SECONDS
NO_KEY = (TokenKey("HS256", b"a key that verifies nothing any more"),)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Of which kind each turn was, and who took it."""
    taken: list[tuple[str, object]] = []
    made: list[Turns] = []

    class NotedTurns(Turns):
        def __init__(self, per_turn: int) -> None:
            super().__init__(per_turn)
            made.append(self)

        async def take(self, owner: Hashable, pieces: int = 1) -> None:
            who = owner if isinstance(owner, str) else None
            taken.append((KINDS[made.index(self)], who))
            await super().take(owner, pieces)

    monkeypatch.setattr("stretto.http.front.runner.Turns", NotedTurns)
    return taken


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ClientConnection]:
    """The service's connections, in their order."""
    return watched_connections(monkeypatch).clients


def let_all_be_verified_again(authenticator: Authenticator, times: int = 1) -> None:
    """Have so much time go by."""
    ahead = times * VERIFIED_SECONDS_MAX
    authenticator._monotonic_seconds = lambda: time.monotonic() + ahead


def listing(token: str) -> bytes:
    """Return a request for a user's groups."""
    return f"GET /v1/groups HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


async def status_of(client: RawClient) -> int:
    """Return the next answer's status."""
    return (await client.answer())[0]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    "field",
    ["Authorization: Bearer %s", f"Sec-WebSocket-Protocol: {SUBPROTOCOL}, stretto.token.%s"],
)
async def test_a_token_has_its_users_turn_wherever_it_comes(
    field: str, is_known: bool, database_url: str, turns: list[tuple[str, object]]
) -> None:
    """A browser has no other place for it; a new one takes a newcomer's turn."""
    token = token_of("bob")
    # It names no version: it is refused once its token is verified.
    handshake = (
        f"GET /v1/events HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n{field % token}\r\n\r\n"
    )
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        if is_known:
            assert 200 == (await (await raw.connect(listing(token))).answer())[0]
        turns.clear()
        assert 426 == (await (await raw.connect(handshake.encode())).answer())[0]
    assert [("users", "bob") if is_known else ("newcomers", None)] == turns


@pytest.mark.parametrize("way", ["header", "subprotocol", "stream"])
async def test_a_session_is_its_users_from_the_handshake_on(
    way: str, made: list[ClientConnection], live: LiveService
) -> None:
    """What waits for its client must not count as strangers', of whom all give way as one."""
    protocols = (SUBPROTOCOL, f"stretto.token.{token_of('bob')}")
    opened: AbstractAsyncContextManager[SseClient | WebSocketClient]
    if way == "stream":
        opened = live.sse("bob")
    elif way == "header":
        opened = live.websocket("bob")
    else:
        opened = live.websocket(headers={}, protocols=protocols)
    async with opened as client:
        await client.next()
        assert ["bob"] == [each.user for each in made]


async def test_a_token_that_is_to_be_verified_again_has_its_users_turn(
    turns: list[tuple[str, object]], made: list[ClientConnection], database_url: str
) -> None:
    """Every five minutes its user would else wait with strangers. Once it is refused, it is no user's."""
    token = token_of("alice")
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        authenticator = live.app[SERVICE].authenticator
        client = await raw.connect()
        seen = []
        for times in range(4):
            if times == 2:
                authenticator._keys = NO_KEY
            let_all_be_verified_again(authenticator, times)
            turns.clear()
            client.send(listing(token))
            status = (await client.answer())[0]
            seen.append((status, *turns, made[0].user))
    users = ("users", "alice")
    expected = [(200, ("newcomers", None), "alice"), (200, users, "alice")]
    assert [*expected, (401, users, None), (401, ("others", None), None)] == seen


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_full_service_knows_a_user_whose_token_is_to_be_verified_again(
    is_guarded: bool,
    made: list[ClientConnection],
    database_url: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It needs none of the few places of newcomers, and does not make room as a stranger."""
    bob = token_of("bob")
    admitted: list[UserId | UnknownOwner] = []
    admit = LoadShedder.admit

    def note(shedder: LoadShedder, owner: UserId | UnknownOwner) -> None:
        admitted.append(owner)
        admit(shedder, owner)

    async with full_service(database_url, connection) as service:
        authenticator = service.app[SERVICE].authenticator
        assert 200 == (await (await service.raw.connect(listing(bob))).answer())[0]
        let_all_be_verified_again(authenticator)
        # From here on, newcomers find no place.
        monkeypatch.setitem(_PLACES, UnknownOwner.NEW, (0, 0))
        monkeypatch.setattr(LoadShedder, "admit", note)
        if not is_guarded:
            monkeypatch.setattr(Authenticator, "owner_of", lambda *_: None)
        rejected = await service.raw.connect(creation(service.token, "a"))
        assert 503 == (await rejected.answer())[0]
        assert made[-1].user == ("alice" if is_guarded else None)

        client = await service.raw.connect(creation(bob, "b").replace(b"Host: x", WAITING))
        status = asyncio.create_task(status_of(client))
        # In the place of one of alice's.
        done, others = await asyncio.wait(
            [status, *service.waiting], return_when=asyncio.FIRST_COMPLETED
        )
        assert [503] == [each.result() for each in done]
        assert is_guarded is (status not in done)
        assert admitted == (["bob"] if is_guarded else [])
        service.waiting[:] = others
