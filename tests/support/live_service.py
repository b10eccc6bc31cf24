"""A service whose sessions are under test, and whose tail reads only when a test has it read."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import aiohttp
import orjson

from stretto.assembly.application import create_app
from stretto.assembly.settings import ComponentSettings
from stretto.events.tail import LogTail
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.settings import StreamSettings
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, TEAM, Api, connected_api, token_of
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from stretto.events.hub import SessionHub
    from stretto.events.settings import HubSettings

_read = LogTail.run_once
# Nothing here takes as long: a session that hangs must not hang the suite.
DEADLINE_SECONDS = 60
STREAM = {"Accept": "text/event-stream"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@dataclass(slots=True)
class ServerSentEvent:
    """One block of an event stream."""

    id: str | None = None
    type: str = "message"
    data: str = ""
    comment: str | None = None

    @property
    def json(self) -> Any:
        """The data, which must be JSON."""
        return orjson.loads(self.data)


class SseClient:
    """Reads an event stream as the standard says, one block at a time."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> ServerSentEvent:
        """Return the next block; raises `EOFError` at the end."""
        block = ServerSentEvent()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while line := (await self.response.content.readline()).decode():
                if line == "\n":
                    return block
                name, _, value = line.rstrip("\n").partition(":")
                match name:
                    case "":
                        block.comment = value
                    case "id":
                        block.id = value.removeprefix(" ")
                    case "event":
                        block.type = value.removeprefix(" ")
                    case "data":
                        block.data += value.removeprefix(" ")
        raise EOFError


class WebSocketClient:
    """Reads a session's messages."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def next(self) -> Any:
        """Return the next message's document; fails when the session is closed."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return orjson.loads(await self.socket.receive_str())

    async def close_code(self) -> int | None:
        """Read to the end; return the code."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for _ in self.socket:
                pass
        return self.socket.close_code


@dataclass(frozen=True, slots=True)
class LiveService:
    """A running service, from outside and from inside."""

    api: Api
    app: web.Application

    @property
    def hub(self) -> SessionHub:
        """Its hub."""
        return self.app[SERVICE].hub

    @asynccontextmanager
    async def websocket(
        self, user: str = "bob", *, since: str | None = None, **options: Any
    ) -> AsyncIterator[WebSocketClient]:
        """Open a WebSocket session; it has got its position."""
        options.setdefault("headers", {"Authorization": f"Bearer {token_of(user)}"})
        params = {} if since is None else {"since": since}
        async with self.api.session.ws_connect(
            self.api.url + "/v1/events", params=params, **options
        ) as socket:
            yield WebSocketClient(socket)

    @asynccontextmanager
    async def sse(self, user: str = "bob", **headers: str) -> AsyncIterator[SseClient]:
        """Open an SSE session."""
        headers = {
            "Authorization": f"Bearer {token_of(user)}",
            "Accept": "text/event-stream",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        async with self.api.session.get(
            self.api.url + "/v1/events", headers=headers, timeout=aiohttp.ClientTimeout()
        ) as response:
            assert response.status == 200, await response.read()
            yield SseClient(response)

    async def create(self, key: str) -> str:
        """Create a group of alice, bob and carol; return its id."""
        return str((await self.api.create(key, TEAM)).json["group_id"])

    async def tail_once(self) -> int:
        """Deliver all that has committed, as the tail does; return how many events that were."""
        if self.hub.place is None or not self.hub:
            return 0
        tail = self._tail()
        with patch.object(self.hub, "deliver", wraps=self.hub.deliver) as deliver:
            while await _read(tail):
                pass
        return deliver.call_count

    async def emptied(self) -> None:
        """Wait until no client is connected, no session has a task, and the log is not followed."""
        await until(lambda: not (len(self.hub) or session_tasks()))
        self._tail().wake()
        await until(lambda: self.hub.place is None)

    def _tail(self) -> LogTail:
        runs = self.app[SERVICE].runner._runs
        return next(actor for actor in runs if isinstance(actor, LogTail))


class MuteClient:
    """A client that opens a session and never reads a byte."""

    def __init__(self, live: LiveService, headers: dict[str, str]) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        host, _, port = live.api.url.removeprefix("http://").partition(":")
        self.address = host, int(port)
        lines = {**headers, "Host": host, "Authorization": f"Bearer {token_of('bob')}"}
        self.request = "".join(f"{name}: {value}\r\n" for name, value in lines.items())

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, self.address)
        request = f"GET /v1/events HTTP/1.1\r\n{self.request}\r\n"
        await loop.sock_sendall(self.socket, request.encode())

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()


def session_tasks() -> list[str]:
    """Return the names of the tasks that serve a session."""
    return [
        task.get_name()
        for task in asyncio.all_tasks()
        if "session" in task.get_name() and "hub" not in task.get_name()
    ]


@asynccontextmanager
async def live_service(
    database_url: str, hub: HubSettings | None = None, streams: StreamSettings | None = None
) -> AsyncIterator[LiveService]:
    """Serve a database in this process."""
    settings = ComponentSettings() if hub is None else ComponentSettings(hub=hub)
    app = create_app(
        dsn=database_url,
        tokens=TokenSettings(jwt_secret=SECRET),
        settings=settings,
        streams=streams or StreamSettings(),
    )
    # The tests have it read, step by step.
    with patch.object(LogTail, "run_once", _at_rest):
        async with (
            serving(app, host="127.0.0.1", port=0) as port,
            connected_api(f"http://127.0.0.1:{port}") as api,
        ):
            yield LiveService(api, app)


async def _at_rest(tail: LogTail) -> int:
    """Find the place at which the first session begins, and read nothing from there on."""
    hub = tail._hub
    return 0 if hub and hub.place is not None else await _read(tail)
