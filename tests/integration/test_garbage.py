"""What requests and sessions leave behind: nothing that only the garbage collector could free.

The collector may come late, on purpose (`YOUNG_OBJECTS_MAX` in `server.py`): an object that refers to
itself by a detour stays until then, with all that it knows. So each kind of request and of session's
end is played many times, on the event loop of `stretto serve`, and what is unreachable is counted.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import pytest
import uvloop

from stretto.assembly.application import AppOptions, create_app
from stretto.assembly.settings import ComponentSettings
from stretto.creation.settings import CreatorSettings
from stretto.domain import NewGroup, UserId, group_id
from stretto.errors import GroupRejected
from stretto.events.close_codes import CloseCode
from stretto.http import event_streams, problems
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, token_of
from support.database import connect, pend
from support.raw_client import creation, creation_head
from support.socket_client import SocketClient
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from stretto.domain import CreatedGroup
    from stretto.postgres.driver_connection import Connection

TIMES = 6
# For each path or method that is not known, aiohttp makes a route that refers to itself, with the
# error that it stands for: some 1 KiB.
UNKNOWN_PATH_OBJECTS = 8
# It is never settled, and no lease of it runs out here.
PENDING_KEY = "pending"
LEASE_SECONDS = 1000.0
TOKEN = token_of("alice")
PREFER_NO_WAIT = b"Host: x\r\nPrefer: wait=0"
WEBSOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
EVENT_STREAM = "Accept: text/event-stream\r\n"
LOST_POSITION = "/v1/events?since=1.1-00000000"
# Frames of a client, masked with zeros: "goodbye" (1000), a text, and one that is malformed.
GOODBYE = b"\x88\x82\0\0\0\0\x03\xe8"
TEXT = b"\x81\x81\0\0\0\0A"
MALFORMED = b"\xff\xff\0\0\0\0A"
# How the service's own goodbye begins.
CLOSE_FRAME = b"\x88"
# Refusals by the database: for good, for now, and with the connection.
FAULTS = """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.name = 'cut' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
        IF NEW.name = 'deadlock' THEN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END IF;
        IF NEW.name = 'veto' THEN RAISE EXCEPTION 'never'; END IF;
        RETURN NEW;
    END$$;
    CREATE TRIGGER fail BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION fail()"""


@dataclass(slots=True)
class World:
    """A service, and a client that stays connected."""

    app: web.Application
    port: int
    kept: SocketClient
    keys: count[int]

    async def connect(self, first: bytes = b"") -> SocketClient:
        """Open another connection."""
        return await SocketClient().connect(self.port, first)

    def key(self) -> str:
        """Return a key that is new."""
        return f"key-{next(self.keys)}"


Step: TypeAlias = Callable[[World], Awaitable[None]]


def get(path: str, fields: str = "", method: str = "GET") -> bytes:
    """Return a request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{fields}\r\n"
    return head.encode()


def asks(status: int, request: Callable[[str], bytes]) -> Step:
    """Return a step that sends what is made of a fresh key, and must be answered so."""

    async def step(world: World) -> None:
        assert status == await world.kept.ask(request(world.key()))

    return step


def create(name: str = "Team", key: str = "") -> Callable[[str], bytes]:
    """Return what makes the request for a group."""
    return lambda fresh: creation(TOKEN, key or fresh, b'{"name": "%b"}' % name.encode())


async def _read_slowly(world: World) -> None:
    """In two pieces, by aiohttp's parser."""
    head, tail = creation_head(TOKEN, world.key()), b'Content-Length: 13\r\n\r\n{"name": "T'
    world.kept.send(head + tail)
    assert 201 == await world.kept.ask(b'"}')


async def _hang_up_while_waiting(world: World) -> None:
    waiting = await world.connect(creation(TOKEN, PENDING_KEY))
    await until(lambda: world.app[SERVICE].creator.flights)
    waiting.reset()


async def _hang_up_in_the_head(world: World) -> None:
    (await world.connect(creation_head(TOKEN, world.key()))).reset()


async def _hang_up_in_the_body(world: World) -> None:
    head = creation_head(TOKEN, world.key())
    (await world.connect(head + b'Content-Length: 99\r\n\r\n{"n')).reset()


async def _hang_up_with_requests_queued(world: World) -> None:
    waiting = await world.connect(creation(TOKEN, PENDING_KEY) + creation(TOKEN, world.key()) * 2)
    await until(lambda: world.app[SERVICE].creator.flights)
    waiting.reset()


async def _send_garbage(world: World) -> None:
    await (await world.connect(b"GARBAGE\r\n\r\n")).closed()


async def _connect_for_one_request(world: World) -> None:
    await (await world.connect(get("/livez", "Connection: close\r\n"))).closed()


def websocket(end: Callable[[World, SocketClient], Awaitable[None]]) -> Step:
    """Return a step that opens a session, which ends so."""

    async def step(world: World) -> None:
        client = await world.connect(get("/v1/events", WEBSOCKET))
        await client.until(b'"position"')
        await end(world, client)

    return step


def event_stream(end: Callable[[World, SocketClient], Awaitable[None]]) -> Step:
    """Return a step that opens a session over SSE, which ends so."""

    async def step(world: World) -> None:
        client = await world.connect(get("/v1/events", EVENT_STREAM))
        await client.until(b"retry:")
        await end(world, client)

    return step


async def say_goodbye(client: SocketClient) -> None:
    """Answer the service's own goodbye, or it would wait for that."""
    await client.until(CLOSE_FRAME)
    client.send(GOODBYE)


def sends(frame: bytes) -> Callable[[World, SocketClient], Awaitable[None]]:
    """Return an end: the client sends a frame, and says goodbye where it has not."""

    async def end(_: World, client: SocketClient) -> None:
        client.send(frame)
        if frame == TEXT:
            await say_goodbye(client)
        await client.closed()

    return end


def closes(
    code: CloseCode, *, is_sse: bool = False
) -> Callable[[World, SocketClient], Awaitable[None]]:
    """Return an end: the service closes the session, as the hub and the session do."""

    async def end(world: World, client: SocketClient) -> None:
        for session in world.app[SERVICE].hub._all():
            session.close(code)
        if not is_sse:
            await say_goodbye(client)
        await client.closed()

    return end


async def vanishes(_: World, client: SocketClient) -> None:
    """An end: the client is gone without a word."""
    client.reset()


async def hears(world: World, client: SocketClient) -> None:
    """An end: by the client, after an event that the relay has brought."""
    assert 201 == await world.kept.ask(creation(TOKEN, world.key()))
    await client.until(b"group.created")
    client.reset()


def resumes_nowhere(fields: str) -> Step:
    """Return a step: a session whose position is lost."""

    async def step(world: World) -> None:
        client = await world.connect(get(LOST_POSITION, fields))
        if fields == WEBSOCKET:
            await say_goodbye(client)
        await client.closed()

    return step


GROUPS: dict[str, dict[str, Step]] = {
    "creations": {
        "first": asks(201, create()),
        "in pieces": _read_slowly,
        "repeat": asks(201, create(key="same")),
        "same meaning": asks(201, lambda _: creation(TOKEN, "same", b'{"name":  "Team"}')),
        "key reused": asks(422, create("Other", key="same")),
        "pending": asks(
            409, lambda _: create(key=PENDING_KEY)("").replace(b"Host: x", PREFER_NO_WAIT)
        ),
        "rejected by the host": asks(410, create("no")),
        "refused by the database": asks(410, create("veto")),
        "passing failure": asks(503, create("deadlock")),
        "connection cut": asks(503, create("cut")),
    },
    "bad requests": {
        "wrong body": asks(400, create("")),
        "no JSON": asks(400, lambda key: creation(TOKEN, key, b"{")),
        "wrong key": asks(400, create(key="two words")),
        "wrong token": asks(401, lambda key: creation("x.y.z", key)),
        "no JSON's type": asks(
            415, lambda key: creation(TOKEN, key).replace(b"application/json", b"text/plain")
        ),
        "unknown path": asks(404, lambda _: get("/nothing")),
        "unknown method": asks(405, lambda _: get("/v1/groups", "Content-Length: 0\r\n", "PUT")),
        "unreadable": _send_garbage,
        "hung up while waiting": _hang_up_while_waiting,
        "hung up in the head": _hang_up_in_the_head,
        "hung up in the body": _hang_up_in_the_body,
        "hung up with requests queued": _hang_up_with_requests_queued,
        "one request": _connect_for_one_request,
    },
    "reads": {
        "attempt": asks(200, lambda _: get("/v1/attempts/same")),
        "no attempt": asks(404, lambda key: get(f"/v1/attempts/{key}")),
        "history": asks(200, lambda _: get("/v1/attempts/same/history")),
        "no history": asks(404, lambda key: get(f"/v1/attempts/{key}/history")),
        "groups": asks(200, lambda _: get("/v1/groups?limit=3")),
        "wrong cursor": asks(400, lambda _: get("/v1/groups?cursor=x")),
        "group": asks(200, lambda _: get(f"/v1/groups/{group_id('alice', 'same')}")),
        "no group": asks(404, lambda _: get(f"/v1/groups/{uuid4()}")),
        "members": asks(200, lambda _: get(f"/v1/groups/{group_id('alice', 'same')}/members")),
        "ready": asks(200, lambda _: get("/readyz")),
        "description": asks(200, lambda _: get("/openapi.json")),
    },
    "sessions": {
        "goodbye": websocket(sends(GOODBYE)),
        "unwanted text": websocket(sends(TEXT)),
        "malformed frame": websocket(sends(MALFORMED)),
        "vanished": websocket(vanishes),
        "event": websocket(hears),
        "interrupted": websocket(closes(CloseCode.EVENTS_MISSED)),
        "token ended": websocket(closes(CloseCode.TOKEN_ENDED)),
        "too slow": websocket(closes(CloseCode.TOO_SLOW)),
        "position lost": resumes_nowhere(WEBSOCKET),
        "SSE vanished": event_stream(vanishes),
        "SSE event": event_stream(hears),
        "SSE interrupted": event_stream(closes(CloseCode.EVENTS_MISSED, is_sse=True)),
        "SSE position lost": resumes_nowhere(EVENT_STREAM),
    },
}
BOUNDS = dict.fromkeys(("unknown path", "unknown method"), UNKNOWN_PATH_OBJECTS)


async def reject_some(_: Connection, created: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
    """A host's hook."""
    if any(new_group.name == "no" for _, new_group in created):
        raise GroupRejected("no", "not here")


@asynccontextmanager
async def running_world(database_url: str, *, has_hook: bool) -> AsyncIterator[World]:
    """Serve a database that has what the steps need."""
    options: AppOptions = {
        "dsn": database_url,
        "tokens": TokenSettings(jwt_secret=SECRET),
        "settings": ComponentSettings(creator=CreatorSettings(lease_seconds=LEASE_SECONDS)),
    }
    if has_hook:
        options["on_create"] = reject_some
    app = create_app(**options)
    async with serving(app, host="127.0.0.1", port=0) as port:
        connection = await connect(database_url)
        await connection.execute(FAULTS)
        body = NewGroup.parse(UserId("alice"), {"name": "Team"})
        await pend(connection, PENDING_KEY, body.fingerprint())
        await connection.close()
        world = World(app, port, await SocketClient().connect(port), count())
        assert 201 == await world.kept.ask(creation(TOKEN, "same", b'{"name": "Team"}'))
        yield world
        world.kept.close()


async def left_behind(world: World, step: Step) -> int:
    """Return how many objects are unreachable after so many times."""
    tasks = len(asyncio.all_tasks())
    # The first time fills caches, opens connections.
    for times in (2, TIMES):
        gc.collect()
        for _ in range(times):
            await step(world)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        # What has ended in this turn of the loop is freed in the next.
        await asyncio.sleep(0)
    return gc.collect()


def garbage_of(group: str, database_url: str) -> dict[str, int]:
    """Return what each step of a group leaves behind, beyond its bound."""

    async def play() -> dict[str, int]:
        async with running_world(database_url, has_hook=group == "creations") as world:
            found = {name: await left_behind(world, step) for name, step in GROUPS[group].items()}
        return {n: left for n, left in found.items() if left > TIMES * BOUNDS.get(n, 0)}

    gc.disable()
    # What the run has made before is none of it, and looking through it takes most of the time.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=False) as runner:
            return runner.run(play())
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_is_left_for_the_garbage_collector(group: str, database_url: str) -> None:
    """After any request and any end of a session, but for a few objects of aiohttp's."""
    assert {} == garbage_of(group, database_url)


@pytest.mark.parametrize("group", ["bad requests", "sessions"])
def test_errors_that_keep_their_frames_are_noticed(
    group: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the same count, with tracebacks left in place."""
    for module in (problems, event_streams):
        monkeypatch.setattr(module, "drop_frames", lambda _: None)
    found = garbage_of(group, database_url)
    expected = {"bad requests": {"unknown path", "unknown method"}, "sessions": {"malformed frame"}}
    assert expected[group] <= found.keys()
