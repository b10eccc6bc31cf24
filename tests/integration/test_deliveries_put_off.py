"""What is put off holds up nothing that is due, and is found once its time has come."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import orjson
import pytest_asyncio
from uuid_utils.compat import uuid7

from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.log import MEMBER_IDS_MAX
from stretto.postgres.queries import QUERIES
from stretto.targets.delivery import PutOff
from stretto.webhook.slots import UNDER_WAY_MAX
from stretto.webhook.store import PostgresWebhookStore
from support.database import commit_event, connect
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from stretto.postgres.connections import Database
    from support.database import Connection

LEASE_SECONDS: Final = 60.0
DEADLINE_SECONDS: Final = 30
# As in take_deliveries.
OWNERS_MAX: Final = 64
LOOKED_AT_MAX: Final = 128
# More than any of these tests needs.
TURNS_MAX: Final = 32
# What the owner whose requests hang leaves to others; it gets no more.
ROOM: Final = 16
BUSY: Final = {"hanging": UNDER_WAY_MAX - ROOM}
MARKED: Final = "SELECT count(*) FROM outbox_delivery WHERE is_due"


class Deliveries:
    """Those of the webhook, at a time of the test's."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.now = datetime.now(UTC) + timedelta(days=1)
        self.store = PostgresWebhookStore(database, URL_DIGEST, lambda: self.now)
        self._connection = connection

    async def wait(
        self, owners: str, count: int = 1, *, seconds: float = 60, is_due: bool = True
    ) -> None:
        """Let deliveries wait that have been due for so many seconds.

        Their owners are `owners`, in which each one's number takes the place of a %.
        """
        await self._connection.execute(
            """INSERT INTO outbox_delivery (reader, created_at, event_id, subject, conversation_id,
                                            recipients, group_name, due_at, owner_id, is_due)
               SELECT 'webhook', $4::timestamptz, gen_random_uuid(), gen_random_uuid(), $1, '{}', 'Team',
                      $4::timestamptz - make_interval(secs => $3 - number / 1e6), replace($2, '%', number::text), $6
               FROM generate_series(1, $5) AS number""",
            *(uuid7(), owners, seconds, self.now, count, is_due),
        )

    async def take(self) -> list[str]:
        """Return whose deliveries are taken in a turn beside the requests that hang."""
        taken = await self.store.take(ROOM, LEASE_SECONDS, BUSY)
        return sorted(delivery.owner_id for delivery in taken)

    async def turns_until_taken(self) -> int:
        """Return after how many turns something is taken, each of which follows the one before at once."""
        for turn in range(1, TURNS_MAX):
            if await self.take():
                return turn
            assert self.store.has_marked
        return TURNS_MAX

    async def blocks_read(self) -> int:
        """Take a turn; return how many pages it has looked at."""
        rows = await self._connection.fetch(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + QUERIES["take_deliveries"],
            *("webhook", ROOM, LEASE_SECONDS, self.now, MEMBER_IDS_MAX, URL_DIGEST, "m"),
            *(list(BUSY), list(BUSY.values()), None, []),
        )
        plan = orjson.loads(rows[0][0])[0]["Plan"]
        blocks: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return blocks


@pytest_asyncio.fixture
async def deliveries(database: Database, connection: Connection) -> Deliveries:
    """None yet."""
    deliveries = Deliveries(database, connection)
    await deliveries.store.open()
    return deliveries


async def test_however_many_owners_are_put_off_anothers_event_is_taken_at_once(
    deliveries: Deliveries,
) -> None:
    """On either side of it, wherever the turn begins, and beside an owner that gets no more."""
    for seconds in (3600, 1):
        await deliveries.wait("hanging", 400, seconds=seconds)
    await deliveries.wait("a%", 1500, seconds=-300, is_due=False)
    await deliveries.wait("z%", 1500, seconds=-300, is_due=False)
    for owner in ("m", "k", "n"):
        await deliveries.wait(owner)
        assert [owner] == await deliveries.take()
    assert [] == await deliveries.take()
    assert not deliveries.store.has_marked


async def test_a_turn_reads_few_pages_however_many_are_put_off(
    deliveries: Deliveries, connection: Connection
) -> None:
    """Whatever the planner knows of the marks: here that none is set, as after an outage."""
    await deliveries.wait("a%", 4000, seconds=-300, is_due=False)
    await deliveries.wait("z%", 4000, seconds=-300, is_due=False)
    await connection.execute("ANALYZE outbox_delivery")
    assert await deliveries.blocks_read() < 20
    await deliveries.wait("hanging", 8000, seconds=3600)
    await deliveries.wait("m")
    assert await deliveries.blocks_read() < 500


async def test_what_becomes_due_is_found_behind_all_that_is(
    deliveries: Deliveries, connection: Connection
) -> None:
    """In steps: a million may become due at once. A step that has taken nothing is followed by another."""
    await deliveries.wait("hanging", LOOKED_AT_MAX, seconds=3600)
    await deliveries.wait("hanging", 4 * LOOKED_AT_MAX, seconds=-30, is_due=False)
    await deliveries.wait("put off", seconds=-60, is_due=False)
    assert [] == await deliveries.take()
    assert not deliveries.store.has_marked
    deliveries.now += timedelta(seconds=90)
    assert [] == await deliveries.take()
    assert 2 * LOOKED_AT_MAX == await connection.fetchval(MARKED)
    assert 4 == await deliveries.turns_until_taken()
    assert 5 * LOOKED_AT_MAX == await connection.fetchval(MARKED)


async def test_what_becomes_due_with_the_readers_clock_is_found(
    deliveries: Deliveries, connection: Connection
) -> None:
    """It is set ahead for another URL, and to enable the webhook: no delivery is written."""
    await deliveries.wait("hanging", 2 * LOOKED_AT_MAX, seconds=-3600, is_due=False)
    await deliveries.wait("put off", seconds=-7200, is_due=False)
    assert [] == await deliveries.take()
    await connection.execute("UPDATE outbox_reader SET clock_ahead = interval '3 hours'")
    assert 3 == await deliveries.turns_until_taken()


async def test_what_is_taken_or_put_off_is_met_by_no_turn_until_its_time(
    deliveries: Deliveries, connection: Connection
) -> None:
    """A lease that ends is found like a pause that ends, behind what is marked."""
    await deliveries.wait("hanging", LOOKED_AT_MAX, seconds=3600)
    await deliveries.wait("m")
    (taken,) = await deliveries.store.take(ROOM, LEASE_SECONDS, BUSY)
    assert LOOKED_AT_MAX == await connection.fetchval(MARKED)
    deliveries.now += timedelta(seconds=LEASE_SECONDS)
    assert ["m"] == await deliveries.take()
    await connection.execute("UPDATE outbox_delivery SET is_due = true")
    await deliveries.store.settle([], [PutOff(taken.event.event_id, 10.0)])
    assert LOOKED_AT_MAX == await connection.fetchval(MARKED)
    deliveries.now += timedelta(seconds=10)
    assert ["m"] == await deliveries.take()


async def test_what_an_older_version_has_put_off_is_met_once(
    deliveries: Deliveries, connection: Connection
) -> None:
    """It leaves the mark as it is. The turns go on from owner to owner, one after the other."""
    await deliveries.wait("hanging", LOOKED_AT_MAX, seconds=3600)
    await deliveries.wait("a%", 3 * OWNERS_MAX, seconds=-3600)
    await deliveries.wait("m")
    assert await deliveries.turns_until_taken() <= 4
    for _ in range(TURNS_MAX):
        await deliveries.take()
    assert not deliveries.store.has_marked
    assert LOOKED_AT_MAX == await connection.fetchval(MARKED)
    deliveries.now += timedelta(seconds=3601)
    assert ROOM - 1 == len(await deliveries.take())


async def test_what_an_older_version_has_put_off_holds_up_no_event_that_comes(
    deliveries: Deliveries,
) -> None:
    """Migration 29 may find it for any number of owners: the walk takes minutes to pass them."""
    await deliveries.wait("hanging", 2 * LOOKED_AT_MAX, seconds=3600)
    await deliveries.wait("a%", 3 * OWNERS_MAX, seconds=-3600)
    await deliveries.wait("m")
    assert ["m"] == await deliveries.take()


async def test_a_turn_waits_for_no_delivery_that_it_marks(
    deliveries: Deliveries, database_url: str
) -> None:
    """A command or another sender has it."""
    await deliveries.wait("hanging", seconds=3600, is_due=False)
    other = await connect(database_url)
    async with asyncio.timeout(DEADLINE_SECONDS), other.transaction():
        await other.execute("SELECT FROM outbox_delivery FOR UPDATE")
        assert [] == await deliveries.take()
        assert not deliveries.store.has_marked
    await other.close()
    assert [] == await deliveries.take()
    assert deliveries.store.has_marked


async def test_what_was_sent_waits_for_no_delivery_that_another_session_has(
    deliveries: Deliveries, database_url: str, connection: Connection
) -> None:
    """Whether it was sent or not: it is settled the next time, and all others at once."""
    await deliveries.wait("a%", 4)
    taken = [each.event.event_id for each in await deliveries.store.take(4, LEASE_SECONDS)]
    other = await connect(database_url)
    async with asyncio.timeout(DEADLINE_SECONDS), other.transaction():
        await other.execute(
            "SELECT FROM outbox_delivery WHERE event_id = ANY ($1) FOR UPDATE",
            [taken[0], taken[2]],
        )
        dead = await deliveries.store.settle(
            taken[:2], [PutOff(each, dead_reason="no") for each in taken[2:]]
        )
        assert {taken[3]} == dead
    await other.close()
    waiting = "SELECT event_id FROM outbox_delivery WHERE dead_reason IS NULL"
    assert {taken[0], taken[2]} == {row["event_id"] for row in await connection.fetch(waiting)}


async def test_what_the_bus_has_refused_is_put_off(
    database: Database, connection: Connection
) -> None:
    """For a second: it is no more marked than what the webhook's endpoint has refused."""
    store = PostgresBusStore(database)
    await store.open()
    place = await store.present()
    await commit_event(connection)
    await store.refuse(dict.fromkeys((await store.page(place, 1)).events, "no"))
    assert 0 == await connection.fetchval(MARKED)
