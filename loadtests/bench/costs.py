"""The parts that measure costs: CPU time per creation, replay, request and transaction.

Rates depend on all that the machine does, CPU time much less. It holds still from run to run because
the number of operations is fixed and all of their work is counted once: events are relayed, rows
vacuumed and pages written before the accounts are closed. Autovacuum is off: it runs by the clock,
and so not equally often in each run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from loadtests.bench.accounts import Machine, come_to_rest, cpu_seconds
from loadtests.bench.bench import OWNER, must_have
from loadtests.bench.machinery import SECRET, pgbench, wrk
from loadtests.bench.parts import bare_server
from loadtests.bench.statements import CONVENTIONAL

from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from loadtests.bench.bench import Bench, Connection
    from loadtests.bench.machinery import Measure

    Load = Callable[[int], Awaitable[Measure]]

# Each uses seconds of CPU time, which the kernel counts in hundredths.
CREATIONS, REPLAYS, REQUESTS, TRANSACTIONS = 100_000, 300_000, 200_000, 24_000
# At any scale: fewer may use no hundredth at all.
OPERATIONS_MIN = 2_000
WARM_SHARE = 0.1
CREATE_CONNECTIONS, OTHER_CONNECTIONS = 128, 64
CLIENTS = 16
# A load ends after its operations; this bounds one that hangs.
SECONDS_MAX = 600


class Meter:
    """Counts what a load uses: the CPU time of the named processes, and the machine's idle share."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self._began = {name: cpu_seconds(pid) for name, pid in pids.items()}
        self._machine = Machine.now()
        self._idle_share = 0.0

    async def run(self, load: Load, operations: int) -> Measure:
        """Run the load; the idle share is that of all processors meanwhile."""
        measure = await load(operations)
        self._idle_share = self._machine.idle_share(Machine.now())
        return measure

    def per_operation(self, operations: float) -> dict[str, float]:
        """Return the idle share, and what was used up to now, in microseconds per operation."""
        used = {name: cpu_seconds(pid) - self._began[name] for name, pid in self._pids.items()}
        costs = {f"{name}_us": 1e6 * seconds / operations for name, seconds in used.items()}
        return {**costs, "idle_share": self._idle_share}


async def creations(bench: Bench) -> Measure:
    """Measure creations: the service, PostgreSQL, and what they write."""
    operations = _scaled(CREATIONS, bench)
    async with bench.database() as (dsn, connection), bench.service(dsn) as (pid, port):
        tables = await _without_autovacuum(connection)
        load = _requests(port, "new", CREATE_CONNECTIONS)
        warm = await load(_warm(operations))
        await come_to_rest(pid)
        await _tidy(connection, tables)
        before = await _counters(connection)
        meter = Meter(service=pid, postgres=bench.server.pid)
        measure = await meter.run(load, operations)
        await come_to_rest(pid)
        after = await _counters(connection)
        await _tidy(connection, tables)
        # More than were answered: some were under way at the end.
        created = after.pop("groups") - before["groups"]
        costs = meter.per_operation(created)
        await must_have(connection, warm.count + measure.count, loads=2)
    for name, value in after.items():
        costs[f"{name}_per_creation"] = (value - before[name]) / created
    return replace(measure, more=costs)


async def replays(bench: Bench) -> Measure:
    """Measure replays, which use no database."""
    async with bench.database() as (dsn, _), bench.service(dsn) as (pid, port):
        return await _answers(pid, port, "replay", _scaled(REPLAYS, bench))


async def requests(bench: Bench) -> Measure:
    """Measure requests of a bare handler."""
    async with bare_server() as (pid, port):
        return await _answers(pid, port, "floor", _scaled(REQUESTS, bench))


async def _answers(pid: int, port: int, mode: str, operations: int) -> Measure:
    load = _requests(port, mode, OTHER_CONNECTIONS)
    await load(_warm(operations))
    await come_to_rest(pid)
    meter = Meter(service=pid)
    measure = await meter.run(load, operations)
    await come_to_rest(pid)
    return replace(measure, more=meter.per_operation(measure.count))


async def transactions(bench: Bench) -> Measure:
    """Measure transactions of the conventional script; pgbench's backends end with it."""
    program, operations = bench.server.bin_dir / "pgbench", _scaled(TRANSACTIONS, bench)
    async with bench.database() as (dsn, connection):

        async def load(wanted: int) -> Measure:
            return await pgbench(
                program, dsn, CONVENTIONAL, clients=CLIENTS, transactions=wanted // CLIENTS
            )

        tables = await _without_autovacuum(connection)
        warm = await load(_warm(operations))
        await _tidy(connection, tables)
        meter = Meter(postgres=bench.server.pid)
        measure = await meter.run(load, operations)
        await _tidy(connection, tables)
        costs = meter.per_operation(measure.count)
        await must_have(connection, warm.count + measure.count)
    return replace(measure, more=costs)


async def _without_autovacuum(connection: Connection) -> str:
    """Turn it off for all tables; return their names."""
    tables: str = await connection.fetchval(
        """SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
           WHERE relnamespace = 'stretto'::regnamespace AND relkind = 'r'"""
    )
    for table in tables.split(", "):
        await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    return tables


async def _tidy(connection: Connection, tables: str) -> None:
    """Do now what PostgreSQL would do some time later."""
    await connection.execute(f"VACUUM {tables}")
    await connection.execute("CHECKPOINT")


def _scaled(operations: int, bench: Bench) -> int:
    return max(OPERATIONS_MIN, round(operations * bench.scale))


def _warm(operations: int) -> int:
    return round(WARM_SHARE * operations)


def _requests(port: int, mode: str, connections: int) -> Load:
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    url = f"http://127.0.0.1:{port}"
    load = partial(wrk, url, mode, connections=connections, seconds=SECONDS_MAX, token=token)
    return lambda operations: load(requests=operations)


async def _counters(connection: Connection) -> dict[str, float]:
    row = await connection.fetchrow(
        """SELECT (SELECT count(*) FROM chat_group) AS groups,
                  (SELECT coalesce(sum(xact_commit), 0) FROM pg_stat_database
                   WHERE datname = current_database()) AS statements,
                  pg_current_wal_lsn() - '0/0'::pg_lsn AS wal_bytes,
                  (SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal')
                      AS flushes"""
    )
    assert row is not None
    return {name: float(value) for name, value in row.items()}
