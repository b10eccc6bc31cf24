"""The relay on a real log: what is committed is published, whatever dies in between (G8)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import orjson
import pytest
import pytest_asyncio

from stretto.events.place import History, Place
from stretto.observations import EventDeadLettered, PlaceLost
from stretto.postgres import bus as bus_module
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.deliveries import dead_letters, retry_dead_letters
from stretto.postgres.queries import QUERIES
from stretto.runtime.backoff import Backoff
from stretto.store_errors import Unreachable
from stretto.targets import refused as refused_module
from stretto.targets.bus import BusUnavailable
from stretto.targets.lag import LOOK_SECONDS
from stretto.targets.relay import OutboxRelay
from stretto.targets.settings import RelaySettings
from stretto.telemetry.tracing import Tracing
from support.clock import Clock
from support.database import commit_event, connect, unpublished
from support.traces import PARENT_ID, RAISING_PLACES, SAMPLED, TRACE_ID, Spans, raising_spans

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.database import Connection

TRIES_MAX = 3
LEASE_SECONDS = 30.0
NOW = datetime(2030, 1, 1, tzinfo=UTC)


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


class World:
    """Relays of several processes on one log; their clock and the database's are the test's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.clock = Clock(0.0)
        self.bus = RecordingBus()
        self.observed: list[Observation] = []
        self.relay = self.another()

    def store(self) -> PostgresBusStore:
        """Return the store of one more process."""
        return PostgresBusStore(self._database, lambda: NOW + timedelta(seconds=self.clock.now))

    def another(self, bus: RecordingBus | None = None, batch_max: int = 100) -> OutboxRelay:
        """Return the relay of one more process."""
        settings = RelaySettings(relay_lease_seconds=LEASE_SECONDS, batch_max=batch_max)
        return OutboxRelay(
            self.store(), bus or self.bus, self.observed.append, settings, self.clock
        )


@pytest_asyncio.fixture
async def world(database: Database) -> World:
    """A world whose bus has begun before the first event."""
    world = World(database)
    await world.relay.open()
    return world


def lost_places(world: World) -> list[Observation]:
    """Return what was reported of lost places."""
    return [each for each in world.observed if isinstance(each, PlaceLost)]


async def commit_events(connection: Connection, count: int = 1) -> list[UUID]:
    """Commit events, each in the transaction that is open, or in one of its own."""
    return [await commit_event(connection) for _ in range(count)]


async def test_a_committed_event_is_published_once_in_its_envelope(
    world: World, connection: Connection
) -> None:
    """CloudEvents 1.0, with the stable id."""
    (event_id,) = await commit_events(connection)
    assert [1, 0] == [await world.relay.run_once(), await world.relay.run_once()]
    (event,) = world.bus.events
    envelope = orjson.loads(event.envelope)
    assert envelope.pop("time").endswith("+00:00")
    assert envelope["data"].pop("conversation_id")
    assert {
        "specversion": "1.0",
        "id": str(event_id),
        "source": "urn:stretto",
        "type": "group.created",
        "subject": str(event_id),
        "datacontenttype": "application/json",
        "data": {
            "group_id": str(event_id),
            "owner_id": "alice",
            "name": "Team",
            "members_count": 2,
            "member_ids": ["alice", "bob"],
        },
    } == envelope
    assert ("alice", "bob") == event.recipients
    assert 0 == await unpublished(connection)


@pytest.mark.parametrize(
    ("error", "reason"), [(None, None), ("refused", "too large")], ids=["published", "refused"]
)
async def test_the_publishing_of_an_event_is_a_part_of_its_requests_trace(
    error: str | None, reason: str | None, world: World, connection: Connection
) -> None:
    """Also of one that is refused, and published later; one without a trace has no span."""
    spans = Spans()
    world.relay._tracing = Tracing(spans.provider)
    traced, _ = await commit_events(connection, 2)
    await connection.execute(
        "UPDATE outbox SET trace_context = $2 WHERE event_id = $1", traced, f"{SAMPLED} vendor=1"
    )
    if reason is not None:
        world.bus.reasons = {traced: reason}
    await world.relay.run_once()
    (span,) = spans.named("stretto.publish")
    assert (TRACE_ID, PARENT_ID, error) == (
        span.trace_id,
        span.parent_id,
        span.attributes.get("error.type"),
    )
    world.bus.reasons = {}
    world.clock.now += 60
    await world.relay.run_once()
    contexts = {event.event_id: event.trace_context for event in world.bus.events}
    assert f"{SAMPLED} vendor=1" == contexts.pop(traced)
    assert [None] == [*contexts.values()]
    (envelope,) = (each.envelope for each in world.bus.events if each.event_id == traced)
    document = orjson.loads(envelope)
    assert (SAMPLED, "vendor=1") == (document["traceparent"], document["tracestate"])


@pytest.mark.parametrize("place", RAISING_PLACES)
async def test_a_hosts_tracing_that_raises_holds_no_event_up(
    place: str, world: World, connection: Connection
) -> None:
    """The relay goes on, and publishes each event once."""
    world.relay._tracing = Tracing(raising_spans(place, ZeroDivisionError()).provider)
    ids = await commit_events(connection, 2)
    await connection.execute("UPDATE outbox SET trace_context = $1", SAMPLED)
    for _ in range(2):
        await world.relay.run_once()
    assert sorted(ids) == sorted(event.event_id for event in world.bus.events)


async def test_a_bus_that_is_away_is_seen_in_the_trace(
    world: World, connection: Connection
) -> None:
    """Each try is a span."""
    spans = Spans()
    world.relay._tracing = Tracing(spans.provider)
    await commit_events(connection)
    await connection.execute("UPDATE outbox SET trace_context = $1", SAMPLED)
    world.bus.is_away = True
    with pytest.raises(BusUnavailable):
        await world.relay.run_once()
    world.bus.is_away = False
    await world.relay.run_once()
    assert ["BusUnavailable", None] == [
        span.attributes.get("error.type") for span in spans.named("stretto.publish")
    ]


async def test_a_relay_begins_with_what_commits_after_its_first_start(
    database: Database, connection: Connection
) -> None:
    """Not with all that there ever was; a later start goes on where the last one was."""
    await commit_events(connection)
    world = World(database)
    await world.relay.open()
    ids = await commit_events(connection)
    await world.another().open()
    await world.relay.run_once()
    assert ids == world.bus.ids


async def test_one_of_many_relays_publishes(world: World, connection: Connection) -> None:
    """Every event once, in the order of the log."""
    ids = await commit_events(connection, 60)
    relays = [world.another(batch_max=7) for _ in range(3)]
    while any(await asyncio.gather(*(relay.run_once() for relay in relays))):
        pass
    assert ids == world.bus.ids
    assert 0 == await unpublished(connection)


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_relay_that_dies_is_replaced_when_its_lease_is_over(
    world: World, connection: Connection, is_dead: bool
) -> None:
    """What it had published without moving on is published again: twice rather than never."""
    ids = await commit_events(connection)

    async def die() -> None:
        raise asyncio.CancelledError

    other_bus = RecordingBus()
    other = world.another(other_bus)
    if is_dead:
        world.bus.meanwhile = die
        world.relay._give_back = die  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await world.relay.run_once()
    else:
        await world.relay.run_once()
    world.clock.now = LEASE_SECONDS - 1
    assert 0 == await other.run_once()
    world.clock.now = LEASE_SECONDS + 1
    assert int(is_dead) == await other.run_once()
    assert (ids, ids * is_dead) == (world.bus.ids, other_bus.ids)


@pytest.mark.parametrize("is_fenced", [True, False])
async def test_a_relay_that_is_stopped_beyond_its_lease_moves_nothing(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    """Another one is farther by then; without the fence, the place would go back behind it."""
    first = await commit_events(connection)
    if not is_fenced:
        statements = QUERIES
        unfenced = statements["advance_bus"].replace("token = $1", "$1::uuid IS NOT NULL")
        monkeypatch.setattr(bus_module, "QUERIES", {**statements, "advance_bus": unfenced})
    other = world.another()

    async def be_stopped() -> None:
        world.bus.meanwhile = None
        world.clock.now += LEASE_SECONDS + 1
        second.extend(await commit_events(connection))
        assert 2 == await other.run_once()

    second: list[UUID] = []
    world.bus.meanwhile = be_stopped
    await world.relay.run_once()
    assert first * 2 + second == sorted(world.bus.ids, key=(first + second).index)
    assert (0 if is_fenced else 1) == await unpublished(connection)


async def test_no_transaction_is_open_while_the_bus_works(
    world: World, connection: Connection
) -> None:
    """A slow bus keeps no snapshot and no lock."""
    await commit_events(connection)
    open_ones: list[int] = []

    async def look() -> None:
        open_ones.append(
            await connection.fetchval(
                """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                   AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
                   AND backend_type = 'client backend'"""
            )
        )
        await connection.execute("UPDATE outbox_reader SET paused_until = '-infinity'")

    world.bus.meanwhile = look
    await world.relay.run_once()
    assert [0] == open_ones


async def test_an_event_that_commits_late_is_published(
    world: World, connection: Connection, database_url: str
) -> None:
    """Its transaction began before that of a published event; the place names it."""
    late = await connect(database_url)
    async with late.transaction():
        (late_id,) = await commit_events(late)
        (early_id,) = await commit_events(connection)
        assert 1 == await world.relay.run_once()
    await late.close()
    await world.relay.close()
    world.clock.now += LEASE_SECONDS
    assert 1 == await world.another().run_once()
    assert [early_id, late_id] == world.bus.ids


@pytest.mark.parametrize("is_lease_due", [True, False])
async def test_a_place_of_a_history_that_a_failover_has_lost_is_none_of_the_new_one(
    world: World, connection: Connection, is_lease_due: bool
) -> None:
    """The new primary has begun another history of that number: what it commits was not published."""
    # What the standby had got of the reader's row.
    ids = await commit_events(connection)
    assert 1 == await world.relay.run_once()
    ids += await commit_events(connection, 2)
    end = await connection.fetchval("SELECT max(position)::text::bigint FROM outbox")
    number = await connection.fetchval("SELECT max(history) FROM outbox")
    world.relay._place = Place(History(number, "10571057"), end)
    if is_lease_due:
        world.clock.now += LEASE_SECONDS
    while await world.relay.run_once():
        pass
    assert (ids, []) == (world.bus.ids, lost_places(world))


@pytest.mark.parametrize("was_leased", [True, False])
async def test_a_reader_whose_row_was_lost_begins_again_where_it_was(
    world: World, connection: Connection, was_leased: bool
) -> None:
    """Not at the present, which would pass over what was committed since."""
    relay = world.relay if was_leased else world.another()
    await relay.open()
    ids = await commit_events(connection)
    assert 1 == await world.relay.run_once()
    # It looks once a second, also without the lease.
    assert 0 == await relay.run_once()
    # An asynchronous standby had not got it.
    await connection.execute("DELETE FROM outbox_reader")
    ids += await commit_events(connection)
    world.clock.now += LEASE_SECONDS
    for _ in range(3):
        await relay.run_once()
    assert ids == world.bus.ids
    assert [PlaceLost("relay")] == lost_places(world)


async def test_a_reader_begins_again_at_no_place_of_a_lost_history(
    world: World, connection: Connection
) -> None:
    """The failover has lost that, too: what the new primary has is published from its beginning."""
    ids = await commit_events(connection, 2)
    end = await connection.fetchval("SELECT max(position)::text::bigint + 50 FROM outbox")
    number = await connection.fetchval("SELECT max(history) FROM outbox")
    store = world.store()
    store._last = Place(History(number, "10571057"), end)
    world.relay = OutboxRelay(store, world.bus, world.observed.append, RelaySettings(), world.clock)
    world.relay._is_open = True
    await connection.execute("DELETE FROM outbox_reader")
    for _ in range(3):
        await world.relay.run_once()
    assert ids == world.bus.ids


async def test_a_bus_that_is_away_costs_no_try(world: World, connection: Connection) -> None:
    """However long; the events go as soon as it is back."""
    ids = await commit_events(connection)
    world.bus.is_away = True
    for _ in range(2 * TRIES_MAX):
        with pytest.raises(BusUnavailable):
            await world.relay.run_once()
    assert 0 == await connection.fetchval("SELECT count(*) FROM outbox_delivery")
    world.bus.is_away = False
    assert 1 == await world.relay.run_once()
    assert ids == world.bus.ids


@pytest.mark.parametrize(
    ("given", "kept"), [("too large\0", "too large"), ("", "refused without a reason")]
)
async def test_an_event_refused_too_often_dies_and_can_be_retried(
    world: World, connection: Connection, given: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours go on; its death says why."""
    monkeypatch.setattr(refused_module, "TRIES_MAX", TRIES_MAX)
    monkeypatch.setattr(refused_module, "PAUSE", Backoff(0.0, 0.0))
    bad, good = await commit_events(connection, 2)
    world.bus.reasons = {bad: given}
    assert 2 == await world.relay.run_once()
    for _ in range(TRIES_MAX):
        world.clock.now += LOOK_SECONDS + 1
        await world.relay.run_once()
    assert [good] == world.bus.ids
    dead = [each for each in world.observed if isinstance(each, EventDeadLettered)]
    assert [EventDeadLettered(bad, given)] == dead
    (letter,) = await dead_letters(connection, 10)
    assert (bad, 3, kept) == (letter["event_id"], letter["tries"], letter["dead_reason"])
    assert 0 == await retry_dead_letters(connection, [good])
    assert 1 == await retry_dead_letters(connection, None)
    world.bus.reasons = {}
    world.clock.now += LOOK_SECONDS
    await world.relay.run_once()
    assert [good, bad] == world.bus.ids
    assert 0 == await unpublished(connection)


async def test_the_lag_is_the_age_of_the_oldest_event_that_is_not_on_the_bus(
    world: World, connection: Connection
) -> None:
    """Refused, it is owed still; what is published or dead is not."""
    store = world.store()
    assert await store.oldest_seconds() is None
    ids = await commit_events(connection, 3)
    for event_id, minutes in zip(ids, (30, 20, 10), strict=True):
        await connection.execute(
            "UPDATE outbox SET created_at = $1 WHERE event_id = $2",
            NOW - timedelta(minutes=minutes),
            event_id,
        )
    assert 30 * 60 == await store.oldest_seconds()
    world.bus.reasons = {ids[1]: "no"}
    relay = world.another(batch_max=2)
    assert 2 == await relay.run_once()
    assert 30 * 60 == relay.lag.seconds
    assert 20 * 60 == await store.oldest_seconds()
    assert 1 == await relay.run_once()
    await connection.execute("UPDATE outbox_delivery SET dead_reason = 'no'")
    assert await store.oldest_seconds() is None


async def test_a_relay_that_is_cancelled_while_publishing_gives_its_lease_back(
    world: World, connection: Connection
) -> None:
    """The next one need not wait for its end."""
    ids = await commit_events(connection)
    publishing = asyncio.Event()

    async def hang() -> None:
        publishing.set()
        await asyncio.Event().wait()

    world.bus.meanwhile = hang
    task = asyncio.create_task(world.relay.run_once())
    await publishing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other_bus = RecordingBus()
    assert 1 == await world.another(other_bus).run_once()
    assert ids == other_bus.ids


async def test_publishing_leaves_no_dead_row_in_the_log(
    world: World, connection: Connection, database: Database
) -> None:
    """Only the reader's row changes."""
    await commit_events(connection, 20)
    await world.relay.run_once()
    await connection.execute("SELECT pg_stat_force_next_flush()")
    async with database.upkeep() as reader:
        await reader.execute("SELECT pg_stat_force_next_flush()")
    row = await connection.fetchrow(
        "SELECT sum(n_tup_upd) AS updated, sum(n_tup_del) AS deleted, sum(n_dead_tup) AS dead"
        " FROM pg_stat_user_tables WHERE relname ~ '^outbox_[0-7]$'"
    )
    assert row is not None
    assert (0, 0, 0) == (row["updated"], row["deleted"], row["dead"])


async def test_without_its_tables_the_relay_says_that_the_database_is_away(
    world: World, connection: Connection
) -> None:
    """It is a store's error, after which it tries again."""
    await connection.execute("DROP TABLE outbox_reader CASCADE")
    with pytest.raises(Unreachable):
        await world.relay.run_once()
