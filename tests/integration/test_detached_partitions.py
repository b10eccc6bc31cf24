"""A partition of the log that is detached: its events are late, never taken for swept, and none is sent twice."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import asyncpg
import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import NewGroup, UserId
from stretto.observations import Observation, PlaceLost, UpkeepFailed
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.connections import Database
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES
from stretto.postgres.readiness import Readiness
from stretto.postgres.retention import sweep
from stretto.postgres.settings import Retention
from stretto.postgres.tail import PostgresTail
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Misconfigured, Unreachable
from stretto.webhook.store import PostgresWebhookStore
from support.command_process import stretto as run_command
from support.database import commit_event, connect, lock_waiters
from support.pgbouncer import give_settings, running_pgbouncer, url_through
from support.waiting import until
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from support.database import Connection

SETTINGS: Final = ComponentSettings(writers=1)
FAILS: Final = "detached from outbox: outbox_{}; "
ATTACH: Final = "ALTER TABLE outbox ATTACH PARTITION outbox_{0} FOR VALUES IN ({0})"
# Of each statement that reads the log, or moves a place over it, some parameters.
READS: Final[dict[str, tuple[object, ...]]] = {
    "log_present": (),
    "log_page": (0, 0, "{}", 10, None, 100, "{}", [], []),
    "deleted_groups": (0, 0, "{}", 10),
    "open_reader": ("bus",),
    "open_webhook": (URL_DIGEST,),
    "enrol": ([1], ["1"], [uuid4()], 1, "", "", 1, "1:1:", "", None, URL_DIGEST, "one"),
    "refuse_events": ([1], ["1"], [uuid4()], 1.0, None),
    "sweepable_slots": (7, None, 1.0),
    "empty_slot": (3, "1:1:"),
    "check_counts": (),
}
UNGUARDED: Final = {
    # Behind `check_counts`, in its snapshot.
    *("check_groups", "check_events", "check_changes"),
    # A gauge: it is less while the service is unready.
    "oldest_owed",
}
DETACHMENTS: Final = {
    "detached": "ALTER TABLE outbox DETACH PARTITION outbox_5",
    "dropped": "DROP TABLE outbox_5",
}


def test_all_that_reads_the_log_asks_whether_it_is_whole() -> None:
    """But for what is named, with its reason."""
    reads = {name for name, text in QUERIES.items() if re.search(r"(?:FROM|JOIN) outbox\b", text)}
    asks = {name for name, text in QUERIES.items() if "require_whole_log_1()" in text}
    assert UNGUARDED == reads - asks


@asynccontextmanager
async def being_detached(
    connection: Connection, database_url: str
) -> AsyncIterator[tuple[Connection, asyncio.Task[str]]]:
    """Have a concurrent detachment wait for an older transaction, which ends with the block."""
    old, operator = await connect(database_url), await connect(database_url)
    async with old.transaction():
        await old.fetch("SELECT FROM outbox")
        detaching = asyncio.create_task(
            operator.execute("ALTER TABLE outbox DETACH PARTITION outbox_5 CONCURRENTLY")
        )
        await until(
            lambda: connection.fetchval("SELECT bool_or(inhdetachpending) FROM pg_inherits")
        )
        yield operator, detaching
    await asyncio.wait({detaching})
    await old.close()
    await operator.close()


@asynccontextmanager
async def detached(connection: Connection, slot: int) -> AsyncIterator[None]:
    """Detach a partition, and attach it again."""
    await connection.execute(f"ALTER TABLE outbox DETACH PARTITION outbox_{slot}")
    yield
    await connection.execute(ATTACH.format(slot))


async def write_to_next_slot(connection: Connection) -> None:
    """Have events go to the second partition, as a sweep does in time."""
    await connection.execute("UPDATE outbox_slot SET number = 2 WHERE slot = 1")


@pytest.mark.parametrize("slot", [0, 5], ids=["newest", "empty"])
@pytest.mark.parametrize("statement", [*READS, "begin_slot"])
async def test_what_reads_the_log_or_passes_over_it_fails_meanwhile(
    statement: str, slot: int, connection: Connection
) -> None:
    """Also by itself: a partition may be detached within a turn. The twin is with all of them."""
    arguments = READS.get(statement, (7, None))
    await connection.fetch(QUERIES[statement], *arguments)
    async with detached(connection, slot):
        with pytest.raises(asyncpg.PostgresError, match=FAILS.format(slot)):
            await connection.fetch(QUERIES[statement], *arguments)
    await connection.fetch(QUERIES[statement], *arguments)


@pytest.mark.parametrize("statement", READS)
async def test_no_plan_without_a_partition_is_made(statement: str, connection: Connection) -> None:
    """It could run just after the partition was attached again, which waits for no statement."""
    plan = f"EXPLAIN {QUERIES[statement]}"
    await connection.fetch(plan, *READS[statement])
    async with detached(connection, 5):
        with pytest.raises(asyncpg.PostgresError, match=FAILS.format(5)):
            await connection.fetch(plan, *READS[statement])


@pytest.mark.parametrize("statement", READS)
async def test_a_statement_that_has_waited_for_the_detachment_fails(
    statement: str, connection: Connection, database_url: str
) -> None:
    """It was planned by what was there before, and then reads what is left."""
    operator = await connect(database_url)
    prepared = await connection.prepare(QUERIES[statement])
    await prepared.fetch(*READS[statement])
    # A reader that has begun begins no more, and none goes on in a history that is not there.
    await connection.execute(
        "DELETE FROM outbox_reader; INSERT INTO outbox_history (number, id, server_started_at, table_id)"
        " VALUES (1, 'one', clock_timestamp(), '')"
    )
    async with operator.transaction():
        await operator.execute("ALTER TABLE outbox DETACH PARTITION outbox_5")
        reading = asyncio.create_task(prepared.fetch(*READS[statement]))
        await lock_waiters(operator, 1)
    with pytest.raises(asyncpg.PostgresError, match=FAILS.format(5)):
        await reading
    await operator.close()


async def test_one_that_is_being_detached_concurrently_counts_as_detached(
    connection: Connection, database_url: str
) -> None:
    """The detachment waits for older transactions, and new plans leave it out already."""
    async with being_detached(connection, database_url):
        with pytest.raises(asyncpg.PostgresError, match=FAILS.format(5)):
            await connection.fetch(QUERIES["log_page"], *READS["log_page"])
        async with Database(database_url) as database:
            with pytest.raises(Unreachable, match=FAILS.format(5)):
                await database.ping()
    await connection.execute(ATTACH.format(5))
    await connection.fetch(QUERIES["log_page"], *READS["log_page"])


async def test_a_partition_of_another_table_is_none_of_the_log(
    database: Database, connection: Connection
) -> None:
    """As one that an operator has put into an archive."""
    await connection.execute(
        """ALTER TABLE outbox DETACH PARTITION outbox_5;
           CREATE TABLE archive (LIKE outbox) PARTITION BY LIST (slot);
           ALTER TABLE archive ATTACH PARTITION outbox_5 FOR VALUES IN (5)"""
    )
    with pytest.raises(asyncpg.PostgresError, match=FAILS.format(5)):
        await connection.fetch(QUERIES["log_present"])
    with pytest.raises(Unreachable, match=FAILS.format(5)):
        await database.ping()


async def test_readers_that_are_behind_get_what_was_detached_and_what_came_meanwhile(
    database: Database, connection: Connection
) -> None:
    """A session's tail, one that resumes, the bus and the webhook; each event once."""
    bus, webhook = PostgresBusStore(database), PostgresWebhookStore(database, URL_DIGEST)
    log, tail = PostgresLogStore(database.upkeep), PostgresTail(database, uuid4())
    for store in (bus, webhook):
        await store.open()
    place = await log.present()
    events = [await commit_event(connection)]
    await write_to_next_slot(connection)
    await tail.listen(lambda: None)
    async with detached(connection, 0):
        events.append(await commit_event(connection))
        for read in (log.page, tail.page, bus.page, log.deletions):
            with pytest.raises(Misconfigured, match=FAILS.format(0)):
                await read(place, 10)
        for _ in range(2):
            with pytest.raises(Misconfigured, match=FAILS.format(0)):
                await webhook.enrol(10)
    # A read that has failed has closed its connection.
    await tail.listen(lambda: None)
    leased = await bus.lease(uuid4(), 60)
    assert leased is not None
    for page in (await log.page(place, 10), await tail.page(place, 10), await bus.page(leased, 10)):
        page.present.require(page.begin)
        assert events == [each.event.event_id for each in page.events]
    for count in (2, 0):
        assert count == await webhook.enrol(10)
    assert {*events} == {each.event.event_id for each in await webhook.take(10, 60)}
    await tail.close()


class Bus:
    """Notes what is published."""

    def __init__(self) -> None:
        self.event_ids: list[UUID] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[Any, str]:
        """Note which events have come."""
        self.event_ids += [event.event_id for event in events]
        return {}


def team(key: str) -> NewGroup:
    """Return a group to create."""
    return NewGroup.parse(UserId("alice"), {"name": key, "members": ["bob"]})


@pytest.mark.parametrize("is_newest", [False, True], ids=["older", "newest"])
async def test_a_running_component_goes_on_by_itself_once_it_is_attached(
    database_url: str, connection: Connection, *, is_newest: bool
) -> None:
    """Bus and `on_event` wait; groups are created meanwhile, unless their events' partition is the one."""
    failing: set[str] = set()
    lost: list[PlaceLost] = []
    heard: list[UUID] = []
    bus = Bus()

    def observe(observation: Observation) -> None:
        if isinstance(observation, UpkeepFailed):
            failing.add(observation.actor)
        elif isinstance(observation, PlaceLost):
            lost.append(observation)

    async def hear(event: CommittedEvent) -> None:
        heard.append(event.event_id)

    async with open_component(
        database_url, settings=SETTINGS, bus=bus, observe=observe
    ) as component:
        await component.on_event(hear)
        await component.create("a", team("a"))
        await until(lambda: 1 == len(bus.event_ids) == len(heard))
        if not is_newest:
            await write_to_next_slot(connection)
        async with detached(connection, 0):
            if not is_newest:
                await component.create("b", team("b"))
            failing.clear()
            await until(lambda: {"relay", "subscriber"} <= failing)
        await component.create("c", team("c"))
        events = [row[0] for row in await connection.fetch("SELECT event_id FROM outbox")]
        await until(lambda: len(events) == len({*bus.event_ids}) == len({*heard}))
        assert sorted(events) == sorted(bus.event_ids) == sorted(heard)
        assert [] == lost


@pytest.mark.parametrize("how", [*DETACHMENTS, "pending"])
async def test_the_service_is_unready_meanwhile_and_says_what_to_run(
    how: str, database_url: str, connection: Connection
) -> None:
    """As a start and a command are refused; what it says to run is what helps, whatever the search_path is."""
    async with Database(database_url) as database:
        readiness = Readiness(database, [PostgresWriteStore(database, lambda: None)])
        await readiness.check()
        if how == "pending":
            async with being_detached(connection, database_url) as (operator, detaching):
                detaching.cancel()
                await asyncio.wait({detaching})
                # The server ends it a little later.
                await operator.execute("SELECT")
            assert await connection.fetchval("SELECT bool_or(inhdetachpending) FROM pg_inherits")
        else:
            await connection.execute(DETACHMENTS[how])
        for check in (readiness.check, database.inspect):
            with pytest.raises(Unreachable, match=FAILS.format(5)) as refused:
                await check()
        code, _, errors = await run_command("check", DATABASE_URL=database_url)
        _, _, statements = str(refused.value).rpartition("; run ")
        assert (2, True) == (code, statements in errors)
        await connection.execute("SET search_path = public")
        for statement in statements.split("; "):
            await connection.execute(statement)
        for check in (readiness.check, database.inspect):
            await check()


async def test_no_check_of_what_is_left_reports_violations(
    database_url: str, connection: Connection
) -> None:
    """Its partition is detached behind its first question, which found it attached: it may be run again."""
    operator = await connect(database_url)
    async with operator.transaction():
        await operator.execute("ALTER TABLE outbox DETACH PARTITION outbox_5")
        checking = asyncio.create_task(run_command("check", DATABASE_URL=database_url))
        await lock_waiters(connection, 1)
    code, _, errors = await checking
    await operator.close()
    assert (3, True) == (code, FAILS.format(5) in errors)


async def test_the_service_is_unready_behind_pgbouncer_as_well(
    server_url: str, connection: Connection
) -> None:
    """There the role's settings are asked for in the same statement."""
    with running_pgbouncer(server_url) as folder:
        await give_settings(server_url)
        async with Database(url_through(folder, server_url)) as database:
            for how in DETACHMENTS.values():
                await database.ping()
                await connection.execute(how)
                with pytest.raises(Unreachable, match=FAILS.format(5)) as refused:
                    await database.ping()
                await connection.execute("SET search_path = public")
                await connection.execute(str(refused.value).rpartition("; run ")[2])
                await connection.execute("RESET search_path")
            await database.ping()


async def test_no_sweep_has_events_go_to_a_partition_that_is_detached(
    database: Database, connection: Connection
) -> None:
    """Once it is attached the next sweep takes it; what else is swept goes on."""
    await connection.execute("UPDATE outbox_slot SET began_at = began_at - interval '10 days'")
    now = "SELECT max(number) FROM outbox_slot"

    async def swept() -> dict[str, int]:
        return await sweep(database.upkeep, Retention(30, 7), None, lambda *_: None)

    async with detached(connection, 1):
        with pytest.raises(Misconfigured, match=FAILS.format(1)):
            await swept()
        assert 1 == await connection.fetchval(now)
        await commit_event(connection)
    await swept()
    assert 2 == await connection.fetchval(now)
