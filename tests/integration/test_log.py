"""The log on a real PostgreSQL: a page has what a place does not cover, each guard with its twin."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_asyncio

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.events.place import Place
from stretto.postgres import log
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.queries import QUERIES
from stretto.targets.delivery import PutOff
from support.database import commit_event, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.events.log import LogPage
    from stretto.postgres.connections import Database
    from support.database import Connection

BOB: Final = UserId("bob")
LEASE_SECONDS: Final = 60.0
# A page reads no more blocks than this, however long another transaction has been running: ten
# descents of eight small indexes.
BLOCKS_MAX: Final = 200


@pytest_asyncio.fixture
async def store(database: Database) -> PostgresBusStore:
    """The log, and the bus's reader of it."""
    store = PostgresBusStore(database)
    await store.open()
    return store


@asynccontextmanager
async def beside(database_url: str) -> AsyncIterator[Connection]:
    """Open another connection, in a transaction that commits in the end."""
    connection = await connect(database_url)
    async with connection.transaction():
        yield connection
    await connection.close()


def ids(page: LogPage) -> list[UUID]:
    """Return the ids of a page's events."""
    return [logged.event.event_id for logged in page.events]


def without(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Take a guard out of a statement."""
    assert old in QUERIES[name]
    monkeypatch.setattr(log, "QUERIES", {**QUERIES, name: QUERIES[name].replace(old, new)})


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_late_commit_comes_to_a_reader_that_has_passed_it(
    is_guarded: bool, store: PostgresBusStore, connection: Connection, database_url: str
) -> None:
    """The place names the transactions that were running; without them the event is passed over."""
    begin = await store.present()
    async with beside(database_url) as late:
        late_id = await commit_event(late)
        early_id = await commit_event(connection)
        page = await store.page(begin, 10)
        assert [early_id] == ids(page)
        place = page.place if is_guarded else replace(page.place, running=())
    page = await store.page(place, 10)
    assert ([late_id] if is_guarded else []) == ids(page)
    assert [] == ids(await store.page(page.place, 10))


async def test_pages_have_each_event_once_however_many_a_transaction_has(
    store: PostgresBusStore, connection: Connection, database_url: str
) -> None:
    """Also while another commits late, which has more than a page itself."""
    place = await store.present()
    committed: list[UUID] = []
    had: list[UUID] = []
    async with beside(database_url) as late:
        committed += [await commit_event(late) for _ in range(5)]
        for size in (1, 2, 7, 1, 4):
            async with connection.transaction():
                committed += [await commit_event(connection) for _ in range(size)]
        page = await store.page(place, 3)
        for _ in range(9):
            had += ids(page)
            positions = [logged.position for logged in page.events]
            assert sorted(positions) == positions
            if not page.is_full:
                break
            assert 3 == len(page.events)
            page = await store.page(page.place, 3)
        assert sorted(committed[5:]) == sorted(had)
        newest = await commit_event(connection)
    page = await store.page(page.place, 3)
    rest = await store.page(page.place, 3)
    assert [*sorted(committed[:5]), newest] == ids(page) + ids(rest)
    assert [] == ids(await store.page(rest.place, 3))


@pytest.mark.parametrize("users", [None, [BOB]])
async def test_no_page_has_more_events_than_it_may(
    users: list[UserId] | None, store: PostgresBusStore, connection: Connection
) -> None:
    """A transaction of a host's may have hundreds of thousands: no reader has them all at once."""
    place = await store.present()
    async with connection.transaction():
        events = sorted([await commit_event(connection, ("bob",)) for _ in range(10)])
    pages = []
    for _ in range(3):
        pages.append(await store.page(place, 4, users))
        place = pages[-1].place
    assert [events[:4], events[4:8], events[8:]] == [ids(page) for page in pages]
    assert [(True, True), (True, True), (False, False)] == [
        (page.is_full, page.is_cut) for page in pages
    ]


async def test_a_page_of_others_events_within_a_transaction_moves_the_place(
    store: PostgresBusStore, connection: Connection
) -> None:
    """The events of one user come from wherever they lie in it."""
    place = await store.present()
    async with connection.transaction():
        own = {await commit_event(connection, ("bob",)) for _ in range(2)}
        for _ in range(8):
            await commit_event(connection, ("alice",))
    found: set[UUID] = set()
    for turn in range(6):
        page = await store.page(place, 2, [BOB])
        assert turn == 5 or page.is_full
        found.update(ids(page))
        place = page.place
    assert own <= found
    assert not page.is_full


async def test_a_reader_s_row_keeps_what_it_has_had_of_a_transaction(
    store: PostgresBusStore, connection: Connection
) -> None:
    """The process that goes on with it begins there."""
    one, other = uuid4(), uuid4()
    begin = await store.lease(one, LEASE_SECONDS)
    assert begin is not None
    async with connection.transaction():
        events = sorted([await commit_event(connection) for _ in range(3)])
    page = await store.page(begin, 2)
    assert await store.advance(one, page.place)
    await store.give_back(one)
    place = await store.lease(other, LEASE_SECONDS)
    assert page.place == place
    assert events[2:] == ids(await store.page(page.place, 2))


async def test_parts_that_an_older_version_has_left_behind_are_void(
    store: PostgresBusStore, connection: Connection
) -> None:
    """It moves the place and leaves them; in another history their positions may be given out again."""
    token = uuid4()
    place = await store.lease(token, LEASE_SECONDS)
    assert place is not None
    stale = f"{place.history.number}:{place.xmax - 1}:1:{uuid4()}"
    other = f"{place.history.number + 1}:{place.xmax + 5}:1:{uuid4()}"
    await connection.execute("UPDATE outbox_reader SET parts = $1", f"{stale},{other}")
    assert place == await store.lease(token, LEASE_SECONDS)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_full_page_of_others_events_goes_on_behind_them(
    is_guarded: bool,
    store: PostgresBusStore,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last event comes for any user; without that no place would follow from it."""
    if not is_guarded:
        without(
            monkeypatch, "log_page", " OR number = least($4, (SELECT max(number) FROM page))", ""
        )
    begin = await store.present()
    others = [await commit_event(connection, ("alice",)) for _ in range(3)]
    own = await commit_event(connection, ("bob",))
    if not is_guarded:
        with pytest.raises(IndexError):
            await store.page(begin, 3, [BOB])
        return
    page = await store.page(begin, 3, [BOB])
    assert others[2:] == ids(page)
    assert page.is_full
    rest = await store.page(page.place, 3, [BOB])
    assert [own] == ids(rest)
    both = await commit_event(connection, ("alice", "bob"))
    asked = (await store.page(rest.place, 3, [BOB])).events
    assert [(both, ("bob",))] == [(each.event.event_id, each.event.recipients) for each in asked]
    # Its document is the same for all.
    data = orjson.loads(asked[0].event.envelope)["data"]
    assert ("alice", ["alice", "bob"]) == (data["owner_id"], data["member_ids"])
    assert 2 == data["members_count"]
    # The same for thousands of users, which the database looks up another way.
    many = [BOB, *(UserId(f"user{number}") for number in range(5000))]
    found = (await store.page(begin, 10, many)).events
    assert [own, both] == [each.event.event_id for each in found]
    assert [("bob",), ("bob",)] == [each.event.recipients for each in found]


async def test_a_long_transaction_costs_a_reader_nothing(
    store: PostgresBusStore, connection: Connection, database_url: str
) -> None:
    """Thousands of events later a page reads as few blocks; from the oldest transaction on, all."""
    async with beside(database_url) as late:
        late_id = await commit_event(late)
        late_transaction = await late.fetchval("SELECT pg_current_xact_id()::text::bigint")
        first = await store.present()
        for _ in range(20):
            async with connection.transaction():
                await connection.execute(
                    """INSERT INTO outbox (slot, history, event_id, subject, recipients,
                                           conversation_id, group_name)
                       SELECT 0, 0, gen_random_uuid(), gen_random_uuid(), '{bob}',
                              gen_random_uuid(), 'Team'
                       FROM generate_series(1, 500)"""
                )
        place = await store.present()
        newest = await commit_event(connection)
        # Beside those of other tests on the server.
        assert late_transaction in place.running
        assert [newest] == ids(await store.page(place, 500))
        assert await blocks(connection, place) < BLOCKS_MAX
        oldest = Place(place.history, late_transaction)
        assert BLOCKS_MAX < await blocks(connection, oldest)
        assert BLOCKS_MAX < await blocks(connection, first)
    assert sorted([late_id, newest]) == sorted(ids(await store.page(place, 500)))


async def blocks(connection: Connection, place: Place) -> int:
    """Return how many blocks a page from this place reads."""
    async with connection.transaction():
        await connection.execute("SET LOCAL enable_seqscan = off")
        plan = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {QUERIES['log_page']}",
            *(place.history.number, place.xmax, f"{{{','.join(map(str, place.running))}}}"),
            *(20_000, None, log.MEMBER_IDS_MAX, "{}", [], []),
        )
    root = orjson.loads(plan)[0]["Plan"]
    read: int = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
    return read


async def test_one_process_has_the_lease_and_moves_the_place(
    store: PostgresBusStore, connection: Connection
) -> None:
    """Until it gives it back; who has lost it moves nothing."""
    one, other = uuid4(), uuid4()
    place = await store.lease(one, LEASE_SECONDS)
    assert place is not None
    assert None is await store.lease(other, LEASE_SECONDS)
    assert place == await store.lease(one, LEASE_SECONDS)
    await commit_event(connection)
    moved = (await store.page(place, 10)).place
    assert not await store.advance(other, moved)
    await store.give_back(other)
    assert None is await store.lease(other, LEASE_SECONDS)
    assert place == await store.lease(one, LEASE_SECONDS)
    assert await store.advance(one, moved)
    await store.give_back(one)
    assert moved == await store.lease(other, LEASE_SECONDS)
    assert not await store.advance(one, place)
    assert moved == await store.lease(other, LEASE_SECONDS)


async def test_a_lease_that_has_ended_is_taken_over(store: PostgresBusStore) -> None:
    """A process that was stopped for longer finds its place fenced."""
    one, other = uuid4(), uuid4()
    place = await store.lease(one, 0.0)
    assert place is not None
    assert place == await store.lease(other, LEASE_SECONDS)
    assert not await store.advance(one, place)


async def test_a_reader_begins_once_at_the_present(
    database: Database, connection: Connection
) -> None:
    """A later start goes on where the one before has ended."""
    await commit_event(connection)
    store, token = PostgresBusStore(database), uuid4()
    await store.open()
    place = await store.lease(token, LEASE_SECONDS)
    assert place is not None
    new = await commit_event(connection)
    await PostgresBusStore(database).open()
    assert [new] == ids(await store.page(place, 10))
    assert place == await store.lease(token, LEASE_SECONDS)


async def test_a_refused_event_is_delivered_apart(
    store: PostgresBusStore, connection: Connection
) -> None:
    """With the content and the id that it has in the log, also once the log has lost it."""
    place = await store.present()
    await commit_event(connection)
    await connection.execute(
        "UPDATE outbox SET group_kind = 'project', metadata = '{\"a\": [1.5]}'"
    )
    page = await store.page(place, 10)
    data = orjson.loads(page.events[0].event.envelope)["data"]
    assert ("project", {"a": [1.5]}) == (data["kind"], data["metadata"])
    for _ in range(2):
        await store.refuse(dict.fromkeys(page.events, "too large"))
    assert [] == await store.take(10, LEASE_SECONDS)
    await connection.execute("TRUNCATE outbox; UPDATE outbox_delivery SET due_at = now()")
    (delivery,) = await store.take(10, LEASE_SECONDS)
    assert (page.events[0].event, 1) == (delivery.event, delivery.tries)
    assert [] == await store.take(10, LEASE_SECONDS)
    await store.settle([], [PutOff(delivery.event.event_id, is_try=True)])
    (delivery,) = await store.take(10, LEASE_SECONDS)
    assert 2 == delivery.tries
    await store.settle([delivery.event.event_id], [])
    assert await store.oldest_seconds() is None


@pytest.mark.parametrize(
    ("members", "event_type"),
    [(log.MEMBER_IDS_MAX, None), (log.MEMBER_IDS_MAX + 1, None), (2, "group.renamed")],
)
async def test_a_creation_names_its_members_unless_they_are_many(
    members: int, event_type: str | None, store: PostgresBusStore, connection: Connection
) -> None:
    """On both ways out. A change is sent to whom it is about as well: they need not be members."""
    place = await store.present()
    users = [f"user{number}" for number in range(members)]
    await commit_event(connection, tuple(users), event_type=event_type)
    page = await store.page(place, 10)
    await store.refuse(dict.fromkeys(page.events, "too large"))
    await connection.execute("UPDATE outbox_delivery SET due_at = now()")
    (delivery,) = await store.take(10, LEASE_SECONDS)
    named = users if event_type is None and members <= log.MEMBER_IDS_MAX else None
    for event in (page.events[0].event, delivery.event):
        assert named == orjson.loads(event.envelope)["data"].get("member_ids")


async def test_equal_ids_mean_equal_content(database_url: str, connection: Connection) -> None:
    """Whatever the row says of its own time: a lead that was lost may have been published."""
    team = NewGroup.parse(UserId("alice"), {"name": "Team"})
    async with open_component(database_url) as component:
        await component.creator.create(IdempotencyKey("k"), team)
    read = (
        "SELECT *, recipients[1] AS owner_id, cardinality(recipients) AS members_count,"
        " recipients AS member_ids FROM outbox"
    )
    (row,) = await connection.fetch(read)
    first = log.envelope(row)
    await connection.execute("UPDATE outbox SET created_at = created_at + interval '1 hour'")
    (row,) = await connection.fetch(read)
    assert first == log.envelope(row)
    document = orjson.loads(first)
    milliseconds = UUID(document["data"]["conversation_id"]).int >> 80
    assert milliseconds == await connection.fetchval(
        "SELECT (extract(epoch FROM $1::text::timestamptz) * 1000)::bigint", document["time"]
    )


CHANGES: Final = {
    "of a server that has started again": "server_started_at = '-infinity'",
    "of another database or table": "table_id = '1/2'",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_process_that_starts_elsewhere_begins_a_history(
    change: str, database_url: str, connection: Connection
) -> None:
    """Once, however many writers connect; a process that starts in the same place goes on."""
    team = NewGroup.parse(UserId("alice"), {"name": "Team"})
    numbers = []
    for number in range(4):
        if number == 2:
            await connection.execute(f"UPDATE outbox_history SET {change}")
        settings = ComponentSettings(writers=3)
        async with open_component(database_url, settings=settings) as component:
            await component.creator.create(IdempotencyKey(f"k{number}"), team)
        numbers.append(await connection.fetchval("SELECT max(history) FROM outbox"))
    assert [1, 1, 2, 2] == numbers
    assert 2 == await connection.fetchval("SELECT max(number) FROM outbox_history")


async def test_a_lead_on_another_server_begins_a_history(
    database_url: str, connection: Connection
) -> None:
    """A pooler may change to a promoted one under connections that live on; two writers agree."""
    settings = ComponentSettings(writers=2)
    async with open_component(database_url, settings=settings) as component:

        async def create(*keys: str) -> None:
            await asyncio.gather(
                *(
                    component.creator.create(
                        IdempotencyKey(key), NewGroup.parse(UserId(key), {"name": "Team"})
                    )
                    for key in keys
                )
            )

        await create("a")
        await connection.execute("UPDATE outbox_history SET server_started_at = '-infinity'")
        await create(*(f"k{number}" for number in range(200)))
    counts = await connection.fetch("SELECT history, count(*) FROM outbox GROUP BY 1 ORDER BY 1")
    assert [(1, 1), (2, 200)] == [tuple(row) for row in counts]


async def test_groups_are_written_to_the_newest_partition(
    database_url: str, connection: Connection
) -> None:
    """That is the one with the greatest number."""
    await connection.execute("UPDATE outbox_slot SET number = 2 WHERE slot = 5")
    async with open_component(database_url) as component:
        team = NewGroup.parse(UserId("alice"), {"name": "Team"})
        await component.creator.create(IdempotencyKey("k"), team)
    assert 5 == await connection.fetchval("SELECT slot FROM outbox")
