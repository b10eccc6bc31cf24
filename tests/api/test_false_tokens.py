"""Tokens that are not valid, while more comes than the writers get done."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from stretto.assembly.application import create_app
from stretto.assembly.settings import ComponentSettings
from stretto.domain import UserId
from stretto.http.admission import UNKNOWN_OWNERS_MAX, UnknownOwner
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.tokens.keys import TokenKey
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, token_of
from support.full_service import DEADLINE_SECONDS, QUEUED_MAX, full_service, waiting_create
from support.raw_client import PING, creation, raw_clients

if TYPE_CHECKING:
    from support.database import Connection


async def test_a_flood_of_false_tokens_keeps_no_newcomer_out(
    database_url: str, connection: Connection
) -> None:
    """All in one turn of the loop, and each with a token of its own."""
    async with full_service(database_url, connection) as service:
        shedder = service.app[SERVICE].shedder
        clients = [await service.raw.connect() for _ in range(2 * UNKNOWN_OWNERS_MAX)]
        for number, client in enumerate(clients):
            client.send(creation(f"x{number}{token_of('mallory')}", "s"))
        small = asyncio.create_task(waiting_create(service.api, "b0", "bob"))
        assert {503} == {(await client.answer())[0] for client in clients}
        displaced, others = await asyncio.wait(service.waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [503] == [each.result() for each in displaced]
        service.waiting[:] = [small, *others]
        assert not shedder._coming_of


async def test_a_connection_whose_token_was_refused_has_fewer_places(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a look at the token does not show it; until a token of it is remembered as verified."""
    monkeypatch.setattr(TokenKey, "is_forged", lambda *_: False)
    async with full_service(database_url, connection) as service:
        asked: list[UserId | UnknownOwner] = []
        shedder = service.app[SERVICE].shedder
        has_room = shedder.has_room

        def noted(owner: UserId | UnknownOwner, body_bytes: int) -> bool:
            asked.append(owner)
            return has_room(owner, body_bytes)

        monkeypatch.setattr(shedder, "has_room", noted)
        client = await service.raw.connect()
        statuses = []
        for token in ("x", "x", "y", service.token, "z"):
            client.send(creation(token, "s"))
            statuses.append((await client.answer())[0])
        assert [401, 503, 401, 503, 401] == statuses
        # The second time, the token is known to be refused.
        kinds = UnknownOwner
        assert [kinds.NEW, kinds.REFUSED, kinds.DOUBTED, UserId("alice"), kinds.NEW] == asked


@pytest.mark.parametrize("is_owner_known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("is_forgery_seen", [True, False], ids=["refused", "doubted"])
async def test_a_flood_of_false_tokens_takes_no_place_of_an_empty_mailbox(
    is_forgery_seen: bool,
    is_owner_known: bool,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All in one turn of the loop, and each with a token of its own; a few still get their 401."""
    if not is_forgery_seen:
        monkeypatch.setattr(TokenKey, "is_forged", lambda *_: False)
    app = create_app(
        dsn=database_url,
        tokens=TokenSettings(jwt_secret=SECRET),
        settings=ComponentSettings(mailbox_max=QUEUED_MAX),
    )
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        serving(app, host="127.0.0.1", port=0) as port,
        raw_clients(f"http://127.0.0.1:{port}") as raw,
    ):
        clients = [await raw.connect() for _ in range(2 * UNKNOWN_OWNERS_MAX)]
        for number, client in enumerate(clients):
            client.send(creation(f"a{number}{token_of('mallory')}", "s"))
            assert 401 == (await client.answer())[0]
        bob = await raw.connect(creation(token_of("bob"), "s") if is_owner_known else PING)
        assert (201 if is_owner_known else 200) == (await bob.answer())[0]
        for number, client in enumerate(clients):
            client.send(creation(f"b{number}{token_of('mallory')}", "s"))
        bob.send(creation(token_of("bob"), "b"))
        statuses = Counter([(await client.answer())[0] for client in clients])
        assert {401: QUEUED_MAX, 503: len(clients) - QUEUED_MAX} == statuses
        assert 201 == (await bob.answer())[0]
