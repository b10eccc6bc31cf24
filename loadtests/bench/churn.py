"""`python -m loadtests.bench.churn`: how large tables get whose rows come and go at full rate.

A service creates groups as fast as it can, its relay publishes their events, and a sweeper deletes
attempts and events that are some seconds old. The sweeper's clock runs a day ahead, since the
shortest retention is a day. Meanwhile the tables' sizes and PostgreSQL's own counts are sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from loadtests.bench.__main__ import DATA_DIR
from loadtests.bench.bench import OWNER, Bench
from loadtests.bench.machinery import SECRET, wrk
from rich.console import Console
from rich.table import Table

from stretto.embedded.postgres import embedded_postgres
from stretto.http.tokens.making import make_token
from stretto.postgres.connections import Database
from stretto.postgres.retention import sweep
from stretto.postgres.settings import Retention

if TYPE_CHECKING:
    from loadtests.bench.bench import Connection

CONNECTIONS = 256
# Between two sweeps; a row past its retention waits about as long as a sweep takes.
PAUSE_SECONDS = 1.0

_STATE = """
    SELECT relname AS table,
           pg_relation_size(relid) / 1e6 AS heap_mb, pg_indexes_size(relid) / 1e6 AS indexes_mb,
           n_live_tup AS live, n_dead_tup AS dead, n_tup_ins AS inserted, n_tup_del AS deleted,
           n_tup_upd AS updated, n_tup_hot_upd AS hot, autovacuum_count AS vacuums
    FROM pg_stat_user_tables WHERE relname ~ '^(attempt|outbox_[0-7])$' ORDER BY relname"""


async def measure(arguments: argparse.Namespace, console: Console) -> None:
    """Load, sweep and sample until the time is over."""
    table = Table()
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_postgres(DATA_DIR, notify=print))
        bench = Bench(server, arguments.seconds)
        dsn, connection = await stack.enter_async_context(bench.database())
        for statement in arguments.sql:
            await connection.execute(statement)
        _, port = await stack.enter_async_context(bench.service(dsn))
        sweeping = asyncio.create_task(_sweep(dsn, arguments.keep_seconds))
        stack.callback(sweeping.cancel)
        started = time.monotonic()
        load = asyncio.create_task(
            wrk(
                f"http://127.0.0.1:{port}",
                "new",
                connections=CONNECTIONS,
                seconds=arguments.seconds,
                token=token,
            )
        )
        while not (await asyncio.wait((load,), timeout=arguments.every_seconds))[0]:
            await _look(connection, table, time.monotonic() - started)
        await _look(connection, table, time.monotonic() - started)
        rate = (await load).per_second
    console.print(table)
    console.print(f"{rate:,.0f} creations per second")


async def _sweep(dsn: str, keep_seconds: float) -> None:
    """Sweep rows older than `keep_seconds` again and again."""
    ahead = timedelta(days=1, seconds=-keep_seconds)
    async with Database(dsn) as database:
        while True:
            now = datetime.now(UTC) + ahead
            await sweep(database.upkeep, Retention(1, 1), now, lambda *_: None)
            await asyncio.sleep(PAUSE_SECONDS)


async def _look(connection: Connection, table: Table, seconds: float) -> None:
    for row in await connection.fetch(_STATE):
        counts = dict(row)
        hot = counts.pop("hot")
        if not table.columns:
            for name in ("second", *counts, "hot_share"):
                table.add_column(name, justify="right")
        shown = [f"{value:,.0f}" if name != "table" else value for name, value in counts.items()]
        table.add_row(f"{seconds:.0f}", *shown, f"{hot / max(counts['updated'], 1):.2f}")


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.churn", description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="how long groups are created")
    parser.add_argument("--every-seconds", type=float, default=15.0, help="between two samples")
    parser.add_argument("--keep-seconds", type=float, default=10.0, help="how old rows may get")
    parser.add_argument(
        "--sql", action="append", default=[], help="statement to run first, such as table settings"
    )
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this needs wrk, the load generator (Debian: apt-get install wrk)")
    with suppress(KeyboardInterrupt):
        asyncio.run(measure(arguments, Console(width=130)))


if __name__ == "__main__":
    main()
