"""What keeps events from being doubled and from being passed over, each guard with and without it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
import pytest_asyncio

from stretto.domain import UserId
from stretto.events.catch_up import CatchUp
from stretto.events.history_reader import Ask, HistoryReader, Stretch
from stretto.events.hub import HubSettings, SessionHub
from stretto.events.local_bus import LocalBus
from stretto.events.outgoing import OutgoingEvent
from stretto.events.positions import ClientPosition, Cursor, Position
from stretto.events.relay import OutboxRelay, RelaySettings
from stretto.postgres import history, outbox
from stretto.postgres.queries import QUERIES
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run
from support.database import commit_event, connect, lock_waiters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import ModuleType

    from stretto.events.event import CommittedEvent
    from stretto.events.history import PastEvent
    from stretto.postgres.connections import Database
    from support.database import Connection

BOB = UserId("bob")


class CountingBus:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        self.ids += [event.event_id for event in events]
        return {}


class World:
    """A relay, a hub and a reader of history on one database, each step by step."""

    def __init__(self, database: Database, hub: SessionHub) -> None:
        self.hub = hub
        self.relay = relay_of(database, LocalBus(hub.deliver))
        self._asks: Mailbox[Ask, Stretch] = Mailbox(10)
        store = history.PostgresHistoryStore(database)
        self.reader = HistoryReader(self._asks, store, hub.origin, lambda _: None)

    @asynccontextmanager
    async def session(self, since: str | None = None) -> AsyncIterator[tuple[str, list[str]]]:
        """Be connected as bob; yields the position and the ids of all that he has missed."""
        bookmark = None if since is None else ClientPosition.parse(since)
        with self.hub.session(BOB, 1e12) as session:
            replay = CatchUp(self._asks, session, self.hub.origin, bookmark)
            reading = asyncio.create_task(Run(self.reader, lambda _: None).turns())
            position = await replay.begin()
            missed: list[OutgoingEvent] = []
            while (stretch := await replay.next()) is not None:
                missed += stretch
            reading.cancel()
            self.live = session
            place = missed[-1].position if missed else position
            yield place, [str(each.event_id) for each in missed]

    async def told(self) -> OutgoingEvent:
        """Relay, and return what bob's session is told live."""
        assert 1 == await self.relay.run_once()
        (outgoing,) = await self.live.take()
        return outgoing


def relay_of(database: Database, bus: LocalBus | CountingBus) -> OutboxRelay:
    """Return a relay that runs when the test says."""
    store = outbox.PostgresOutboxStore(database)
    return OutboxRelay(store, bus, lambda _: None, RelaySettings())


@pytest_asyncio.fixture
async def world(database: Database) -> World:
    """A world of its own."""
    origin = await history.PostgresHistoryStore(database).origin()
    return World(database, SessionHub(origin, HubSettings(), lambda _: None))


@asynccontextmanager
async def beside(database_url: str) -> AsyncIterator[Connection]:
    """Open another connection, in a transaction that commits in the end."""
    connection = await connect(database_url)
    async with connection.transaction():
        yield connection
    await connection.close()


async def bobs_event(connection: Connection) -> str:
    """Commit an event of bob's; return its id."""
    return str(await commit_event(connection, ("bob",)))


def without(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, *cut: str) -> None:
    """Take a guard out of a statement: each text is replaced by the next one."""
    statement = QUERIES[name]
    for old, new in zip(cut[::2], cut[1::2], strict=True):
        assert old in statement
        statement = statement.replace(old, new)
    monkeypatch.setattr(module, "QUERIES", {**QUERIES, name: statement})


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_relays_that_take_at_the_same_moment_share_the_events(
    is_guarded: bool, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are at work before either has its lease; without the row lock both publish all."""
    if not is_guarded:
        without(monkeypatch, outbox, "take", "FOR UPDATE SKIP LOCKED", "")
    bus = CountingBus()
    one, other = relay_of(database, bus), relay_of(database, bus)
    watch = await connect(database_url)
    ids = [await bobs_event(watch) for _ in range(3)]
    async with beside(database_url) as holder:
        # Whoever is at this row waits, but passes over what another one has.
        await holder.execute("SELECT FROM outbox WHERE event_id = $1 FOR UPDATE", ids[0])
        taking = asyncio.gather(one.run_once(), other.run_once())
        if is_guarded:
            # Who gets which is their race: one of them both rows, or each of them one.
            assert 2 == sum(await taking)
        else:
            await lock_waiters(watch, 2)
    assert (2 if is_guarded else 6) == sum(await taking)
    assert (1 if is_guarded else 0) == await one.run_once()
    assert sorted(ids * (1 if is_guarded else 2)) == sorted(map(str, bus.ids))
    await watch.close()


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_place_told_live_is_not_behind_what_commits_late(
    is_guarded: bool,
    world: World,
    connection: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay tells where all is certain; by the event's own position the late one is skipped."""
    if not is_guarded:
        place, own = (
            "position,\n          resume_position",
            "position,\n  outbox.position AS resume_position",
        )
        without(monkeypatch, outbox, "take", place, own)
    async with world.session() as (_, missed), beside(database_url) as late:
        assert [] == missed
        late_id = await bobs_event(late)
        early_id = await bobs_event(connection)
        told = await world.told()
        assert early_id == str(told.event_id)
    assert 1 == await world.relay.run_once()
    async with world.session(told.position) as (_, missed):
        assert is_guarded == (late_id in missed)
        assert early_id in missed


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_place_told_from_history_is_not_behind_what_commits_late(
    is_guarded: bool,
    world: World,
    connection: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest transaction that ran when the replay began bounds it; without that it is skipped."""
    if not is_guarded:

        def as_it_stands(self: HistoryReader, past: PastEvent, _: object) -> OutgoingEvent:
            return OutgoingEvent(past.event, self._origin)

        monkeypatch.setattr(HistoryReader, "_outgoing", as_it_stands)
    async with world.session() as (since, _):
        pass
    async with beside(database_url) as late:
        late_id = await bobs_event(late)
        early_id = await bobs_event(connection)
        async with world.session(since) as (place, missed):
            assert [early_id] == missed
    async with world.session(place) as (_, missed):
        assert ([late_id, early_id] if is_guarded else [early_id]) == missed


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_the_first_place_of_a_session_is_not_behind_what_commits_late(
    is_guarded: bool,
    world: World,
    connection: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who leaves without an event resumes there; at the newest transaction it would be skipped."""
    if not is_guarded:
        oldest, newest = "least(pg_snapshot_xmin(snapshot)", "least(pg_snapshot_xmax(snapshot)"
        without(monkeypatch, history, "history_bounds", oldest, newest)
    async with beside(database_url) as late:
        late_id = await bobs_event(late)
        # A newer transaction has ended already.
        await connection.execute("SELECT pg_current_xact_id()")
        async with world.session() as (place, missed):
            assert [] == missed
    assert 1 == await world.relay.run_once()
    async with world.session(place) as (_, missed):
        assert ([late_id] if is_guarded else []) == missed


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_full_page_of_others_events_is_not_the_end_of_history(
    is_guarded: bool, database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last event comes whoever it is for; without that the scan would take it for the end."""
    if not is_guarded:
        without(monkeypatch, history, "history_page", " OR number = $4", "")
    monkeypatch.setattr(history, "PAGE_EVENTS", 3)
    others = [await bobs_event(connection) for _ in range(3)]
    own = await bobs_event(connection)
    await connection.execute(
        "UPDATE outbox SET recipients = '{alice}' WHERE event_id = ANY ($1)", others
    )
    store = history.PostgresHistoryStore(database)
    page = await store.page(Cursor(Position(0), UUID(int=0)), [BOB])
    assert is_guarded == (page.end is not None)
    if page.end is not None:
        assert others[2:] == [str(past.event.event_id) for past in page.events]
        rest = await store.page(page.end, [BOB])
        assert [own] == [str(past.event.event_id) for past in rest.events]
        assert rest.end is None
