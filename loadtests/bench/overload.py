"""The parts that measure a service under overload."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from loadtests.bench.accounts import children
from loadtests.bench.arrivals import Plan, arrivals
from loadtests.bench.bench import OWNER
from loadtests.bench.machinery import SECRET, BenchError, Measure, resident_mib

from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadtests.bench.bench import Bench, Connection

OVERLOAD = 3.0
# Enough that no request waits for a free one, which would reduce the load.
OVERLOAD_CONNECTIONS = 6_000
PEAK_CONNECTIONS = 256
STALL_LOAD = 0.8
BEFORE_SECONDS, STALL_SECONDS, AFTER_SECONDS = 5.0, 10.0, 40.0
STALL_CONNECTIONS = 3_000
RECOVERED = 0.95
RETRY_LOAD = 1.5
TRIES = 6
# A writer with tries left makes its next one sooner.
QUIET_SECONDS = 2.0


@dataclass(slots=True)
class Service:
    """A service under load; counts its runs."""

    connection: Connection
    pid: int
    port: int
    runs: int = 0

    def plan(self, **what: Any) -> Plan:
        """Return a plan against this service, with its own keys."""
        self.runs += 1
        token = make_token(SECRET, OWNER, lifetime_seconds=3600)
        url = f"http://127.0.0.1:{self.port}"
        return Plan(url=url, token=token, run=f"r{self.runs}", **what)

    async def run(self, **what: Any) -> dict[str, Any]:
        """Execute a plan to its end."""
        async with arrivals(self.plan(**what)) as clients:
            clients.start()
            return await clients.report()

    async def peak(self, seconds: float) -> float:
        """Return the creations per second in a closed loop."""
        report = await self.run(rate=0.0, seconds=seconds, connections=PEAK_CONNECTIONS)
        return float(report["statuses"]["201"]) / seconds

    async def writes(self) -> float:
        """Return how many writes the writers have got; each is a claim and a lead."""
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{self.port}/metrics") as response,
        ):
            text = await response.text()
        found = re.search(r"^stretto_batch_writes_sum (\S+)", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def groups(self) -> int:
        """Count the groups."""
        count: int = await self.connection.fetchval("SELECT count(*) FROM chat_group")
        return count


async def thrice(bench: Bench) -> Measure:
    """Measure creations and rejections at three times the peak."""
    # By half-time each connection has been used, so its buffers do not count as growth.
    seconds = 2 * bench.seconds
    async with bench.database() as (dsn, connection), bench.service(dsn) as (pid, port):
        here = Service(connection, pid, port)
        peak = await here.peak(bench.seconds)
        before = await here.groups()
        plan = here.plan(rate=OVERLOAD * peak, seconds=seconds, connections=OVERLOAD_CONNECTIONS)
        async with arrivals(plan) as clients:
            clients.start()
            await asyncio.sleep(seconds / 2)
            half_mib = resident_mib(pid)
            report = await clients.report()
            end_mib = resident_mib(pid)
        # The machine's other work may have changed meanwhile.
        peak = (peak + await here.peak(bench.seconds)) / 2
        created = report["statuses"]["201"]
        if before + created > await here.groups():
            raise BenchError("an acknowledged group does not exist")
    goodput = statistics.fmean(report["created_by_second"])
    return Measure(
        goodput,
        report["created_ms"]["p50"],
        report["created_ms"]["p99"],
        created,
        {
            "of_peak": goodput / peak,
            "peak_per_second": peak,
            "asked_per_second": plan.rate,
            "shed": report["statuses"].get("503", 0),
            "unanswered": report["unsent"] + report["statuses"].get("lost", 0),
            "shed_p50_ms": report["shed_ms"]["p50"],
            "shed_p99_ms": report["shed_ms"]["p99"],
            "half_mib": half_mib,
            "end_mib": end_mib,
        },
    )


async def stall(bench: Bench) -> Measure:
    """Measure how soon the rate recovers after the database stood still."""
    scale = max(min(bench.scale, 1.0), 0.1)
    before, still, after = (
        seconds * scale for seconds in (BEFORE_SECONDS * 2, STALL_SECONDS, AFTER_SECONDS)
    )
    async with bench.database() as (dsn, connection), bench.service(dsn) as (pid, port):
        here = Service(connection, pid, port)
        peak = await here.peak(bench.seconds)
        plan = here.plan(
            rate=STALL_LOAD * peak,
            seconds=before + still + after,
            connections=STALL_CONNECTIONS,
            tries=TRIES,
        )
        groups, writes = await here.groups(), await here.writes()
        async with arrivals(plan) as clients:
            clients.start()
            started = time.monotonic()
            await asyncio.sleep(before)
            with _stopped(bench.server.pid):
                await asyncio.sleep(still)
            resumed = time.monotonic() - started
            report = await clients.report()
            end_mib = resident_mib(pid)
        writes = (await here.writes() - writes) / (await _settled(here) - groups)
    by_second: list[int] = report["created_by_second"]
    rate = statistics.fmean(by_second[1 : int(before)] or by_second[:1])
    seconds = _seconds_until(by_second, int(resumed), RECOVERED * rate)
    return Measure(
        rate,
        report["created_ms"]["p50"],
        report["created_ms"]["p99"],
        report["statuses"]["201"],
        {
            "recovered_seconds": seconds,
            "last_ten_of_before": statistics.fmean(by_second[-10:]) / rate,
            "writes_per_key": writes,
            "shed": report["statuses"].get("503", 0),
            "end_mib": end_mib,
        },
    )


async def retries(bench: Bench) -> Measure:
    """Measure how many writes a key takes when all rejected clients retry."""
    async with bench.database() as (dsn, connection), bench.service(dsn) as (pid, port):
        here = Service(connection, pid, port)
        peak = await here.peak(bench.seconds)
        groups, writes = await here.groups(), await here.writes()
        report = await here.run(
            rate=RETRY_LOAD * peak,
            seconds=bench.seconds,
            connections=OVERLOAD_CONNECTIONS,
            tries=TRIES,
        )
        writes = (await here.writes() - writes) / (await _settled(here) - groups)
    return Measure(
        statistics.fmean(report["created_by_second"]),
        report["created_ms"]["p50"],
        report["created_ms"]["p99"],
        report["statuses"]["201"],
        {
            "writes_per_key": writes,
            "requests_per_key": sum(report["statuses"].values())
            / max(report["statuses"]["201"], 1),
            "asked_per_second": RETRY_LOAD * peak,
        },
    )


async def _settled(here: Service) -> int:
    """Return the number of groups, once the last write of abandoned requests is done.

    An attempt that a write could not settle stays pending: its client has given up as well.
    """
    groups, seen = await here.groups(), -1
    while groups != seen:
        await asyncio.sleep(QUIET_SECONDS)
        groups, seen = await here.groups(), groups
    return groups


def _seconds_until(by_second: list[int], resumed: int, rate: float) -> float:
    """Return the seconds until three seconds in a row reach this rate on average."""
    for second in range(resumed, len(by_second) - 2):
        if statistics.fmean(by_second[second : second + 3]) >= rate:
            return float(second - resumed)
    return float("inf")


@contextmanager
def _stopped(postmaster: int) -> Iterator[None]:
    """Stop all processes of a server while the context lasts."""
    _signal(postmaster, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(postmaster, signal.SIGCONT)


def _signal(postmaster: int, number: signal.Signals) -> None:
    for pid in (postmaster, *children(postmaster)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
