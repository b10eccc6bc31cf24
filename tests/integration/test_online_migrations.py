"""Migrations beside a service: outside a transaction, in batches, and planned before they run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from stretto.postgres.connections import Database
from stretto.postgres.migrate import migrate
from stretto.postgres.migration_plan import plan
from stretto.postgres.migration_runs import BATCH_ROWS_MAX
from stretto.postgres.migration_steps import Step, newest_number
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Unreachable
from support.command_process import stretto
from support.database import connect
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

NEWEST = newest_number()
INDEX = Step(
    NEWEST + 1,
    "-- runs: concurrently\nCREATE UNIQUE INDEX CONCURRENTLY inbox_by_id ON inbox (message_id);\n",
    "an index",
)
FILL = Step(
    NEWEST + 1,
    """-- runs: in batches of inbox
    WITH page AS (
        SELECT message_id FROM inbox WHERE $1::text IS NULL OR message_id > $1::text::uuid
        ORDER BY message_id LIMIT $2
    ), filled AS (
        UPDATE inbox SET consumer = consumer || '+' FROM page
        WHERE inbox.message_id = page.message_id
    )
    SELECT count(*) AS rows,
           (SELECT message_id FROM page ORDER BY message_id DESC LIMIT 1)::text AS position
    FROM page;
    """,
    "a back-fill",
)
ROWS = 2 * BATCH_ROWS_MAX + 500
# Than the session's own `lock_timeout` of 10 ms.
WAITED_LONGER = """SELECT count(*) > 0 FROM pg_locks
                   WHERE NOT granted AND waitstart < clock_timestamp() - interval '50 ms'"""
SESSION = """SELECT current_setting('search_path'), current_setting('lock_timeout'),
                    current_setting('statement_timeout')"""


class Interrupted(Exception):
    """As by Ctrl-C, or a lost connection."""


async def state(connection: Connection) -> bool | None:
    """Whether the index can be used; None if there is none."""
    found: bool | None = await connection.fetchval(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('inbox_by_id')"
    )
    return found


async def version(connection: Connection) -> int:
    """The newest version that the database has."""
    found: int = await connection.fetchval("SELECT max(number) FROM schema_version")
    return found


@pytest_asyncio.fixture
async def other(database_url: str) -> AsyncIterator[Connection]:
    """A second session."""
    other = await connect(database_url)
    yield other
    other.terminate()


async def test_an_index_is_built_beside_open_writes(
    connection: Connection, other: Connection
) -> None:
    """It waits for those that were there before, longer than statements may; new ones go on."""
    await connection.execute("SET lock_timeout = '10ms'; SET statement_timeout = '30s'")
    before = await connection.fetchrow(SESSION)
    writer = other.transaction()
    await writer.start()
    await other.execute("INSERT INTO inbox VALUES ('before', gen_random_uuid())")
    building = asyncio.ensure_future(migrate(connection, "stretto", [INDEX]))
    await until(lambda: building.done() or other.fetchval(WAITED_LONGER))
    await other.execute("INSERT INTO inbox VALUES ('meanwhile', gen_random_uuid())")
    assert not building.done()
    assert NEWEST == await version(other)
    await writer.commit()
    assert [INDEX.number] == await building
    assert await state(connection) is True
    assert before == await connection.fetchrow(SESSION)
    assert 0 == await other.fetchval(
        """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    )


async def test_a_build_that_failed_is_begun_anew(connection: Connection) -> None:
    """It leaves an index that no statement uses and that every write keeps up."""
    twin = "INSERT INTO inbox VALUES ($1, '00000000-0000-0000-0000-000000000001')"
    await connection.executemany(twin, [("one",), ("two",)])
    with pytest.raises(asyncpg.UniqueViolationError):
        await migrate(connection, "stretto", [INDEX])
    assert await state(connection) is False
    assert NEWEST == await version(connection)
    await connection.execute("DELETE FROM inbox WHERE consumer = 'two'")
    assert [INDEX.number] == await migrate(connection, "stretto", [INDEX])
    assert await state(connection) is True


async def test_an_index_whose_runner_died_before_it_was_recorded_is_not_built_twice(
    connection: Connection,
) -> None:
    """A build takes hours."""
    await connection.execute(INDEX.statements)
    before = await connection.fetchval("SELECT 'inbox_by_id'::regclass::oid")
    assert [INDEX.number] == await migrate(connection, "stretto", [INDEX])
    assert before == await connection.fetchval("SELECT 'inbox_by_id'::regclass::oid")


async def test_runners_at_once_build_an_index_once(database_url: str) -> None:
    """One that waited in a statement would be waited for by the build: a deadlock."""
    runners = [await connect(database_url) for _ in range(3)]
    applied = await asyncio.gather(*(migrate(each, "stretto", [INDEX]) for each in runners))
    assert [[], [], [INDEX.number]] == sorted(applied)
    assert await state(runners[0]) is True
    for runner in runners:
        await runner.close()


async def test_an_index_is_not_built_through_a_pooler(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock would stay with a session that is others'. PgBouncer's process ids are no server's."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: 1)
    with pytest.raises(ConfigurationError, match="leads to PostgreSQL itself, not through a pool"):
        await migrate(connection, "stretto", [INDEX])
    assert await state(connection) is None


async def test_an_interrupted_back_fill_goes_on_where_it_was(connection: Connection) -> None:
    """Each row is filled once, and what is done stays known."""
    fill = "INSERT INTO inbox SELECT 'c', gen_random_uuid() FROM generate_series(1, $1)"
    await connection.execute(fill, ROWS)
    seen: list[int] = []

    def interrupt(_: Step, done: int, total: int) -> None:
        assert done <= total
        seen.append(done)
        if len(seen) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        await migrate(connection, "stretto", [FILL], interrupt)
    assert NEWEST == await version(connection)
    planned = await plan(connection, "stretto", [FILL])
    assert ([FILL], BATCH_ROWS_MAX) == ([*planned.steps], planned.filled_rows)
    assert [FILL.number] == await migrate(connection, "stretto", [FILL], interrupt)
    batches = [BATCH_ROWS_MAX, 2 * BATCH_ROWS_MAX]
    assert [*batches, 2 * BATCH_ROWS_MAX, ROWS, ROWS] == seen
    assert ["c+"] == [
        row[0] for row in await connection.fetch("SELECT DISTINCT consumer FROM inbox")
    ]


async def test_the_next_back_fill_begins_at_the_first_row(connection: Connection) -> None:
    """The place of the one before it is not its own."""
    await connection.execute("INSERT INTO inbox VALUES ('c', gen_random_uuid())")
    again = Step(FILL.number + 1, FILL.statements)
    assert [FILL.number, again.number] == await migrate(connection, "stretto", [FILL, again])
    assert "c++" == await connection.fetchval("SELECT consumer FROM inbox")


async def test_a_plan_changes_nothing(connection: Connection) -> None:
    """Nor does it make the schema of an empty database."""
    alter = Step(
        NEWEST + 1, "-- locks: inbox ACCESS EXCLUSIVE\nALTER TABLE inbox ADD COLUMN x text"
    )
    planned = await plan(connection, "stretto", [alter])
    assert [alter] == planned.steps
    assert {"inbox"} == set(planned.sizes)
    assert [alter.number] == await migrate(connection, "stretto", [alter])
    assert [] == (await plan(connection, "stretto", [alter])).steps
    await connection.execute("DROP SCHEMA stretto CASCADE")
    assert [NEWEST] == [step.number for step in (await plan(connection, "stretto")).steps]
    assert not await connection.fetchval("SELECT to_regnamespace('stretto') IS NOT NULL")


async def test_the_command_shows_its_plan(database_url: str, connection: Connection) -> None:
    """Of an empty database, then of one that has all."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    shown = (
        f"{NEWEST:04} the whole schema: in one transaction; locks no table that requests wait for\n"
        "afterwards, instances made for schema 7 or newer can run\n"
    )
    assert (0, shown) == (await stretto("migrate", "--plan", DATABASE_URL=database_url))[:2]
    await migrate(connection, "stretto")
    planned = await stretto("migrate", "--plan", DATABASE_URL=database_url)
    assert (0, "up to date\n") == planned[:2]


async def test_a_newer_schema_says_which_instances_it_serves(
    database_url: str, connection: Connection
) -> None:
    """One that a later version has taken something away from is refused, with what to do."""
    contract = Step(NEWEST + 2, f"-- serves from: {NEWEST + 1}\nALTER TABLE inbox DROP COLUMN x")
    expand = Step(NEWEST + 1, "ALTER TABLE inbox ADD COLUMN x text")
    async with Database(database_url) as database:
        assert await migrate(connection, "stretto", [expand])
        await database.inspect()
        assert await migrate(connection, "stretto", [expand, contract])
        with pytest.raises(Unreachable, match=f"for schema {NEWEST + 1} or newer can use; this"):
            await database.inspect()
    rows = await connection.fetch("SELECT serves_from FROM schema_version ORDER BY number")
    assert [7, 7, NEWEST + 1] == [row[0] for row in rows]
