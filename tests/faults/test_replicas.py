"""Replicas on one PostgreSQL and one NATS, as docker-compose.yml has them, with parts killed."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import aiohttp
import orjson
import pytest_asyncio

from api_client import Api, connected_api, token_of
from live_service import SseClient
from nats_process import NatsProcess, commanded, nats_client, stored
from stretto.bus.nats import STREAM, SUBJECT
from stretto.protocol.sessions import CloseCode
from stretto.storage.check import check_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    import asyncpg
    from nats.aio.client import Client

    from service_process import ServiceProcess

    Connection = asyncpg.Connection[asyncpg.Record]
    StartService = Callable[..., Awaitable[ServiceProcess]]

DEADLINE_SECONDS = 60
MEMBERS = ["bob", "carol", "dave", "erin"]
TEAM = {"name": "Team", "members": MEMBERS}


class Member:
    """A client that stays: whenever its session ends, it resumes at whichever replica it gets."""

    def __init__(self, user: str, urls: list[str], *, sse: bool) -> None:
        self.user = user
        self.urls = urls
        self.sse = sse
        self.position: str | None = None
        self.heard: list[str] = []
        self.codes: list[int | None] = []
        self._changed = asyncio.Event()

    async def stay(self) -> None:
        """Be connected until cancelled."""
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token_of(self.user)}"},
            timeout=aiohttp.ClientTimeout(sock_connect=5),
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
            async for message in socket:
                document = orjson.loads(message.data)
                self._hear(document["position"], document.get("event"))
        self.codes.append(socket.close_code)

    async def _stream(self, session: aiohttp.ClientSession, url: str) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.position is not None:
            headers["Last-Event-ID"] = self.position
        async with session.get(url, headers=headers) as response:
            response.raise_for_status()
            events = SseClient(response)
            while True:
                event = await events.next()
                if event.id is not None:
                    self._hear(event.id, event.json if event.data else None)

    def _hear(self, position: str, event: dict[str, str] | None) -> None:
        self.position = position
        if event is not None:
            self.heard.append(event["id"])
        self._changed.set()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    """A NATS of this test alone."""
    async with NatsProcess(tmp_path / "nats") as server:
        yield server


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
        self._loads = itertools.count()

    async def replica(self) -> ServiceProcess:
        """Start a replica."""
        service = await self._start_service(
            NATS_URL=self.server.url,
            # What a killed replica had taken is sent soon.
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


@pytest_asyncio.fixture
async def topology(
    start_service: StartService, server: NatsProcess, database_url: str
) -> AsyncIterator[Topology]:
    """Nothing started yet but NATS."""
    async with AsyncExitStack() as stack:
        yield Topology(stack, start_service, server, database_url)


async def delivered(connection: Connection) -> set[str]:
    """Wait until the outbox is empty; return the events of all committed groups."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await connection.fetchval("SELECT count(*) FROM outbox WHERE delivered_at IS NULL"):
            await asyncio.sleep(0)
    assert [] == (await check_database(connection, retention_days=30)).faults
    rows = await connection.fetch(
        "SELECT event_id FROM outbox JOIN chat_group ON group_id = outbox.subject"
    )
    return {str(row["event_id"]) for row in rows}


async def observed(server: NatsProcess) -> list[str]:
    """Return the ids of all events as a consumer that knows nothing of stretto reads them."""
    async with nats_client(server.url) as client:
        messages = [m for m in await stored(client, STREAM) if m.subject == SUBJECT]
    for message in messages:
        assert message.headers is not None
        assert orjson.loads(message.data)["id"] == message.headers["Nats-Msg-Id"]
    return [orjson.loads(message.data)["id"] for message in messages]


async def test_a_member_at_one_replica_hears_of_a_group_made_at_another(
    topology: Topology, connection: Connection
) -> None:
    """Each once, over either way."""
    first, second = await topology.replica(), await topology.replica()
    members = await topology.members()
    for service in (first, second):
        async with connected_api(service.url) as api:
            assert 201 == (await api.create(service.url, TEAM)).status
    events = await delivered(connection)
    assert 2 == len(events)
    for member in members:
        await member.until(lambda member=member: len(member.heard) >= 2)  # type: ignore[misc]
        assert sorted(events) == sorted(member.heard)


async def test_every_member_hears_of_every_group_although_a_replica_is_killed(
    topology: Topology, connection: Connection
) -> None:
    """Under load; the sessions of the killed one resume at the other and end with the full list."""
    killed, _ = await topology.replica(), await topology.replica()
    members = await topology.members()
    async with topology.load():
        await members[0].until(lambda: len(members[0].heard) >= 20)
        await topology.kill(killed)
    events = await delivered(connection)
    assert len(events) > 20
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]
        assert events == set(member.heard)


async def test_an_independent_consumer_sees_every_event_whatever_is_killed(
    topology: Topology, connection: Connection
) -> None:
    """None missing, none without a group, duplicates under one id (G8); members hear all as well."""
    replicas = [await topology.replica(), await topology.replica()]
    members = await topology.members()
    for _ in range(2):
        async with topology.load():
            heard = len(members[0].heard)
            await members[0].until(lambda heard=heard: len(members[0].heard) > heard)  # type: ignore[misc]
            await topology.server.kill()
            await topology.kill(replicas.pop(0))
            await topology.server.start()
            replicas.append(await topology.replica())
    events = await delivered(connection)
    assert events == set(await observed(topology.server))
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]
        assert events == set(member.heard)


async def test_an_event_that_is_marked_before_it_is_acknowledged_is_missed(
    topology: Topology, connection: Connection
) -> None:
    """The test above can fail: a relay that did not wait for NATS would lose events."""
    await topology.replica()
    await topology.create("kept")
    kept = await delivered(connection)
    await topology.server.kill()
    await topology.create("lost")
    await connection.execute("UPDATE outbox SET delivered_at = clock_timestamp()")
    await topology.server.start()
    assert kept == set(await observed(topology.server))
    assert kept < await delivered(connection)


async def test_creations_go_on_without_nats_and_are_told_of_later(
    topology: Topology, connection: Connection
) -> None:
    """Nobody has to do anything but start it again."""
    service = await topology.replica()
    members = await topology.members()
    await topology.server.kill()
    async with connected_api(service.url) as api:
        for number in range(10):
            assert 201 == (await api.create(f"k{number}", TEAM)).status
        assert 200 == (await api.get("/readyz")).status
    assert 10 == await connection.fetchval("SELECT count(*) FROM outbox WHERE delivered_at IS NULL")
    await topology.server.start()
    events = await delivered(connection)
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]


async def test_where_nats_has_lost_its_stream_sessions_resume_from_the_database(
    topology: Topology, connection: Connection
) -> None:
    """They are told so by a close code, and end with the full list."""
    await topology.replica()
    members = await topology.members()
    await topology.create("before")
    for member in members:
        await member.until(lambda member=member: len(member.heard) == 1)  # type: ignore[misc]
    await topology.server.kill()
    await topology.create("lost")
    # As if it had been handed over, acknowledged, and then lost with the disk.
    await connection.execute("UPDATE outbox SET delivered_at = clock_timestamp()")
    shutil.rmtree(topology.server.folder)
    await topology.server.start()
    for member in members:
        await member.until(lambda member=member: len(set(member.heard)) == 2)  # type: ignore[misc]
    assert CloseCode.EVENTS_MISSED in members[0].codes
    await topology.create("after")
    events = await delivered(connection)
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]


async def test_one_key_over_http_and_bus_is_one_attempt_at_all_replicas(
    topology: Topology, connection: Connection
) -> None:
    """Real processes, the same key four times at once each way."""
    services = [await topology.replica(), await topology.replica()]
    async with nats_client(topology.server.url) as client, AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(connected_api(each.url)) for each in services]
        replies = await asyncio.gather(
            *(over_bus(client, "k") for _ in range(4)),
            *(over_http(api, "k") for api in apis * 2),
        )
    assert 1 == len(set(replies))
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")
    assert 1 == len(await connection.fetch("SELECT * FROM outbox"))


async def over_http(api: Api, key: str) -> bytes:
    """Create a group; return the body."""
    reply = await api.create(key, TEAM)
    assert 201 == reply.status
    return reply.body


async def over_bus(client: Client, key: str) -> bytes:
    """Create a group by command; return the body of its outcome."""
    return (await commanded(client, key, TEAM)).data
