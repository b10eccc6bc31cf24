"""A new primary's clock may be behind: no lease is waited for until that clock has caught up."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from stretto.events.outbox import PAUSE_SECONDS_MAX
from stretto.postgres.outbox import PostgresOutboxStore
from stretto.webhook.rules import PutOff
from stretto.webhook.store import PostgresWebhookStore
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.postgres.connections import Database
    from support.database import Connection

# Ahead of all that the tables' defaults have written.
NOW: Final = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
LEASE_SECONDS: Final = 30.0
MICROSECOND: Final = timedelta(microseconds=1)


async def commit_event(connection: Connection, due_at: datetime, tries: int = 0) -> UUID:
    """Commit an event that is due at that time."""
    id_ = uuid.uuid4()
    await connection.execute(
        """INSERT INTO outbox (event_id, event_type, subject, recipients, payload, due_at, tries)
           VALUES ($1, 'group.created', $1, '{alice}', '{}', $2, $3)""",
        id_,
        due_at,
        tries,
    )
    return id_


@pytest.mark.parametrize(
    ("tries", "seconds_max"), [(0, LEASE_SECONDS), (1, PAUSE_SECONDS_MAX), (5, PAUSE_SECONDS_MAX)]
)
async def test_an_event_that_is_due_later_than_it_can_be_is_due(
    tries: int, seconds_max: float, database: Database, connection: Connection
) -> None:
    """A lease or a pause of this clock's is waited for, and one lease more."""
    store = PostgresOutboxStore(database, lambda: NOW)
    latest = NOW + timedelta(seconds=LEASE_SECONDS + seconds_max)
    await commit_event(connection, latest, tries)
    assert [] == await store.take(10, LEASE_SECONDS)
    beyond = await commit_event(connection, latest + MICROSECOND, tries)
    taken = [event.event_id for event in await store.take(10, LEASE_SECONDS)]
    assert [beyond] == taken
    # Its lease is of this clock now.
    assert [] == await store.take(10, LEASE_SECONDS)


async def test_a_lease_longer_than_any_pause_is_waited_for_as_well(
    database: Database, connection: Connection
) -> None:
    """Also by an event that has been tried."""
    store = PostgresOutboxStore(database, lambda: NOW)
    lease_seconds = 2 * PAUSE_SECONDS_MAX
    await commit_event(connection, NOW + timedelta(seconds=2 * lease_seconds), tries=1)
    assert [] == await store.take(10, lease_seconds)
    assert 1 == len(await store.take(10, LEASE_SECONDS))


async def test_a_relay_that_read_the_clock_before_another_takes_nothing_from_it(
    database: Database, connection: Connection
) -> None:
    """Statements that run side by side read it in any order; the lease is the other's."""
    await commit_event(connection, NOW)
    ahead = PostgresOutboxStore(database, lambda: NOW + timedelta(seconds=5))
    assert 1 == len(await ahead.take(10, LEASE_SECONDS))
    assert [] == await PostgresOutboxStore(database, lambda: NOW).take(10, LEASE_SECONDS)


class Webhook:
    """A webhook's store, with a clock that the test sets."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.store = PostgresWebhookStore(database, lambda: self.now)
        self.now = NOW
        self._connection = connection

    async def take(self) -> list[UUID]:
        """Enrol and take; return what was due."""
        await self.store.enrol(10)
        return [delivery.event_id for delivery in await self.store.take(10, LEASE_SECONDS)]

    async def column(self, table: str, column: str) -> datetime:
        """Return a time from a table of one row."""
        at: datetime = await self._connection.fetchval(f"SELECT {column} FROM {table}")
        return at


@pytest_asyncio.fixture
async def webhook(database: Database, connection: Connection) -> Webhook:
    """A webhook that is served, with one event, which is leased."""
    webhook = Webhook(database, connection)
    await webhook.store.open(URL_DIGEST)
    event = await commit_event(connection, NOW)
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
    assert webhook.now + wait == await webhook.column("webhook_delivery", "due_at")
    assert webhook.now == await webhook.column("webhook", "served_at")
    webhook.now += wait
    assert [event] == await webhook.take()


async def test_a_pause_of_the_endpoint_goes_back_with_the_clock(webhook: Webhook) -> None:
    """It had asked for an hour."""
    await webhook.store.pause(3600)
    webhook.now = NOW - timedelta(days=3)
    assert [] == await webhook.take()
    assert webhook.now + timedelta(hours=1) == await webhook.column("webhook", "paused_until")


async def test_a_clock_that_is_behind_by_a_minute_moves_nothing(webhook: Webhook) -> None:
    """Statements of two processes that run at once read it in any order."""
    due_at = await webhook.column("webhook_delivery", "due_at")
    webhook.now = NOW - timedelta(minutes=1)
    assert [] == await webhook.take()
    assert due_at == await webhook.column("webhook_delivery", "due_at")
    assert NOW == await webhook.column("webhook", "served_at")
    webhook.now -= MICROSECOND
    await webhook.take()
    assert due_at > await webhook.column("webhook_delivery", "due_at")
