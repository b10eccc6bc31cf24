"""`python -m loadtests.bench.log`: what the log of events costs, and how soon a session hears.

Costs: CPU time of PostgreSQL and bytes of WAL per creation, with NATS and a publisher; of this
tree, and in turns with it of another one (`--against TREE`). The same once more without NATS.
Latency: from creating at one replica to the event at a session of the other one, both with two
workers, on PostgreSQL alone, at half of their peak.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import asyncpg
from loadtests.bench.__main__ import DATA_DIR
from loadtests.bench.machinery import SECRET, output_of, python, serving, wrk
from loadtests.bench.parts import OWNER
from rich.console import Console
from rich.table import Table

from stretto.domain import UserId
from stretto.embedded.nats import embedded_nats
from stretto.embedded.postgres import embedded_postgres
from stretto.http.tokens.authenticator import make_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.embedded.postgres import EmbeddedServer

    Connection = asyncpg.Connection[asyncpg.Record]

HERE = Path(__file__).parents[2]
SERVER = {"shared_buffers": "2GB", "max_wal_size": "16GB"}
CONNECTIONS = 128
# A publisher, autovacuum and the page cache go on after the load.
REST_SECONDS = 4.0
PROBE_SECONDS = 0.02
ARRIVAL_SECONDS = 10.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """One tree's code on an empty database."""

    server: EmbeddedServer
    tree: Path
    seconds: float

    def environment(self, **settings: str) -> dict[str, str]:
        """Return the environment of this tree's programs."""
        named = {f"STRETTO_{name}": value for name, value in settings.items()}
        return {**os.environ, "PYTHONPATH": str(self.tree / "service"), **named}

    @asynccontextmanager
    async def database(self) -> AsyncIterator[tuple[str, Connection]]:
        """Provide an empty database with this tree's tables."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        dsn = urlsplit(self.server.dsn)._replace(path=f"/{name}").geturl()
        admin = await asyncpg.connect(self.server.dsn)
        await admin.execute(f'CREATE DATABASE "{name}"')
        migrate = python("-m", "stretto", "migrate")
        await output_of(*migrate, env=self.environment(DATABASE_URL=dsn))
        connection = await asyncpg.connect(dsn, server_settings={"search_path": "stretto"})
        try:
            yield dsn, connection
        finally:
            await connection.close()
            await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
            await admin.close()

    @asynccontextmanager
    async def service(self, dsn: str, **settings: str) -> AsyncIterator[str]:
        """Run a service; yield its URL."""
        given = {"DATABASE_URL": dsn, "JWT_SECRET": SECRET, "PORT": "0", "LOG_FORMAT": "json"}
        environment = self.environment(**given, DRAIN_SECONDS="0", **settings)
        command = python("-m", "stretto", "serve")
        async with serving(*command, ready=b"service.started", env=environment) as (_, event):
            yield f"http://127.0.0.1:{event['port']}"

    async def costs(self, nats_url: str) -> dict[str, float]:
        """Return what a creation costs PostgreSQL."""
        token = make_token(SECRET, OWNER, lifetime_seconds=3600)
        async with (
            self.database() as (dsn, connection),
            self.service(dsn, NATS_URL=nats_url) as url,
        ):
            await wrk(url, "new", connections=CONNECTIONS, seconds=2, token=token)
            await asyncio.sleep(REST_SECONDS)
            await connection.execute("CHECKPOINT")
            before = await self._counters(connection)
            await wrk(url, "new", connections=CONNECTIONS, seconds=self.seconds, token=token)
            await asyncio.sleep(REST_SECONDS)
            after = await self._counters(connection)
            await connection.execute("SELECT pg_stat_force_next_flush()")
            dead = await connection.fetchval(
                "SELECT sum(n_dead_tup) FROM pg_stat_user_tables"
                " WHERE relname ~ '^outbox(_[0-9])?$'"
            )
        created = after["created"] - before["created"]
        used = {name: (after[name] - before[name]) / created for name in ("cpu_us", "wal_bytes")}
        return {"creations": created, **used, "dead_log_rows": float(dead)}

    async def _counters(self, connection: Connection) -> dict[str, float]:
        row = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM chat_group) AS created,"
            " pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal_bytes"
        )
        assert row is not None
        counted = {name: float(value) for name, value in row.items()}
        return {"cpu_us": cpu_us(self.server.pid), **counted}

    async def latency(self) -> dict[str, float]:
        """Return the quantiles from creation at one replica to the session at the other one."""
        token = make_token(SECRET, OWNER, lifetime_seconds=3600)
        async with AsyncExitStack() as stack:
            dsn, _ = await stack.enter_async_context(self.database())
            first, second = [
                await stack.enter_async_context(self.service(dsn, WORKERS="2")) for _ in range(2)
            ]
            peak = await wrk(
                first, "new", connections=CONNECTIONS, seconds=self.seconds, token=token
            )
            pause_ms = CONNECTIONS / (peak.per_second / 2) * 1e3
            loads = [
                asyncio.create_task(
                    wrk(
                        url,
                        "new",
                        connections=CONNECTIONS // 2,
                        seconds=self.seconds,
                        token=token,
                        pause_ms=pause_ms,
                    )
                )
                for url in (first, second)
            ]
            times_ms = await _probed(first, second, loads)
            loaded = sum([(await load).per_second for load in loads])
        return {
            "peak_per_second": peak.per_second,
            "per_second": loaded,
            "probes": len(times_ms),
            "p50_ms": times_ms[len(times_ms) // 2],
            "p99_ms": times_ms[len(times_ms) * 99 // 100],
            "slowest_ms": times_ms[-1],
        }


async def _probed(first: str, second: str, loads: list[asyncio.Task[object]]) -> list[float]:
    """Create at the first replica, hear at the second, until the loads end."""
    headers = {
        user: {"Authorization": f"Bearer {make_token(SECRET, UserId(user), lifetime_seconds=3600)}"}
        for user in ("prober", "member")
    }
    times_ms = []
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


def cpu_us(pid: int) -> float:
    """Return the CPU time of a process, its children, and those that it has waited for."""
    ticks = 0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        # Fields from the end of the name on: user, system, and both of the children that ended.
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks * 1e6 / TICKS


async def run(arguments: argparse.Namespace) -> None:
    """Measure in turns, and print the medians."""
    console = Console(width=130)
    trees = [tree for tree in (arguments.against, HERE) if tree]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    async with embedded_postgres(DATA_DIR, notify=print, settings=SERVER) as server:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(arguments.rounds):
                for tree in trees if number % 2 else trees[::-1]:
                    this = Run(server, tree, arguments.seconds)
                    # A stream belongs to one database.
                    async with embedded_nats(Path(folder, uuid.uuid4().hex)) as nats:
                        costs = await this.costs(nats.url)
                    found.setdefault((tree.name, "with NATS"), []).append(costs)
                    found.setdefault((tree.name, "alone"), []).append(await this.costs(""))
        if not arguments.costs_only:
            this = Run(server, HERE, arguments.seconds)
            key = HERE.name, "2 x 2 processes"
            found[key] = [await this.latency() for _ in range(arguments.rounds)]
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
