"""The log of events is kept by time: partitions that every reader is past are truncated whole."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from stretto.events.place import PositionLost
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.check import check_database
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.migrate import SLOTS
from stretto.postgres.queries import QUERIES
from stretto.postgres.retention import TRUNCATION_LOCK_SECONDS
from stretto.store_errors import Locked
from support.database import commit_event, connect, lock_waiters
from support.retention import START, swept
from support.waiting import until

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.events.place import Place
    from stretto.postgres.connections import Database
    from support.database import Connection

# Longer than the server waits, and shorter than any other bound of a session.
FROZEN_SECONDS_MAX = 15


async def kept(connection: Connection) -> list[UUID]:
    """Return the ids of the events that are kept, in their order."""
    rows = await connection.fetch("SELECT event_id FROM outbox ORDER BY history, position")
    return [row["event_id"] for row in rows]


def store_on(connection: Connection) -> PostgresLogStore:
    """Return the log as this connection reads it."""
    return PostgresLogStore(lambda: nullcontext(connection))


async def present(store: PostgresLogStore, own: frozenset[int] = frozenset()) -> Place:
    """Return the end of the log at a moment when nothing runs in the server's other databases.

    A place waits for those transactions too, so it would begin before an event of ours. `own` are the
    transactions that the test itself has open.
    """

    async def quiet() -> Place | None:
        place = await store.present()
        return place if own.issuperset(place.running) else None

    place = await until(quiet)
    assert place is not None
    return place


async def resumed(store: PostgresLogStore, place: Place) -> list[UUID]:
    """Return the events that a place does not cover; raises `PositionLost`."""
    page = await store.page(place, 1000)
    page.present.require(place)
    return [logged.event.event_id for logged in page.events]


async def test_a_partition_goes_once_its_last_event_is_past_the_retention(
    connection: Connection,
) -> None:
    """What is younger is all there; a client that resumes before the start learns it."""
    store = store_on(connection)
    beginning = await present(store)
    await commit_event(connection)
    old = await present(store)
    assert 0 == await swept(connection, 1.1)
    young = await commit_event(connection)
    assert 0 == await swept(connection, 8)
    assert 1 == await swept(connection, 8.2)
    assert [young] == await kept(connection) == await resumed(store, old)
    with pytest.raises(PositionLost):
        await resumed(store, beginning)
    # It is empty, and may be written to again.
    assert 0 == await swept(connection, 8.3)


async def test_the_end_of_the_log_is_known_when_all_of_it_is_truncated(
    connection: Connection,
) -> None:
    """Or a place at the end would count as one of a server that was ahead."""
    store = store_on(connection)
    await commit_event(connection)
    end = await present(store)
    for days in (1.1, 8.2):
        await swept(connection, days)
    assert [] == await kept(connection) == await resumed(store, end)
    assert end.xmax == (await present(store)).xmax


@pytest.mark.parametrize(
    ("expected", "state"),
    [
        (0, "served_at = '{now}'"),
        (1, "served_at = '{now}'::timestamptz - interval '8 days'"),
        (1, "served_at = '{now}', disabled_at = '{now}'"),
        (1, "served_at = '{now}', (history, seen) = (SELECT history, seen FROM outbox_present)"),
    ],
)
async def test_a_served_reader_keeps_what_it_has_not_had(
    expected: int, state: str, database: Database, connection: Connection
) -> None:
    """Not one that is past it, is disabled, or was served by no process for so long."""
    await PostgresBusStore(database).open()
    await commit_event(connection)
    await swept(connection, 1.1)
    async with asyncio.timeout(60):
        # A reader is not past an event while older transactions run, also those of other tests.
        while await connection.fetchval("SELECT cardinality(running) FROM outbox_present"):
            pass
    now = START + timedelta(days=9)
    await connection.execute(f"UPDATE outbox_reader SET {state.format(now=now)}")
    assert expected == await swept(connection, 9)


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_reader_that_has_not_looked_for_a_late_commit_keeps_its_partition(
    is_over: bool, database: Database, connection: Connection, database_url: str
) -> None:
    """Its place lies beyond the partition's last event, but one before it may have come.

    Twin: while that transaction runs, it has nothing in a partition that can be locked.
    """
    store = PostgresBusStore(database)
    await store.open()
    late = await connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    late_id = await late.fetchval("SELECT pg_current_xact_id()::text::bigint")
    await commit_event(connection)
    token = uuid4()
    assert await store.lease(token, 60)
    assert await store.advance(token, await present(store, frozenset({late_id})))
    await swept(connection, 1.1)
    await connection.execute("UPDATE outbox_reader SET served_at = $1", START + timedelta(days=9))
    if is_over:
        await transaction.commit()
        assert 0 == await swept(connection, 9)
        assert await store.advance(token, await present(store))
    assert 1 == await swept(connection, 9)
    await late.close()


async def test_a_partition_that_is_read_is_left_to_the_next_sweep(
    connection: Connection, database_url: str
) -> None:
    """All other reads wait behind a truncation: it gives up soon."""
    await commit_event(connection)
    await swept(connection, 1.1)
    reader = await connect(database_url)
    async with reader.transaction():
        await reader.fetch("SELECT FROM outbox")
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert 0 == await swept(connection, 8.12)
        assert TRUNCATION_LOCK_SECONDS <= loop.time() - started
    assert 1 == await swept(connection, 8.12)
    await reader.close()


async def test_a_sweeper_that_freezes_is_ended_by_the_server(
    connection: Connection, database_url: str
) -> None:
    """Between its lock and its commit it would hold up every reader of the log for 30 s, or for ever."""
    await commit_event(connection)
    await swept(connection, 1.1)
    (slot,) = await connection.fetch(QUERIES["sweepable_slots"], 7, START + timedelta(days=9), 0.0)
    frozen = await connect(database_url)
    await frozen.execute("BEGIN")
    assert await frozen.fetchval(QUERIES["begin_truncation"], "100ms")
    await frozen.execute(slot["lock"])
    async with asyncio.timeout(FROZEN_SECONDS_MAX):
        assert 1 == await connection.fetchval("SELECT count(*) FROM outbox")
    assert 1 == await swept(connection, 8.12)
    await frozen.close()


async def test_a_partition_that_somebody_keeps_reading_is_reported(
    connection: Connection, database_url: str
) -> None:
    """A transaction that was left open: nobody hears otherwise that the log does not end any more.

    New events go to the next partition nevertheless.
    """
    await commit_event(connection)
    await swept(connection, 1.1)
    await commit_event(connection)
    reader = await connect(database_url)
    async with reader.transaction():
        await reader.fetch("SELECT FROM outbox")
        with pytest.raises(
            Locked, match="outbox_0 should have been truncated more than 60 minutes"
        ):
            await swept(connection, 8.15)
        begun = "SELECT count(*) FROM outbox_slot WHERE began_at > $1"
        assert 1 == await connection.fetchval(begun, START + timedelta(days=8))
    assert 1 == await swept(connection, 8.15)
    await reader.close()


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_read_that_a_truncation_has_held_up_knows_of_it(
    is_guarded: bool, connection: Connection, database_url: str
) -> None:
    """Rows and start are of one snapshot, taken after the lock; of an older one, a gap goes unseen."""
    store = store_on(connection)
    beginning = await present(store)
    await commit_event(connection)
    await swept(connection, 1.1)
    slots = await connection.fetch(QUERIES["sweepable_slots"], 7, START + timedelta(days=9), 0.0)
    (slot,) = slots
    sweeper = await connect(database_url)
    reader = await connect(database_url)
    if not is_guarded:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()")
    async with sweeper.transaction():
        await sweeper.execute(slot["lock"])
        await sweeper.execute(QUERIES["empty_slot"], slot["slot"], slot["running"])
        await sweeper.execute(slot["truncate"])
        reading = asyncio.create_task(resumed(store_on(reader), beginning))
        await lock_waiters(connection, 1)
    if is_guarded:
        with pytest.raises(PositionLost):
            await reading
    else:
        assert [] == await reading
    await sweeper.close()
    await reader.close()


async def test_partitions_are_used_in_turn(connection: Connection) -> None:
    """A year of daily events in eight of them: at least a week is kept, never much more."""
    days = 0.0
    committed: dict[UUID, float] = {}
    numbers = set()
    while days < 365:
        await swept(connection, days)
        committed[await commit_event(connection)] = days
        ages = [days - committed[event_id] for event_id in await kept(connection)]
        assert min(days, 7) - 0.9 <= max(ages) <= 9.5
        numbers.add(await connection.fetchval("SELECT max(number) FROM outbox_slot"))
        days += 0.8
    assert len(numbers) > 100
    used = await connection.fetchval("SELECT count(*) FROM outbox_slot WHERE number > 0")
    assert used <= SLOTS


async def commit_event_at(connection: Connection, days: float) -> UUID:
    """Commit an event by a clock that is so many days after the start; return the event's id."""
    event_id = await commit_event(connection)
    await connection.execute(
        "UPDATE outbox SET created_at = $2 WHERE event_id = $1",
        *(event_id, START + timedelta(days=days)),
    )
    return event_id


async def test_a_clock_that_was_behind_takes_no_young_event(connection: Connection) -> None:
    """A sweep meanwhile sets the times of all partitions back; their events say how old they are."""
    old = [await commit_event(connection), await commit_event_at(connection, -400)]
    await swept(connection, 1.1)
    young = await commit_event(connection)
    assert 0 == await swept(connection, -400)
    assert 0 == await swept(connection, 1.2)
    assert [*old, young] == await kept(connection)
    assert 1 == await swept(connection, 8.1)
    assert [young] == await kept(connection)


async def test_a_clock_that_was_ahead_does_not_stop_the_sweep(connection: Connection) -> None:
    """Times of the future are corrected; what they bound is kept for a retention from now on."""
    await commit_event_at(connection, 1000)
    await swept(connection, 1000)
    assert 0 == await swept(connection, 1.1)
    assert 1 == await swept(connection, 8.2)
    assert [] == await kept(connection)


async def test_a_history_of_which_nothing_is_kept_is_forgotten(connection: Connection) -> None:
    """Each restart of the server begins one: a position of an old one is refused anyway."""
    await commit_event(connection)
    await swept(connection, 1.1)
    await connection.execute(QUERIES["begin_history"], 0)
    await commit_event(connection)
    await swept(connection, 8.2)
    numbers = "SELECT array_agg(number ORDER BY number) FROM outbox_history"
    assert [0, 1] == await connection.fetchval(numbers)
    await commit_event(connection)
    await swept(connection, 15.3)
    assert [1] == await connection.fetchval(numbers)


async def test_a_check_misses_no_event_that_was_truncated(connection: Connection) -> None:
    """Twin: of a group that was created after the start of the log, it is missed."""

    async def violations() -> set[str]:
        report = await check_database(connection, 30)
        return {violation.what for violation in report.violations}

    async def add_group() -> UUID:
        id_ = uuid4()
        await connection.execute(
            """WITH conversation AS (INSERT INTO conversation VALUES ($1) RETURNING *), member AS (
                   INSERT INTO conversation_member SELECT conversation_id, 'alice', 'owner'
                   FROM conversation)
               INSERT INTO chat_group (group_id, owner_id, name, fingerprint, conversation_id)
               SELECT $1, 'alice', 'Team', '0123456789abcdef', conversation_id FROM conversation""",
            id_,
        )
        return id_

    async def add_event(id_: UUID) -> None:
        await commit_event(connection, subject=id_)
        await connection.execute("UPDATE outbox SET conversation_id = $1 WHERE subject = $1", id_)

    old = await add_group()
    await add_event(old)
    for days in (1.1, 8.2):
        await swept(connection, days)
    assert [] == await kept(connection)
    assert set() == await violations()
    young = await add_group()
    assert {"group without its event"} == await violations()
    await add_event(young)
    # As after a restore: its row is of a later transaction.
    await connection.execute("UPDATE chat_group SET name = name WHERE group_id = $1", old)
    assert set() == await violations()
    await connection.execute(QUERIES["begin_history"], 0)
    assert set() == await violations()
    # As by a clock that was ahead: its event may have been truncated long before that time.
    ahead = await add_group()
    to_come = "UPDATE chat_group SET created_at = now() + interval '30 days' WHERE group_id = $1"
    await connection.execute(to_come, ahead)
    assert set() == await violations()
    await add_group()
    assert {"group without its event"} == await violations()
