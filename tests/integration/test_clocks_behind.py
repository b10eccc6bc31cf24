"""A new primary's clock may be behind: no lease is waited for until that clock has caught up."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from stretto.postgres.bus import PostgresBusStore
from stretto.targets.delivery import PutOff
from stretto.webhook.store import PostgresWebhookStore
from support.database import commit_event
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.postgres.connections import Database
    from support.database import Connection

# Ahead of all that the tables' defaults have written.
NOW: Final = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
LEASE_SECONDS: Final = 30.0
MICROSECOND: Final = timedelta(microseconds=1)
# By the database's clock.
DUE_AT: Final = (
    "SELECT due_at - clock_ahead FROM outbox_delivery JOIN outbox_reader ON name = reader"
)
SERVED_AT: Final = "SELECT served_at FROM outbox_reader"
PAUSED_UNTIL: Final = "SELECT paused_until FROM outbox_reader"


async def test_a_lease_of_the_bus_that_no_clock_of_ours_has_given_is_over(
    database: Database,
) -> None:
    """A lease of this clock's is waited for, and one lease more: processes read it in any order."""
    ahead = NOW + timedelta(seconds=LEASE_SECONDS)
    one = PostgresBusStore(database, lambda: ahead)
    other = PostgresBusStore(database, lambda: NOW)
    await one.open()
    assert await one.lease(uuid.uuid4(), LEASE_SECONDS)
    assert None is await other.lease(uuid.uuid4(), LEASE_SECONDS)
    ahead += MICROSECOND
    token = uuid.uuid4()
    assert None is await one.lease(token, LEASE_SECONDS)
    ahead = NOW + timedelta(days=1)
    assert await one.lease(token, LEASE_SECONDS)
    assert await other.lease(uuid.uuid4(), LEASE_SECONDS)


async def test_a_refused_event_goes_back_with_the_clock(
    database: Database, connection: Connection
) -> None:
    """It is due as long after now as it was before; by a minute, nothing is moved."""
    now = NOW
    token = uuid.uuid4()
    store = PostgresBusStore(database, lambda: now)
    await store.open()
    place = await store.lease(token, LEASE_SECONDS)
    assert place is not None
    event = await commit_event(connection)
    page = await store.page(place, 10)
    await store.refuse(dict.fromkeys(page.events, "no"))
    await store.settle([], [PutOff(event, 600.0, is_try=True)])
    for behind, moved in ((timedelta(minutes=1), timedelta(0)), (timedelta(days=3),) * 2):
        now = NOW - behind
        await connection.execute("UPDATE outbox_reader SET served_at = $1", NOW)
        assert await store.lease(token, LEASE_SECONDS)
        assert NOW - moved + timedelta(minutes=10) == await connection.fetchval(DUE_AT)


class Webhook:
    """A webhook's store, with a clock that the test sets."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.store = PostgresWebhookStore(database, URL_DIGEST, lambda: self.now)
        self.now = NOW
        self._connection = connection

    async def take(self) -> list[UUID]:
        """Enrol and take; return what was due."""
        await self.store.enrol(10)
        taken = await self.store.take(10, LEASE_SECONDS)
        return [delivery.event.event_id for delivery in taken]

    async def read(self, query: str) -> datetime:
        """Return a time from a table of one row."""
        at: datetime = await self._connection.fetchval(query)
        return at


@pytest_asyncio.fixture
async def webhook(database: Database, connection: Connection) -> Webhook:
    """A webhook that is served, with one event, which is leased."""
    webhook = Webhook(database, connection)
    await webhook.store.open()
    event = await commit_event(connection)
    assert [event] == await webhook.take()
    return webhook


@pytest.mark.parametrize("seconds", [0.0, 86_400.0])
async def test_a_delivery_goes_back_with_the_clock(
    seconds: float, webhook: Webhook, connection: Connection
) -> None:
    """A lease, and a pause of a day: it is due as long after now as it was before."""
    (event,) = [row["event_id"] for row in await connection.fetch("SELECT event_id FROM outbox")]
    if seconds:
        await webhook.store.settle([], [PutOff(event, seconds, is_try=True)])
    wait = timedelta(seconds=seconds or LEASE_SECONDS)
    webhook.now = NOW - timedelta(days=3)
    assert [] == await webhook.take()
    assert webhook.now + wait == await webhook.read(DUE_AT)
    assert webhook.now == await webhook.read(SERVED_AT)
    webhook.now += wait
    assert [event] == await webhook.take()


async def test_a_pause_of_the_endpoint_goes_back_with_the_clock(webhook: Webhook) -> None:
    """It had asked for an hour."""
    await webhook.store.pause(3600)
    webhook.now = NOW - timedelta(days=3)
    assert [] == await webhook.take()
    assert webhook.now + timedelta(hours=1) == await webhook.read(PAUSED_UNTIL)


async def test_a_clock_that_is_behind_by_a_minute_moves_nothing(webhook: Webhook) -> None:
    """Statements of two processes that run at once read it in any order."""
    due_at = await webhook.read(DUE_AT)
    webhook.now = NOW - timedelta(minutes=1)
    assert [] == await webhook.take()
    assert due_at == await webhook.read(DUE_AT)
    assert NOW == await webhook.read(SERVED_AT)
    webhook.now -= MICROSECOND
    await webhook.take()
    assert due_at > await webhook.read(DUE_AT)
