"""The spans of requests: on both ways, from the wait for a writer to the push of the event."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    SamplingResult,
    StaticSampler,
)

from stretto.assembly.application import create_app
from stretto.assembly.settings import ComponentSettings
from stretto.creation.flight import Flight
from stretto.creation.settings import CreatorSettings
from stretto.domain import NewGroup, UserId
from stretto.http.admission import LoadShedder
from stretto.http.front.connection import ClientConnection
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, Api, connected_api, token_of
from support.database import pend, writes_held_up
from support.live_service import LiveService
from support.raw_client import RawClient, RawClients, creation, raw_clients
from support.traces import (
    PARENT_ID,
    RAISING_PLACES,
    SAMPLED,
    TRACE_ID,
    UNSAMPLED,
    Spans,
    raising_spans,
)
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from opentelemetry.sdk.trace.sampling import Sampler

    from stretto.errors import StrettoError
    from support.database import Connection
    from support.traces import Span

DEADLINE_SECONDS = 60
TOKEN = token_of("alice")
CREATE, ROUTE = "POST /v1/groups", "/v1/groups"


class NotedSampler(StaticSampler):
    """Samples everything, and notes the names of what it is asked for."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__(Decision.RECORD_AND_SAMPLE)
        self._asked = asked

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *others: Any, **more: Any
    ) -> SamplingResult:
        """Sample it."""
        self._asked.append(name)
        return super().should_sample(parent_context, trace_id, name, *others, **more)


class World:
    """A service that traces, and a client of it."""

    def __init__(self, live: LiveService, raw: RawClients, spans: Spans) -> None:
        self.live, self.raw, self.spans = live, raw, spans

    async def send(self, key: str, traceparent: str = SAMPLED, body: bytes = b"") -> RawClient:
        """Send a creation over a connection of its own."""
        request = creation(TOKEN, key, body or b'{"name": "Team", "members": ["bob"]}')
        line = f"Host: x\r\nX-Request-Id: r-1\r\ntraceparent: {traceparent}\r\n".encode()
        return await self.raw.connect(request.replace(b"Host: x\r\n", line))

    async def create(self, key: str, traceparent: str = SAMPLED, body: bytes = b"") -> int:
        """Create, and return the status."""
        return (await (await self.send(key, traceparent, body)).answer())[0]

    def requests(self) -> list[Span]:
        """Return the spans of requests."""
        return [each for each in self.spans.ended if each.kind == "SERVER"]


@asynccontextmanager
async def traced(
    database_url: str, sampler: Sampler | None = None, spans: Spans | None = None
) -> AsyncIterator[World]:
    """Serve a database in this process, and trace."""
    spans = spans or Spans(sampler)
    app = create_app(
        dsn=database_url,
        tokens=TokenSettings(jwt_secret=SECRET),
        settings=ComponentSettings(creator=CreatorSettings(lease_seconds=0.2)),
        tracer_provider=spans.provider,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(DEADLINE_SECONDS))
        port = await stack.enter_async_context(serving(app, host="127.0.0.1", port=0))
        url = f"http://127.0.0.1:{port}"
        api: Api = await stack.enter_async_context(connected_api(url))
        raw = await stack.enter_async_context(raw_clients(url))
        # From now on the token is known, as the fast path wants it.
        headers = {"Authorization": f"Bearer {TOKEN}", "traceparent": UNSAMPLED}
        assert (await api.get(ROUTE, headers=headers)).status == 200
        yield World(LiveService(api, app), raw, spans)


@pytest_asyncio.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    """A service that traces what its clients trace."""
    async with traced(database_url) as world:
        yield world


@pytest.mark.parametrize("is_plain", [True, False], ids=["fast path", "routes"])
async def test_one_trace_leads_from_the_click_to_the_event(
    is_plain: bool, world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request, wait, batch and what it sends; the event carries the request's span."""
    if not is_plain:
        monkeypatch.setattr(PlainRequests, "read", lambda *_: None)
    assert 201 == await world.create("k")
    (request,) = world.requests()
    assert (CREATE, TRACE_ID, PARENT_ID) == (request.name, request.trace_id, request.parent_id)
    assert {
        "http.request.method": "POST",
        "http.route": ROUTE,
        "http.response.status_code": 201,
        "stretto.request_id": "r-1",
    } == request.attributes
    (batch,) = world.spans.named("stretto.batch")
    (wait,) = world.spans.named("stretto.mailbox")
    (step,) = world.spans.named("stretto.claim_and_lead")
    assert [request.id, request.id, batch.id] == [each.parent_id for each in (wait, batch, step)]
    assert (request.id,) == batch.links
    assert f"00-{TRACE_ID}-{request.id}-01" == await connection.fetchval(
        "SELECT trace_context FROM outbox"
    )


async def test_a_push_is_a_part_of_the_trace(world: World) -> None:
    """And the event has the trace for its receiver."""
    async with world.live.sse() as events:
        await events.next()
        assert 201 == await world.create("k")
        event = (await events.next()).json
        await world.spans.until("stretto.push")
    (request,) = world.requests()
    (push,) = world.spans.named("stretto.push")
    assert (TRACE_ID, request.id) == (push.trace_id, push.parent_id)
    assert {"stretto.sessions": 1} == push.attributes
    assert f"00-{TRACE_ID}-{request.id}-01" == event["traceparent"]


@pytest.mark.parametrize("traceparent", [UNSAMPLED, "", "nonsense"])
async def test_what_is_not_sampled_leaves_no_trace(
    traceparent: str, world: World, connection: Connection
) -> None:
    """Neither a span nor a word in the event."""
    async with world.live.sse() as events:
        await events.next()
        assert [201, 201] == [await world.create("k", traceparent) for _ in range(2)]
        assert "traceparent" not in (await events.next()).json
    assert [] == world.spans.ended
    assert await connection.fetchval("SELECT trace_context IS NULL FROM outbox")


async def test_a_batch_has_the_traces_of_some_of_its_requests(
    world: World, connection: Connection
) -> None:
    """The events of the others have none."""
    async with writes_held_up(connection):
        first = asyncio.create_task(world.create("first", UNSAMPLED))
        creator = world.live.app[SERVICE].creator
        await until(lambda: creator.flights == 1)
        rest = [
            asyncio.create_task(world.create(f"k{number}", [UNSAMPLED, SAMPLED][number % 2]))
            for number in range(4)
        ]
        await until(lambda: creator.flights == 5)
    assert [201] * 5 == await asyncio.gather(first, *rest)
    (batch,) = world.spans.named("stretto.batch")
    requests = {each.id for each in world.requests()}
    assert 2 == len(requests)
    assert ({*batch.links}, {"stretto.writes": 4}) == (requests, batch.attributes)
    rows = await connection.fetch("SELECT trace_context FROM outbox")
    assert 2 == sum(row["trace_context"] is not None for row in rows) == len(rows) - 3


async def test_a_creation_has_one_span_on_whichever_way_it_goes(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that the fast path leaves to the routes; the sampler is asked once for each.

    One that is rejected unparsed has none.
    """
    begun: list[str] = []
    sampler = ParentBased(ALWAYS_OFF, remote_parent_sampled=NotedSampler(begun))
    async with traced(database_url, sampler) as world:
        bodies = {b'{"name": "Team"}': 201, b'{"name":  "Team"}': 201, b'{"name": "Other"}': 422}
        for body, status in bodies.items():
            assert status == await world.create("k", body=body)
        assert 400 == await world.create("k2", body=b"{")
        monkeypatch.setattr(LoadShedder, "has_room", lambda *_: False)
        assert 503 == await world.create("new")
        assert 4 == len(world.requests()) == begun.count(CREATE)


@pytest.mark.parametrize("is_plain", [True, False], ids=["fast path", "routes"])
async def test_other_answers_have_spans_too(
    is_plain: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat, and what is refused; only our own faults are errors."""
    if not is_plain:
        monkeypatch.setattr(PlainRequests, "read", lambda *_: None)
    assert [201, 201, 422] == [
        await world.create("k"),
        await world.create("k"),
        await world.create("k", body=b'{"name": "Other"}'),
    ]
    statuses = [each.attributes["http.response.status_code"] for each in world.requests()]
    assert [201, 201, 422] == statuses
    assert not any("error.type" in each.attributes for each in world.requests())
    assert 1 == len(world.spans.named("stretto.batch"))


async def test_a_follower_is_seen_in_the_trace(world: World, connection: Connection) -> None:
    """As a part of the request that waits for another process's attempt."""
    assert 201 == await world.create("k", UNSAMPLED)
    world.live.app[SERVICE].creator.forget()
    assert 201 == await world.create("k")
    (request,) = world.requests()
    (follow,) = world.spans.named("stretto.follow")
    assert request.id == follow.parent_id


async def trail(connection: Connection) -> list[tuple[str, str | None]]:
    """Return what the trail says, and the traces that it names; some is added soon after."""
    query = "SELECT what, trace_id FROM attempt_trail ORDER BY number"
    await until(lambda: connection.fetchval("SELECT count(*) FROM attempt_trail"))
    return [tuple(row) for row in await connection.fetch(query)]


@pytest.mark.parametrize("is_remembered", [True, False], ids=["remembered", "followed"])
async def test_the_trail_names_the_trace_of_a_reuse(
    is_remembered: bool, world: World, connection: Connection
) -> None:
    """Whether the memory answers it or a follower: a trace id leads to the attempt, and back."""
    assert 201 == await world.create("k", UNSAMPLED)
    if not is_remembered:
        world.live.app[SERVICE].creator.forget()
    assert 422 == await world.create("k", body=b'{"name": "Other"}')
    assert [("other_body", TRACE_ID)] == await trail(connection)


async def test_the_trail_names_the_trace_of_what_takes_over(
    world: World, connection: Connection
) -> None:
    """One that is not sampled has no name."""
    fingerprint = NewGroup.parse(UserId("alice"), {"name": "Team"}).fingerprint()
    for key in ("one", "two"):
        await pend(connection, key, fingerprint, seconds_ago=60)
    assert 201 == await world.create("one", body=b'{"name": "Team"}')
    assert 201 == await world.create("two", UNSAMPLED, body=b'{"name": "Team"}')
    assert [("reclaimed", TRACE_ID), ("reclaimed", None)] == await trail(connection)


async def test_the_trail_names_the_trace_of_a_question_that_heals(
    world: World, connection: Connection
) -> None:
    """No request of its own key has done it."""
    assert 201 == await world.create("k", UNSAMPLED, body=b'{"name": "Team"}')
    await connection.execute("TRUNCATE attempt")
    fingerprint = NewGroup.parse(UserId("alice"), {"name": "Team"}).fingerprint()
    await pend(connection, "k", fingerprint, seconds_ago=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "traceparent": SAMPLED}
    assert (await world.live.api.get("/v1/attempts/k", headers=headers)).status == 200
    assert [("healed", TRACE_ID)] == await trail(connection)


@pytest.mark.parametrize("is_plain", [True, False], ids=["fast path", "routes"])
async def test_a_client_that_leaves_ends_its_span(
    is_plain: bool, world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an error that says so."""
    if not is_plain:
        monkeypatch.setattr(PlainRequests, "read", lambda *_: None)
    async with writes_held_up(connection):
        client = await world.send("k")
        await until(lambda: world.live.app[SERVICE].creator.flights == 1)
        # Reset: a client that only closes may be one that has closed its half, and reads on.
        connected = client.transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.transport.abort()
        await world.spans.until(CREATE)
    (request,) = world.requests()
    assert "client_left" == request.attributes["error.type"]


async def test_a_client_that_leaves_just_as_its_outcome_comes_is_not_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its span has ended when it left, and no answer is counted."""
    connections: list[ClientConnection] = []
    connect, finish = ClientConnection.connection_made, Flight.finish

    def noted(client: ClientConnection, transport: asyncio.BaseTransport) -> None:
        connections.append(client)
        connect(client, transport)

    def finish_too_late(flight: Flight, result: bytes | StrettoError) -> None:
        finish(flight, result)
        # As the loop does it, before the callbacks of what was finished.
        connections[-1].connection_lost(None)

    monkeypatch.setattr(ClientConnection, "connection_made", noted)
    monkeypatch.setattr(Flight, "finish", finish_too_late)
    client = await world.send("k")
    assert b"" == await client.closed()
    (request,) = world.requests()
    assert "client_left" == request.attributes["error.type"]
    assert "http.response.status_code" not in request.attributes
    counted = world.live.app[SERVICE].metrics.exposition().decode()
    assert f'method="POST",route="{ROUTE}"' not in counted


async def test_a_failure_of_ours_is_an_error(world: World, connection: Connection) -> None:
    """Of the step that has failed, and of the request."""
    await connection.execute("ALTER TABLE chat_group RENAME TO mislaid")
    assert 503 == await world.create("k")
    await connection.execute("ALTER TABLE mislaid RENAME TO chat_group")
    (request,) = world.requests()
    assert "503" == request.attributes["error.type"]
    steps = world.spans.named("stretto.claim_and_lead")
    assert ["Misconfigured"] == [each.attributes["error.type"] for each in steps]


async def test_routes_have_spans_and_health_checks_and_sessions_have_none(
    database_url: str,
) -> None:
    """Also where everything is sampled."""
    async with traced(database_url, ParentBased(ALWAYS_ON)) as world:
        api = world.live.api
        for path in ("/livez", "/readyz", "/metrics", "/openapi.json", "/nowhere", "/v1/events"):
            await api.get(path)
        async with world.live.sse() as events:
            await events.next()
        await api.get("/v1/attempts/k")
        await api.get("/v1/groups/x/members")
        assert ["GET /v1/attempts/{key}", "GET /v1/groups/{group_id}/members"] == [
            each.name for each in world.requests()
        ]
        assert ["", ""] == [each.parent_id for each in world.requests()]


async def test_no_secret_is_in_a_span(world: World) -> None:
    """Neither key nor token, nor what the group is called, nor who is in it."""
    key = "a-key-that-nobody-may-read"
    assert [201, 201] == [await world.create(key) for _ in range(2)]
    headers = {"Authorization": f"Bearer {TOKEN}", "traceparent": SAMPLED}
    assert (await world.live.api.get(f"/v1/attempts/{key}", headers=headers)).status == 200
    shown = repr(world.spans.ended)
    assert "GET /v1/attempts/{key}" in shown
    for secret in (key, TOKEN, "Team", "alice", "bob"):
        assert secret not in shown


@pytest.mark.parametrize("is_plain", [True, False], ids=["fast path", "routes"])
@pytest.mark.parametrize("place", RAISING_PLACES)
async def test_a_hosts_tracing_that_raises_changes_no_answer(
    place: str,
    is_plain: bool,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither of the request that is traced nor of its neighbours, and every event is pushed."""
    if not is_plain:
        monkeypatch.setattr(PlainRequests, "read", lambda *_: None)
    async with traced(database_url, spans=raising_spans(place, ZeroDivisionError())) as world:
        async with world.live.sse() as events:
            await events.next()
            sent = [("a", SAMPLED), ("b", UNSAMPLED), ("c", SAMPLED)]
            answers = await asyncio.gather(*(world.create(*each) for each in sent))
            assert [201] * 3 == answers
            for _ in sent:
                await events.next()
        assert 201 == await world.create("a", SAMPLED)
        assert 422 == await world.create("a", SAMPLED, b'{"name": "Other"}')
    said = [vars(each) for each in caplog.records]
    failures = [each for each in said if each.get("event") == "tracing.failed"]
    assert {"ZeroDivisionError"} == {each["kind"] for each in failures}
    assert [] == [each.message for each in caplog.records if "crashed" in each.message]
