"""Rows of the log at a position that the server has not reached, as written by hand: they hide nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from stretto.events.place import Place
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES
from stretto.webhook.store import PostgresWebhookStore
from support.database import commit_event
from support.retention import swept
from support.waiting import until

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.postgres.connections import Database
    from support.database import Connection

# That of the last transaction that there can be, which no place can be behind.
LAST = 2**64 - 1
# More than other tests begin meanwhile.
FAR = 1_000_000_000


async def commit_ahead(connection: Connection, by: int) -> UUID:
    """Commit an event so many transactions ahead of the server; return its id."""
    async with connection.transaction():
        event_id = await commit_event(connection)
        await connection.execute(
            """UPDATE outbox SET position = least($2, pg_current_xact_id()::text::numeric + $3)::text::xid8
               WHERE event_id = $1""",
            *(event_id, LAST, by),
        )
    return event_id


async def begin_history(connection: Connection) -> None:
    """Begin the history of this start of the server, as the first writer does."""
    newest = await connection.fetchval("SELECT max(number) FROM outbox_history")
    await connection.execute(QUERIES["begin_history"], newest)


class Reader:
    """Follows the log from the present on."""

    def __init__(self, log: PostgresLogStore, place: Place) -> None:
        self._log = log
        self._place = place

    async def next(self) -> list[UUID]:
        """Return the ids of the next page; raises `PositionLost`."""
        page = await self._log.page(self._place, 100)
        page.present.require(self._place)
        # As a client and the bus keep it.
        self._place = Place.parse(str(page.place))
        return [each.event.event_id for each in page.events]


async def reader_on(connection: Connection) -> Reader:
    """Return a reader of the log."""
    log = PostgresLogStore(lambda: nullcontext(connection))
    return Reader(log, await log.present())


@pytest.mark.parametrize("by", [FAR, LAST])
async def test_all_that_comes_behind_it_is_read_once(by: int, connection: Connection) -> None:
    """Also from a place that was given meanwhile; the row itself is not."""
    await begin_history(connection)
    await commit_event(connection)
    reader = await reader_on(connection)
    await commit_ahead(connection, by)
    assert [] == await reader.next()
    late = await reader_on(connection)
    events = [await commit_event(connection) for _ in range(3)]
    assert events == await reader.next() == await late.next()
    assert [] == await reader.next()


async def test_the_row_is_read_once_its_position_is_reached(connection: Connection) -> None:
    """In its place, once; and nothing of what comes then is passed over."""
    await begin_history(connection)
    await commit_event(connection)
    reader = await reader_on(connection)
    ahead = await commit_ahead(connection, 20)
    events = {ahead}
    had: list[UUID] = []
    for _ in range(40):
        events.add(await commit_event(connection))
        had += await reader.next()
    had += await reader.next()
    assert len(events) == len(had)
    assert events == set(had)


@pytest.mark.parametrize("by", [FAR, LAST])
async def test_bus_and_webhook_owe_what_comes_behind_it_alone(
    by: int, database: Database, connection: Connection
) -> None:
    """The lag does not count the row."""
    await begin_history(connection)
    bus, webhook = PostgresBusStore(database), PostgresWebhookStore(database, b"u" * 32)
    for store in (bus, webhook):
        await store.open()
    await commit_ahead(connection, by)
    assert await bus.oldest_seconds() is None
    good = await commit_event(connection)
    assert await bus.oldest_seconds() is not None
    for _ in range(2):
        await webhook.enrol(10)
    assert [good] == [each.event.event_id for each in await webhook.take(10, 60)]


@pytest.mark.parametrize("by", [FAR, 2**62])
async def test_what_a_restore_has_brought_is_read_wherever_the_server_is(
    by: int, connection: Connection
) -> None:
    """The twin: rows of another start of the server, whose transactions may be far ahead of this one's."""
    reader = await reader_on(connection)
    restored = await commit_ahead(connection, by)
    assert [restored] == await reader.next()
    assert [] == await reader.next()
    await begin_history(connection)
    event = await commit_event(connection)
    assert [event] == await reader.next()


@pytest.mark.parametrize("by", [FAR, LAST])
async def test_a_row_of_a_history_that_has_ended_is_in_nobodys_way(
    by: int, connection: Connection
) -> None:
    """A restart ends the wait for its position; the last position that there is has no place behind it."""
    await begin_history(connection)
    reader = await reader_on(connection)
    ahead = await commit_ahead(connection, by)
    await connection.execute("UPDATE outbox_history SET server_started_at = '-infinity'")
    await begin_history(connection)
    event = await commit_event(connection)
    assert ([event] if by == LAST else [ahead, event]) == await reader.next()
    assert [] == await reader.next()


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("by", [FAR, LAST])
async def test_its_partition_is_truncated_in_time(
    by: int, has_ended: bool, database: Database, connection: Connection
) -> None:
    """Beside a reader that is served; and the log does not begin behind the row."""
    await begin_history(connection)
    await PostgresBusStore(database).open()
    await commit_event(connection)
    await commit_ahead(connection, by)
    await swept(connection, 1.1)
    if has_ended:
        await connection.execute("UPDATE outbox_history SET server_started_at = '-infinity'")
        await begin_history(connection)
        await commit_event(connection)
    # A reader is not past an event while older transactions run, also those of other tests.
    await until(lambda: connection.fetchval("SELECT running = '{}' FROM outbox_present"))
    await connection.execute(
        """UPDATE outbox_reader SET served_at = 'infinity',
                  (history, seen) = (SELECT history, seen FROM outbox_present)"""
    )
    assert 1 == await swept(connection, 8.2)
    reader = await reader_on(connection)
    event = await commit_event(connection)
    assert [event] == await reader.next()
