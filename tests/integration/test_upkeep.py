"""What looks after a database: migrations, the check of the guarantees, the sweep."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from conftest import connect
from stretto.assembly import open_component
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import ConfigurationError
from stretto.protocol.attempt import AnswerStatus
from stretto.storage.check import check_database
from stretto.storage.migrate import Step, migrate, read_steps
from stretto.storage.retention import sweep, sweepable

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from stretto.assembly import Component

    Connection = asyncpg.Connection[asyncpg.Record]

RETENTION_DAYS = 30
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})
STEPS = [
    Step(2, "ALTER TABLE inbox ADD COLUMN two text"),
    Step(3, "ALTER TABLE inbox ADD COLUMN three text"),
]


async def columns(connection: Connection) -> set[str]:
    """Return the columns of the table that the steps change."""
    rows = await connection.fetch(
        """SELECT column_name FROM information_schema.columns
           WHERE table_schema = 'stretto' AND table_name = 'inbox'"""
    )
    return {row["column_name"] for row in rows}


async def test_numbered_changes_are_applied_in_their_order_and_once(connection: Connection) -> None:
    """From wherever the database is."""
    assert [2] == await migrate(connection, "stretto", STEPS[:1])
    assert [3] == await migrate(connection, "stretto", STEPS)
    assert [] == await migrate(connection, "stretto", STEPS)
    assert {"two", "three"} <= await columns(connection)


async def test_a_change_that_fails_leaves_nothing_half_done(connection: Connection) -> None:
    """Each is one transaction; those before it stay."""
    broken = Step(3, "ALTER TABLE inbox ADD COLUMN three text; SELECT nonsense")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await migrate(connection, "stretto", [STEPS[0], broken])
    assert "two" in await columns(connection)
    assert "three" not in await columns(connection)
    assert [3] == await migrate(connection, "stretto", STEPS)


async def test_runners_at_once_apply_each_change_once(
    database_url: str, connection: Connection
) -> None:
    """As when replicas are deployed together."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    runners = [await connect(database_url) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(runner, "stretto", []) for runner in runners))
    assert [[], [], [], [1]] == sorted(applied)
    for runner in runners:
        await runner.close()


@pytest.mark.parametrize(
    ("expected", "change"),
    [("only knows 1", "number = 7"), ("another file", "checksum = 'x'")],
)
async def test_a_schema_that_is_not_ours_is_refused(
    expected: str, change: str, connection: Connection
) -> None:
    """A newer one, or one that another file has made."""
    await connection.execute(f"UPDATE schema_version SET {change}")
    with pytest.raises(ConfigurationError, match=expected):
        await migrate(connection, "stretto", [])


async def test_the_tables_may_live_in_another_schema(database_url: str) -> None:
    """Beside a host's, and without touching them."""
    other = await asyncpg.connect(database_url, server_settings={"search_path": "other"})
    assert [1] == await migrate(other, "other", [])
    assert await other.fetchval("SELECT to_regclass('other.attempt') IS NOT NULL")
    await other.close()


def test_changes_are_read_by_the_number_in_their_name(tmp_path: Path) -> None:
    """In the order of their numbers."""
    (tmp_path / "0003_three.sql").write_text("SELECT 3")
    (tmp_path / "0002_two.sql").write_text("SELECT 2")
    assert [Step(2, "SELECT 2"), Step(3, "SELECT 3")] == read_steps(tmp_path)


async def faults(connection: Connection) -> set[str]:
    """Return what the check finds."""
    report = await check_database(connection, RETENTION_DAYS)
    return {fault.fault for fault in report.faults}


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
        ("event without a group", "UPDATE outbox SET subject = gen_random_uuid()"),
        (
            "event without its owner among the recipients",
            "UPDATE outbox SET recipients = ARRAY['bob']",
        ),
    ],
)
async def test_the_check_finds_every_kind_of_violation(
    expected: str, violation: str, component: Component, connection: Connection
) -> None:
    """And nothing on a sound database."""
    await create(component, "k")
    assert set() == await faults(connection)
    await connection.execute(violation)
    assert expected in await faults(connection)


async def test_an_event_past_its_retention_is_not_missed(
    component: Component, connection: Connection
) -> None:
    """It was delivered and swept."""
    await create(component, "k")
    await connection.execute(
        """DELETE FROM outbox;
           UPDATE chat_group SET created_at = created_at - interval '31 days'"""
    )
    assert set() == await faults(connection)


async def test_only_settled_attempts_past_their_retention_are_swept(
    component: Component, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, by the given clock; pending ones stay, however old."""
    monkeypatch.setattr("stretto.storage.retention.BATCH_ROWS", 2)
    for number in range(5):
        await create(component, f"k{number}")
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, claimed_at)
           VALUES (gen_random_uuid(), 'alice', '0123456789abcdef', gen_random_uuid(), '2020-01-01')"""
    )
    early = datetime.now(UTC) + timedelta(days=RETENTION_DAYS) - timedelta(minutes=10)
    late = early + timedelta(minutes=20)
    batches: list[int] = []
    assert 0 == await sweepable(connection, RETENTION_DAYS, early)
    assert 0 == await sweep(connection, RETENTION_DAYS, early, batches.append)
    assert 5 == await sweepable(connection, RETENTION_DAYS, late)
    assert 5 == await sweep(connection, RETENTION_DAYS, late, batches.append)
    assert [0, 2, 2, 1] == batches
    assert "pending" == await connection.fetchval("SELECT status FROM attempt")
    component.creator.forget()
    answer = await component.creator.create(IdempotencyKey("k0"), TEAM)
    assert answer.status is AnswerStatus.HEALED


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
            await sweep(connection, RETENTION_DAYS, future, lambda _: None)
        answers = await load
    assert len({answer.group for answer in answers}) == 50
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 50
