"""The part that measures what others notice of hostile clients: the same load with and without."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING, Any

from loadtests.bench.machinery import SECRET, BenchError, Measure, python, resident_mib, serving
from loadtests.bench.overload import Service
from loadtests.bench.parts import OWNER, service

from stretto.domain import UserId
from stretto.http.auth import make_token

if TYPE_CHECKING:
    from loadtests.bench.parts import Bench

# A load that a process bears easily: what is measured is what others add to it.
RATE = 300.0
CONNECTIONS = 32
TURNS = 2


async def hostile(bench: Bench) -> Measure:
    """Measure good clients alone and beside hostile ones, in turns."""
    alone: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    token = make_token(SECRET, UserId("mallory"), lifetime_seconds=3600)
    async with bench.database() as (dsn, connection), service(dsn) as (pid, port):
        here = Service(connection, pid, port)
        good = {"rate": RATE, "seconds": bench.seconds, "connections": CONNECTIONS}
        command = python("-m", "loadtests.bench.hostile_clients", str(port), token)
        for _ in range(TURNS):
            alone.append(await here.run(**good))
            async with serving(*command, ready=b"hostile.started", env=os.environ):
                beside.append(await here.run(**good))
                memory_mib = resident_mib(pid)
        if await connection.fetchval("SELECT count(*) FROM attempt WHERE owner_id <> $1", OWNER):
            raise BenchError("hostile clients have claimed something")
    created = sum(report["statuses"]["201"] for report in beside)
    sent = sum(report["sent"] for report in beside)
    p50, p99 = (_median(beside, name) for name in ("p50", "p99"))
    return Measure(
        created / bench.seconds / TURNS,
        p50,
        p99,
        created,
        {
            "alone_p50_ms": _median(alone, "p50"),
            "alone_p99_ms": _median(alone, "p99"),
            "p50_ratio": p50 / _median(alone, "p50"),
            "p99_ratio": p99 / _median(alone, "p99"),
            "not_created": sent - created,
            "memory_mib": memory_mib,
        },
    )


def _median(reports: list[dict[str, Any]], name: str) -> float:
    return statistics.median(report["created_ms"][name] for report in reports)
