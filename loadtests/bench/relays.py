"""The parts that measure how fast one relay publishes a log, without other load."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from loadtests.bench.bench import OWNER
from loadtests.bench.machinery import BODY, BenchError, Measure

from stretto.embedded.nats import embedded_nats
from stretto.nats.connection import NatsConnection
from stretto.nats.deployment import Deployment
from stretto.nats.publisher import NatsBus
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.connections import Database
from stretto.runtime.runner import Runner
from stretto.targets.relay import OutboxRelay
from stretto.targets.settings import BUS_PREFIX, RelaySettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from loadtests.bench.bench import Bench

    from stretto.events.log import CommittedEvent
    from stretto.targets.bus import EventBus

EVENTS = 50_000

_FILL = """
    INSERT INTO outbox (slot, history, event_id, subject, recipients, conversation_id, group_name)
    SELECT 0, 0, gen_random_uuid(), gen_random_uuid(), $1, uuidv7(), 'Team standup'
    FROM generate_series(1, $2)"""


class _DeafBus:
    """Takes every event, and does nothing with it."""

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Refuse nothing."""
        del events
        return {}


async def relay(bench: Bench) -> Measure:
    """Measure the relay alone."""
    return await _published(bench, _DeafBus())


async def relay_to_nats(bench: Bench) -> Measure:
    """Measure NATS, which stores every event on disk."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as server, Runner(lambda _: None) as runner:
            connection = NatsConnection(server.url, lambda _: None)
            bus = NatsBus(connection, Deployment(BUS_PREFIX, "00000000"))
            runner.start(connection)
            return await _published(bench, bus)


async def _published(bench: Bench, bus: EventBus) -> Measure:
    events = int(EVENTS * bench.scale)
    async with bench.database() as (dsn, connection), Database(dsn) as database:
        relay = OutboxRelay(PostgresBusStore(database), bus, lambda _: None, RelaySettings())
        # Its place is before the events.
        await relay.open()
        batch = relay.pace.full if relay.pace else events
        # Each transaction is published as a whole.
        for _ in range(0, events, int(batch)):
            await connection.execute(_FILL, [OWNER, *BODY["members"]], int(batch))
        await connection.execute("VACUUM ANALYZE outbox")
        times_ms = []
        started = time.perf_counter()
        begun = started
        while await relay.run_once():
            ended = time.perf_counter()
            times_ms.append((ended - begun) * 1e3)
            begun = ended
        await relay.close()
        left = await connection.fetchval(
            """SELECT count(*) FROM outbox, outbox_reader AS reader
               WHERE outbox.history = reader.history
                 AND NOT pg_visible_in_snapshot(position, seen)"""
        )
        if left:
            message = f"{left} events were not published"
            raise BenchError(message)
    times_ms.sort()
    return Measure(
        events / (begun - started),
        times_ms[len(times_ms) // 2],
        times_ms[len(times_ms) * 99 // 100],
        events,
    )
