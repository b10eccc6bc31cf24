"""The relay on a real outbox: what is committed is handed over, whoever dies in between (G8)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import orjson
import pytest

from stretto.errors import Unreachable
from stretto.events.event import BusUnavailable
from stretto.events.lag import Lag
from stretto.events.outbox import RefusalLimits
from stretto.events.relay import OutboxRelay, RelaySettings
from stretto.observations import EventBuried
from stretto.postgres.outbox import PostgresOutboxStore, dead_letters, retry_dead_letters
from support.database import commit_event, connect, undelivered
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.event import CommittedEvent
    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.database import Connection

NO_PAUSE = RefusalLimits(tries_max=3, pause_seconds_first=0.0)
NO_LEASE_SECONDS = 0.0


class RecordingBus:
    """Keeps what it is given, and does as the test says in between."""

    def __init__(self) -> None:
        self.events: list[CommittedEvent] = []
        self.reasons: dict[UUID, str] = {}
        self.is_away = False
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    @property
    def ids(self) -> list[UUID]:
        return [event.event_id for event in self.events]

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        if self.is_away:
            raise BusUnavailable("away")
        self.events += [event for event in events if event.event_id not in self.reasons]
        if self.meanwhile:
            await self.meanwhile()
        return {
            key: why for key, why in self.reasons.items() if key in {e.event_id for e in events}
        }


def relay_of(
    database: Database, bus: RecordingBus, *, lease_seconds: float = 30.0, batch_max: int = 100
) -> OutboxRelay:
    """Return a relay that pauses for nobody."""
    settings = RelaySettings(
        relay_lease_seconds=lease_seconds, batch_max=batch_max, refusal=NO_PAUSE
    )
    return OutboxRelay(PostgresOutboxStore(database), bus, lambda _: None, settings)


async def commit_events(connection: Connection, count: int = 1) -> list[UUID]:
    """Commit events, each in the transaction that is open, or in one of its own."""
    return [await commit_event(connection) for _ in range(count)]


async def oldest_running(connection: Connection) -> int:
    """Return the least transaction that still runs anywhere on the server, or the next one."""
    oldest: int = await connection.fetchval("SELECT pg_snapshot_xmin(pg_current_snapshot())")
    return oldest


async def test_a_committed_event_is_published_once_in_its_envelope(
    database: Database, connection: Connection
) -> None:
    """CloudEvents 1.0, with the stable id."""
    (event_id,) = await commit_events(connection)
    bus = RecordingBus()
    relay = relay_of(database, bus)
    assert [1, 0] == [await relay.run_once(), await relay.run_once()]
    (event,) = bus.events
    envelope = orjson.loads(event.envelope)
    assert envelope.pop("time").endswith("+00:00")
    assert {
        "specversion": "1.0",
        "id": str(event_id),
        "source": "urn:stretto",
        "type": "group.created",
        "subject": str(event_id),
        "datacontenttype": "application/json",
        "data": {"name": "Team"},
    } == envelope
    assert ("alice", "bob") == event.recipients


async def test_relays_share_the_work(database: Database, connection: Connection) -> None:
    """No event is published by two of them while the leases run."""
    ids = await commit_events(connection, 60)
    bus = RecordingBus()
    relays = [relay_of(database, bus, batch_max=7) for _ in range(3)]
    while any(await asyncio.gather(*(relay.run_once() for relay in relays))):
        pass
    assert sorted(ids) == sorted(bus.ids)
    assert 0 == await undelivered(connection)


@pytest.mark.parametrize(("times", "lease_seconds"), [(1, 30.0), (2, NO_LEASE_SECONDS)])
async def test_a_lease_that_runs_out_while_publishing_only_repeats_the_event(
    times: int, lease_seconds: float, database: Database, connection: Connection
) -> None:
    """Another relay takes it then, and not before."""
    ids = await commit_events(connection)
    bus, other_bus = RecordingBus(), RecordingBus()
    store = PostgresOutboxStore(database)
    other = relay_of(database, other_bus)
    taken = await store.take(10, lease_seconds)
    await bus.publish(taken)
    await other.run_once()
    await store.mark(bus.ids)
    assert ids * times == bus.ids + other_bus.ids
    assert 0 == await undelivered(connection)


@pytest.mark.parametrize(("expected", "dies"), [(2, True), (1, False)])
async def test_a_relay_that_dies_before_it_marks_leaves_the_event_to_the_next(
    expected: int, dies: bool, database: Database, connection: Connection
) -> None:
    """Twice with one id rather than never."""
    ids = await commit_events(connection)
    bus = RecordingBus()
    store = PostgresOutboxStore(database)
    taken = await store.take(10, NO_LEASE_SECONDS)
    await bus.publish(taken)
    if not dies:
        await store.mark(ids)
    await relay_of(database, bus).run_once()
    assert ids * expected == bus.ids


async def test_no_transaction_is_open_while_the_bus_works(
    database: Database, connection: Connection
) -> None:
    """A slow bus keeps no snapshot and no lock."""
    await commit_events(connection)
    bus = RecordingBus()
    open_ones: list[int] = []

    async def look() -> None:
        open_ones.append(
            await connection.fetchval(
                """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                   AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
                   AND backend_type = 'client backend'"""
            )
        )
        await connection.execute("UPDATE outbox SET payload = '{}'")

    bus.meanwhile = look
    await relay_of(database, bus).run_once()
    assert [0] == open_ones


async def test_an_event_that_commits_late_stands_behind_every_told_position(
    database: Database, connection: Connection, database_url: str
) -> None:
    """Its transaction began before that of a published event; resuming does not pass it."""
    late = await connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    (late_id,) = await commit_events(late)
    (early_id,) = await commit_events(connection)
    bus = RecordingBus()
    await relay_of(database, bus).run_once()
    await transaction.commit()
    await late.close()
    (event,) = bus.events
    assert early_id == event.event_id
    rows = await connection.fetch("SELECT event_id, position FROM outbox")
    positions = {row["event_id"]: row["position"] for row in rows}
    # The twin: the event's own position would have lost the late one.
    assert event.position <= positions[late_id] < positions[early_id]


async def test_an_event_under_way_holds_the_resume_position_back(
    database: Database, connection: Connection
) -> None:
    """What another relay still has on lease may come yet; once marked it holds back nothing."""
    store = PostgresOutboxStore(database)
    first = await commit_events(connection)
    (held,) = await store.take(10, 30.0)
    await commit_events(connection)
    position = await connection.fetchval("SELECT position FROM outbox WHERE event_id = $1", *first)
    # Other tests' transactions hold the place back as well.

    async def is_free() -> bool:
        return bool(await oldest_running(connection) > position)

    await until(is_free)
    (event,) = await store.take(10, 30.0)
    assert position == event.position >= held.position
    await store.mark(first)
    await commit_events(connection)
    (third,) = await store.take(10, 30.0)
    assert third.position > position


async def test_a_bus_that_is_away_costs_no_try_and_no_lease(
    database: Database, connection: Connection
) -> None:
    """However long; the events go as soon as it is back."""
    ids = await commit_events(connection)
    bus = RecordingBus()
    relay = relay_of(database, bus)
    bus.is_away = True
    for _ in range(2 * NO_PAUSE.tries_max):
        with pytest.raises(BusUnavailable):
            await relay.run_once()
    assert 0 == await connection.fetchval("SELECT tries FROM outbox")
    bus.is_away = False
    assert 1 == await relay.run_once()
    assert ids == bus.ids


async def test_an_event_refused_too_often_dies_and_can_be_replayed(
    database: Database, connection: Connection
) -> None:
    """Its neighbours go on; its death says why; its replay stands at the end of history."""
    bad, good = await commit_events(connection, 2)
    bus = RecordingBus()
    bus.reasons = {bad: "too large\0"}
    told: list[Observation] = []
    relay = relay_of(database, bus)
    relay._observe = told.append
    for _ in range(NO_PAUSE.tries_max):
        assert await relay.run_once() > 0
    assert 0 == await relay.run_once()
    assert [good] == bus.ids
    assert [EventBuried(bad, "too large\0")] == [e for e in told if isinstance(e, EventBuried)]
    (letter,) = await dead_letters(connection, 10)
    assert (bad, 3, "too large") == (letter["event_id"], letter["tries"], letter["dead_reason"])
    old = await connection.fetchval("SELECT max(position) FROM outbox")
    assert 0 == await retry_dead_letters(connection, [good])
    assert 1 == await retry_dead_letters(connection, None)
    assert old < await connection.fetchval("SELECT position FROM outbox WHERE event_id = $1", bad)
    bus.reasons = {}
    assert 1 == await relay.run_once()
    assert [good, bad] == bus.ids


async def test_a_refused_event_waits_longer_each_time(
    database: Database, connection: Connection
) -> None:
    """And at random within the half of it."""
    (event_id,) = await commit_events(connection)
    store = PostgresOutboxStore(database)
    limits = RefusalLimits(pause_seconds_first=100, pause_seconds_max=300)
    pauses = []
    for _ in range(4):
        assert set() == await store.refuse({event_id: ""}, limits)
        pauses.append(
            await connection.fetchval(
                "SELECT extract(epoch FROM due_at - clock_timestamp())::float8 FROM outbox"
            )
        )
    for pause, longest in zip(pauses, (100, 200, 300, 300), strict=True):
        assert longest / 2 - 10 < pause <= longest


async def test_refused_events_do_not_come_back_together(
    database: Database, connection: Connection
) -> None:
    """Refused in one statement, each is put off by a time of its own, within half of the pause."""
    ids = await commit_events(connection, 50)
    now = datetime(2030, 1, 1, tzinfo=UTC)
    store = PostgresOutboxStore(database, lambda: now)
    limits = RefusalLimits(pause_seconds_first=100, pause_seconds_max=300)
    await store.refuse(dict.fromkeys(ids, "no"), limits)
    pauses = {
        (row["due_at"] - now).total_seconds()
        for row in await connection.fetch("SELECT due_at FROM outbox")
    }
    assert len(pauses) > 25
    assert min(pauses) >= 50
    assert max(pauses) <= 100
    assert max(pauses) - min(pauses) > 10


async def test_the_lag_is_the_age_of_the_oldest_event_that_is_not_on_the_bus(
    database: Database, connection: Connection
) -> None:
    """Leased or put off, it is owed still; what is published or dead is not."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    store = PostgresOutboxStore(database, lambda: now)
    assert await store.oldest_seconds() is None
    ids = await commit_events(connection, 3)
    for event_id, minutes in zip(ids, (30, 20, 10), strict=True):
        await connection.execute(
            "UPDATE outbox SET created_at = $1 WHERE event_id = $2",
            now - timedelta(minutes=minutes),
            event_id,
        )
    assert 30 * 60 == await store.oldest_seconds()
    assert ids[:1] == [event.event_id for event in await store.take(1, 3600)]
    assert 30 * 60 == await store.oldest_seconds()
    await store.mark(ids[:1])
    assert 20 * 60 == await store.oldest_seconds()
    await store.refuse({ids[1]: "no"}, RefusalLimits(tries_max=2))
    assert 20 * 60 == await store.oldest_seconds()
    await store.refuse({ids[1]: "no"}, RefusalLimits(tries_max=2))
    assert 10 * 60 == await store.oldest_seconds()
    relay = relay_of(database, RecordingBus())
    relay._store = store
    relay.lag = Lag(store.oldest_seconds)
    assert 1 == await relay.run_once()
    assert 10 * 60 <= relay.lag.seconds
    assert await store.oldest_seconds() is None


async def test_a_relay_that_is_cancelled_while_publishing_gives_its_events_back(
    database: Database, connection: Connection
) -> None:
    """The next one need not wait for the lease."""
    ids = await commit_events(connection)
    bus = RecordingBus()
    publishing = asyncio.Event()

    async def hang() -> None:
        publishing.set()
        await asyncio.Event().wait()

    bus.meanwhile = hang
    task = asyncio.create_task(relay_of(database, bus).run_once())
    await publishing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other_bus = RecordingBus()
    assert 1 == await relay_of(database, other_bus).run_once()
    assert ids == other_bus.ids


async def test_taking_is_a_hot_update(database: Database, connection: Connection) -> None:
    """It touches no index."""
    await commit_events(connection, 20)
    await PostgresOutboxStore(database).take(20, 30.0)
    await connection.execute("SELECT pg_stat_force_next_flush()")
    async with database.upkeep() as taker:
        await taker.execute("SELECT pg_stat_force_next_flush()")
    row = await connection.fetchrow(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox'"
    )
    assert row is not None
    assert 20 == row["n_tup_upd"] == row["n_tup_hot_upd"]


async def test_without_its_tables_the_relay_says_that_the_database_is_away(
    database: Database, connection: Connection
) -> None:
    """It is a store's error, after which it tries again."""
    await connection.execute("DROP TABLE outbox")
    with pytest.raises(Unreachable):
        await relay_of(database, RecordingBus()).run_once()
