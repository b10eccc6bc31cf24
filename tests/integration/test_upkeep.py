"""What looks after a database: the check of the guarantees, the sweep."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from stretto.assembly.opening import open_component
from stretto.creation.attempt import AnswerStatus
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.observations import UpkeepFailed
from stretto.postgres import check as check_module
from stretto.postgres import retention
from stretto.postgres.check import check_database
from stretto.postgres.queries import QUERIES
from stretto.postgres.retention import RetentionSweeper, sweep, sweepable
from stretto.postgres.settings import Retention
from stretto.runtime.actor import Pace
from stretto.runtime.runner import Run
from support.database import connect, lock_waiters, pend

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.assembly.component import Component
    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.database import Connection

RETENTION_DAYS = 30
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})


async def violations(connection: Connection) -> set[str]:
    """Return what the check finds."""
    report = await check_database(connection, RETENTION_DAYS)
    return {violation.what for violation in report.violations}


async def create(component: Component, key: str) -> UUID:
    """Create a group and return its id."""
    return (await component.creator.create(IdempotencyKey(key), TEAM)).group.group_id


@pytest.mark.parametrize(
    ("expected", "violation"),
    [
        (
            "succeeded without a group",
            "DELETE FROM outbox; DELETE FROM conversation",
        ),
        (
            "failed, but its group exists",
            """ALTER TABLE attempt DISABLE TRIGGER ALL;
               UPDATE attempt SET status = 'failed', conversation_id = NULL,
                   failure_code = 'x', failure_detail = 'y'""",
        ),
        (
            "names another conversation, owner or request than its group",
            """ALTER TABLE attempt DISABLE TRIGGER ALL;
               UPDATE attempt SET conversation_id = gen_random_uuid()""",
        ),
        (
            "names another conversation, owner or request than its group",
            """ALTER TABLE attempt DISABLE TRIGGER ALL;
               UPDATE attempt SET fingerprint = '0123456789abcdef'""",
        ),
        (
            "names another conversation, owner or request than its group",
            """ALTER TABLE attempt DISABLE TRIGGER ALL;
               UPDATE attempt SET owner_id = 'mallory'""",
        ),
        (
            "group without its conversation",
            "SET session_replication_role = replica; DELETE FROM conversation",
        ),
        (
            "group without its owner as a member",
            "UPDATE conversation_member SET role = 'member'",
        ),
        ("conversation of another kind", "UPDATE conversation SET kind = 'direct'"),
        (
            "group without its owner as a member",
            "DELETE FROM conversation_member WHERE user_id = 'alice'",
        ),
        ("group without its event", "DELETE FROM outbox"),
        (
            "conversation without a group",
            "INSERT INTO conversation (conversation_id) VALUES (gen_random_uuid())",
        ),
        (
            "members without a conversation",
            """ALTER TABLE conversation DISABLE TRIGGER ALL;
               DELETE FROM conversation;
               ALTER TABLE conversation ENABLE TRIGGER ALL""",
        ),
        ("event without a group", "UPDATE outbox SET subject = gen_random_uuid()"),
        (
            "event at a position that this server has not reached",
            "UPDATE outbox SET position = '9000000000000000000'",
        ),
        (
            "group with more than one event",
            """INSERT INTO outbox (slot, history, event_id, subject, recipients, conversation_id,
                                   group_name)
               SELECT slot, history, gen_random_uuid(), subject, recipients, conversation_id,
                      group_name
               FROM outbox""",
        ),
        (
            "event names another conversation than its group",
            "UPDATE outbox SET conversation_id = gen_random_uuid()",
        ),
        (
            "event names another owner than its group",
            "UPDATE outbox SET recipients = ARRAY['bob', 'alice']",
        ),
    ],
)
async def test_the_check_finds_every_kind_of_violation(
    expected: str, violation: str, component: Component, connection: Connection
) -> None:
    """And nothing on a sound database."""
    await create(component, "k")
    assert set() == await violations(connection)
    await connection.execute(violation)
    assert expected in await violations(connection)


async def test_attempts_that_are_pending_failed_or_gone_are_no_violation(
    component: Component, connection: Connection
) -> None:
    """Nor is a conversation that is no group's."""
    await create(component, "k")
    await connection.execute(
        """DELETE FROM attempt;
           INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, failure_code,
                                failure_detail, settled_at)
           VALUES (gen_random_uuid(), 'alice', '0123456789abcdef', gen_random_uuid(), 'failed', 'x',
                   'y', clock_timestamp());
           INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           SELECT group_id, owner_id, fingerprint, gen_random_uuid() FROM chat_group;
           INSERT INTO conversation (conversation_id, kind) VALUES (gen_random_uuid(), 'direct')"""
    )
    report = await check_database(connection, RETENTION_DAYS)
    assert (2, 1, 1, []) == (report.attempts, report.groups, report.events, report.violations)


@pytest.mark.parametrize(("count", "cut_kinds"), [(3, []), (4, ["conversations"])])
async def test_of_each_kind_so_many_violations_are_listed_and_more_are_mentioned(
    count: int, cut_kinds: list[str], connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded; as many as there may be are all."""
    monkeypatch.setattr(check_module, "VIOLATIONS_MAX", 3)
    await connection.execute(
        """INSERT INTO conversation (conversation_id)
           SELECT gen_random_uuid() FROM generate_series(1, $1)""",
        count,
    )
    report = await check_database(connection, RETENTION_DAYS)
    assert (3, cut_kinds) == (len(report.violations), report.cut_kinds)


async def test_an_event_past_its_retention_is_not_missed(
    component: Component, connection: Connection
) -> None:
    """It was delivered and swept."""
    await create(component, "k")
    await connection.execute(
        """DELETE FROM outbox;
           UPDATE chat_group SET created_at = created_at - interval '31 days'"""
    )
    assert set() == await violations(connection)


RETENTION = Retention(RETENTION_DAYS, RETENTION_DAYS)


async def swept(connection: Connection, now: datetime) -> dict[str, int]:
    """Sweep once; return what was deleted."""
    return await sweep(lambda: nullcontext(connection), RETENTION, now, lambda *_: None)


async def test_only_what_is_past_its_retention_is_swept(
    component: Component, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the given clock, range by range; a delivery that a served reader has to make stays."""
    monkeypatch.setattr("stretto.postgres.retention.RANGE_BLOCKS", 1)
    early = datetime.now(UTC) + timedelta(days=RETENTION_DAYS) - timedelta(minutes=10)
    late = early + timedelta(minutes=20)
    for number in range(40):
        await create(component, f"k{number}")
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           VALUES (gen_random_uuid(), 'alice', '0123456789abcdef', gen_random_uuid());
           INSERT INTO attempt_trail (group_id, happened_at, what, instance)
           VALUES (gen_random_uuid(), clock_timestamp(), 'unknown', 'web-1/7');
           INSERT INTO inbox (consumer, message_id) VALUES ('c', gen_random_uuid());
           INSERT INTO outbox_reader (name, history, seen) SELECT 'bus', history, seen
           FROM outbox_present;
           INSERT INTO outbox_delivery (reader, event_id, subject, conversation_id, recipients,
                                        group_name, created_at, due_at, dead_reason)
           SELECT reader, event_id, subject, conversation_id, recipients, group_name, created_at,
                  created_at, reason
           FROM outbox, (VALUES ('bus', NULL), ('webhook', NULL), ('webhook ', 'dead'))
                    AS delivery (reader, reason)
           WHERE event_id = (SELECT event_id FROM outbox LIMIT 1)"""
    )
    await connection.execute("UPDATE outbox_reader SET served_at = $1", late)
    nothing = dict.fromkeys(("attempt", "attempt_trail", "inbox", "outbox_delivery", "outbox"), 0)
    assert nothing == await sweepable(connection, RETENTION, early)
    assert nothing == await swept(connection, early)
    expected = nothing | {"attempt": 41, "attempt_trail": 1, "inbox": 1, "outbox_delivery": 2}
    assert expected == await sweepable(connection, RETENTION, late)
    assert expected == await swept(connection, late)
    assert "bus" == await connection.fetchval("SELECT reader FROM outbox_delivery")
    component.creator.forget()
    answer = await component.creator.create(IdempotencyKey("k0"), TEAM)
    assert answer.status is AnswerStatus.HEALED


async def test_a_dead_letter_is_kept_from_its_last_try_on(
    component: Component, connection: Connection
) -> None:
    """By the database's clock, of which its reader's is ahead; its event may be older by days."""
    await create(component, "k")
    await connection.execute(
        """INSERT INTO outbox_reader (name, history, seen, clock_ahead)
           SELECT 'webhook', history, seen, '5 days' FROM outbox_present;
           INSERT INTO outbox_delivery (reader, event_id, subject, conversation_id, recipients,
                                        group_name, created_at, due_at, dead_reason)
           SELECT 'webhook', event_id, subject, conversation_id, recipients, group_name, created_at,
                  created_at + interval '8 days', 'answered 500'
           FROM outbox"""
    )
    last_try = timedelta(days=3) + await connection.fetchval("SELECT created_at FROM outbox")
    kept, gone = (last_try + timedelta(days=RETENTION_DAYS, hours=hours) for hours in (-1, 1))
    for moment, rows in ((kept, 0), (gone, 1)):
        assert rows == (await sweepable(connection, RETENTION, moment))["outbox_delivery"]
        assert rows == (await swept(connection, moment))["outbox_delivery"]


async def test_a_pending_attempt_goes_unless_a_leader_holds_it(
    component: Component, connection: Connection, database_url: str
) -> None:
    """A retry claims its key again; the leader that comes back is fenced."""
    held, left = await pend(connection, "held"), await pend(connection, "left")
    future = datetime.now(UTC) + timedelta(days=2 * RETENTION_DAYS)
    leader = await connect(database_url)
    async with leader.transaction():
        await leader.execute("SELECT FROM attempt WHERE group_id = $1 FOR UPDATE", held)
        assert 1 == (await swept(connection, future))["attempt"]
        assert held == await connection.fetchval("SELECT group_id FROM attempt")
    await leader.close()
    answer = await component.creator.create(IdempotencyKey("left"), TEAM)
    assert (left, AnswerStatus.CREATED) == (answer.group.group_id, answer.status)
    assert set() == await violations(connection)


async def partition(connection: Connection, table: str, key: str) -> None:
    """Put a table's rows into eight hash partitions, as an operator may."""
    await connection.execute(
        f"""ALTER TABLE {table} RENAME TO plain;
            CREATE TABLE {table} (LIKE plain INCLUDING ALL) PARTITION BY HASH ({key})"""
    )
    for number in range(8):
        await connection.execute(
            f"""CREATE TABLE {table}_{number} PARTITION OF {table}
                FOR VALUES WITH (MODULUS 8, REMAINDER {number})"""
        )
    await connection.execute(f"INSERT INTO {table} SELECT * FROM plain; DROP TABLE plain")


@pytest.mark.parametrize("range_blocks", [1, 64])
async def test_partitioned_tables_are_swept_as_counted(
    range_blocks: int, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent has no blocks of its own; all the rest works on it as on a plain table."""
    monkeypatch.setattr(retention, "RANGE_BLOCKS", range_blocks)
    for table, key in (("attempt", "group_id"), ("inbox", "message_id")):
        await partition(connection, table, key)
    async with open_component(database_url) as component:
        for number in range(100):
            await create(component, f"k{number}")
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           SELECT gen_random_uuid(), 'alice', '0123456789abcdef', gen_random_uuid()
           FROM generate_series(1, 100);
           INSERT INTO inbox SELECT 'c', gen_random_uuid() FROM generate_series(1, 100)"""
    )
    future = datetime.now(UTC) + timedelta(days=2 * RETENTION_DAYS)
    expected = {"attempt": 200, "inbox": 100}
    expected |= dict.fromkeys(("attempt_trail", "outbox_delivery", "outbox"), 0)
    assert expected == await sweepable(connection, RETENTION, future)
    assert expected == await swept(connection, future)
    assert dict.fromkeys(expected, 0) == await sweepable(connection, RETENTION, future)


@pytest.mark.parametrize(("expected", "is_partitioned"), [(64, False), (8, True)])
async def test_a_range_is_as_large_in_all_partitions_together(
    expected: int, is_partitioned: bool, connection: Connection
) -> None:
    """Or one transaction would delete as many rows as there are partitions times a range."""
    if is_partitioned:
        await partition(connection, "inbox", "message_id")
    await connection.execute(
        "INSERT INTO inbox SELECT 'c', gen_random_uuid() FROM generate_series(1, 100000)"
    )
    size = await connection.fetchrow(QUERIES["table_blocks"], "inbox")
    assert size is not None
    batches: list[int] = []
    future = datetime.now(UTC) + timedelta(days=2 * RETENTION_DAYS)
    await sweep(
        lambda: nullcontext(connection),
        RETENTION,
        future,
        lambda table, rows: batches.append(rows) if table == "inbox" else None,
    )
    assert 100_000 == sum(batches)
    assert -(-size["blocks"] // expected) == len(batches)


@pytest.mark.parametrize("table", ["outbox_slot", "attempt"])
async def test_a_sweep_that_waits_for_a_lock_in_vain_says_so(
    table: str, database: Database, connection: Connection
) -> None:
    """The database is there, and an operator looks for the transaction that holds it."""
    observed: list[Observation] = []

    async def stop_instead(*_: object) -> bool:
        sweeper.stop()
        return True

    sweeper = RetentionSweeper(
        lambda progress: sweep(database.upkeep, RETENTION, None, progress), observed.append
    )
    sweeper.pace = Pace(seconds=0)
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        await Run(sweeper, observed.append, stop_instead).turns()
    (failed,) = (each for each in observed if isinstance(each, UpkeepFailed))
    assert ("sweeper", "Locked") == (failed.actor, failed.kind)
    assert "lock timeout (SQLSTATE 55P03)" in failed.cause


@pytest.mark.parametrize(("expected", "is_busy"), [(0, True), (1, False)])
async def test_one_sweeper_works_at_a_time(
    expected: int,
    is_busy: bool,
    component: Component,
    connection: Connection,
    database_url: str,
) -> None:
    """Another one ends; without the other's lock the same sweep deletes."""
    await create(component, "k")
    other = await connect(database_url)
    async with other.transaction():
        await other.execute(
            """SELECT pg_advisory_xact_lock(hashtextextended('stretto.sweep.stretto', 0))
               WHERE $1""",
            is_busy,
        )
        future = datetime.now(UTC) + timedelta(days=2 * RETENTION_DAYS)
        assert expected == (await swept(connection, future))["attempt"]
    await other.close()


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_of_two_replicas_sweepers_one_works_at_a_time(
    is_guarded: bool,
    component: Component,
    connection: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one is in the midst of a batch, the other ends; without the lock both are at it."""
    if not is_guarded:
        lock = (
            "pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))"
        )
        statement = QUERIES["sweep_attempts"].replace(lock, "true")
        assert statement != QUERIES["sweep_attempts"]
        monkeypatch.setattr(retention, "STATEMENTS", {**retention.STATEMENTS, "attempt": statement})
    await create(component, "k")
    future = datetime.now(UTC) + timedelta(days=2 * RETENTION_DAYS)
    swept_at: list[str] = []

    def sweeper(name: str, own: Connection) -> RetentionSweeper:
        return RetentionSweeper(
            lambda progress: sweep(lambda: nullcontext(own), RETENTION, future, progress),
            lambda _: swept_at.append(name),
        )

    holder, first, second = [await connect(database_url) for _ in range(3)]
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT FROM attempt FOR UPDATE")
    sweeping = [asyncio.create_task(sweeper("first", first).run_once())]
    await lock_waiters(connection, 1)
    other = sweeper("second", second)
    if is_guarded:
        assert (0, []) == (await other.run_once(), swept_at)
    else:
        sweeping.append(asyncio.create_task(other.run_once()))
        await lock_waiters(connection, 2)
    await transaction.commit()
    assert 1 <= sum(await asyncio.gather(*sweeping))
    assert "first" in swept_at
    await asyncio.gather(*(each.close() for each in (holder, first, second)))


async def test_sweeping_under_load_makes_no_duplicate(
    database_url: str, connection: Connection
) -> None:
    """Purging at any moment is harmless (G1)."""
    future = datetime.now(UTC) + timedelta(days=2 * RETENTION_DAYS)
    async with open_component(database_url) as one, open_component(database_url) as two:
        load = asyncio.gather(
            *(
                component.creator.create(IdempotencyKey(f"k{number}"), TEAM)
                for _ in range(3)
                for number in range(50)
                for component in (one, two)
            )
        )
        while not load.done():
            await swept(connection, future)
        answers = await load
    assert len({answer.group for answer in answers}) == 50
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 50
