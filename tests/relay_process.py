"""A relay as a process of its own, to be killed: from the outbox to NATS, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from stretto.bus.connection import NatsConnection
from stretto.bus.nats import NatsBus
from stretto.protocol.events import BusUnavailable, CommittedEvent, Position
from stretto.storage.outbox import envelope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TAKE = """
    WITH place AS (
        SELECT least(pg_snapshot_xmin(pg_current_snapshot()), (
            SELECT min(position) FROM outbox WHERE delivered_at IS NULL AND dead_reason IS NULL
        )) AS resume_from
    ), due AS (
        SELECT event_id FROM outbox
        WHERE delivered_at IS NULL AND dead_reason IS NULL AND due_at <= clock_timestamp()
        ORDER BY due_at LIMIT 20 FOR UPDATE SKIP LOCKED
    )
    UPDATE outbox SET due_at = clock_timestamp() + interval '0.5 s', tries = tries + 1
    FROM due, place WHERE outbox.event_id = due.event_id
    RETURNING outbox.*, place.resume_from"""
DELIVERED = "UPDATE outbox SET delivered_at = clock_timestamp() WHERE event_id = ANY($1)"


def _unobserved(_: object) -> None:
    """Take no note."""


async def relay(dsn: str, url: str) -> None:
    """Relay until killed."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "stretto"})
    async with (
        NatsConnection(url, _unobserved) as nats,
        NatsBus(nats, _unobserved, lambda: None, _unobserved) as bus,
    ):
        sys.stdout.write("running\n")
        sys.stdout.flush()
        while True:
            rows = await connection.fetch(TAKE)
            events = [
                CommittedEvent(
                    row["event_id"],
                    tuple(row["recipients"]),
                    envelope(row),
                    Position(row["resume_from"]),
                )
                for row in rows
            ]
            try:
                refused = await bus.publish(events)
            except BusUnavailable:
                await nats.linked()
                continue
            assert not refused
            await connection.execute(DELIVERED, [event.event_id for event in events])
            if not rows:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def relay_process(dsn: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a relay; it may be killed at any moment."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, dsn, url), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        while b"running" not in (line := await process.stdout.readline()):
            assert line
        reading = asyncio.create_task(process.stdout.read())
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


if __name__ == "__main__":
    asyncio.run(relay(*sys.argv[1:]))
