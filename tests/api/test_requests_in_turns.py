"""Thousands of requests at once: some begin in each turn of the loop, and clients take turns."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from stretto.http.front.runner import REQUESTS_PER_TURN
from stretto.http.tokens.authenticator import Authenticator
from support.api_client import api_for, token_of
from support.raw_client import PING, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.http.tokens.authenticator import Verified
    from support.raw_client import RawClient

DEADLINE_SECONDS = 60
FLOOD = 20


UNKNOWN = b"GET /v1/groups HTTP/1.1\r\nHost: x\r\n\r\n"


def listing(authorization: str) -> bytes:
    """Return a request for a user's groups."""
    head = f"GET /v1/groups HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n\r\n"
    return head.encode()


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Note which headers are verified, in their order."""
    begun: list[str | None] = []
    verify = Authenticator.verify

    async def note(authenticator: Authenticator, authorization: str | None) -> Verified:
        begun.append(authorization)
        return await verify(authenticator, authorization)

    monkeypatch.setattr(Authenticator, "verify", note)
    return begun


@asynccontextmanager
async def many_and_one(database_url: str) -> AsyncIterator[tuple[list[RawClient], RawClient]]:
    """Connect many clients, and one more, which have all been answered once."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        clients = [await raw.connect(PING) for _ in range(2 * FLOOD)]
        last = await raw.connect(PING)
        for client in (*clients, last):
            assert (await client.answer())[0] == 200
        yield clients, last


@pytest.mark.parametrize(("is_guarded", "per_turn"), [(True, 1), (False, REQUESTS_PER_TURN)])
async def test_a_client_waits_for_few_requests_of_another(
    is_guarded: bool, per_turn: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes last of all is among the first; where all begin in one turn, it is not."""
    monkeypatch.setattr("stretto.http.front.runner.REQUESTS_PER_TURN", per_turn)
    begun = noted(monkeypatch)
    alice, bob = (f"Bearer {token_of(user)}" for user in ("alice", "bob"))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        clients = [await raw.connect(listing(token)) for token in [*[alice] * FLOOD, bob]]
        for client in clients:
            assert (await client.answer())[0] == 200
        begun.clear()
        for client, token in zip(clients, [*[alice] * FLOOD, bob], strict=True):
            client.send(listing(token))
        for client in clients:
            assert (await client.answer())[0] == 200
    assert is_guarded == (begun.index(bob) <= FLOOD // 4), begun.index(bob)


async def test_who_shows_no_token_waits_for_one_request_of_each_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not one client together.

    Headers that were not verified are none: each request may have one of its own.
    """
    monkeypatch.setattr("stretto.http.front.runner.REQUESTS_PER_TURN", 1)
    begun = noted(monkeypatch)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        clients = [await raw.connect(PING) for _ in range(2 * FLOOD)]
        for client in clients:
            assert (await client.answer())[0] == 200
        for number, client in enumerate(clients):
            client.send(UNKNOWN if number < FLOOD else listing(f"Bearer false-{number}"))
        for client in clients:
            assert (await client.answer())[0] == 401
    # In one turn together they would begin one by one, after all others.
    assert begun[:FLOOD].count(None) >= FLOOD // 4, begun


@pytest.mark.parametrize("authorization", [None, "Bearer false"])
async def test_a_user_waits_for_few_of_the_clients_that_show_no_known_token(
    authorization: str | None, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections they have, and as many requests as the user has under way."""
    monkeypatch.setattr("stretto.http.front.runner.REQUESTS_PER_TURN", 1)
    begun = noted(monkeypatch)
    alice = f"Bearer {token_of('alice')}"
    other = UNKNOWN if authorization is None else listing(authorization)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as raw,
    ):
        clients = [await raw.connect(listing(alice)) for _ in range(FLOOD)]
        others = [await raw.connect(PING) for _ in range(2 * FLOOD)]
        for client in (*clients, *others):
            assert (await client.answer())[0] == 200
        begun.clear()
        for client in others:
            client.send(other)
        for client in clients:
            client.send(listing(alice))
        assert [401] * len(others) == [(await client.answer())[0] for client in others]
        assert [200] * len(clients) == [(await client.answer())[0] for client in clients]
    # In one rotation with all of them, the user would have a turn after each of theirs.
    assert begun[:FLOOD].count(alice) >= FLOOD // 4, begun


@pytest.mark.parametrize(("check", "is_guarded"), [(PING, True), (UNKNOWN, False)])
async def test_a_health_check_waits_for_no_client_without_a_token(
    check: bytes, is_guarded: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered before most of them; what is no health check waits for them."""
    for limit in ("REQUESTS_PER_TURN", "CHECKS_PER_TURN"):
        monkeypatch.setattr(f"stretto.http.front.runner.{limit}", 1)
    begun = noted(monkeypatch)
    async with many_and_one(database_url) as (clients, last):
        for client in clients:
            client.send(UNKNOWN)
        last.send(check)
        await last.answer()
        assert is_guarded == (len(begun) <= FLOOD), len(begun)
        for client in clients:
            assert (await client.answer())[0] == 401


@pytest.mark.parametrize("is_new", [True, False])
async def test_who_shows_a_new_token_waits_for_no_client_without_one(
    is_new: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for those whose tokens were refused: it may be a user's first request."""
    monkeypatch.setattr("stretto.http.front.runner.REQUESTS_PER_TURN", 1)
    begun = noted(monkeypatch)
    token = f"Bearer {token_of('alice')}" if is_new else "Bearer false"
    async with many_and_one(database_url) as (clients, last):
        for client in clients:
            client.send(UNKNOWN)
        last.send(listing(token))
        assert (200 if is_new else 401) == (await last.answer())[0]
        for client in clients:
            assert (await client.answer())[0] == 401
    assert is_new == (begun.index(token) <= FLOOD), begun.index(token)


async def test_the_wait_for_a_turn_is_a_part_of_a_requests_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crowded process would look quick to whoever watches it."""
    now = 1.0

    async def take_long(*_: object) -> None:
        nonlocal now
        now += 100.0

    monkeypatch.setattr("stretto.http.front.runner.perf_counter", lambda: now)
    monkeypatch.setattr("stretto.http.service.perf_counter", lambda: now)
    async with api_for(database_url) as api:
        monkeypatch.setattr("stretto.http.front.runner.Turns.take", take_long)
        assert (await api.get("/v1/groups")).status == 200
        metrics = (await api.get("/metrics", user=None)).body.decode()
    name = 'stretto_http_request_seconds_sum{method="GET",route="/v1/groups"}'
    assert f"{name} 100.0\n" in metrics
