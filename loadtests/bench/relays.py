"""The parts that measure how fast one relay empties an outbox, without other load."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from loadtests.bench.bench import OWNER
from loadtests.bench.machinery import BODY, BenchError, Measure

from stretto.embedded.nats import embedded_nats
from stretto.events.event import BUS_PREFIX
from stretto.events.local_bus import LocalBus
from stretto.events.positions import Origin
from stretto.events.relay import OutboxRelay, RelaySettings
from stretto.nats.connection import NatsConnection
from stretto.nats.deployment import Deployment
from stretto.nats.publisher import NatsBus
from stretto.postgres.connections import Database
from stretto.postgres.outbox import PostgresOutboxStore
from stretto.runtime.runner import Runner

if TYPE_CHECKING:
    from loadtests.bench.bench import Bench

    from stretto.events.event import CommittedEvent, EventBus

EVENTS = 50_000

_FILL = """
    INSERT INTO outbox (event_id, event_type, subject, recipients, payload)
    SELECT gen_random_uuid(), 'group.created', gen_random_uuid(), $1,
           '{"members_count": 4, "name": "Team standup", "owner_id": "user-1"}'
    FROM generate_series(1, $2)"""


def _hear(_: CommittedEvent) -> None:
    """Ignore the event: there are no sessions."""


async def relay(bench: Bench) -> Measure:
    """Measure the local bus."""
    return await _emptied(bench, LocalBus(_hear))


async def relay_to_nats(bench: Bench) -> Measure:
    """Measure NATS, which stores every event on disk, and back, as each replica receives them."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as server, Runner(lambda _: None) as runner:
            connection = NatsConnection(server.url, lambda _: None)
            deployment = Deployment(BUS_PREFIX, Origin("00000000"))
            bus = NatsBus(connection, deployment, _hear, lambda: None, lambda _: None)
            runner.start(connection)
            runner.start(bus)
            await bus.ready()
            return await _emptied(bench, bus)


async def _emptied(bench: Bench, bus: EventBus) -> Measure:
    events = int(EVENTS * bench.scale)
    async with bench.database() as (dsn, connection), Database(dsn) as database:
        await connection.execute(_FILL, [OWNER, *BODY["members"]], events)
        await connection.execute("VACUUM ANALYZE outbox")
        relay = OutboxRelay(PostgresOutboxStore(database), bus, lambda _: None, RelaySettings())
        times_ms = []
        started = time.perf_counter()
        begun = started
        while await relay.run_once():
            ended = time.perf_counter()
            times_ms.append((ended - begun) * 1e3)
            begun = ended
        waiting = await connection.fetchval(
            "SELECT count(*) FROM outbox WHERE published_at IS NULL"
        )
        if waiting:
            message = f"{waiting} events were not relayed"
            raise BenchError(message)
    times_ms.sort()
    return Measure(
        events / (begun - started),
        times_ms[len(times_ms) // 2],
        times_ms[len(times_ms) * 99 // 100],
        events,
    )
