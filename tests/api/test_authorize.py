"""A host's say before the claim: what it refuses leaves no trace, and what was claimed is found."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from stretto import ClientError, StrettoClient
from stretto.assembly.application import create_app
from stretto.assembly.settings import ComponentSettings
from stretto.creation.settings import CreatorSettings
from stretto.domain import NewGroup, UserId
from stretto.errors import GroupRejected, Retry
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, TEAM, Api, connected_api, token_of
from support.database import pend
from support.raw_client import creation, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from support.database import Connection

TOKEN = token_of("alice")


class Host:
    """Allows, rejects or fails, as the test says."""

    def __init__(self) -> None:
        self.asked: list[NewGroup] = []
        self.answer: Exception | None = None

    async def __call__(self, new_group: NewGroup) -> None:
        self.asked.append(new_group)
        await asyncio.sleep(0)
        if self.answer is not None:
            raise self.answer


REJECTED = GroupRejected("no_seat", "This plan has no guests.")


@asynccontextmanager
async def serving_for(host: Host, database_url: str) -> AsyncIterator[tuple[Api, web.Application]]:
    """Serve a database as this host does."""
    app = create_app(
        dsn=database_url,
        tokens=TokenSettings(jwt_secret=SECRET),
        settings=ComponentSettings(creator=CreatorSettings(lease_seconds=0.2)),
        authorize=host,
    )
    async with (
        serving(app, host="127.0.0.1", port=0) as port,
        connected_api(f"http://127.0.0.1:{port}") as api,
    ):
        yield api, app


async def rows(connection: Connection) -> int:
    """Return how many attempts and groups there are."""
    count: int = await connection.fetchval(
        "SELECT (SELECT count(*) FROM attempt) + (SELECT count(*) FROM chat_group)"
    )
    return count


async def test_what_the_host_refuses_leaves_no_trace_and_spends_no_key(
    database_url: str, connection: Connection
) -> None:
    """403 with its reason; the same key creates the group once the host allows it."""
    host = Host()
    async with serving_for(host, database_url) as (api, _):
        host.answer = REJECTED
        refused = await api.create("k")
        document = refused.json
        assert (403, "creation_refused", "never") == (
            refused.status,
            document["code"],
            document["retry"],
        )
        assert {"code": "no_seat", "detail": "This plan has no guests."} == document["failure"]
        assert 0 == await rows(connection)
        assert (await api.get("/v1/attempts/k")).status == 404
        host.answer = None
        created = await api.create("k")
        assert (201, "created") == (created.status, created.headers["Idempotency-Status"])


async def test_a_host_that_fails_says_neither_yes_nor_no(
    database_url: str, connection: Connection
) -> None:
    """503, and the same request again; nothing was claimed."""
    host = Host()
    async with serving_for(host, database_url) as (api, _):
        host.answer = LookupError("secret words")
        failed = await api.create("k")
        assert (503, "authorize_failed", "same-key") == (
            failed.status,
            failed.json["code"],
            failed.json["retry"],
        )
        assert "1" == failed.headers["Retry-After"]
        assert b"secret words" not in failed.body
        assert 0 == await rows(connection)
        metrics = (await api.get("/metrics")).body.decode()
        assert "stretto_authorization_failures_total 1.0" in metrics
        assert 'stretto_attempts_total{outcome="authorize_failed"} 1.0' in metrics


async def test_the_host_sees_the_group_its_roles_and_the_tokens_claims(database_url: str) -> None:
    """All that it decides by, on the way of plain requests as well."""
    host = Host()
    body = b'{"name":"T","members":["bob",{"user_id":"carol","role":"admin"}],"metadata":{"a":1}}'
    async with serving_for(host, database_url) as (api, _), raw_clients(api.url) as raw:
        assert (
            await api.get("/v1/groups", headers={"Authorization": f"Bearer {TOKEN}"})
        ).status == 200
        client = await raw.connect(creation(TOKEN, "plain", body))
        assert (await client.answer())[0] == 201
        host.answer = REJECTED
        client = await raw.connect(creation(TOKEN, "refused", body))
        status, _, document = await client.answer()
        assert (403, "no_seat") == (status, document["failure"]["code"])
    for new_group in host.asked:
        assert (("bob", "carol"), ("carol",), '{"a":1}') == (
            new_group.members,
            new_group.admins,
            new_group.metadata,
        )
        assert new_group.claims is not None
        assert "alice" == new_group.claims["sub"]
    assert 2 == len(host.asked)


@pytest.mark.parametrize("answer", [REJECTED, LookupError()])
async def test_a_group_that_exists_is_found_whatever_the_host_says_now(
    answer: Exception, database_url: str, connection: Connection
) -> None:
    """From memory without asking; from the database, also once the attempt is gone (G3)."""
    host = Host()
    async with serving_for(host, database_url) as (api, app):
        first = await api.create("k")
        host.answer = answer
        asked = len(host.asked)
        assert first.body == (await api.create("k")).body
        assert asked == len(host.asked)
        for loss in ("SELECT 1", "TRUNCATE attempt"):
            await connection.execute(loss)
            app[SERVICE].creator.forget()
            again = await api.create("k")
            assert (201, first.body) == (again.status, again.body)
        app[SERVICE].creator.forget()
        assert (await api.create("k", {"name": "Other"})).status == 422
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")


async def test_what_was_claimed_is_finished(database_url: str, connection: Connection) -> None:
    """It was allowed before its leader died."""
    host = Host()
    host.answer = REJECTED
    await pend(connection, "k", NewGroup.parse(UserId("alice"), TEAM).fingerprint())
    async with serving_for(host, database_url) as (api, _):
        reply = await api.create("k")
        assert (201, "recovered") == (reply.status, reply.headers["Idempotency-Status"])


async def test_requests_of_one_key_make_one_group_while_the_host_decides(
    database_url: str, connection: Connection
) -> None:
    """Each asks at most once; the first that may starts the flight, the others join it."""
    host = Host()
    async with serving_for(host, database_url) as (api, _):
        replies = await asyncio.gather(*(api.create("k") for _ in range(50)))
    assert [201] * 50 == [reply.status for reply in replies]
    assert 1 == len({reply.body for reply in replies})
    assert len(host.asked) <= 50
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")


async def test_the_client_gets_the_hosts_reason(database_url: str) -> None:
    """And does not ask again."""
    host = Host()
    host.answer = REJECTED
    async with serving_for(host, database_url) as (api, _):
        client = StrettoClient(api.session, api.url, TOKEN)
        with pytest.raises(ClientError, match="creation_refused") as refusal:
            await client.create_group("Team", TEAM["members"])
    assert (Retry.NEVER, REJECTED.failure) == (refusal.value.retry, refusal.value.failure)
    assert 1 == len(host.asked)
