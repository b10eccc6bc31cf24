"""The alerts of `monitoring/` on real services, scraped by a real Prometheus."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import aiohttp

from support.api_client import connected_api
from support.database import END_OURS, own_database, set_read_only
from support.nats_process import NatsProcess
from support.ports import free_port
from support.prometheus import running_prometheus
from support.service_process import ServiceProcess
from support.waiting import until
from support.webhook_receiver import receiving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.api_client import Api
    from support.database import Connection
    from support.prometheus import Prometheus
    from support.webhook_receiver import Receiver

# An alert that has to last five minutes, over a window of five, takes ten seconds here, and more where the
# processors are taken.
ALERT_SECONDS = 120
# At once, for an overload.
CLIENTS = 20
BROKEN_KEY = "broken"
WEBHOOK_SECRET = "whsec_" + base64.b64encode(bytes(24)).decode()
# Failed attempts whose groups exist: what must never be.
BREAK_GUARANTEE = """ALTER TABLE attempt DISABLE TRIGGER ALL;
    UPDATE attempt SET status = 'failed', conversation_id = NULL, failure_code = 'x',
                       failure_detail = 'y'
    WHERE status = 'succeeded'"""


class Watched:
    """A service with its traffic, and what Prometheus says of it."""

    def __init__(self, prometheus: Prometheus, api: Api, job: str) -> None:
        self._prometheus = prometheus
        self._api = api
        self._job = job

    async def create(self, key: str) -> None:
        """Create a group."""
        assert 201 == (await self._api.create(key)).status

    async def until_scraped(self) -> None:
        """Wait for the first scrape."""
        await until(lambda: self._prometheus.has(f'up{{job="{self._job}"}} == 1'))

    async def until_firing(self, *alerts: str, clients: int = 1) -> None:
        """Send requests until each of these has fired."""
        missing = {*alerts}

        def have_fired(firing: set[str]) -> bool:
            missing.difference_update(firing)
            return not missing

        await self._until(have_fired, clients)

    async def until_silent(self, *alerts: str) -> None:
        """Send requests until none of these fires."""
        await self._until(lambda firing: not {*alerts} & firing, 1)

    async def _until(self, holds: Callable[[set[str]], bool], clients: int) -> None:
        seen: set[str] = set()

        async def look() -> bool:
            await asyncio.gather(*(self._ask() for _ in range(clients)))
            firing = await self._prometheus.firing()
            seen.clear()
            seen.update(name for name, job in firing if job == self._job)
            return holds(seen)

        try:
            await until(look, ALERT_SECONDS)
        except TimeoutError:
            raise AssertionError(f"firing: {sorted(seen)}") from None

    async def _ask(self) -> None:
        """Create a group and look whether the service is ready, as clients and balancers do."""
        try:
            await self._api.create(str(uuid4()), wait=0)
            await self._api.get("/readyz", user=None)
        except aiohttp.ClientError:
            # It is down.
            return


async def _lose_worker_bus_webhook_and_capacity(
    watched: Watched, service: ServiceProcess, nats: NatsProcess, receiver: Receiver
) -> None:
    # A counter that is first seen when it has counted does not grow.
    await watched.until_scraped()
    receiver.answers.extend({"status": 500} for _ in range(100_000))
    os.kill(service.workers()[0], signal.SIGKILL)
    await nats.kill()
    lost = ("StrettoWorkerDied", "StrettoRelayBehind", "StrettoWebhookFailing", "StrettoOverloaded")
    await watched.until_firing(*lost, clients=CLIENTS)
    receiver.answers.clear()
    await nats.start()
    await watched.until_silent(*lost)


async def _lose_database_process_and_guarantee(
    watched: Watched, settings: dict[str, str], connection: Connection
) -> None:
    async with ServiceProcess(settings):
        await watched.create(BROKEN_KEY)
        away = ("StrettoNotReady", "StrettoDatabaseUnavailable")
        await set_read_only(connection, is_read_only=True)
        await connection.execute(END_OURS)
        await watched.until_firing(*away)
        await set_read_only(connection, is_read_only=False)
        await watched.until_silent(*away)

    down = ("StrettoDown", "StrettoInstanceDown")
    await watched.until_firing(*down)
    await connection.execute(BREAK_GUARANTEE)
    # Another process: the first one would have answered from its memory.
    async with ServiceProcess(settings):
        await watched.create(BROKEN_KEY)
        await watched.until_firing("StrettoGuaranteeBroken")
        await watched.until_silent(*down)
    async with ServiceProcess(settings):
        await watched.until_silent("StrettoGuaranteeBroken", *down)


async def test_alerts_fire_while_something_is_broken_and_fall_silent_afterwards(
    server_url: str, connection: Connection, tmp_path: Path
) -> None:
    """Two services at once: one loses parts, the other one all."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nats, receiver = await enter(NatsProcess(tmp_path / "nats")), await enter(receiving())
        connected = await enter(
            ServiceProcess(
                {
                    "DATABASE_URL": await enter(own_database(os.environ["TEST_POSTGRES_URL"])),
                    "WORKERS": "2",
                    "NATS_URL": nats.url,
                    "WEBHOOK_URL": receiver.url,
                    "WEBHOOK_SECRET": WEBHOOK_SECRET,
                    "WEBHOOK_ALLOW_PRIVATE": "true",
                    # Of three creations at once, one is too many.
                    "MAILBOX_MAX": "1",
                    "BATCH_MAX": "1",
                    "WRITERS": "1",
                }
            )
        )
        await connected.logged(b"service.started", times=2)
        settings = {"DATABASE_URL": server_url, "PORT": str(free_port())}
        urls = {
            "connected": connected.url,
            # The alerts on what does not answer are for a job of this name.
            "stretto": f"http://127.0.0.1:{settings['PORT']}",
        }
        prometheus = await enter(
            running_prometheus(tmp_path, {job: [url] for job, url in urls.items()})
        )
        watched = {
            job: Watched(prometheus, await enter(connected_api(url)), job)
            for job, url in urls.items()
        }
        await asyncio.gather(
            _lose_worker_bus_webhook_and_capacity(watched["connected"], connected, nats, receiver),
            _lose_database_process_and_guarantee(watched["stretto"], settings, connection),
        )
