"""Rolling restarts of two replicas behind a real haproxy, under clients that never retry.

PYTHONPATH=tests python -m rolling --restarts 10
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from chaos.server import own_server
from support.api_client import connected_api, token_of
from support.ports import free_port
from support.proxies import HAPROXY_DEFAULTS, running_haproxy
from support.raw_client import RawClient, RawClients, creation, raw_clients
from support.service_process import ServiceProcess
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

REPLICAS = 2
CLIENTS = 40
# Of each client, so that all of them together send some 400 requests a second.
PAUSE_SECONDS = 0.1
# Until the next one of a replica serves: what a container takes to be replaced. Longer than haproxy
# tries a server again that refuses connections (three times, a second apart).
AWAY_SECONDS = 4
DEADLINE_SECONDS = 60


def balanced(*urls: str) -> str:
    """Return the configuration of a haproxy that asks `/readyz`, and has its defaults otherwise."""
    servers = "".join(
        f"    server s{number} {url.removeprefix('http://')} check\n"
        for number, url in enumerate(urls)
    )
    return (
        f"{HAPROXY_DEFAULTS}\nlisten front\n    bind {{listen}}\n"
        f"    option httpchk GET /readyz\n{servers}"
    )


class Client:
    """Sends one request after the other on one connection, each of them once."""

    def __init__(self, raw: RawClients, number: int, answered: Counter[str]) -> None:
        self._raw = raw
        self._number = number
        self._answered = answered
        self._token = token_of("alice")

    async def run(self, left: asyncio.Event) -> None:
        """Ask until the event is set; a connection that was closed in between is made again."""
        client: RawClient | None = None
        for turn in itertools.count():
            if left.is_set():
                return
            if client is None or client.is_closed:
                client = await self._raw.connect()
            self._answered[await self._ask(client, self._request(turn))] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    def _request(self, turn: int) -> bytes:
        """Create a group, repeat that byte by byte, then read one's groups."""
        if turn % 3 == 2:
            fields = f"Host: x\r\nAuthorization: Bearer {self._token}\r\n\r\n"
            return f"GET /v1/groups?limit=1 HTTP/1.1\r\n{fields}".encode()
        return creation(self._token, f"{self._number}-{turn // 3}")

    async def _ask(self, client: RawClient, request: bytes) -> str:
        client.send(request)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                status, headers, document = await client.answer()
        except (AssertionError, TimeoutError, ValueError):
            # Closed, silent, or an error page of the load balancer's.
            client.transport.abort()
            return "failed"
        if headers.get("connection", "").lower() == "close":
            await client.closed()
        return " ".join(filter(None, (str(status), document.get("code"))))


@asynccontextmanager
async def load(url: str) -> AsyncIterator[Counter[str]]:
    """Have clients ask as long as the context lasts; yields how they were answered."""
    answered: Counter[str] = Counter()
    left = asyncio.Event()
    async with raw_clients(url) as raw, asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            client = Client(raw, number, answered)
            clients.create_task(client.run(left), name=f"client {number}")
        try:
            yield answered
        finally:
            left.set()


async def roll(dsn: str, restarts: int, settings: Mapping[str, str]) -> Counter[str]:
    """Restart each of two replicas in turn, so many times; return how clients were answered."""
    settings = {"DATABASE_URL": dsn, **settings}
    async with AsyncExitStack() as stack:
        replicas = [
            # A port that no connection gets while its replica is away.
            await stack.enter_async_context(ServiceProcess({**settings, "PORT": str(free_port())}))
            for _ in range(REPLICAS)
        ]
        urls = [replica.url for replica in replicas]
        front = await stack.enter_async_context(running_haproxy(balanced(*urls)))
        async with load(front) as answered:
            for _, number in itertools.product(range(restarts), range(REPLICAS)):
                await _balanced_to(urls[number])
                replicas[number].signal(signal.SIGTERM)
                assert await replicas[number].exited() == 0
                await asyncio.sleep(AWAY_SECONDS)
                port = urls[number].rpartition(":")[2]
                again = ServiceProcess({**settings, "PORT": port})
                replicas[number] = await stack.enter_async_context(again)
                await _balanced_to(urls[number])
    return answered


async def _balanced_to(url: str) -> None:
    """Wait until the load balancer sends requests to a replica."""
    async with connected_api(url) as api:

        async def is_served() -> bool:
            return b'route="/v1/groups",status="20' in (await api.get("/metrics")).body

        # Nothing signals that a load balancer has changed its mind.
        await until(is_served, DEADLINE_SECONDS)


async def main() -> None:
    """Run as many rolling restarts as asked for; print and check what clients were answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--drain-seconds", default="10")
    options = parser.parse_args()
    async with own_server() as server:
        settings = {"DRAIN_SECONDS": options.drain_seconds} if options.drain_seconds else {}
        answered = await roll(server.dsn, options.restarts, settings)
    print(f"{options.restarts} rolling restarts: {dict(answered)}")  # noqa: T201 a program's output
    raise SystemExit(sum(count for how, count in answered.items() if not how.startswith("20")))


if __name__ == "__main__":
    asyncio.run(main())
