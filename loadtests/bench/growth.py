"""The parts that take minutes: creating in large tables, and a million groups from one process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from loadtests.bench.bench import OWNER, must_have
from loadtests.bench.machinery import (
    BODY,
    SECRET,
    Measure,
    python,
    resident_mib,
    wrk,
)

from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from loadtests.bench.bench import Bench, Connection

MILLION = 1_000_000
FILL_ROWS = 50_000
CONNECTIONS = 256
# The first slot's time is over, and what is in it is older than the retention.
_AGE_SLOTS = """
    UPDATE outbox_slot SET number = slot + 1,
                           began_at = now() - CASE slot WHEN 0 THEN interval '60 days'
                                                        ELSE interval '30 days' END
    WHERE slot < 2"""
# Large tables show their cost only after their pages have been written for a while.
LONGER, LARGE_GROUPS = 2, 100_000
# Of the loads that are compared; odd, so that one of them is the median.
TURNS = 5
# Samples of the memory on the way to a million.
LOOKS = 5

# Groups as the service creates them, except for their ids: these rise through the whole range,
# which fills an index without reading it. Every second group's attempt and event are past their
# retention: such events lie in the first slot, the others in the second, which is written to.
_FILL = """
    WITH made AS MATERIALIZED (
        SELECT number,
               (lpad(to_hex(number * (2::numeric ^ 60 / $4::bigint)::bigint), 15, '0')
                || left(md5(number::text), 17))::uuid AS group_id,
               uuidv7() AS conversation_id,
               clock_timestamp() - CASE number % 2 WHEN 0 THEN interval '40 days'
                                   ELSE interval '0' END AS made_at
        FROM generate_series($5::bigint, $5::bigint + $1::bigint - 1) AS number
    ), new_conversation AS (
        INSERT INTO conversation (conversation_id) SELECT conversation_id FROM made
    ), new_group AS (
        INSERT INTO chat_group (group_id, owner_id, name, fingerprint, conversation_id)
        SELECT group_id, $2, 'Team standup', '0123456789abcdef', conversation_id FROM made
    ), new_member AS (
        INSERT INTO conversation_member (conversation_id, user_id, role)
        SELECT conversation_id, user_id, CASE user_id WHEN $2 THEN 'owner' ELSE 'member' END
        FROM made, unnest($3::text[]) AS user_id
    ), new_event AS (
        INSERT INTO outbox (slot, history, event_id, subject, recipients, conversation_id,
                            group_name, created_at)
        SELECT number % 2, 0, group_id, group_id, $3, conversation_id, 'Team standup', made_at
        FROM made
    )
    INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, conversation_id,
                         claimed_at, settled_at)
    SELECT group_id, $2, '0123456789abcdef', gen_random_uuid(), 'succeeded', conversation_id,
           made_at, made_at
    FROM made"""


@dataclass(frozen=True, slots=True)
class Grown:
    """Measures creations beside so many groups and beside none, in turns on one server.

    A machine's rate changes by more from minute to minute than the tables cost.
    """

    millions: int

    async def __call__(self, bench: Bench) -> Measure:
        """Load both; the large one also while it is swept, which gives the part's figures."""
        groups = int(self.millions * MILLION * bench.scale)
        seconds = bench.seconds * (LONGER if bench.scale * MILLION > LARGE_GROUPS else 1)
        async with (
            bench.database() as (dsn, connection),
            bench.database() as (empty_dsn, empty_connection),
        ):
            await _fill(connection, groups)
            async with (
                bench.service(dsn) as (_, port),
                bench.service(empty_dsn) as (_, empty_port),
            ):
                # These also pass the phase after a checkpoint, in which whole pages are logged once
                # each.
                alone = [await _load(port, seconds)]
                empty = [await _load(empty_port, seconds)]
                swept: list[Measure] = []
                old = await _old_rows(connection)
                for number in range(TURNS):
                    # Which comes first alternates.
                    if number % 2:
                        empty.append(await _load(empty_port, seconds))
                    async with _sweeping(bench, dsn):
                        swept.append(await _load(port, seconds))
                    alone.append(await _load(port, seconds))
                    if not number % 2:
                        empty.append(await _load(empty_port, seconds))
                created = sum(each.count for each in (*alone, *swept))
                await must_have(connection, groups + created, loads=len(alone) + len(swept))
                await must_have(empty_connection, sum(e.count for e in empty), loads=len(empty))
                del alone[0], empty[0]
                left = await _old_rows(connection)
                more = {
                    "of_empty": _ratio(swept, empty),
                    "of_empty_without_sweep": _ratio(alone, empty),
                    "p99_ms_without_sweep": median(each.p99_ms for each in alone),
                    # With the events of the slot that is dropped whole.
                    "swept_per_second": (old - left) / (TURNS * seconds),
                    "unswept": left,
                }
                swept.sort(key=lambda each: each.per_second)
                return replace(swept[TURNS // 2], more=more | await _sizes_mb(connection))


async def _load(port: int, seconds: float) -> Measure:
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    url = f"http://127.0.0.1:{port}"
    return await wrk(url, "new", connections=CONNECTIONS, seconds=seconds, token=token)


def _ratio(measures: Sequence[Measure], others: Sequence[Measure]) -> float:
    """Return the median of the turns' ratios."""
    pairs = zip(measures, others, strict=True)
    return median(each.per_second / other.per_second for each, other in pairs)


async def million(bench: Bench) -> Measure:
    """Measure the memory of a process that creates a million groups."""
    wanted = MILLION * bench.scale
    async with bench.database() as (dsn, connection), bench.service(dsn) as (pid, port):
        looks: list[float] = []
        created, measures = 0, []
        while created < wanted:
            measure = await _load(port, bench.seconds)
            created += measure.count
            measures.append(measure)
            if created >= wanted * (len(looks) + 1) / LOOKS:
                looks.append(resident_mib(pid))
        # Each load may have left some requests unanswered.
        await must_have(connection, created, len(measures))
    measures.sort(key=lambda each: each.per_second)
    more = {"created": created, "memory_mib_first": looks[0], "memory_mib": looks[-1]}
    return replace(measures[len(measures) // 2], more=more)


async def _fill(connection: Connection, groups: int) -> None:
    # Without foreign keys and triggers: these rows are consistent.
    await connection.execute("SET session_replication_role = replica; SET synchronous_commit = off")
    members = [OWNER, *BODY["members"]]
    for start in range(0, groups, FILL_ROWS):
        rows = min(FILL_ROWS, groups - start)
        await connection.execute(_FILL, rows, OWNER, members, groups, start)
    await connection.execute(_AGE_SLOTS)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")


async def _old_rows(connection: Connection) -> int:
    """Count the rows that the sweep must delete."""
    rows: int = await connection.fetchval(
        """SELECT (SELECT count(*) FROM attempt WHERE settled_at < now() - interval '30 days')
                + (SELECT count(*) FROM outbox_0)"""
    )
    return rows


@asynccontextmanager
async def _sweeping(bench: Bench, dsn: str) -> AsyncIterator[None]:
    """Run `stretto sweep` as an operator does, at most while the context lasts."""
    process = await asyncio.create_subprocess_exec(
        *python("-m", "stretto", "sweep"),
        env=bench.environment(DATABASE_URL=dsn, RETENTION_DAYS="30"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _sizes_mb(connection: Connection) -> dict[str, float]:
    """Return the tables' sizes with their indexes."""
    tables = ("attempt", "chat_group", "conversation", "conversation_member", "outbox")
    size = """SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables
              WHERE relname ~ ('^' || $1 || '(_[0-7])?$')"""
    return {f"{table}_mb": float(await connection.fetchval(size, table)) / 1e6 for table in tables}
