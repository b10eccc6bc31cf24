"""A token is good for what its scopes allow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from stretto.http.front.plain_requests import PlainRequests
from stretto.http.tokens.scopes import OWN, Scope
from stretto.http.tokens.settings import TokenSettings
from stretto.runtime.batch_reader import BatchReader
from support.api_client import SECRET, TEAM, Api, Reply, api_for, token_of
from support.raw_client import creation, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

DEADLINE_SECONDS = 60
NO_GROUP = "00000000-0000-0000-0000-000000000007"
# What a request needs, and how it is answered if its token has that.
ROUTES = {
    "POST /v1/groups": (Scope.CREATE, 400),
    "GET /v1/groups": (Scope.READ, 200),
    f"GET /v1/groups/{NO_GROUP}": (Scope.READ, 404),
    f"GET /v1/groups/{NO_GROUP}/members": (Scope.READ, 404),
    f"DELETE /v1/groups/{NO_GROUP}": (Scope.DELETE, 404),
    "GET /v1/attempts/k": (Scope.READ, 404),
    "GET /v1/attempts/k/history": (Scope.READ, 404),
    "GET /v1/events": (Scope.EVENTS, 400),
}


@pytest_asyncio.fixture
async def strict(database_url: str) -> AsyncIterator[Api]:
    """A service that requires scopes."""
    tokens = TokenSettings(jwt_secret=SECRET, jwt_require_scopes=True)
    async with asyncio.timeout(DEADLINE_SECONDS), api_for(database_url, tokens=tokens) as api:
        yield api


def bearer(user: str, *scopes: Scope) -> dict[str, str]:
    """Return the header of a token that names these scopes."""
    return {"Authorization": f"Bearer {token_of(user, SECRET, *scopes)}"}


async def create(api: Api, key: str, *scopes: Scope) -> Reply:
    """Create a group of alice's."""
    headers = {**bearer("alice", *scopes), "Idempotency-Key": key}
    return await api.request("POST", "/v1/groups", headers=headers, json=TEAM)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_request_needs_the_scope_of_its_route(route: str, strict: Api) -> None:
    """And no other; the answer says which one (RFC 6750, 3.1), before all that is wrong besides."""
    needed, status = ROUTES[route]
    method, path = route.split()
    for scopes in ((), *((each,) for each in Scope), tuple(OWN), tuple(OWN - {needed})):
        reply = await strict.request(method, path, headers=bearer("alice", *scopes))
        if needed in scopes or (needed is Scope.READ and Scope.READ_ANY in scopes):
            assert status == reply.status, scopes
            continue
        assert (403, "insufficient_scope", "never") == (
            reply.status,
            reply.json["code"],
            reply.json["retry"],
        )
        challenge = reply.headers["WWW-Authenticate"]
        assert f'Bearer error="insufficient_scope", scope="{needed}"' == challenge
        assert needed in reply.json["detail"]


async def test_a_creation_without_its_scope_leaves_no_row(
    strict: Api, connection: Connection
) -> None:
    """The twin creates the group under the same key."""
    for scopes in ((), (Scope.READ, Scope.EVENTS, Scope.READ_ANY)):
        assert 403 == (await create(strict, "k", *scopes)).status
    assert 0 == await connection.fetchval("SELECT count(*) FROM attempt")
    reply = await create(strict, "k", Scope.CREATE)
    assert (201, "created") == (reply.status, reply.headers["Idempotency-Status"])


@pytest.mark.parametrize("is_repeat", [False, True])
async def test_both_ways_ask_for_the_same_scope(
    is_repeat: bool, strict: Api, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that is remembered, and was good for something else, creates and replays nothing."""
    if is_repeat:
        assert 201 == (await create(strict, "k", Scope.CREATE)).status
    headers = bearer("alice", Scope.READ)
    assert 200 == (await strict.get("/v1/groups", headers=headers)).status
    request = creation(headers["Authorization"].removeprefix("Bearer "), "k")
    answers = []
    async with raw_clients(strict.url) as raw:
        for reads in (PlainRequests.read, lambda *_: None):
            monkeypatch.setattr(PlainRequests, "read", reads)
            status, fields, document = await (await raw.connect(request)).answer()
            for name in ("date", "x-request-id"):
                del fields[name]
            answers.append((status, fields, document))
    assert answers[0] == answers[1]
    assert (403, "insufficient_scope") == (answers[0][0], answers[0][2]["code"])
    assert int(is_repeat) == await connection.fetchval("SELECT count(*) FROM attempt")


async def test_a_session_needs_its_scope(strict: Api) -> None:
    """Also a WebSocket, whose token comes as a subprotocol."""
    for scopes, status in (((Scope.CREATE, Scope.READ), 403), ((Scope.EVENTS,), 200)):
        headers = {**bearer("alice", *scopes), "Accept": "text/event-stream"}
        async with strict.session.get(f"{strict.url}/v1/events", headers=headers) as response:
            assert status == response.status
        protocols = ("stretto.v1", f"stretto.token.{token_of('alice', SECRET, *scopes)}")
        url = f"{strict.url}/v1/events"
        if status == 200:
            async with strict.session.ws_connect(url, protocols=protocols) as socket:
                assert "stretto.v1" == socket.protocol
        else:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await strict.session.ws_connect(url, protocols=protocols)
            assert status == refused.value.status


async def test_a_service_may_read_any_group(strict: Api) -> None:
    """And its members, page by page; what does not exist is still missing, and lists stay its own."""
    created = (await create(strict, "k", Scope.CREATE)).json
    path = f"/v1/groups/{created['group_id']}"
    service, stranger = bearer("billing", Scope.READ_ANY), bearer("billing", Scope.READ)
    for place in (path, f"{path}/members"):
        assert 404 == (await strict.get(place, headers=stranger)).status
    group = await strict.get(path, headers=service)
    assert (200, "Team", 3) == (group.status, group.json["name"], group.json["members_count"])
    page = (await strict.get(f"{path}/members?limit=2", headers=service)).json
    rest = (await strict.get(f"{path}/members?cursor={page['next_cursor']}", headers=service)).json
    members = [each["user_id"] for each in (*page["members"], *rest["members"])]
    assert ["alice", "bob", "carol"] == members
    for place in (f"/v1/groups/{NO_GROUP}", f"/v1/groups/{NO_GROUP}/members", "/v1/attempts/k"):
        assert 404 == (await strict.get(place, headers=service)).status
    assert [] == (await strict.get("/v1/groups", headers=service)).json["groups"]


async def test_services_that_may_read_any_group_take_turns(
    strict: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own share of the reads, as a user has."""
    shares: list[object] = []
    ask = BatchReader.ask

    async def note(reader: BatchReader[Any, Any], question: Any) -> Any:
        if reader.name in {"reader of groups", "reader of members"}:
            shares.append(reader._mailbox._share_of(question))
        return await ask(reader, question)

    created = (await create(strict, "k", Scope.CREATE)).json
    group = f"/v1/groups/{created['group_id']}"
    monkeypatch.setattr(BatchReader, "ask", note)
    for service in ("billing", "search"):
        headers = bearer(service, Scope.READ_ANY)
        for path in (group, f"{group}/members"):
            assert 200 == (await strict.get(path, headers=headers)).status
    assert ["billing"] * 2 + ["search"] * 2 == shares


async def test_scopes_that_are_not_required_only_narrow(api: Api) -> None:
    """A token that names none may do all with its own user's; one that names some, only that."""
    assert 201 == (await create(api, "k")).status
    assert 201 == (await create(api, "l", Scope.CREATE)).status
    assert 403 == (await create(api, "m", Scope.READ)).status
    assert 403 == (await api.get("/v1/groups", headers=bearer("alice", Scope.CREATE))).status
    group_id = (await create(api, "k")).json["group_id"]
    for place in (f"/v1/groups/{group_id}", f"/v1/groups/{group_id}/members"):
        reply = await api.get(place, headers=bearer("billing", Scope.READ_ANY))
        assert 404 == reply.status
