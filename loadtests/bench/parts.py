"""The parts of the benchmark: each measures one way of creating groups, on an empty database."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from loadtests.bench.accounts import children
from loadtests.bench.bench import OWNER, must_have
from loadtests.bench.machinery import (
    BODY,
    SECRET,
    Measure,
    pgbench,
    python,
    resident_mib,
    serving,
    wrk,
)
from loadtests.bench.statements import CONVENTIONAL, own
from uuid_utils.compat import uuid4, uuid7

from stretto.creation.ports import Write
from stretto.domain import IdempotencyKey, NewGroup, group_id
from stretto.http.tokens.making import make_token
from stretto.postgres.connections import Database
from stretto.postgres.writes import PostgresWriteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from loadtests.bench.bench import Bench, Connection

# Not counted before each measurement: a new table's first pages, plans and caches.
WARM_SECONDS = 1.0
LIMIT_BATCH = 128
# One request in twenty sends another body, which must be rejected.
MIX_REFUSED = 0.05


@asynccontextmanager
async def bare_server() -> AsyncIterator[tuple[int, int]]:
    """Run the bare handler; yield its pid and port."""
    command = python("-m", "loadtests.bench.floor")
    async with serving(*command, ready=b"floor.started", env=os.environ) as (process, started):
        yield process.pid, started["port"]


async def floor(bench: Bench) -> Measure:
    """Measure a bare handler with the same requests."""
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    async with bare_server() as (_, port):
        load = partial(wrk, f"http://127.0.0.1:{port}", "floor", connections=64, token=token)
        await load(seconds=WARM_SECONDS)
        return await load(seconds=bench.seconds)


def conventional(clients: int) -> Callable[[Bench], Awaitable[Measure]]:
    """Measure a conventional protocol, from pgbench."""
    return _statements(lambda: CONVENTIONAL, clients)


def own_statements(clients: int) -> Callable[[Bench], Awaitable[Measure]]:
    """Measure our two statements, one request at a time, from pgbench."""
    return _statements(own, clients)


def _statements(script: Callable[[], str], clients: int) -> Callable[[Bench], Awaitable[Measure]]:
    async def part(bench: Bench) -> Measure:
        async with bench.database() as (dsn, connection):
            program: Path = bench.server.bin_dir / "pgbench"
            load = partial(pgbench, program, dsn, script(), clients=clients)
            warm = await load(seconds=WARM_SECONDS)
            measure = await load(seconds=bench.seconds)
            await must_have(connection, warm.count + measure.count)
        return measure

    return part


async def limit(bench: Bench) -> Measure:
    """Measure our two statements in full batches, from one loop without HTTP."""
    new_group = NewGroup.parse(OWNER, BODY)
    fingerprint = new_group.fingerprint()

    def write(key: str) -> Write:
        id_ = group_id(OWNER, IdempotencyKey(key))
        return Write(id_, uuid4(), uuid7(), new_group, fingerprint, is_claimed=False)

    async with bench.database() as (dsn, connection), Database(dsn) as database:
        store = PostgresWriteStore(database, on_lost=lambda: None)
        batches = count()
        for seconds in (WARM_SECONDS, bench.seconds):
            times_ms: list[float] = []
            started = time.perf_counter()
            while time.perf_counter() - started < seconds:
                begun = time.perf_counter()
                name = next(batches)
                batch = [write(f"{name}-{number}") for number in range(LIMIT_BATCH)]
                batch.sort(key=lambda each: each.group_id)
                await store.claim(batch)
                await store.lead(batch)
                times_ms.append((time.perf_counter() - begun) * 1e3)
            elapsed = time.perf_counter() - started
        await store.close()
        created = len(times_ms) * LIMIT_BATCH
        await must_have(connection, next(batches) * LIMIT_BATCH)
    times_ms.sort()
    return Measure(
        created / elapsed,
        times_ms[len(times_ms) // 2],
        times_ms[len(times_ms) * 99 // 100],
        created,
    )


@dataclass(frozen=True, slots=True)
class ServicePart:
    """Measures the service over HTTP, with default settings but these, and all features on."""

    mode: str
    connections: int
    workers: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, bench: Bench) -> Measure:
        settings = {"WORKERS": str(self.workers), **self.settings}
        async with (
            bench.database() as (dsn, connection),
            bench.service(dsn, **settings) as (pid, port),
        ):
            return await self._load(bench, connection, pid, port)

    async def _load(self, bench: Bench, connection: Connection, pid: int, port: int) -> Measure:
        token = make_token(SECRET, OWNER, lifetime_seconds=3600)
        load = partial(
            wrk,
            f"http://127.0.0.1:{port}",
            self.mode,
            connections=self.connections,
            token=token,
            non_2xx=MIX_REFUSED if self.mode == "mix" else 0.0,
        )
        warm = await load(seconds=WARM_SECONDS)
        measure = await load(seconds=bench.seconds)
        connections = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        )
        if self.mode == "new":
            await must_have(connection, warm.count + measure.count, loads=2)
        # The process that we started serves, or only starts its workers.
        serving = [pid] if self.workers == 1 else children(pid)
        memory_mib = sum(map(resident_mib, serving))
        return replace(measure, more={"memory_mib": memory_mib, "connections": connections - 1})
