"""What keeps events from being passed over, each guard with and without it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import pytest_asyncio

from stretto.domain import UserId
from stretto.events.catch_up import CatchUp
from stretto.events.history_reader import HistoryReader
from stretto.events.hub import SessionHub
from stretto.events.place import Place, Present
from stretto.events.settings import HubSettings
from stretto.events.tail import LogTail
from stretto.postgres import log
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES
from stretto.postgres.tail import PostgresTail
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run
from support.database import commit_event, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.scan import Ask, Stretch
    from stretto.events.session import Session
    from stretto.postgres.connections import Database
    from support.database import Connection

BOB = UserId("bob")


class World:
    """A tail, a hub and a reader of history on one database, each step by step."""

    def __init__(self, database: Database) -> None:
        self.hub = SessionHub(HubSettings(), lambda _: None)
        self.tail = LogTail(PostgresTail(database, uuid4()), self.hub, lambda _: None)
        self.store = PostgresLogStore(partial(database.connection, Lane.HISTORY))
        self._asks: Mailbox[Ask, Stretch] = Mailbox(10)
        self._reader = HistoryReader(
            self._asks, self.store, lambda _: None, self.hub.turns.catching_up
        )
        self._reading: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def session(
        self, since: str | None = None
    ) -> AsyncIterator[tuple[str, list[str], Session]]:
        """Be connected as bob; yields the position, the ids of all that was missed, the session."""
        place = None if since is None else Place.parse(since)
        with self.hub.session(BOB, 1e12) as session:
            await self.tail.run_once()
            catch_up = CatchUp(self._asks, session, self.hub, place)
            if self._reading is None:
                turns = Run(self._reader, lambda _: None).turns()
                self._reading = asyncio.create_task(turns)
            await catch_up.begin()
            position = catch_up.position
            missed: list[OutgoingEvent] = []
            while (stretch := await catch_up.next()) is not None:
                missed += stretch
            last = missed[-1].position if missed else position
            yield last, [str(each.event.event_id) for each in missed], session

    async def live(self, session: Session) -> OutgoingEvent:
        """Follow the log, and return what the session gets live."""
        await self.tail.run_once()
        (outgoing,) = await session.take()
        return outgoing


@pytest_asyncio.fixture
async def world(database: Database) -> AsyncIterator[World]:
    """A world of its own."""
    world = World(database)
    yield world
    await world.tail.close()


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


@pytest.fixture
def _unnamed(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """Without the guard, no place names the transactions that were running."""
    if is_guarded:
        return
    real = log._present

    def present(row: dict[str, Any]) -> Present:
        return real({**row, "running": []})

    monkeypatch.setattr(log, "_present", present)


@pytest.mark.usefixtures("_unnamed")
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_position_sent_live_is_not_beyond_what_commits_late(
    is_guarded: bool, world: World, connection: Connection, database_url: str
) -> None:
    """It names the transaction that was running; else the late event is passed over."""
    async with world.session() as (_, missed, session), beside(database_url) as late:
        assert [] == missed
        late_id = await bobs_event(late)
        early_id = await bobs_event(connection)
        sent = await world.live(session)
        assert early_id == str(sent.event.event_id)
    async with world.session(sent.position) as (_, missed, _):
        assert ([late_id] if is_guarded else []) == missed


@pytest.mark.usefixtures("_unnamed")
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_what_commits_late_is_delivered_live(
    is_guarded: bool, world: World, connection: Connection, database_url: str
) -> None:
    """The tail's own place names the transaction, too."""
    async with world.session() as (_, _, session):
        async with beside(database_url) as late:
            late_id = await bobs_event(late)
            await bobs_event(connection)
            await world.live(session)
        await world.tail.run_once()
        live = [str(each.event.event_id) for each in await session.take()] if len(session) else []
        assert ([late_id] if is_guarded else []) == live


@pytest.mark.usefixtures("_unnamed")
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_position_sent_from_history_is_not_beyond_what_commits_late(
    is_guarded: bool, world: World, connection: Connection, database_url: str
) -> None:
    """The same for what a session catches up on."""
    async with world.session() as (since, _, _):
        pass
    async with beside(database_url) as late:
        late_id = await bobs_event(late)
        early_id = await bobs_event(connection)
        async with world.session(since) as (position, missed, _):
            assert [early_id] == missed
    async with world.session(position) as (_, missed, _):
        assert ([late_id] if is_guarded else []) == missed


@pytest.mark.usefixtures("_unnamed")
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_the_first_position_of_a_session_is_not_beyond_what_commits_late(
    is_guarded: bool, world: World, connection: Connection, database_url: str
) -> None:
    """A client that leaves without an event resumes there."""
    async with beside(database_url) as late:
        late_id = await bobs_event(late)
        # A newer transaction has ended already.
        await bobs_event(connection)
        async with world.session() as (position, missed, _):
            assert [] == missed
    async with world.session(position) as (_, missed, _):
        assert ([late_id] if is_guarded else []) == missed


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_full_page_of_others_events_is_not_the_end_of_the_log(
    is_guarded: bool, world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last event comes for any user: the place after it is where the next page begins."""
    last = "OR number = least($4, (SELECT max(number) FROM page))"
    assert last in QUERIES["log_page"]
    if not is_guarded:
        statement = QUERIES["log_page"].replace(last, "")
        monkeypatch.setattr(log, "QUERIES", {**QUERIES, "log_page": statement})
    begin = await world.store.present()
    for _ in range(3):
        await commit_event(connection, ("alice",))
    own = await bobs_event(connection)
    if not is_guarded:
        with pytest.raises(IndexError):
            await world.store.page(begin, 3, [BOB])
        return
    page = await world.store.page(begin, 3, [BOB])
    assert page.is_full
    rest = await world.store.page(page.place, 3, [BOB])
    assert ([own], False) == ([str(each.event.event_id) for each in rest.events], rest.is_full)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_page_goes_on_within_a_transaction_in_the_order_of_its_events(
    is_guarded: bool, world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index does not know it: a page of the rows that come first would pass over others."""
    if not is_guarded:
        statement = QUERIES["log_page"].replace("ROWS WITH TIES", "ROWS ONLY")
        assert statement != QUERIES["log_page"]
        monkeypatch.setattr(log, "QUERIES", {**QUERIES, "log_page": statement})
    begin = await world.store.present()
    ids = sorted([uuid4() for _ in range(4)])
    async with connection.transaction():
        for event_id in reversed(ids):
            await commit_event(connection, event_id=event_id)
    first = await world.store.page(begin, 2)
    rest = await world.store.page(first.place, 2)
    found = [each.event.event_id for each in (*first.events, *rest.events)]
    assert is_guarded == (ids == found)
