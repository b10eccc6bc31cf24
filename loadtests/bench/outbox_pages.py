"""`python -m loadtests.bench.outbox_pages`: what an event costs the outbox at several fill factors.

Events are inserted, taken and marked by the relay's own statements, batch by batch, without sweeper
and autovacuum. So only the effect of pages and indexes remains, and it is the same in every run.
"""

from __future__ import annotations

import asyncio
import json
import time

from loadtests.bench.__main__ import DATA_DIR
from loadtests.bench.bench import OWNER, Bench
from loadtests.bench.machinery import BODY
from rich.console import Console
from rich.table import Table

from stretto.embedded.postgres import embedded_postgres
from stretto.postgres.queries import QUERIES

FILL_FACTORS = (70, 50, 40)
BATCH = 256
BATCHES = 240
LEASE_SECONDS = 30.0

_INSERT = """
    INSERT INTO outbox (event_id, event_type, subject, recipients, payload)
    SELECT gen_random_uuid(), 'group.created', gen_random_uuid(), $2, $3
    FROM generate_series(1, $1)"""
_STATE = """
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), $1)::float8 AS wal_bytes,
           pg_relation_size('outbox') AS heap_bytes, pg_indexes_size('outbox') AS index_bytes,
           n_dead_tup AS dead, n_tup_hot_upd::float8 / n_tup_upd AS hot_share
    FROM pg_stat_user_tables WHERE relname = 'outbox'"""


async def measure(bench: Bench, fill_factor: int) -> dict[str, float]:
    """Return the costs of one event, by name."""
    recipients = [OWNER, *BODY["members"]]
    payload = json.dumps({"group_id": "0" * 36, "conversation_id": "0" * 36, **BODY})
    spent = {"take_us": 0.0, "mark_us": 0.0}
    async with bench.database() as (_, connection):
        await connection.execute("SET enable_seqscan = off; SET synchronous_commit = off")
        await connection.execute(f"ALTER TABLE outbox SET (fillfactor = {fill_factor})")
        begin = await connection.fetchval("SELECT pg_current_wal_lsn()")
        for _ in range(BATCHES):
            await connection.execute(_INSERT, BATCH, recipients, payload)
            started = time.perf_counter()
            rows = await connection.fetch(
                QUERIES["take"], BATCH, LEASE_SECONDS, None, LEASE_SECONDS
            )
            taken = time.perf_counter()
            await connection.execute(QUERIES["mark"], [row["event_id"] for row in rows], None)
            spent["take_us"] += (taken - started) * 1e6
            spent["mark_us"] += (time.perf_counter() - taken) * 1e6
        await connection.execute("SELECT pg_stat_force_next_flush()")
        state = await connection.fetchrow(_STATE, begin)
    assert state is not None
    costs = {**spent, **state}
    hot_share = costs.pop("hot_share")
    return {name: cost / (BATCH * BATCHES) for name, cost in costs.items()} | {
        "hot_share": hot_share
    }


async def run() -> None:
    """Measure each fill factor twice, in turns."""
    table = Table()
    async with embedded_postgres(DATA_DIR, notify=print, settings={"autovacuum": "off"}) as server:
        for fill_factor in FILL_FACTORS * 2:
            costs = await measure(Bench(server, 0), fill_factor)
            if not table.columns:
                for name in ("fillfactor", *costs):
                    table.add_column(name, justify="right")
            table.add_row(str(fill_factor), *(f"{cost:.4g}" for cost in costs.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    asyncio.run(run())
