"""The parts of the benchmark: each measures one way of creating groups, on an empty database."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
from loadtests.bench.machinery import (
    BODY,
    SECRET,
    BenchError,
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
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.http.tokens.authenticator import make_token
from stretto.postgres.connections import Database
from stretto.postgres.migrate import migrate
from stretto.postgres.writes import PostgresWriteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from stretto.embedded.postgres import EmbeddedServer

    Connection = asyncpg.Connection[asyncpg.Record]

OWNER = UserId("user-1")
# Not counted before each measurement: a new table's first pages, plans and caches.
WARM_SECONDS = 1.0
LIMIT_BATCH = 128
IN_FLIGHT_MAX = 256
# One request in twenty sends another body, which must be rejected.
MIX_REFUSED = 0.05


@dataclass(frozen=True, slots=True)
class Bench:
    """The server of the parts, and how long they run."""

    server: EmbeddedServer
    seconds: float
    scale: float = 1.0
    """Factor for the largest parts, below 1 if only their correctness is checked."""

    @asynccontextmanager
    async def database(self) -> AsyncIterator[tuple[str, Connection]]:
        """Provide an empty database with the schema; yields its DSN and a connection to it."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        admin = await asyncpg.connect(self.server.dsn)
        await admin.execute(f'CREATE DATABASE "{name}"')
        dsn = urlsplit(self.server.dsn)._replace(path=f"/{name}").geturl()
        connection = await asyncpg.connect(dsn, server_settings={"search_path": "stretto"})
        try:
            await migrate(connection, "stretto")
            # pgbench connects without our settings.
            await admin.execute(f'ALTER DATABASE "{name}" SET search_path = stretto')
            # Pages that an earlier part has left to write must not slow this one.
            await admin.execute("CHECKPOINT")
            yield dsn, connection
        finally:
            await connection.close()
            await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
            await admin.close()


@asynccontextmanager
async def service(dsn: str, **settings: str) -> AsyncIterator[tuple[int, int]]:
    """Run the service with default settings on a database; yield its pid and port."""
    settings |= {"DATABASE_URL": dsn, "JWT_SECRET": SECRET, "PORT": "0", "LOG_FORMAT": "json"}
    settings["DRAIN_SECONDS"] = "0"
    environment = os.environ | {f"STRETTO_{name}": value for name, value in settings.items()}
    command = python("-m", "stretto", "serve")
    async with serving(*command, ready=b"service.started", env=environment) as (process, event):
        yield process.pid, event["port"]


async def floor(bench: Bench) -> Measure:
    """Measure a bare handler with the same requests."""
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    command = python("-m", "loadtests.bench.floor")
    async with serving(*command, ready=b"floor.started", env=dict(os.environ)) as (_, started):
        url = f"http://127.0.0.1:{started['port']}"
        load = partial(wrk, url, "floor", connections=64, token=token)
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
    """Measures the service over HTTP, with default settings and all features on."""

    mode: str
    connections: int
    workers: int = 1
    batch_max: int = 128
    writers: int = 2
    is_counted: bool = False
    """Whether to count statements, WAL and flushes; no other part may run meanwhile."""

    async def __call__(self, bench: Bench) -> Measure:
        settings = {
            "WORKERS": str(self.workers),
            "BATCH_MAX": str(self.batch_max),
            "WRITERS": str(self.writers),
        }
        async with (
            bench.database() as (dsn, connection),
            service(dsn, **settings) as (pid, port),
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
        before = await _counters(connection)
        measure = await load(seconds=bench.seconds)
        after = await _counters(connection)
        created = after["groups"] - before["groups"]
        if self.mode == "new":
            await must_have(connection, warm.count + measure.count, loads=2)
        more = {
            "memory_mib": sum(resident_mib(each) for each in _family(pid, self.workers)),
            "connections": after["connections"] - 1,
        }
        if self.is_counted:
            more |= {
                f"{name}_per_creation": (after[name] - before[name]) / created
                for name in ("statements", "wal_bytes", "flushes")
            }
        return replace(measure, more=more)


async def must_have(connection: Connection, created: int, loads: int = 1) -> None:
    """Raise `BenchError` unless so many groups exist: a fast answer may be a wrong one."""
    groups = await connection.fetchval("SELECT count(*) FROM chat_group")
    # At the end of a load some requests are written, but not answered any more.
    if not created <= groups <= created + loads * IN_FLIGHT_MAX:
        message = f"{created} groups should have been created, {groups} exist"
        raise BenchError(message)


async def _counters(connection: Connection) -> dict[str, float]:
    row = await connection.fetchrow(
        """SELECT (SELECT count(*) FROM chat_group) AS groups,
                  (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())
                      AS connections,
                  (SELECT coalesce(sum(xact_commit), 0) FROM pg_stat_database
                   WHERE datname = current_database()) AS statements,
                  pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal_bytes,
                  (SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal')
                      AS flushes"""
    )
    assert row is not None
    return {name: float(value) for name, value in row.items()}


def _family(pid: int, workers: int) -> list[int]:
    """Return the processes that serve: the one we started, or its workers."""
    if workers == 1:
        return [pid]
    with open(f"/proc/{pid}/task/{pid}/children") as children:  # noqa: PTH123 a kernel's list
        return [int(child) for child in children.read().split()]
