"""Rows of the log of which no event can be made, as written by hand: they hold up no reader."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from stretto.domain import UserId
from stretto.events.catch_up import CatchUp
from stretto.events.history_reader import HistoryReader
from stretto.events.hub import SessionHub
from stretto.events.log import PAGE_EVENTS
from stretto.events.place import Place
from stretto.events.settings import HubSettings
from stretto.events.subscriptions import Subscriber
from stretto.events.tail import LogTail
from stretto.observations import EventDeadLettered, EventsUnreadable
from stretto.postgres.bus import REFUSED_SECONDS, PostgresBusStore
from stretto.postgres.deliveries import dead_letters
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.tail import PostgresTail
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run
from stretto.targets.delivery import UNREADABLE
from stretto.targets.relay import OutboxRelay
from stretto.targets.settings import RelaySettings
from stretto.telemetry.trace_context import TRACESTATE_CHARACTERS_MAX, Parent, as_text
from stretto.webhook.store import PostgresWebhookStore
from support.clock import Clock
from support.database import commit_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from stretto.events.log import CommittedEvent
    from stretto.events.scan import Ask, Stretch
    from stretto.events.session import Session
    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.database import Connection

BOB = UserId("bob")
DIGEST = b"u" * 32
# Text that no compression makes short enough for an index.
LONG = "(SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 200))"
LONG_OWNER = f"recipients = ARRAY[{LONG}, 'bob']"
# What is written over a row, and whether the row is that of a change.
UNREADABLE_ROWS = {
    "no time": ("conversation_id = 'ffffffff-ffff-4fff-bfff-ffffffffffff'", False),
    "no time of a change": ("event_id = 'ffffffff-ffff-4fff-bfff-ffffffffffff'", True),
    "no document": ("change = '[1]'", True),
    "too deep a document": (
        "change = (repeat('{\"a\":', 400) || '1' || repeat('}', 400))::jsonb",
        True,
    ),
    "an odd owner": ('change = \'{"owner_id":["bob"]}\'', True),
    "too great a number": ("metadata = '{\"n\":1e400}'", False),
    "too many levels": (
        "metadata = (repeat('{\"a\":', 1100) || '1' || repeat('}', 1100))::jsonb",
        False,
    ),
    "no owner": ("recipients = '{NULL,bob}'", False),
    "no recipient": ("recipients = '{bob,NULL}'", False),
    "no type": ("event_type = 'group' || chr(13) || chr(10) || 'changed'", True),
    "too long a type": ("event_type = repeat('a', 129)", True),
    "no type, and too long an owner": (f"event_type = 'group.*', {LONG_OWNER}", True),
    "no type, in a year to come": ("event_type = 'group.*', created_at = '294000-01-01'", True),
    "no type, in a year before ours": (
        "event_type = 'group.*', created_at = '4000-01-01 BC'",
        True,
    ),
    "no header field": ("trace_context = '00' || chr(10)", False),
    "a control character in a header field": ("trace_context = '00' || chr(1)", False),
    "too long a header field": ("trace_context = repeat('0', 569)", False),
}
every_row = pytest.mark.parametrize(
    "unreadable", [pytest.param(row, id=name) for name, row in UNREADABLE_ROWS.items()]
)
NO_TIME = UNREADABLE_ROWS["no time"]


async def commit_unreadable(connection: Connection, unreadable: tuple[str, bool]) -> UUID:
    """Commit a row of bob's of which no event can be made; return its event's id."""
    changed, is_change = unreadable
    event_type = "group.changed" if is_change else None
    async with connection.transaction():
        event_id = await commit_event(connection, ("bob",), event_type=event_type)
        return UUID(
            str(
                await connection.fetchval(
                    f"UPDATE outbox SET {changed} WHERE event_id = $1 RETURNING event_id",
                    event_id,
                )
            )
        )


class Bus:
    """Takes everything; records the ids."""

    def __init__(self) -> None:
        self.parts: list[list[UUID]] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        self.parts.append([event.event_id for event in events])
        return {}


class Sessions:
    """A tail, a hub and a reader of history on one database, each step by step."""

    def __init__(self, database: Database) -> None:
        self.observed: list[Observation] = []
        self.hub = SessionHub(HubSettings(), lambda _: None)
        self.tail = LogTail(PostgresTail(database, uuid4()), self.hub, self.observed.append)
        self._asks: Mailbox[Ask, Stretch] = Mailbox(10)
        log = PostgresLogStore(partial(database.connection, Lane.HISTORY))
        self._reader = HistoryReader(
            self._asks, log, self.observed.append, self.hub.turns.catching_up
        )

    @asynccontextmanager
    async def session(self, since: str | None = None) -> AsyncIterator[tuple[Session, list[UUID]]]:
        """Be connected as bob; yields the session, and the ids of all that was missed."""
        turns = asyncio.create_task(Run(self._reader, lambda _: None).turns())
        with self.hub.session(BOB, 1e12) as session:
            await self.tail.run_once()
            place = None if since is None else Place.parse(since)
            catch_up = CatchUp(self._asks, session, self.hub, place)
            await catch_up.begin()
            missed: list[UUID] = []
            while (stretch := await catch_up.next()) is not None:
                missed += [each.event.event_id for each in stretch]
            yield session, missed
        turns.cancel()
        await asyncio.wait({turns})

    def reported(self, actor: str) -> list[tuple[str, ...]]:
        """Return what this actor has passed over, page by page."""
        return [
            each.event_ids
            for each in self.observed
            if isinstance(each, EventsUnreadable) and each.actor == actor
        ]


@pytest_asyncio.fixture
async def sessions(database: Database) -> AsyncIterator[Sessions]:
    """No session, as yet."""
    sessions = Sessions(database)
    yield sessions
    await sessions.tail.close()


@every_row
async def test_live_sessions_get_what_lies_behind(
    unreadable: tuple[str, bool], sessions: Sessions, connection: Connection
) -> None:
    """The row is reported by its id."""
    async with sessions.session() as (session, _):
        bad = await commit_unreadable(connection, unreadable)
        good = await commit_event(connection, ("bob",))
        await sessions.tail.run_once()
        assert [good] == [each.event.event_id for each in await session.take()]
    assert [(str(bad),)] == sessions.reported("log tail")


async def test_the_longest_type_and_trace_are_those_of_an_event(
    sessions: Sessions, connection: Connection
) -> None:
    """The twin: one character less, each."""
    trace_context = as_text(Parent(1, 2, 1), "v=" + "x" * (TRACESTATE_CHARACTERS_MAX - 2))
    async with sessions.session() as (session, _):
        event_id = await commit_event(connection, ("bob",), event_type="a" * 128)
        await connection.execute("UPDATE outbox SET trace_context = $1", trace_context)
        await sessions.tail.run_once()
        assert [] == sessions.reported("log tail")
        assert [event_id] == [each.event.event_id for each in await session.take()]


@pytest.mark.parametrize("event_type", ["group.created", ""])
async def test_rows_that_name_the_type_of_a_creation_are_read_once(
    event_type: str, sessions: Sessions, database: Database, connection: Connection
) -> None:
    """They lie behind the creations of their transaction, as all that name a type: also where a page ends."""
    log, count = PostgresLogStore(partial(database.connection, Lane.HISTORY)), PAGE_EVENTS + 5
    begin = await log.present()
    async with connection.transaction():
        ids = [await commit_event(connection, ("bob",)) for _ in range(2)]
        ids += [
            await commit_event(connection, ("bob",), event_type=event_type) for _ in range(count)
        ]
    ids.append(await commit_event(connection, ("bob",)))
    read: list[UUID] = []
    for _ in range(4):
        page = await log.page(begin, PAGE_EVENTS)
        read += [each.event.event_id for each in page.events]
        begin = page.place
    assert len(ids) == len(read)
    assert {*ids} == {*read}


async def test_sessions_catch_up_over_a_page_of_nothing_else(
    sessions: Sessions, database: Database, connection: Connection
) -> None:
    """A full one: the place is behind its last row."""
    since = str(await PostgresLogStore(database.upkeep).present())
    bad = [await commit_unreadable(connection, NO_TIME) for _ in range(PAGE_EVENTS)]
    good = await commit_event(connection, ("bob",))
    async with sessions.session(since) as (_, missed):
        assert [good] == missed
    assert tuple(map(str, bad)) == sessions.reported("history reader")[0]


async def test_subscribers_get_what_lies_behind(database: Database, connection: Connection) -> None:
    """The row is no event for them, and is reported."""
    had: list[UUID] = []
    observed: list[Observation] = []

    async def on_event(event: CommittedEvent) -> None:
        had.append(event.event_id)

    log = PostgresLogStore(database.upkeep)
    subscriber = Subscriber(on_event, log, await log.present(), observed.append, lambda *_: None)
    bad = await commit_unreadable(connection, NO_TIME)
    good = await commit_event(connection)
    await subscriber.run_once()
    assert ([good], [EventsUnreadable("subscriber", (str(bad),))]) == (had, observed)


@every_row
@pytest.mark.parametrize("batch_max", [1, 100])
async def test_the_bus_gets_what_lies_behind_and_the_row_is_a_dead_letter(
    batch_max: int, unreadable: tuple[str, bool], database: Database, connection: Connection
) -> None:
    """Also where a page has nothing else; nothing is published of it, and it dies at once."""
    observed: list[Observation] = []
    bus, clock = Bus(), Clock(0.0)
    store = PostgresBusStore(database, observe=observed.append)
    settings = RelaySettings(batch_max=batch_max)
    relay = OutboxRelay(store, bus, observed.append, settings, clock)
    await relay.open()
    bad = await commit_unreadable(connection, unreadable)
    good = await commit_event(connection)
    for _ in range(3):
        await relay.run_once()
    assert [[good]] == bus.parts
    await connection.execute("UPDATE outbox_delivery SET due_at = now()")
    clock.now += REFUSED_SECONDS + 1
    await relay.run_once()
    assert [[good]] == bus.parts
    (letter,) = await dead_letters(connection, 10)
    assert (bad, UNREADABLE) == (letter["event_id"], letter["dead_reason"])
    assert EventDeadLettered(bad, UNREADABLE) in observed


@every_row
async def test_the_webhook_gets_what_lies_behind_and_the_row_is_a_dead_letter(
    unreadable: tuple[str, bool], database: Database, connection: Connection
) -> None:
    """The row is enrolled like an event, and dies as it is taken."""
    observed: list[Observation] = []
    store = PostgresWebhookStore(database, DIGEST, observe=observed.append)
    await store.open()
    bad = await commit_unreadable(connection, unreadable)
    good = await commit_event(connection)
    for _ in range(2):
        await store.enrol(1)
    assert [good] == [each.event.event_id for each in await store.take(10, 60)]
    (letter,) = await dead_letters(connection, 10)
    assert (bad, f"webhook: {UNREADABLE}") == (letter["event_id"], letter["dead_reason"])
    assert [EventDeadLettered(bad, f"webhook: {UNREADABLE}")] == observed


@pytest.mark.parametrize("owner", [LONG_OWNER, f"change = jsonb_build_object('owner_id', {LONG})"])
async def test_an_owner_of_any_length_stops_the_webhook_for_nobody(
    owner: str, database: Database, connection: Connection
) -> None:
    """No index takes 2,700 bytes: its deliveries are of an owner that is cut. The event is as it was written."""
    store = PostgresWebhookStore(database, DIGEST)
    await store.open()
    events = {await commit_event(connection, ("bob",), event_type="group.changed")}
    await connection.execute(f"UPDATE outbox SET {owner}")
    events.add(await commit_event(connection))
    for _ in range(2):
        await store.enrol(1)
    assert events == {each.event.event_id for each in await store.take(10, 60)}


async def test_rows_of_a_history_that_is_none_are_in_nobodys_way(
    sessions: Sessions, database: Database, connection: Connection
) -> None:
    """No place can be behind them. The lag does not count them either."""
    bus = Bus()
    store = PostgresBusStore(database)
    relay = OutboxRelay(store, bus, lambda _: None, RelaySettings())
    await relay.open()
    async with sessions.session() as (session, _):
        async with connection.transaction():
            bad = await commit_event(connection, ("bob",))
            await connection.execute(
                "UPDATE outbox SET history = history + 1 WHERE event_id = $1", bad
            )
        good = await commit_event(connection, ("bob",))
        await sessions.tail.run_once()
        assert [good] == [each.event.event_id for each in await session.take()]
    await relay.run_once()
    assert [[good]] == bus.parts
    assert await store.oldest_seconds() is None


@pytest.mark.parametrize("at", ["infinity", "-infinity"])
async def test_an_event_from_no_time_is_owed(
    at: str, database: Database, connection: Connection
) -> None:
    """No time can be taken from an infinite one, in PostgreSQL 15: that stopped relay and webhook."""
    store = PostgresBusStore(database)
    await OutboxRelay(store, Bus(), lambda _: None, RelaySettings()).open()
    event_id = await commit_event(connection)
    await connection.execute(f"UPDATE outbox SET created_at = '{at}' WHERE event_id = $1", event_id)
    age = await store.oldest_seconds()
    assert age is not None
    assert (age == 0) == (at == "infinity")
    assert age < 1e10
