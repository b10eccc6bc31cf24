"""StrettoClient beyond creation: reading, tokens that end, and sessions that are resumed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from stretto import ClientError, Intention, StrettoClient, group_id
from stretto.client import calls, sessions, stretto_client
from stretto.domain import MEMBERS_MAX
from stretto.errors import Retry
from stretto.http.front.serving import serving
from support.api_client import api_for, token_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto import Received

LONG_SECONDS = 60.0


@pytest.fixture
async def url(database_url: str) -> AsyncIterator[str]:
    """A running service."""
    async with api_for(database_url) as api:
        yield api.url


@asynccontextmanager
async def client_of(url: str, token: Any = None) -> AsyncIterator[StrettoClient]:
    """Open a client, of alice unless it has another token."""
    async with aiohttp.ClientSession() as session:
        yield StrettoClient(session, url, token or token_of("alice"))


async def test_a_user_reads_what_was_created(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One group, all groups over several pages, members, and what became of a key."""
    monkeypatch.setattr(stretto_client, "PAGE_ITEMS", 2)
    async with client_of(url) as client:
        for n in range(5):
            await client.create_group(f"Team {n}", ["bob", "carol"], key=f"a/b?{n}%2F")
        names = [group["name"] async for group in client.groups()]
        assert [f"Team {n}" for n in reversed(range(5))] == names
        id_ = group_id("alice", "a/b?3%2F")
        group = await client.read_group(id_)
        assert (str(id_), "Team 3", 3) == (
            group["group_id"],
            group["name"],
            group["members_count"],
        )
        members = {member["user_id"]: member["role"] async for member in client.members(id_)}
        assert {"alice": "owner", "bob": "member", "carol": "member"} == members
        attempt = await client.read_attempt("a/b?3%2F")
        assert ("succeeded", str(id_)) == (attempt["status"], attempt["group_id"])


@pytest.mark.parametrize("key", ['"', '"abc"', 'a"b', "\\", ".", "..", "...", "a/../b", "%2e"])
async def test_a_key_is_read_as_it_was_sent(key: str, url: str) -> None:
    """One with quotes is not the one between them, and dots do not lead to another path."""
    async with client_of(url) as client:
        await client.create_group("Team", key="abc")
        await client.create_group("Team", key=key)
        attempt = await client.read_attempt(key)
        assert str(group_id("alice", key)) == attempt["group_id"]


async def test_what_is_not_there_is_refused_at_once(url: str) -> None:
    """With the service's code; a path in an id is no path."""
    async with client_of(url) as client:
        for id_ in (group_id("bob", "k"), "../groups", "a/members"):
            with pytest.raises(ClientError) as refusal:
                await client.read_group(id_)
            assert Retry.NEVER is refusal.value.retry
        with pytest.raises(ClientError) as refusal:
            await client.read_attempt("never sent")
        assert refusal.value.code in ("not_found", "key_invalid")


@dataclass
class Front:
    """Answers each request by the next step of its script, and counts them."""

    url: str = ""
    script: list[Callable[[web.Request], web.StreamResponse]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    """A server in the service's place."""
    front = Front()

    async def play(request: web.Request) -> web.StreamResponse:
        front.tokens.append(request.headers["Authorization"].removeprefix("Bearer "))
        return front.script.pop(0)(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", play)
    async with serving(app, host="127.0.0.1", port=0) as port:
        front.url = f"http://127.0.0.1:{port}"
        yield front


def problem(code: str, retry: str, status: int) -> web.StreamResponse:
    """Return an error of the service."""
    document = {"type": f"urn:stretto:problem:{code}", "code": code, "retry": retry}
    return web.json_response(document, status=status)


def refused(_: web.Request) -> web.StreamResponse:
    """Refuse the token."""
    return problem("unauthenticated", "never", 401)


def group(_: web.Request) -> web.StreamResponse:
    """Return a group."""
    return web.json_response({"name": "Team"})


def busy(_: web.Request) -> web.StreamResponse:
    """Ask for another try."""
    return problem("overloaded", "same-key", 503)


def nothing(_: web.Request) -> web.StreamResponse:
    """Return 200 and no document, as a captive portal does."""
    return web.Response(text="<html>")


async def test_reading_is_tried_again(front: Front) -> None:
    """While the service asks for it, and while what comes is no document."""
    front.script = [busy, nothing, group]
    async with client_of(front.url) as client:
        assert {"name": "Team"} == await client.read_group("g")
    assert [] == front.script


@pytest.mark.parametrize(
    "document",
    [
        {"items": [], "next_cursor": None},
        {"groups": []},
        {"groups": None, "next_cursor": None},
        {"groups": [], "next_cursor": 1},
    ],
)
async def test_a_list_of_another_service_is_reported(
    document: dict[str, object], front: Front
) -> None:
    """A document that has no groups, or says nothing of the next page, at a wrong address."""
    front.script = [lambda _: web.json_response(document)]
    async with client_of(front.url) as client:
        with pytest.raises(ClientError, match="http_200: this is not an answer of a stretto"):
            await anext(client.groups())


@pytest.mark.parametrize("kind", ["text/html", "application/json", None])
async def test_what_is_no_session_is_reported_at_once(kind: str | None, front: Front) -> None:
    """A page of the host's, or of a proxy's, that would look like a session without events."""
    headers = {"Content-Type": kind} if kind else None
    front.script = [lambda _: web.Response(body=b"<html>", headers=headers)]
    async with client_of(front.url) as client:
        with pytest.raises(
            ClientError, match="http_200: this is not an answer of a stretto"
        ) as end:
            await take(client.events(), [])
    assert Retry.SAME_KEY is end.value.retry


@pytest.mark.parametrize("data", [b"{", b"\xff", b'"' + b"x" * 2**20], ids=["cut", "bytes", "long"])
async def test_what_is_no_event_is_reported_at_once(data: bytes, front: Front) -> None:
    """Of a proxy that damages what it passes on: the same would come again and again."""
    headers = {"Content-Type": "text/event-stream"}
    body = b"id: p\ndata: " + data + b"\n\n"
    front.script = [lambda _: web.Response(body=body, headers=headers)]
    async with client_of(front.url) as client:
        with pytest.raises(ClientError, match="http_200: this is not an answer of a stretto"):
            await take(client.events(), [])


async def test_a_token_that_ended_is_asked_for_once_again(front: Front) -> None:
    """Whether or not the function returns another one; a second refusal is final."""
    tokens = iter("abcd")

    async def current() -> str:
        return next(tokens)

    async with client_of(front.url, current) as client:
        front.script = [refused, group]
        assert {"name": "Team"} == await client.read_group("g")
        front.script = [refused, refused, group]
        with pytest.raises(ClientError, match="unauthenticated"):
            await client.read_group("g")
    assert [*"abcd"] == front.tokens
    assert [group] == front.script


@pytest.mark.parametrize("is_asked_again", [False, True])
@pytest.mark.parametrize(
    "error", [TimeoutError("no issuer"), aiohttp.ServerTimeoutError("no issuer"), OSError("gone")]
)
async def test_an_error_of_the_tokens_function_is_the_callers(
    error: Exception, is_asked_again: bool, front: Front
) -> None:
    """Also one of its own time: it is no service that gave no answer, and is not tried again."""
    tokens = ["old"] * is_asked_again

    async def token() -> str:
        if not tokens:
            raise error
        return tokens.pop()

    async with client_of(front.url, token) as client:
        for call in (
            lambda: client.read_group("g"),
            lambda: client.create_group("Team"),
            lambda: anext(client.events()),
        ):
            front.script, tokens[:] = [refused], ["old"] * is_asked_again
            with pytest.raises(type(error)) as failure:
                await call()
            assert error is failure.value


async def test_a_token_that_does_not_come_ends_the_call_in_time(front: Front) -> None:
    """The twin: this time is the call's."""

    async def token() -> str:
        return await asyncio.Future()

    async with client_of(front.url, token) as client:
        with pytest.raises(TimeoutError, match=r"no outcome within 0.05 s \(no answer\)"):
            await client.read_group("g", timeout_seconds=0.05)


async def test_a_fixed_token_is_refused_once(front: Front) -> None:
    """There is no other one to send."""
    front.script = [refused, group]
    async with client_of(front.url, "a") as client:
        with pytest.raises(ClientError, match="unauthenticated"):
            await client.read_group("g")
    assert ["a"] == front.tokens


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Reconnect at once; return the pauses that would have been made."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def at_once(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(sessions, "sleep", at_once)
    return pauses


async def test_a_session_gets_what_comes_and_resumes(url: str, without_pauses: list[float]) -> None:
    """First a position, then events; another session goes on behind the last of them."""
    async with asyncio.timeout(LONG_SECONDS), client_of(url) as client:
        async with aclosing(client.events()) as events:
            start = await anext(events)
            assert start.event is None
            made = await client.send(Intention.of("One", key="one"))
            first = await next_event(events)
            assert str(made.group.group_id) == first.event["subject"]
        await client.send(Intention.of("Two", key="two"))
        async with aclosing(client.events(first.position)) as events:
            second = await next_event(events)
            assert str(group_id("alice", "two")) == second.event["subject"]
        async with aclosing(client.events(start.position)) as events:
            subjects = [(await next_event(events)).event["subject"] for _ in range(2)]
        assert [str(group_id("alice", key)) for key in ("one", "two")] == subjects
    assert [] == without_pauses


async def test_the_largest_event_is_received(front: Front) -> None:
    """A change of as many members as there may be, of the longest ids; whatever the session keeps."""
    users = [f"{number:04}" + '"' * 124 for number in range(MEMBERS_MAX)]
    members = [{"user_id": user, "role": "member", "left": "member"} for user in users]
    event = {"n": 1, "users": members, "description": "\\" * 1024, "metadata": "\\" * 4096}
    body = b"id: p\ndata: " + orjson.dumps(event) + b"\n\n"
    headers = {"Content-Type": "text/event-stream"}
    front.script = [lambda _: web.Response(body=body, headers=headers)]
    async with (
        aiohttp.ClientSession(read_bufsize=2**14) as session,
        aclosing(StrettoClient(session, front.url, "a").events()) as events,
    ):
        assert event == (await anext(events)).event


@pytest.mark.parametrize(("status", "script"), [(200, []), (503, [group])])
async def test_a_reply_that_is_larger_than_any_is_not_read_to_its_end(
    status: int, script: list[Any], front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could fill the program's memory. A proxy's page is judged by its status, as any other."""
    monkeypatch.setattr(calls, "REPLY_BYTES_MAX", 2**16)
    page = orjson.dumps({"name": "x" * 2**16})
    front.script = [lambda _: web.Response(body=page, status=status), *script]
    async with client_of(front.url) as client:
        if script:
            assert {"name": "Team"} == await client.read_group("g")
            return
        with pytest.raises(ClientError, match="http_200: this is not an answer of a stretto"):
            await client.read_group("g")
        monkeypatch.setattr(calls, "REPLY_BYTES_MAX", len(page))
        front.script = [lambda _: web.Response(body=page)]
        assert {"name": "x" * 2**16} == await client.read_group("g")


async def next_event(events: AsyncIterator[Received]) -> Any:
    """Return the next thing that is more than a position."""
    async for received in events:
        if received.event is not None:
            return received
    raise AssertionError


class Stream:
    """Server-sent events by a script: what each connection sends before it ends."""

    def __init__(self, *connections: bytes) -> None:
        self.connections = list(connections)
        self.resumed: list[str | None] = []

    def app(self) -> web.Application:
        """Return the application that plays it."""
        app = web.Application()
        app.router.add_get("/v1/events", self._play)
        return app

    async def _play(self, request: web.Request) -> web.StreamResponse:
        self.resumed.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self.connections.pop(0))
        assert request.transport is not None
        if self.connections:
            request.transport.abort()
        return response


async def take(events: AsyncIterator[Received], into: list[int | None]) -> None:
    """Take all events; keep what they say, and None for a position alone."""
    async for received in events:
        # One by one: an error does not undo them.
        into += [None if received.event is None else received.event.get("n")]


LOST = b'event: close\nid\ndata: {"code":4410,"reason":"gone"}\n\n'


@pytest.mark.parametrize(
    ("connections", "resumed", "subjects"),
    [
        # A block that was not ended is not an event.
        ([b'id: 1\ndata: {"n":1}\n\nid: 2\ndata: {"n":2}', LOST], [None, "1"], [1]),
        # A position without an event counts, and so do comments and line ends of all kinds.
        ([b'id: 1\n:\ndata: {"n":1}\n\n:\n\nid: 5\n\n', LOST], [None, "5"], [1, None]),
        ([b'id: 1\r\ndata: {"n":\r\ndata: 1}\r\n\r\n', LOST], [None, "1"], [1]),
        ([b'event: close\ndata: {"code":1013,"reason":"later"}\n\n', LOST], [None, None], []),
        ([b"event: close\n\n", b"event: new\n\n", LOST], [None, None, None], []),
    ],
)
async def test_a_session_that_ends_is_resumed_behind_what_was_received(
    connections: list[bytes],
    resumed: list[str | None],
    subjects: list[int | None],
    without_pauses: list[float],
) -> None:
    """Until its history is lost, which no other connection brings back."""
    stream = Stream(*connections)
    received: list[int | None] = []
    async with (
        serving(stream.app(), host="127.0.0.1", port=0) as port,
        client_of(f"http://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(ClientError, match="position_lost: gone"):
            await take(client.events(), received)
    assert (resumed, subjects) == (stream.resumed, received)
    assert [sessions.RECONNECT_SECONDS] * (len(connections) - 1) == without_pauses


async def test_the_service_says_how_long_its_clients_wait(without_pauses: list[float]) -> None:
    """So that they do not all come back at once."""
    stream = Stream(b"retry: 700\nid: 1\n\n", LOST)
    async with (
        serving(stream.app(), host="127.0.0.1", port=0) as port,
        client_of(f"http://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(ClientError, match="position_lost"):
            await take(client.events("0"), [])
    assert (["0", "1"], [0.7]) == (stream.resumed, without_pauses)


async def test_a_silent_session_is_given_up(without_pauses: list[float]) -> None:
    """A connection that a network has forgotten looks like one without events."""
    silent = asyncio.Event()

    async def play(request: web.Request) -> web.StreamResponse:
        if silent.is_set():
            return refused(request)
        silent.set()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return await asyncio.Future()

    app = web.Application()
    app.router.add_get("/v1/events", play)
    async with (
        asyncio.timeout(LONG_SECONDS),
        serving(app, host="127.0.0.1", port=0) as port,
        client_of(f"http://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(ClientError, match="unauthenticated"):
            await take(client.events(silence_seconds=0.05), [])
    assert 1 == len(without_pauses)
