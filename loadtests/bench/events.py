"""The parts that measure live sessions: latency, fan-out, the cost of idle and mute sessions."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from loadtests.bench.accounts import cpu_seconds
from loadtests.bench.bench import OWNER
from loadtests.bench.listeners import listeners
from loadtests.bench.machinery import (
    SECRET,
    BenchError,
    Measure,
    python,
    resident_mib,
    serving,
    wrk,
)

from stretto.domain import UserId
from stretto.embedded.nats import embedded_nats
from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from loadtests.bench.bench import Bench

FAN_OUT_SESSIONS = 5_000
IDLE_SESSIONS = 10_000
# At any scale.
SESSIONS_MIN = 500
PER_USER = 10
SETTLE_SECONDS = 2.0
ARRIVAL_SECONDS = 10.0
MUTE_EVENTS = 3_000
MUTE_EVENT_BYTES = 4_000
LOAD_CONNECTIONS = 64
PROBE_SECONDS = 0.02


class Sessions:
    """A running service whose hub can deliver events."""

    def __init__(self, url: str, pid: int, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.pid = pid
        self._client = client

    async def deliver(self, **query: int) -> dict[str, Any]:
        """Deliver events; return the service's answer."""
        async with self._client.post(f"{self.url}/deliver", params=query) as response:
            document: dict[str, Any] = await response.json()
            return document


@asynccontextmanager
async def _sessions(bench: Bench) -> AsyncIterator[Sessions]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    command = python("-m", "loadtests.bench.sessions_server")
    async with (
        bench.database() as (dsn, _),
        serving(*command, ready=b"sessions.started", env=bench.environment(DATABASE_URL=dsn)) as (
            process,
            started,
        ),
        aiohttp.ClientSession() as client,
    ):
        yield Sessions(f"http://127.0.0.1:{started['port']}", process.pid, client)


async def fan_out(bench: Bench) -> Measure:
    """Measure the time of one event to many sessions, repeatedly."""
    sessions = _scaled(FAN_OUT_SESSIONS, bench)
    async with (
        _sessions(bench) as service,
        listeners(service.url, sessions, PER_USER) as clients,
    ):
        slowest_ms, sent = [], 1
        until = time.monotonic() + bench.seconds
        while time.monotonic() < until:
            delivered = await service.deliver(users=sessions // PER_USER)
            sent += 1
            async with asyncio.timeout(ARRIVAL_SECONDS):
                await asyncio.gather(*(client.reached(sent) for client in clients))
            last_at = max(client.last_at for client in clients)
            slowest_ms.append((last_at - delivered["began"]) * 1e3)
    slowest_ms.sort()
    return Measure(
        sessions / slowest_ms[len(slowest_ms) // 2] * 1e3,
        slowest_ms[len(slowest_ms) // 2],
        slowest_ms[len(slowest_ms) * 99 // 100],
        more={"slowest_ms": slowest_ms[-1], "sessions": sessions},
    )


async def idle(bench: Bench) -> Measure:
    """Measure what idle sessions cost: memory of the service, CPU time of the database."""
    sessions = _scaled(IDLE_SESSIONS, bench)
    async with _sessions(bench) as service:
        # Memory that the first sessions allocate once is not counted.
        async with listeners(service.url, 100, PER_USER):
            pass
        without = await _postgres_cpu_ms(bench)
        before = resident_mib(service.pid)
        started = time.monotonic()
        async with listeners(service.url, sessions, PER_USER):
            seconds = time.monotonic() - started
            await asyncio.sleep(SETTLE_SECONDS)
            grown = resident_mib(service.pid) - before
            beside = await _postgres_cpu_ms(bench)
    return Measure(
        sessions / seconds,
        0.0,
        0.0,
        more={
            "kib_per_session": grown * 1024 / sessions,
            "memory_mib": before + grown,
            "postgres_ms_per_second": beside,
            "postgres_ms_per_second_without": without,
        },
    )


async def _postgres_cpu_ms(bench: Bench) -> float:
    """Return the CPU time that PostgreSQL uses in a second."""
    before, began = cpu_seconds(bench.server.pid), time.monotonic()
    await asyncio.sleep(bench.seconds)
    return (cpu_seconds(bench.server.pid) - before) / (time.monotonic() - began) * 1e3


def _scaled(sessions: int, bench: Bench) -> int:
    return max(SESSIONS_MIN, round(sessions * bench.scale))


async def mute(bench: Bench) -> Measure:
    """Measure the cost of a session that never reads: its memory, and the others' latency."""
    async with (
        _sessions(bench) as service,
        listeners(service.url, 2, 1) as (mute_one, reader),
    ):
        query = {"users": 2, "bytes": MUTE_EVENT_BYTES}
        await service.deliver(**query)
        before = resident_mib(service.pid)
        mute_one.transport.pause_reading()  # type: ignore[attr-defined]
        began = time.monotonic()
        times_ms = []
        for number in range(MUTE_EVENTS):
            delivered = await service.deliver(**query)
            await reader.reached(number + 3)
            times_ms.append((reader.last_at - delivered["began"]) * 1e3)
        seconds = time.monotonic() - began
        grown = resident_mib(service.pid) - before
        if delivered["sessions"] != 1:
            message = "a session that read nothing was not closed"
            raise BenchError(message)
    times_ms.sort()
    return Measure(
        MUTE_EVENTS / seconds,
        times_ms[MUTE_EVENTS // 2],
        times_ms[MUTE_EVENTS * 99 // 100],
        more={"grown_kib": grown * 1024},
    )


async def create_to_session_through_nats(bench: Bench) -> Measure:
    """Measure the same with events over NATS."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            return await create_to_session(bench, nats.url)


async def create_to_session(bench: Bench, nats_url: str = "") -> Measure:
    """Measure from sending a request to its event's arrival, at half of the peak load."""
    prober, member = UserId("prober"), UserId("member")
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    async with bench.database() as (dsn, _), bench.service(dsn, NATS_URL=nats_url) as (_, port):
        url = f"http://127.0.0.1:{port}"
        peak = await wrk(url, "new", connections=128, seconds=bench.seconds, token=token)
        async with _Probe.opened(url, prober, member) as probe:
            # Also waits until the peak's remaining events are delivered.
            await probe.send("first")
            pause_ms = LOAD_CONNECTIONS / (peak.per_second / 2) * 1e3
            load = asyncio.create_task(
                wrk(
                    url,
                    "new",
                    connections=LOAD_CONNECTIONS,
                    seconds=bench.seconds,
                    token=token,
                    pause_ms=pause_ms,
                )
            )
            times_ms: list[float] = []
            while not load.done():
                times_ms.append(await probe.send(str(len(times_ms))) * 1e3)
                await asyncio.sleep(PROBE_SECONDS)
            loaded = await load
    times_ms.sort()
    return Measure(
        loaded.per_second,
        times_ms[len(times_ms) // 2],
        times_ms[len(times_ms) * 99 // 100],
        more={"peak_per_second": peak.per_second, "probes": len(times_ms)},
    )


class _Probe:
    """Creates groups as one user, and receives their events as another."""

    def __init__(
        self, client: aiohttp.ClientSession, url: str, socket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._client = client
        self._url = url
        self._socket = socket

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, prober: UserId, member: UserId) -> AsyncIterator[_Probe]:
        headers = {
            user: {"Authorization": f"Bearer {make_token(SECRET, user, lifetime_seconds=3600)}"}
            for user in (prober, member)
        }
        async with (
            aiohttp.ClientSession(headers=headers[prober]) as client,
            client.ws_connect(f"{url}/v1/events", headers=headers[member]) as socket,
        ):
            await socket.receive_json()
            yield cls(client, url, socket)

    async def send(self, key: str) -> float:
        """Create a group; return the seconds until its event has arrived."""
        began = time.monotonic()
        async with self._client.post(
            f"{self._url}/v1/groups",
            headers={"Idempotency-Key": f"probe-{key}"},
            json={"name": "Probe", "members": ["member"]},
        ) as response:
            created = await response.json()
        async with asyncio.timeout(ARRIVAL_SECONDS):
            while True:
                message = await self._socket.receive_json()
                if message.get("event", {}).get("subject") == created["group_id"]:
                    return time.monotonic() - began
