"""A million deliveries may wait: no start and no turn goes through them, and no command at once."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from stretto.postgres import deliveries
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.deliveries import hasten_deliveries, retry_dead_letters
from stretto.targets.delivery import PutOff
from stretto.webhook.store import PostgresWebhookStore, enable
from support.database import commit_event, connect
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from stretto.postgres.connections import Database
    from stretto.targets.delivery import Delivery
    from support.database import Connection

# Ahead of all that the tables' defaults have written.
NOW: Final = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
LEASE_SECONDS: Final = 60.0
HOUR: Final = timedelta(hours=1)
COUNT: Final = 5
OTHER_DIGEST: Final = hashlib.sha256(b"https://example.com/elsewhere").digest()


class Waiting:
    """A reader's deliveries, each put off by an hour after a try that has failed."""

    def __init__(self, database: Database, *, is_bus: bool) -> None:
        self.database = database
        self.now: datetime | None = None
        self.ids: set[UUID] = set()
        self._token = uuid.uuid4()
        self._is_bus = is_bus
        self.bus = PostgresBusStore(database, lambda: self.now)
        self.webhook = PostgresWebhookStore(database, URL_DIGEST, lambda: self.now)

    async def open(self, digest: bytes = URL_DIGEST) -> None:
        """Begin, as a process does at its start."""
        self.webhook = PostgresWebhookStore(self.database, digest, lambda: self.now)
        await (self.bus if self._is_bus else self.webhook).open()

    async def turn(self) -> None:
        """Do what a turn does with the reader's row."""
        if self._is_bus:
            await self.bus.lease(self._token, LEASE_SECONDS)
        else:
            await self.webhook.enrol(COUNT)

    async def fill(self, connection: Connection) -> None:
        """Have the events of new groups wait."""
        place = await self.bus.present()
        self.ids = {await commit_event(connection) for _ in range(COUNT)}
        if self._is_bus:
            page = await self.bus.page(place, COUNT)
            await self.bus.refuse(dict.fromkeys(page.events, "no"))
        else:
            await self.webhook.enrol(COUNT)
            await self.take()
        await self.put_off()

    async def take(self) -> list[Delivery]:
        """Return what is due."""
        return await (self.bus if self._is_bus else self.webhook).take(COUNT, LEASE_SECONDS)

    async def put_off(self, dead_reason: str | None = None) -> None:
        """Note that a try of each has failed."""
        others = [PutOff(id_, 3600.0, is_try=True, dead_reason=dead_reason) for id_ in self.ids]
        await (self.bus if self._is_bus else self.webhook).settle([], others)


@pytest_asyncio.fixture(params=[False, True], ids=["webhook", "bus"])
async def waiting(
    request: pytest.FixtureRequest, database: Database, connection: Connection
) -> Waiting:
    """Of the reader that the test names, or of each."""
    waiting = Waiting(database, is_bus=request.param)
    await waiting.open()
    await waiting.fill(connection)
    return waiting


webhook_only = pytest.mark.parametrize("waiting", [False], indirect=True, ids=["webhook"])


@pytest_asyncio.fixture
async def holder(database_url: str) -> AsyncIterator[Connection]:
    """Another session."""
    holder = await connect(database_url)
    yield holder
    await holder.close()


async def hold(holder: Connection) -> None:
    """Have every statement that writes a waiting delivery fail, after a second."""
    await holder.execute("BEGIN; SELECT FROM outbox_delivery FOR UPDATE")


async def release(holder: Connection) -> None:
    """Have them succeed again."""
    await holder.execute("ROLLBACK")


@webhook_only
async def test_a_start_with_another_url_writes_no_delivery(
    waiting: Waiting, holder: Connection
) -> None:
    """Yet all that wait are due at once, for the new endpoint untried; what it fails is a try."""
    await hold(holder)
    await waiting.open(OTHER_DIGEST)
    await release(holder)
    taken = await waiting.take()
    assert dict.fromkeys(waiting.ids, 0) == {each.event.event_id: each.tries for each in taken}
    await waiting.put_off()
    assert [] == await waiting.take()
    await holder.execute("UPDATE outbox_delivery SET due_at = due_at - interval '1 hour'")
    # Twin: the same endpoint, opened again.
    await waiting.open(OTHER_DIGEST)
    assert [1] * COUNT == [each.tries for each in await waiting.take()]


@webhook_only
async def test_an_event_that_comes_after_another_url_is_due_at_once(
    waiting: Waiting, connection: Connection
) -> None:
    """Behind those that have waited."""
    await waiting.open(OTHER_DIGEST)
    assert waiting.ids == {each.event.event_id for each in await waiting.take()}
    event = await commit_event(connection)
    await waiting.turn()
    assert [event] == [each.event.event_id for each in await waiting.take()]


@pytest.mark.parametrize("waiting", [True], indirect=True, ids=["bus"])
async def test_an_event_is_refused_by_the_readers_clock(
    waiting: Waiting, connection: Connection
) -> None:
    """It is tried again after a second, not at once."""
    await connection.execute("UPDATE outbox_reader SET clock_ahead = interval '2 hours'")
    assert COUNT == len(await waiting.take())
    waiting.now = datetime.now(UTC)
    place = await waiting.bus.present()
    await commit_event(connection)
    page = await waiting.bus.page(place, 1)
    await waiting.bus.refuse(dict.fromkeys(page.events, "no"))
    assert [] == await waiting.take()
    waiting.now += timedelta(seconds=1)
    assert 1 == len(await waiting.take())


@webhook_only
async def test_a_start_with_the_same_url_makes_nothing_due(waiting: Waiting) -> None:
    """What the endpoint has asked for, and its tries, still count."""
    await waiting.open()
    assert [] == await waiting.take()


@webhook_only
async def test_to_enable_the_webhook_writes_no_delivery(
    waiting: Waiting, connection: Connection, holder: Connection
) -> None:
    """Yet all that wait are due at once; the tries of this endpoint count."""
    await waiting.webhook.pause(3600)
    await hold(holder)
    assert await enable(connection)
    await release(holder)
    assert [1] * COUNT == [each.tries for each in await waiting.take()]


async def test_a_clock_that_has_gone_back_writes_no_delivery(
    waiting: Waiting, connection: Connection, holder: Connection
) -> None:
    """Each is due as long after now as it was before; also what is put off after that."""
    waiting.now = NOW
    await connection.execute(
        "UPDATE outbox_delivery SET due_at = $1", NOW + timedelta(seconds=LEASE_SECONDS) + HOUR
    )
    await connection.execute("UPDATE outbox_reader SET served_at = $1", NOW)
    waiting.now = NOW - timedelta(days=3)
    await hold(holder)
    await waiting.turn()
    await release(holder)
    waiting.now += HOUR
    assert [] == await waiting.take()
    waiting.now += timedelta(seconds=LEASE_SECONDS)
    taken = await waiting.take()
    assert waiting.ids == {each.event.event_id for each in taken}
    assert len({each.tries for each in taken} - {0}) == 1
    await waiting.put_off()
    waiting.now += HOUR - timedelta(seconds=1)
    assert [] == await waiting.take()
    waiting.now += timedelta(seconds=1)
    assert COUNT == len(await waiting.take())


class Interrupted:
    """A connection that breaks after so many statements."""

    def __init__(self, connection: Connection, statements: int) -> None:
        self._connection = connection
        self._statements = statements

    async def fetchrow(self, *arguments: Any) -> Any:
        """Run one."""
        if not self._statements:
            raise ConnectionError
        self._statements -= 1
        return await self._connection.fetchrow(*arguments)


async def due_count(connection: Connection) -> int:
    """Return how many are due by their reader's clock."""
    count: int = await connection.fetchval(
        """SELECT count(*) FROM outbox_delivery JOIN outbox_reader ON name = reader
           WHERE dead_reason IS NULL AND is_due AND due_at <= clock_timestamp() + clock_ahead"""
    )
    return count


@pytest.mark.parametrize("is_dead", [False, True])
async def test_a_command_that_is_interrupted_keeps_what_it_has_done(
    is_dead: bool, waiting: Waiting, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes page by page; the next one does the rest. The reader's clock may be ahead."""
    monkeypatch.setattr(deliveries, "PAGE_MAX", 2)
    await connection.execute("UPDATE outbox_reader SET clock_ahead = interval '10 minutes'")
    await waiting.put_off("refused" if is_dead else None)

    async def command(connection: Any) -> int:
        if is_dead:
            return await retry_dead_letters(connection, None)
        return await hasten_deliveries(connection, LEASE_SECONDS)

    with pytest.raises(ConnectionError):
        await command(Interrupted(connection, 2))
    assert 4 == await due_count(connection)
    assert 1 == await command(connection)
    assert COUNT == await due_count(connection)
    assert 0 == await command(connection)
    tries = {each.tries for each in await waiting.take()}
    assert (tries == {0}) is is_dead


async def test_what_a_sender_holds_does_not_hold_up_the_command(
    waiting: Waiting, connection: Connection, holder: Connection
) -> None:
    """It is about to be put off or deleted."""
    (held,) = await holder.fetch("SELECT event_id FROM outbox_delivery LIMIT 1")
    await connection.execute("SET lock_timeout = '1s'")
    await holder.execute("BEGIN")
    await holder.fetch("SELECT FROM outbox_delivery WHERE event_id = $1 FOR UPDATE", *held)
    assert COUNT - 1 == await hasten_deliveries(connection, LEASE_SECONDS)
    await release(holder)
    due = {each.event.event_id for each in await waiting.take()}
    assert waiting.ids - {held["event_id"]} == due


async def test_those_that_are_named_are_retried_by_the_readers_clock(
    waiting: Waiting, connection: Connection
) -> None:
    """And no others."""
    await connection.execute("UPDATE outbox_reader SET clock_ahead = interval '10 minutes'")
    await waiting.put_off("refused")
    one = next(iter(waiting.ids))
    assert 1 == await retry_dead_letters(connection, [one])
    assert 1 == await due_count(connection)
    assert [one] == [each.event.event_id for each in await waiting.take()]
