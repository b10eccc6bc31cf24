"""Replicas on one PostgreSQL and one NATS, members that stay, and what each has seen."""

from __future__ import annotations

import asyncio
import itertools
import signal
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING
from uuid import UUID

import aiohttp
import orjson

from stretto.postgres.check import check_database
from support.api_client import connected_api, token_of
from support.database import unpublished
from support.live_service import SseClient
from support.nats_process import OURS, nats_client, stored
from support.waiting import until

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    from support.database import Connection
    from support.nats_process import NatsProcess
    from support.service_process import ServiceProcess, StartService

DEADLINE_SECONDS = 60
MEMBERS = ["bob", "carol", "dave", "erin"]
TEAM = {"name": "Team", "members": MEMBERS}


class Member:
    """A client that stays: whenever its session ends, it resumes at whichever replica it gets."""

    def __init__(
        self, user: str, urls: list[str], *, sse: bool, tls: ssl.SSLContext | bool = True
    ) -> None:
        self.user = user
        self.urls = urls
        self.sse = sse
        self._tls = tls
        self.position: str | None = None
        self.heard: list[str] = []
        self.codes: list[int | None] = []
        self._changed = asyncio.Event()

    async def stay(self) -> None:
        """Be connected until cancelled."""
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token_of(self.user)}"},
            timeout=aiohttp.ClientTimeout(sock_connect=5),
            connector=aiohttp.TCPConnector(ssl=self._tls),
        ) as session:
            for number in itertools.count():
                url = self.urls[number % len(self.urls)] + "/v1/events"
                with suppress(aiohttp.ClientError, EOFError, OSError):
                    await (self._stream if self.sse else self._websocket)(session, url)
                await asyncio.sleep(0.01)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that a message has brought about."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def _websocket(self, session: aiohttp.ClientSession, url: str) -> None:
        params = {} if self.position is None else {"since": self.position}
        async with session.ws_connect(url, params=params) as socket:
            while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                document = orjson.loads(message.data)
                self._hear(document["position"], document.get("event"))
        # What the socket itself calls it is 1006 if the service has closed before our reply.
        is_told = message.type is aiohttp.WSMsgType.CLOSE
        self.codes.append(message.data if is_told else socket.close_code)

    async def _stream(self, session: aiohttp.ClientSession, url: str) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.position is not None:
            headers["Last-Event-ID"] = self.position
        async with session.get(url, headers=headers) as response:
            response.raise_for_status()
            events = SseClient(response)
            while True:
                event = await events.next()
                if event.type == "close":
                    self.codes.append(event.json["code"])
                elif event.id is not None:
                    self._hear(event.id, event.json if event.data else None)

    def _hear(self, position: str, event: dict[str, str] | None) -> None:
        self.position = position
        if event is not None:
            self.heard.append(event["id"])
        self._changed.set()


class Topology:
    """Replicas, relays and members; whatever is started here ends with the test."""

    def __init__(
        self,
        stack: AsyncExitStack,
        start_service: StartService,
        server: NatsProcess,
        database_url: str,
    ) -> None:
        self._stack = stack
        self._start_service = start_service
        self.server = server
        self._database_url = database_url
        self.urls: list[str] = []
        self.created: dict[str, UUID] = {}
        """The conversations of the keys whose creation was acknowledged."""
        self._loads = itertools.count()

    async def replica(self) -> ServiceProcess:
        """Start a replica."""
        service = await self._start_service(
            NATS_URL=self.server.url,
            # Soon after a publisher was killed, another one goes on.
            RELAY_LEASE_SECONDS="1",
        )
        self.urls.append(service.url)
        return service

    async def kill(self, service: ServiceProcess) -> None:
        """Kill a replica, whatever it is doing."""
        self.urls.remove(service.url)
        service.signal(signal.SIGKILL)
        await service.exited()

    async def members(self) -> list[Member]:
        """Connect a member of each kind to each replica."""
        members = []
        for number, user in enumerate(MEMBERS):
            # Each begins at another replica; all know of every replica there is.
            member = Member(user, self.urls, sse=number >= 2)
            staying = asyncio.create_task(member.stay(), name=f"member {user}")
            self._stack.push_async_callback(asyncio.wait, (staying,))
            self._stack.callback(staying.cancel)
            members.append(member)
            self.urls.append(self.urls.pop(0))
        for member in members:
            await member.until(lambda member=member: member.position is not None)  # type: ignore[misc]
        return members

    async def create(self, key: str) -> None:
        """Create a group as a client does: until it is answered for good, by whichever replica."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            for number in itertools.count(len(key)):
                url = self.urls[number % len(self.urls)]
                with suppress(aiohttp.ClientError):
                    async with connected_api(url) as api:
                        reply = await api.create(key, TEAM)
                        if reply.status == 201:
                            self.created[key] = UUID(reply.json["conversation_id"])
                            return
                        assert reply.status in (409, 503), reply.body
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Create groups until the block has been left, some of them after that."""
        number = next(self._loads)
        left = asyncio.Event()

        async def work(worker: int) -> None:
            for turn in itertools.count():
                is_last = left.is_set()
                await self.create(f"{number}-{worker}-{turn}")
                if is_last:
                    return

        async with asyncio.TaskGroup() as workers:
            for worker in range(8):
                workers.create_task(work(worker), name=f"load {worker}")
            yield
            left.set()


async def delivered(connection: Connection) -> set[str]:
    """Wait until every event is published; return the events of all committed groups."""

    async def is_published() -> bool:
        return not await unpublished(connection)

    await until(is_published, DEADLINE_SECONDS)
    assert [] == (await check_database(connection, retention_days=30)).violations
    rows = await connection.fetch(
        "SELECT event_id FROM outbox JOIN chat_group ON group_id = outbox.subject"
    )
    return {str(row["event_id"]) for row in rows}


async def observed(server: NatsProcess) -> list[str]:
    """Return the ids of all events as a consumer that knows nothing of stretto reads them."""
    async with nats_client(server.url) as client:
        messages = [
            m for m in await stored(client, OURS.event_stream) if m.subject == OURS.event_subject
        ]
    for message in messages:
        assert message.headers is not None
        assert orjson.loads(message.data)["id"] == message.headers["Nats-Msg-Id"]
    return [orjson.loads(message.data)["id"] for message in messages]
