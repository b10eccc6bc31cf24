"""A transaction older than all that is kept of the log holds no reader up, and takes no place."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest
import pytest_asyncio

from stretto.embedded.postgres import embedded_postgres
from stretto.events.deletion_watch import DeletionWatch
from stretto.events.place import Place, PositionLost
from stretto.events.subscriptions import Subscriber
from stretto.observations import PlaceLost
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.migrate import migrate
from stretto.postgres.queries import QUERIES
from stretto.targets.relay import OutboxRelay
from stretto.targets.settings import RelaySettings
from stretto.webhook.store import PostgresWebhookStore
from support.clock import Clock
from support.database import commit_event, connect, own_database
from support.embedded_servers import FAST
from support.retention import START, swept, truncated_log
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.events.log import CommittedEvent, LogPage
    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.database import Connection


SERVER: Final = "TEST_POSTGRES_URL"


@asynccontextmanager
async def old_transaction(url: str) -> AsyncIterator[Connection]:
    """Open a transaction that has an id and has written nothing; it commits in the end."""
    connection = await (asyncpg.connect(url) if url == os.environ[SERVER] else connect(url))
    async with connection.transaction():
        await connection.execute("SELECT pg_current_xact_id()")
        yield connection
    await connection.close()


@dataclass(slots=True)
class Readers:
    """Every kind of reader that keeps a place of its own, each driven by its turns."""

    database: Database
    had: list[UUID] = field(default_factory=list)
    published: list[UUID] = field(default_factory=list)
    forgotten: list[bytes] = field(default_factory=list)
    lost: list[Observation] = field(default_factory=list)
    subscriber: Subscriber = field(init=False)
    watch: DeletionWatch = field(init=False)
    relay: OutboxRelay = field(init=False)

    def observe(self, observation: Observation) -> None:
        if isinstance(observation, PlaceLost):
            self.lost.append(observation)

    def forget_all(self) -> None:
        self.forgotten.append(b"all")

    async def on_event(self, event: CommittedEvent) -> None:
        self.had.append(event.event_id)

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        self.published += [event.event_id for event in events]
        return {}

    async def open(self) -> None:
        """Begin at the present."""
        log = PostgresLogStore(self.database.upkeep)
        place = await log.present()
        self.subscriber = Subscriber(self.on_event, log, place, self.observe, lambda *_: None)
        self.watch = DeletionWatch(log, self.forgotten.append, self.forget_all, lambda _: None)
        await self.watch.open()
        self.relay = self.another_relay()
        await self.relay.open()

    def another_relay(self) -> OutboxRelay:
        """Return one that has begun nothing yet; it renews its lease with every turn."""
        clock = Clock(0.0)
        store = PostgresBusStore(self.database)
        return OutboxRelay(store, self, self.observe, RelaySettings(), clock)

    async def look(self) -> None:
        """Have each of them read to the end."""
        for reader in (self.subscriber, self.watch, self.relay):
            for _ in range(3):
                await reader.run_once()


class LateStore(PostgresWebhookStore):
    """Goes on behind its page when the test says so."""

    def __init__(self, database: Database, url_digest: bytes) -> None:
        super().__init__(database, url_digest)
        self.has_read = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        page = await super().page(begin, events_max, users)
        self.has_read.set()
        await self.may_go_on.wait()
        return page


@pytest_asyncio.fixture
async def server_url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A database on a server of its own: on the others' one, transactions of other tests come and go."""
    async with (
        embedded_postgres(folder / "data", notify=lambda _: None, settings=FAST) as server,
        own_database(server.dsn, "template1") as url,
    ):
        monkeypatch.setenv(SERVER, server.dsn)
        migrating = await connect(url)
        await migrate(migrating, "stretto")
        await migrating.close()
        yield url


@pytest_asyncio.fixture(autouse=True)
async def history(connection: Connection) -> None:
    """A history of this server's, as a service begins one."""
    await connection.execute(QUERIES["begin_history"], 0)


@pytest.fixture
def readers(database: Database) -> Readers:
    """Readers that have not begun."""
    return Readers(database)


async def test_every_reader_goes_on_beside_a_transaction_older_than_the_log(
    readers: Readers, connection: Connection, database_url: str
) -> None:
    """Whatever it is in: here in another database of the server, and in ours. Nothing is lost."""
    async with (
        old_transaction(os.environ[SERVER]) as others,
        old_transaction(database_url) as hosts,
    ):
        await commit_event(connection)
        await readers.open()
        before = await position_of(connection, others, hosts)
        truncated = await commit_event(connection)
        await readers.look()
        await swept(connection, 1.1)
        kept = await commit_event(connection)
        await position_of(connection, others, hosts)
        await readers.look()
        assert 1 == await swept(connection, 9)
        await readers.look()
        assert [truncated, kept] == readers.had
        young = [await commit_event(connection), await commit_event(connection)]
        deleted = await commit_event(connection, event_type="group.deleted")
        await readers.look()
        assert [truncated, kept, *young, deleted] == readers.had
        # The host's transaction of a week writes after all, below the start of the log.
        late = await commit_event(hosts)
        late_deleted = await commit_event(hosts, event_type="group.deleted")
    await readers.look()
    await readers.look()
    assert [truncated, kept, *young, deleted, late, late_deleted] == readers.had
    assert [deleted.bytes, late_deleted.bytes] == readers.forgotten
    assert readers.had == readers.published
    assert [] == readers.lost
    # What a client keeps from before the truncation has lost the events that were truncated.
    with pytest.raises(PositionLost):
        await resumed(connection, before)


async def resumed(connection: Connection, position: str) -> list[UUID]:
    """Return the events that a position does not cover; raises `PositionLost`."""
    place = Place.parse(position)
    page = await PostgresLogStore(lambda: nullcontext(connection)).page(place, 100)
    page.present.require(place)
    return [logged.event.event_id for logged in page.events]


async def position_of(connection: Connection, *old: Connection) -> str:
    """Return the position of a client that has had everything.

    Once it names no transaction but these: those of other tests end when they like, also right before
    a truncation.
    """
    ours = {await each.fetchval("SELECT pg_current_xact_id()::text::bigint") for each in old}

    async def quiet() -> Place | None:
        place = await PostgresLogStore(lambda: nullcontext(connection)).present()
        return place if ours.issuperset(place.running) else None

    return str(await until(quiet))


async def test_a_client_resumes_until_what_it_waits_for_is_truncated(
    connection: Connection, database_url: str
) -> None:
    """Its position names the old transaction, which has committed an event by then."""
    async with old_transaction(database_url) as hosts:
        await truncated_log(connection)
        position = await position_of(connection, hosts)
        assert [] == await resumed(connection, position)
        late = await commit_event(hosts)
    assert [late] == await resumed(connection, position)
    # The next truncation takes it along.
    await swept(connection, 18)
    await commit_event(connection)
    assert 1 == await swept(connection, 27)
    with pytest.raises(PositionLost):
        await resumed(connection, position)


async def test_a_truncation_by_an_older_version_voids_what_was_kept(
    connection: Connection, database_url: str
) -> None:
    """It writes what that version writes. Only what still runs is known to have lost nothing."""
    async with old_transaction(database_url) as old:
        await truncated_log(connection)
        position = await position_of(connection, old)
        assert await kept_running(connection)
        await connection.execute("UPDATE outbox_slot SET number = 0 WHERE number = 2")
        assert not await kept_running(connection)
        assert [] == await resumed(connection, position)
    with pytest.raises(PositionLost):
        await resumed(connection, position)


async def kept_running(connection: Connection) -> Sequence[int]:
    """Return the transactions below its start that the log keeps."""
    running: Sequence[int] = await connection.fetchval("SELECT start_running FROM outbox_present")
    return running


async def test_what_ends_during_a_truncation_takes_no_place(
    connection: Connection, database_url: str
) -> None:
    """The snapshot that lets the partition go is the one that the start keeps."""
    hosts = await connect(database_url)
    await hosts.execute("BEGIN; SELECT pg_current_xact_id()")
    await commit_event(connection)
    position = await position_of(connection, hosts)
    await swept(connection, 1.1)
    await commit_event(connection)
    sweeper = await connect(database_url)
    async with sweeper.transaction():
        (slot,) = await sweeper.fetch(QUERIES["sweepable_slots"], 7, later(9), 0.0)
        await sweeper.execute(slot["lock"])
        late = await commit_event(hosts)
        await hosts.execute("COMMIT")
        await sweeper.execute(QUERIES["empty_slot"], slot["slot"], slot["running"])
        await sweeper.execute(slot["truncate"])
    assert late in await resumed(connection, position)
    await sweeper.close()
    await hosts.close()


def later(days: float) -> datetime:
    """Return the time so many days after the start."""
    return START + timedelta(days=days)


async def test_a_bus_that_begins_beside_an_old_transaction_publishes_what_comes(
    readers: Readers, connection: Connection, database_url: str
) -> None:
    """Each event once; also one whose place was lost, which begins with the first that is kept."""
    async with old_transaction(database_url) as hosts:
        kept = await truncated_log(connection)
        relay = readers.another_relay()
        for _ in range(3):
            await relay.run_once()
        assert [] == readers.published
        assert [] == readers.lost
        await relay.close()
        await connection.execute("UPDATE outbox_reader SET history = 0, seen = '1:1:'")
        relay = readers.another_relay()
        for _ in range(5):
            await relay.run_once()
        assert [kept] == readers.published
        late = await commit_event(hosts)
    for _ in range(3):
        await relay.run_once()
    assert [kept, late] == readers.published
    assert 1 == len(readers.lost)


async def test_a_webhook_gets_what_an_old_transaction_commits(
    database: Database, connection: Connection, database_url: str
) -> None:
    """Its place names the transaction as well."""
    webhook = PostgresWebhookStore(database, b"0" * 32)
    async with old_transaction(database_url) as hosts:
        await truncated_log(connection)
        await webhook.open()
        assert [0, 0] == [await webhook.enrol(10), await webhook.enrol(10)]
        await commit_event(hosts)
    assert [1, 0] == [await webhook.enrol(10), await webhook.enrol(10)]


async def test_a_webhook_whose_place_was_swept_goes_on_where_the_log_begins(
    database: Database, connection: Connection
) -> None:
    """The operator learns of it once: a second sender that has read the same place moves nothing."""
    webhook = PostgresWebhookStore(database, b"0" * 32)
    await webhook.open()
    place = await webhook.present()
    await truncated_log(connection)
    with pytest.raises(PositionLost):
        (await webhook.page(place, 1)).present.require(place)
    late = LateStore(database, b"0" * 32)
    overtaken = asyncio.create_task(late.enrol(10))
    await late.has_read.wait()
    with pytest.raises(PositionLost):
        await webhook.enrol(10)
    late.may_go_on.set()
    assert 0 == await overtaken
    assert [1, 0] == [await webhook.enrol(10), await webhook.enrol(10)]
