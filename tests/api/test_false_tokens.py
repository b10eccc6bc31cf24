"""Tokens that are not valid, while more comes than the writers get done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stretto.http.admission import UNKNOWN_OWNERS_MAX
from stretto.http.service import SERVICE
from stretto.http.tokens.keys import TokenKey
from support.api_client import token_of
from support.full_service import full_service, waiting_create
from support.raw_client import creation

if TYPE_CHECKING:
    import pytest

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
        assert None not in shedder._coming_of


async def test_a_connection_whose_token_was_refused_has_fewer_places(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a look at the token does not show it; until a token of it is remembered as verified."""
    monkeypatch.setattr(TokenKey, "is_forged", lambda *_: False)
    async with full_service(database_url, connection) as service:
        asked: list[int] = []
        shedder = service.app[SERVICE].shedder
        has_room = shedder.has_room

        def noted(owner: object, unknown_owners_max: int = -1) -> bool:
            asked.append(unknown_owners_max)
            return has_room(owner, unknown_owners_max)  # type: ignore[arg-type]

        monkeypatch.setattr(shedder, "has_room", noted)
        client = await service.raw.connect()
        statuses = []
        for token in ("x", "x", "y", service.token, "z"):
            client.send(creation(token, "s"))
            statuses.append((await client.answer())[0])
        assert [401, 503, 401, 503, 401] == statuses
        # The second time, the token is known to be refused.
        assert [16, 0, 4, -1, 16] == asked
