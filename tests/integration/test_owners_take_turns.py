"""Owners take turns with their deliveries: what one has waiting, or hanging, holds up no other's."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import orjson
import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.log import MEMBER_IDS_MAX
from stretto.postgres.queries import QUERIES
from stretto.webhook.rules import Answered
from stretto.webhook.sender import WebhookSender
from stretto.webhook.slots import SLOW_MAX, SLOW_SECONDS, UNDER_WAY_MAX
from stretto.webhook.store import PostgresWebhookStore
from support.database import commit_event, connect
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from stretto.postgres.connections import Database
    from stretto.webhook.rules import Answer
    from support.database import Connection

NOW: Final = datetime.now(UTC) + timedelta(days=1)
LEASE_SECONDS: Final = 60.0
DEADLINE_SECONDS: Final = 30
# As in take_deliveries.
OWNERS_MAX: Final = 64
OLDEST_MAX: Final = 128


class Turns:
    """A process's turns with deliveries that the test lets wait."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.store = PostgresWebhookStore(database, URL_DIGEST, lambda: NOW)
        self._connection = connection

    async def wait(
        self, owner: str, count: int = 1, *, seconds: float = 60, is_marked: bool | None = None
    ) -> None:
        """Let an owner's deliveries wait, due for so many seconds; put off, if that is negative."""
        await self._connection.execute(
            """INSERT INTO outbox_delivery (reader, created_at, event_id, subject, conversation_id,
                                            recipients, group_name, due_at, owner_id, is_due)
               SELECT 'webhook', $4::timestamptz, gen_random_uuid(), gen_random_uuid(), $1, '{}', 'Team',
                      $4::timestamptz - make_interval(secs => $3 + 1.0 / number), $2, $6
               FROM generate_series(1, $5) AS number""",
            *(uuid7(), owner, seconds, NOW, count),
            seconds > 0 if is_marked is None else is_marked,
        )

    async def take(
        self,
        count: int,
        under_way: Mapping[str, int] | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> list[str]:
        """Return whose deliveries are taken in a turn."""
        taken = await self.store.take(count, LEASE_SECONDS, under_way, only, without)
        return sorted(delivery.owner_id for delivery in taken)


@pytest_asyncio.fixture
async def turns(database: Database, connection: Connection) -> Turns:
    """Those of the webhook."""
    turns = Turns(database, connection)
    await turns.store.open()
    return turns


async def test_owners_take_turns_round_and_round(turns: Turns) -> None:
    """However long the deliveries of one have been due; each process goes on behind its last one."""
    await turns.wait("a", 9, seconds=3600)
    for owner in "bcd":
        await turns.wait(owner, 2)
    taken = [await turns.take(count) for count in (2, 3, 2)]
    assert [["a", "b"], ["a", "c", "d"], ["b", "c"]] == taken
    # What is left of the room goes to who has waited longest.
    assert [*["a"] * 3, "d"] == await turns.take(4)


async def test_a_turn_begins_behind_the_last_owner_that_was_served(turns: Turns) -> None:
    """Not behind one that was looked at: there was no room left for that one."""
    for owner in "abc":
        await turns.wait(owner, 2)
    assert [["a"], ["b"], ["c"], ["a"]] == [await turns.take(2, {}) for _ in range(4)]


async def test_owners_whose_deliveries_are_put_off_are_passed_over(turns: Turns) -> None:
    """Also where others' are due."""
    await turns.wait("a", 3, seconds=-3600)
    assert [] == await turns.take(3)
    await turns.wait("b")
    assert ["b"] == await turns.take(3)
    assert [] == await turns.take(3)


async def test_a_turn_looks_at_so_many_owners_and_the_next_one_at_those_behind(
    turns: Turns,
) -> None:
    """Even if it has taken nothing: the oldest and the newest are of an owner that gets no more."""
    for seconds in (3600, 1):
        await turns.wait("a", OLDEST_MAX, seconds=seconds)
    for number in range(OWNERS_MAX - 1):
        await turns.wait(f"b{number:02}", seconds=-3600, is_marked=True)
    await turns.wait("c")
    busy = {"a": UNDER_WAY_MAX}
    assert [] == await turns.take(8, busy)
    assert turns.store.has_marked
    assert ["c"] == await turns.take(8, busy)


async def test_what_is_due_of_more_owners_is_found_by_its_time(turns: Turns) -> None:
    """Without a walk past all whose deliveries an older version has put off."""
    for number in range(OWNERS_MAX):
        await turns.wait(f"a{number:02}", seconds=-3600, is_marked=True)
    await turns.wait("b")
    # What has become due last is of an owner that gets no more.
    await turns.wait("z", OLDEST_MAX, seconds=1)
    assert ["b"] == await turns.take(8, {"z": UNDER_WAY_MAX})


async def test_however_many_owners_get_nothing_one_turn_finds_who_may(turns: Turns) -> None:
    """As where the endpoint hangs for a thousand of them, on either side of whose turn it is."""
    slow = [f"{prefix}{number}" for prefix in "ac" for number in range(OWNERS_MAX)]
    for owner in slow:
        await turns.wait(owner, 4, seconds=90)
    # Neither the oldest, nor what has become due last.
    await turns.wait("b", 2, seconds=45)
    for _ in range(2):
        assert ["b"] == await turns.take(1, without=slow)
    assert [] == await turns.take(2, {}, without=slow)


async def test_of_owners_that_are_named_the_first_get_what_room_there_is(turns: Turns) -> None:
    """No others get any, whoever has waited longer; and whose turn it is among them stays as it is."""
    for owner in "abcd":
        await turns.wait(owner, 2, seconds=3600 if owner == "a" else 60)
    await turns.wait("d", seconds=-60)
    assert ["a"] == await turns.take(2, {})
    assert ["c", "d"] == await turns.take(3, {}, ["d", "c", "b", "e"])
    assert ["d"] == await turns.take(3, {"c": 3}, ["c", "d"])
    assert [] == await turns.take(3, {}, [])
    assert ["b"] == await turns.take(2, {})


async def test_what_is_due_of_owners_that_are_named_is_read_alone(
    turns: Turns, connection: Connection
) -> None:
    """A sender takes such a turn for each answer to a slow request."""
    await turns.wait("m", 20_000, seconds=3600)
    await turns.wait("n", 2)
    await connection.execute("ANALYZE outbox_delivery")
    slow = ["n", *map(str, range(100))]
    assert ["n", "n"] == await turns.take(3, {}, slow)
    assert await blocks_read(connection, 3, slow) < 1000


async def test_no_owner_gets_more_than_twice_what_is_left(turns: Turns) -> None:
    """Alone it has two thirds; what others need is free when they come."""
    await turns.wait("a", 100, seconds=3600)
    first = await turns.take(UNDER_WAY_MAX, {})
    assert 2 * (UNDER_WAY_MAX - len(first)) == len(first) == 32
    busy = {"a": len(first)}
    assert [] == await turns.take(UNDER_WAY_MAX - len(first), busy)
    await turns.wait("b", 3)
    assert ["b"] * 3 == await turns.take(UNDER_WAY_MAX - len(first), busy)


async def test_owners_that_come_at_once_leave_room_as_well(turns: Turns) -> None:
    """The bound is of what is left behind them, not of what was free before."""
    for owner in "abcde":
        await turns.wait(owner, 20)
    taken = Counter(await turns.take(UNDER_WAY_MAX, {}))
    assert [8, 8, 9, 9, 9] == sorted(taken.values())


async def test_who_has_fewest_under_way_comes_first(turns: Turns) -> None:
    """Also before an owner whose turn it is."""
    await turns.wait("a", 3)
    await turns.wait("b", 3)
    assert ["a", "b", "b"] == await turns.take(4, {"a": 1})


async def test_what_has_no_owner_counts_as_one_owners(turns: Turns, connection: Connection) -> None:
    """An instance of an older version enrols so, during an upgrade."""
    await connection.execute(
        """INSERT INTO outbox_delivery (reader, created_at, event_id, subject, conversation_id,
                                        recipients, group_name, due_at)
           SELECT 'webhook', $1::timestamptz, gen_random_uuid(), gen_random_uuid(), $2, '{}', 'Team', $1::timestamptz
           FROM generate_series(1, 50)""",
        *(NOW, uuid7()),
    )
    assert [""] * 32 == await turns.take(UNDER_WAY_MAX, {})
    await turns.wait("a")
    assert ["a"] == await turns.take(UNDER_WAY_MAX - 32, {"": 32})


async def test_what_another_process_takes_is_left_out(turns: Turns, database_url: str) -> None:
    """Nobody waits for it, and the room goes to others."""
    await turns.wait("a", 2)
    other = await connect(database_url)
    async with asyncio.timeout(DEADLINE_SECONDS), other.transaction():
        await other.execute("SELECT FROM outbox_delivery ORDER BY due_at LIMIT 1 FOR UPDATE")
        assert ["a"] == await turns.take(2)
        assert [] == await turns.take(2)
    await other.close()
    assert ["a"] == await turns.take(2)


async def blocks_read(
    connection: Connection, count: int = UNDER_WAY_MAX, only: Collection[str] | None = None
) -> int:
    """Take a turn; return how many pages it has looked at."""
    rows = await connection.fetch(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + QUERIES["take_deliveries"],
        *("webhook", count, LEASE_SECONDS, NOW, MEMBER_IDS_MAX, URL_DIGEST),
        *("a4", ["m"], [3], only, []),
    )
    plan = orjson.loads(rows[0][0])[0]["Plan"]
    blocks: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return blocks


async def test_a_turn_reads_few_rows_however_many_wait(
    turns: Turns, connection: Connection
) -> None:
    """Most of them of one owner; of the others many are put off."""
    await turns.wait("m", 20_000, seconds=3600)
    await connection.execute(
        """INSERT INTO outbox_delivery (reader, created_at, event_id, subject, conversation_id,
                                        recipients, group_name, due_at, owner_id)
           SELECT 'webhook', $1::timestamptz, gen_random_uuid(), gen_random_uuid(), $2, '{}', 'Team',
                  $1::timestamptz + interval '1 hour', 'a' || number
           FROM generate_series(1, 5000) AS number""",
        *(NOW, uuid7()),
    )
    await connection.execute("ANALYZE outbox_delivery")
    assert await blocks_read(connection) < 4000


async def test_a_turn_looks_at_no_more_owners_than_there_is_room_for(
    turns: Turns, connection: Connection
) -> None:
    """A sender that is busy takes one for each answer."""
    for number in range(OWNERS_MAX):
        await turns.wait(f"b{number:02}")
    assert await blocks_read(connection, 3) < 100


async def test_no_owner_that_has_enough_under_way_ends_a_turn(turns: Turns) -> None:
    """Nor one whose deliveries are put off: who is behind them would get nothing from it."""
    for owner in "ab":
        await turns.wait(owner, OLDEST_MAX, seconds=3600)
        # What has become due last is theirs, too.
        await turns.wait(owner, OLDEST_MAX, seconds=1)
    for owner in "cd":
        await turns.wait(owner, seconds=-3600, is_marked=True)
    await turns.wait("e")
    assert ["e"] == await turns.take(2, {"a": 20, "b": 20})


async def test_a_turn_with_nothing_due_walks_nowhere(turns: Turns, connection: Connection) -> None:
    """Each process takes one a second: it costs a look into the index."""
    await turns.wait("a", 300, seconds=-3600)
    assert await blocks_read(connection) < 20


@pytest.mark.parametrize("is_bus", [False, True])
async def test_a_delivery_knows_the_owner_of_its_group(
    is_bus: bool, database: Database, connection: Connection
) -> None:
    """Of a change that is not the first of its recipients."""
    store = PostgresBusStore(database) if is_bus else PostgresWebhookStore(database, URL_DIGEST)
    await store.open()
    place = await store.present()
    await commit_event(connection)
    change = await commit_event(connection, event_type="group.renamed")
    await connection.execute(
        """UPDATE outbox SET change = '{"owner_id": "bob"}' WHERE event_id = $1""", change
    )
    if isinstance(store, PostgresBusStore):
        await store.refuse(dict.fromkeys((await store.page(place, 2)).events, "no"))
        await connection.execute("UPDATE outbox_delivery SET due_at = '-infinity'")
    else:
        await store.enrol(2)
    taken = await store.take(2, LEASE_SECONDS)
    assert ["alice", "bob"] == sorted(delivery.owner_id for delivery in taken)


async def test_it_is_counted_what_is_due(turns: Turns) -> None:
    """By the reader's clock, and no further than is asked for."""
    await turns.wait("a", 3)
    await turns.wait("a", seconds=-3600)
    assert [2, 3] == [await turns.store.count_due(count) for count in (2, 5)]


class HangingForSome:
    """Answers at once, but never for the groups of some owners."""

    url_digest = URL_DIGEST
    connections_opened = 0

    def __init__(self) -> None:
        self.owners: list[str] = []

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answer:
        """Note whose event comes."""
        owner = orjson.loads(body)["data"]["owner_id"]
        self.owners.append(owner)
        if owner.startswith("bad"):
            await asyncio.Event().wait()
        return Answered(204)

    async def is_blocked(self) -> bool:
        """Never."""
        return False


async def test_while_requests_of_an_owner_hang_others_events_are_sent(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that were committed behind more events than there are slots."""
    monkeypatch.setattr("stretto.webhook.sender.STOP_SECONDS", 0)
    endpoint = HangingForSome()
    sender = WebhookSender(PostgresWebhookStore(database, URL_DIGEST), endpoint, lambda _: None)
    await sender.open()
    async with connection.transaction():
        for _ in range(4 * UNDER_WAY_MAX):
            await commit_event(connection, ("bad",))
    good = [await commit_event(connection, ("good",)) for _ in range(3)]
    # A turn for each page that is enrolled, and one that takes what the last one had.
    for _ in range(6):
        await sender.run_once()
        await asyncio.sleep(0)
    assert {"bad": 32, "good": len(good)} == Counter(endpoint.owners)
    await sender.close()


async def test_while_requests_of_many_owners_hang_others_events_are_sent(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that no place is left for are put off, and are no nearer to their end."""
    monkeypatch.setattr("stretto.webhook.sender.STOP_SECONDS", 0)
    endpoint, now = HangingForSome(), 0.0
    store = PostgresWebhookStore(database, URL_DIGEST)
    sender = WebhookSender(store, endpoint, lambda _: None, clock_seconds=lambda: now)
    await sender.open()
    hanging = [f"bad{number}" for number in range(SLOW_MAX + 2 * UNDER_WAY_MAX)]
    async with connection.transaction():
        for owner in hanging:
            await commit_event(connection, (owner,))
            await commit_event(connection, (owner,))
    await commit_event(connection, ("good",))
    for _ in range(5):
        for _ in range(4):
            await sender.run_once()
            await asyncio.sleep(0)
        if "good" in endpoint.owners:
            break
        now += SLOW_SECONDS
    assert "good" in endpoint.owners
    await sender.run_once()
    assert 2 * len(hanging) == await connection.fetchval(
        "SELECT count(*) FROM outbox_delivery WHERE tries = 0 AND dead_reason IS NULL"
    )
    await sender.close()
