"""The part that measures the effect of hostile clients: one load with and without them."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING, Any

from loadtests.bench.bench import OWNER
from loadtests.bench.machinery import SECRET, BenchError, Measure, python, resident_mib, serving
from loadtests.bench.overload import Service

from stretto.domain import UserId
from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from loadtests.bench.bench import Bench

# An easy load for a process: only the hostile clients' effect is measured.
RATE = 300.0
CONNECTIONS = 32


async def hostile(bench: Bench) -> Measure:
    """Measure good clients alone, beside hostile ones, and alone again."""
    alone: list[dict[str, Any]] = []
    token = make_token(SECRET, UserId("mallory"), lifetime_seconds=3600)
    async with bench.database() as (dsn, connection), bench.service(dsn) as (pid, port):
        here = Service(connection, pid, port)
        good = {"rate": RATE, "seconds": bench.seconds, "connections": CONNECTIONS}
        command = python("-m", "loadtests.bench.hostile_clients", str(port), token)
        alone.append(await here.run(**good))
        async with serving(*command, ready=b"hostile.started", env=os.environ):
            beside = await here.run(**good)
            memory_mib = resident_mib(pid)
        # The machine's other work may have changed meanwhile.
        alone.append(await here.run(**good))
        if await connection.fetchval("SELECT count(*) FROM attempt WHERE owner_id <> $1", OWNER):
            raise BenchError("hostile clients have claimed something")
    created, sent = beside["statuses"]["201"], beside["sent"]
    p50, p99 = (beside["created_ms"][name] for name in ("p50", "p99"))
    before = {name: _mean(alone, name) for name in ("p50", "p99")}
    return Measure(
        created / bench.seconds,
        p50,
        p99,
        created,
        {
            "alone_p50_ms": before["p50"],
            "alone_p99_ms": before["p99"],
            "p50_ratio": p50 / before["p50"],
            "p99_ratio": p99 / before["p99"],
            "not_created": sent - created,
            "memory_mib": memory_mib,
        },
    )


def _mean(reports: list[dict[str, Any]], name: str) -> float:
    return statistics.fmean(report["created_ms"][name] for report in reports)
