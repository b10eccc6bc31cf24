"""`python -m loadtests.bench.log`: what the log of events costs, and how soon a session hears.

Costs: CPU time of PostgreSQL and bytes of WAL per creation, with NATS and a publisher; of this
tree, and in turns with it of another one (`--against TREE`). The same once more without NATS.
Latency: from creating at one replica to the event at a session of the other one, both with two
workers, on PostgreSQL alone, at half of their peak.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from loadtests.bench.__main__ import DATA_DIR, SERVER
from loadtests.bench.accounts import cpu_seconds
from loadtests.bench.bench import OWNER, ROOT, Bench
from loadtests.bench.machinery import SECRET, wrk
from rich.console import Console
from rich.table import Table

from stretto.domain import UserId
from stretto.embedded.nats import embedded_nats
from stretto.embedded.postgres import embedded_postgres
from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadtests.bench.bench import Connection
    from loadtests.bench.machinery import Measure

CONNECTIONS = 128
WARM_SECONDS = 2.0
# A publisher, autovacuum and the page cache go on after the load.
REST_SECONDS = 4.0
PROBE_SECONDS = 0.02
ARRIVAL_SECONDS = 10.0


async def costs(bench: Bench, nats_url: str) -> dict[str, float]:
    """Return what a creation costs PostgreSQL."""
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    postgres = bench.server.pid
    async with (
        bench.database() as (dsn, connection),
        bench.service(dsn, NATS_URL=nats_url) as (_, port),
    ):
        url = f"http://127.0.0.1:{port}"
        await wrk(url, "new", connections=CONNECTIONS, seconds=WARM_SECONDS, token=token)
        await asyncio.sleep(REST_SECONDS)
        before = await _counters(connection)
        used = cpu_seconds(postgres)
        await wrk(url, "new", connections=CONNECTIONS, seconds=bench.seconds, token=token)
        await asyncio.sleep(REST_SECONDS)
        used = cpu_seconds(postgres) - used
        after = await _counters(connection)
        await connection.execute("SELECT pg_stat_force_next_flush()")
        dead = await connection.fetchval(
            "SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname ~ '^outbox(_[0-9])?$'"
        )
    created = after["created"] - before["created"]
    return {
        "creations": created,
        "cpu_us": used * 1e6 / created,
        "wal_bytes": (after["wal_bytes"] - before["wal_bytes"]) / created,
        "dead_log_rows": float(dead),
    }


async def _counters(connection: Connection) -> dict[str, float]:
    row = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM chat_group) AS created,"
        " pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal_bytes"
    )
    assert row is not None
    return {name: float(value) for name, value in row.items()}


async def latency(bench: Bench) -> dict[str, float]:
    """Return the quantiles from creation at one replica to the session at the other one."""
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    async with AsyncExitStack() as stack:
        dsn, _ = await stack.enter_async_context(bench.database())
        first, second = [
            f"http://127.0.0.1:{port}"
            for _, port in [
                await stack.enter_async_context(bench.service(dsn, WORKERS="2")) for _ in range(2)
            ]
        ]
        load = partial(wrk, mode="new", seconds=bench.seconds, token=token)
        peak = await load(first, connections=CONNECTIONS)
        # wrk pauses after each answer.
        pause_ms = CONNECTIONS / (peak.per_second / 2) * 1e3 - peak.p50_ms
        loads = [
            asyncio.create_task(load(url, connections=CONNECTIONS // 2, pause_ms=pause_ms))
            for url in (first, second)
        ]
        times_ms = await _probed(first, second, loads)
        loaded = sum([(await each).per_second for each in loads])
    return {
        "peak_per_second": peak.per_second,
        "per_second": loaded,
        "probes": len(times_ms),
        "p50_ms": times_ms[len(times_ms) // 2],
        "p99_ms": times_ms[len(times_ms) * 99 // 100],
        "slowest_ms": times_ms[-1],
    }


async def _probed(first: str, second: str, loads: Sequence[asyncio.Task[Measure]]) -> list[float]:
    """Create at the first replica, hear at the second, until the loads end."""
    headers = {
        user: {"Authorization": f"Bearer {make_token(SECRET, UserId(user), lifetime_seconds=3600)}"}
        for user in ("prober", "member")
    }
    times_ms: list[float] = []
    async with (
        aiohttp.ClientSession(headers=headers["prober"]) as client,
        client.ws_connect(f"{second}/v1/events", headers=headers["member"]) as socket,
    ):
        await socket.receive_json()
        while not all(load.done() for load in loads):
            began = time.monotonic()
            async with client.post(
                f"{first}/v1/groups",
                headers={"Idempotency-Key": f"probe-{len(times_ms)}"},
                json={"name": "Probe", "members": ["member"]},
            ) as response:
                created = await response.json()
            async with asyncio.timeout(ARRIVAL_SECONDS):
                while True:
                    message = await socket.receive_json()
                    if message.get("event", {}).get("subject") == created["group_id"]:
                        break
            times_ms.append((time.monotonic() - began) * 1e3)
            await asyncio.sleep(PROBE_SECONDS)
    return sorted(times_ms)


async def run(arguments: argparse.Namespace) -> None:
    """Measure in turns, and print the medians."""
    console = Console(width=130)
    trees = [tree for tree in (arguments.against, ROOT) if tree]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    async with embedded_postgres(DATA_DIR, notify=print, settings=SERVER) as server:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(arguments.rounds):
                for tree in trees if number % 2 else trees[::-1]:
                    bench = Bench(server, arguments.seconds, tree=tree)
                    # A stream belongs to one database.
                    async with embedded_nats(Path(folder, uuid.uuid4().hex)) as nats:
                        with_nats = await costs(bench, nats.url)
                    found.setdefault((tree.name, "with NATS"), []).append(with_nats)
                    found.setdefault((tree.name, "alone"), []).append(await costs(bench, ""))
        if not arguments.costs_only:
            bench = Bench(server, arguments.seconds)
            key = ROOT.name, "2 x 2 processes"
            found[key] = [await latency(bench) for _ in range(arguments.rounds)]
    for (tree_name, what), figures in found.items():
        table = Table("figure", "median", "min - max", title=f"{tree_name}, {what}")
        for name in figures[0]:
            values = [each[name] for each in figures]
            spread = f"{min(values):,.1f} - {max(values):,.1f}"
            table.add_row(name, f"{statistics.median(values):,.1f}", spread)
        console.print(table)


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.log", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each load lasts")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--costs-only", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this needs wrk, the load generator (Debian: apt-get install wrk)")
    asyncio.run(run(arguments))


if __name__ == "__main__":
    main()
