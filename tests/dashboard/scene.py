"""Two instances under load, with everything that the dashboard has a panel for, and what breaks."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import aiohttp
import asyncpg
import nats
import nats.errors
import orjson

from dashboard.panels import PACE
from stretto.domain import NewGroup, UserId
from support.api_client import TEAM, connected_api, token_of
from support.database import END_OURS, connect, pend, set_read_only
from support.nats_process import OURS, NatsProcess
from support.prometheus import running_prometheus
from support.service_process import ServiceProcess
from support.topology import Member
from support.waiting import until
from support.webhook_receiver import receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from support.api_client import Api
    from support.database import Connection
    from support.prometheus import Prometheus
    from support.webhook_receiver import Receiver

WEBHOOK_SECRET: Final = "whsec_" + base64.b64encode(bytes(24)).decode()
CREATORS: Final = 4
MEMBERS: Final = ("bob", "carol", "alice")
# Of one instance; with three times as many at once, most are rejected.
MAILBOX_MAX: Final = 16
SETTINGS: Final = {
    "WEBHOOK_SECRET": WEBHOOK_SECRET,
    "WEBHOOK_ALLOW_PRIVATE": "true",
    "MAILBOX_MAX": str(MAILBOX_MAX),
    "RELAY_LEASE_SECONDS": "1",
}


@dataclass(slots=True)
class Scene:
    """What runs, and what was broken when: seconds since the start, and words."""

    services: list[ServiceProcess]
    apis: list[Api]
    bus: NatsProcess
    receiver: Receiver
    connection: Connection
    prometheus: Prometheus
    broken: list[tuple[float, str]] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    async def play(self, seconds: float) -> None:
        """Load the instances, and break one thing after the other, over so many seconds."""
        acts: tuple[tuple[float, str, Callable[[float], Awaitable[None]]], ...] = (
            (0.12, "a worker is killed", self._kill_worker),
            (0.24, "NATS is away", self._lose_bus),
            (0.42, "the webhook's endpoint answers 500", self._fail_webhook),
            (0.54, "a table is locked", self._lock),
            (0.66, "the database is read-only", self._stop_writes),
            (0.84, "three times as many creations as find a place", self._overload),
        )
        async with asyncio.TaskGroup() as tasks:
            load = [
                *(tasks.create_task(self._create(api)) for api in self.apis * CREATORS),
                *(tasks.create_task(self._look(api)) for api in self.apis),
                *(
                    tasks.create_task(Member(user, [service.url], sse=sse).stay())
                    for user in MEMBERS
                    for service in self.services
                    for sse in (True, False)
                ),
                tasks.create_task(self._command()),
            ]
            for start, words, act in acts:
                await asyncio.sleep(self.started + start * seconds - time.time())
                self.broken.append((time.time() - self.started, words))
                await act(seconds)
            await asyncio.sleep(self.started + seconds - time.time())
            for task in load:
                task.cancel()

    async def _create(self, api: Api) -> None:
        """Create groups; some requests are sent again as they are, or with another body."""
        while True:
            key = str(uuid4())
            bodies = [TEAM, *random.choices(([], [TEAM], [{"name": "Other"}]), (6, 3, 1))[0]]
            for body in bodies:
                with suppress(aiohttp.ClientError):
                    await api.create(key, body, wait=1)
            await asyncio.sleep(random.expovariate(8))

    async def _look(self, api: Api) -> None:
        """Ask what load balancers and clients ask; open a session now and then for a moment."""
        while True:
            with suppress(aiohttp.ClientError):
                await api.get("/readyz", user=None)
                await api.get("/v1/groups")
                url, headers = (
                    f"{api.url}/v1/events",
                    {"Authorization": f"Bearer {token_of('dave')}"},
                )
                async with api.session.ws_connect(url, headers=headers):
                    pass
            await asyncio.sleep(0.2)

    async def _command(self) -> None:
        """Send commands; NATS may be away."""
        while True:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                client = await nats.connect(
                    self.bus.url, error_cb=_ignore, allow_reconnect=False, connect_timeout=1
                )
                try:
                    while True:
                        headers = {"Idempotency-Key": str(uuid4()), "Stretto-Owner": "alice"}
                        await client.jetstream().publish(
                            OURS.command_subject, orjson.dumps(TEAM), headers=headers
                        )
                        await asyncio.sleep(0.2)
                finally:
                    await client.close()
            await asyncio.sleep(0.2)

    async def _kill_worker(self, seconds: float) -> None:
        os.kill(self.services[0].workers()[0], signal.SIGKILL)
        # What a leader that died has left: the next request with the key takes it over.
        fingerprint = NewGroup.parse(UserId("alice"), TEAM).fingerprint()
        await pend(self.connection, "left", fingerprint, seconds_ago=60)
        with suppress(aiohttp.ClientError):
            await self.apis[1].create("left")

    async def _lose_bus(self, seconds: float) -> None:
        await self.bus.kill()
        await asyncio.sleep(seconds / 10)
        await self.bus.start()

    async def _fail_webhook(self, seconds: float) -> None:
        self.receiver.answers.extend({"status": 500} for _ in range(20))

    async def _lock(self, seconds: float) -> None:
        async with self.connection.transaction():
            await self.connection.execute("LOCK TABLE conversation")
            await asyncio.sleep(max(1.5, seconds / 20))

    async def _stop_writes(self, seconds: float) -> None:
        await set_read_only(self.connection, is_read_only=True)
        await self.connection.execute(END_OURS)
        await asyncio.sleep(seconds / 12)
        await set_read_only(self.connection, is_read_only=False)
        await self.connection.execute(END_OURS)

    async def _overload(self, seconds: float) -> None:
        end = time.time() + seconds / 15
        while time.time() < end:
            calls = (self.apis[1].create(str(uuid4()), wait=0) for _ in range(3 * MAILBOX_MAX))
            await asyncio.gather(*calls, return_exceptions=True)


@asynccontextmanager
async def staged(database_url: str, folder: Path) -> AsyncIterator[Scene]:
    """Start all of it on a database: one instance has two workers, one has none."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        connection = await connect(database_url)
        stack.push_async_callback(_close, connection)
        bus, receiver = await enter(NatsProcess(folder / "nats")), await enter(receiving())
        settings = {
            **SETTINGS,
            "DATABASE_URL": database_url,
            "NATS_URL": bus.url,
            "WEBHOOK_URL": receiver.url,
        }
        services = [
            await enter(ServiceProcess(settings | more))
            for more in ({"WORKERS": "2"}, {"BATCH_MAX": "4", "WRITERS": "1"})
        ]
        urls = [service.url for service in services]
        prometheus = await enter(running_prometheus(folder, {"stretto": urls}, PACE))
        await until(lambda: prometheus.has('sum(up{job="stretto"}) == 2'))
        apis = [await enter(connected_api(url)) for url in urls]
        yield Scene(services, apis, bus, receiver, connection, prometheus)


async def _close(connection: Connection) -> None:
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
        await connection.close()


async def _ignore(_: Exception) -> None:
    """NATS is away because the scene wants it so."""
