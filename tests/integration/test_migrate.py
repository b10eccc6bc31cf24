"""How a database gets its schema: whole, or by numbered changes, and by one runner at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from stretto.postgres import migration_runs
from stretto.postgres.connections import Database
from stretto.postgres.migrate import migrate
from stretto.postgres.migration_steps import FIRST_NUMBER, Step, read_steps
from stretto.postgres.queries import schema_file
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Unreachable
from support.database import connect
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.database import Connection

# The process that holds this advisory lock changes the schema.
LOCK = int.from_bytes(b"stretto", "big")
FIRST, SECOND, THIRD = (FIRST_NUMBER + each for each in range(3))
STEPS = [
    Step(SECOND, "ALTER TABLE inbox ADD COLUMN two text"),
    Step(THIRD, "ALTER TABLE inbox ADD COLUMN three text"),
]


@pytest_asyncio.fixture
async def connection(
    connection: Connection,
) -> Connection:
    """A database that has only the first schema, whatever changes there are by now."""
    await connection.execute("UPDATE schema_version SET number = $1", FIRST)
    return connection


async def columns(connection: Connection) -> set[str]:
    """Return the columns of the table that the steps change."""
    rows = await connection.fetch(
        """SELECT column_name FROM information_schema.columns
           WHERE table_schema = 'stretto' AND table_name = 'inbox'"""
    )
    return {row["column_name"] for row in rows}


async def test_numbered_changes_are_applied_in_their_order_and_once(connection: Connection) -> None:
    """From wherever the database is."""
    assert [SECOND] == await migrate(connection, "stretto", STEPS[:1])
    assert [THIRD] == await migrate(connection, "stretto", STEPS)
    assert [] == await migrate(connection, "stretto", STEPS)
    assert {"two", "three"} <= await columns(connection)


async def test_a_change_that_fails_leaves_nothing_half_done(connection: Connection) -> None:
    """Each is one transaction; those before it stay."""
    broken = Step(THIRD, "ALTER TABLE inbox ADD COLUMN three text; SELECT nonsense")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await migrate(connection, "stretto", [STEPS[0], broken])
    assert "two" in await columns(connection)
    assert "three" not in await columns(connection)
    assert [THIRD] == await migrate(connection, "stretto", STEPS)


async def test_runners_at_once_apply_each_change_once(
    database_url: str, connection: Connection
) -> None:
    """As when replicas are deployed together."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    runners = [await connect(database_url) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(runner, "stretto", []) for runner in runners))
    assert [[], [], [], [FIRST]] == sorted(applied)
    for runner in runners:
        await runner.close()


@pytest.mark.parametrize(
    ("expected", "change"),
    [
        (f"only knows {FIRST}; use the stretto that made it, or a newer", "number = 99"),
        ("another file.* or an empty database", "checksum = 'x'"),
        ("schema 5, made before the first release.* or an empty database", "number = 5"),
    ],
)
async def test_a_schema_that_is_not_ours_is_refused(
    expected: str, change: str, connection: Connection
) -> None:
    """A newer one, one that another file has made, or one that was never released."""
    await connection.execute(f"UPDATE schema_version SET {change}")
    with pytest.raises(ConfigurationError, match=expected):
        await migrate(connection, "stretto", [])


@pytest.mark.parametrize("schema", ["other", "user"])
@pytest.mark.parametrize("search_path", ["own", "stretto, public"])
async def test_the_tables_may_live_in_another_schema(
    schema: str, search_path: str, database_url: str
) -> None:
    """Beside a host's and without touching them, wherever the connection looks by itself."""
    path = schema if search_path == "own" else search_path
    other = await asyncpg.connect(database_url, server_settings={"search_path": path})
    assert [FIRST] == await migrate(other, schema, [])
    assert [] == await migrate(other, schema, [])
    assert await other.fetchval(f"""SELECT to_regclass('"{schema}".attempt') IS NOT NULL""")
    assert path == await other.fetchval("SHOW search_path")
    await other.close()


async def test_a_schema_that_is_there_needs_no_right_to_make_one(
    database_url: str, connection: Connection
) -> None:
    """An operator makes the schema, and gives the service nothing else."""
    role = f"role_{uuid4().hex}"
    await connection.execute(
        f"DROP SCHEMA stretto CASCADE; CREATE ROLE {role}; CREATE SCHEMA stretto AUTHORIZATION {role}"
    )
    try:
        await connection.execute(f"SET ROLE {role}")
        assert [FIRST] == await migrate(connection, "stretto", [])
    finally:
        await connection.execute(f"RESET ROLE; DROP SCHEMA stretto CASCADE; DROP ROLE {role}")


async def test_another_runner_is_waited_for_longer_than_a_write_waits(
    database_url: str, connection: Connection
) -> None:
    """The connection's short lock_timeout is meant for the tables, and stays that for them."""
    waiting = await connect(database_url)
    await waiting.execute("SET lock_timeout = '10ms'")
    await connection.execute("SELECT pg_advisory_lock($1)", LOCK)
    late = asyncio.ensure_future(migrate(waiting, "stretto", STEPS[:1]))
    await until(
        lambda: connection.fetchval(
            """SELECT clock_timestamp() - state_change > interval '50ms' FROM pg_stat_activity
               WHERE pid = $1 AND state = 'idle'""",
            waiting.get_server_pid(),
        )
    )
    assert not late.done()
    await connection.execute("SELECT pg_advisory_unlock($1)", LOCK)
    assert [SECOND] == await late
    async with connection.transaction():
        await connection.execute("LOCK TABLE inbox IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await migrate(waiting, "stretto", STEPS)
    assert [THIRD] == await migrate(waiting, "stretto", STEPS)
    await waiting.close()


async def test_another_runner_is_not_waited_for_without_end(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may build an index for hours."""
    monkeypatch.setattr(migration_runs, "_RUNNER_SECONDS", 0.05)
    monkeypatch.setattr(migration_runs, "_TURN_SECONDS", 0.01)
    other = await connect(database_url)
    await other.execute("SELECT pg_advisory_lock($1)", LOCK)
    with pytest.raises(Unreachable, match="another `stretto migrate` has been at work"):
        await migrate(connection, "stretto", STEPS)
    assert "two" not in await columns(connection)
    await other.close()


async def test_a_schema_that_does_not_say_its_number_is_refused(connection: Connection) -> None:
    """Guessing one would apply changes twice."""
    await connection.execute("TRUNCATE schema_version")
    for steps in ([], STEPS):
        with pytest.raises(ConfigurationError, match="schema_version is empty"):
            await migrate(connection, "stretto", steps)


async def test_a_change_that_was_edited_after_it_was_applied_is_refused(
    connection: Connection,
) -> None:
    """Databases of one number would be of two kinds."""
    await migrate(connection, "stretto", STEPS[:1])
    with pytest.raises(ConfigurationError, match="another file"):
        await migrate(
            connection, "stretto", [Step(SECOND, "ALTER TABLE inbox ADD COLUMN other text")]
        )


async def test_a_fresh_database_gets_the_newest_number_and_no_single_change(
    connection: Connection,
) -> None:
    """`schema.sql` is the whole of it."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    assert [THIRD] == await migrate(connection, "stretto", STEPS)
    assert [] == await migrate(connection, "stretto", STEPS)
    assert not {"two", "three"} & await columns(connection)


# What the changes since the first schema have added, to be taken away again.
def test_a_folder_without_changes_has_none(tmp_path: Path) -> None:
    """Nor has one that is missing, as long as the first schema is the newest."""
    assert [] == read_steps(tmp_path / "migrations")
    (tmp_path / "README.md").write_text("no change")
    assert [] == read_steps(tmp_path)


def test_changes_are_read_by_the_number_in_their_name(tmp_path: Path) -> None:
    """In the order of their numbers."""
    (tmp_path / "0003_three.sql").write_text("SELECT 3")
    (tmp_path / "0002_two.sql").write_text("SELECT 2")
    assert [Step(2, "SELECT 2"), Step(3, "SELECT 3")] == read_steps(tmp_path)


@pytest_asyncio.fixture
async def other_encoding_url(server_url: str) -> AsyncIterator[str]:
    """A database whose encoding has no characters but those of Western Europe."""
    name = f"{urlsplit(server_url).path[1:]}_latin1"
    admin = await asyncpg.connect(server_url)
    await admin.execute(
        f"CREATE DATABASE \"{name}\" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    )
    yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
    await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await admin.close()


async def test_a_database_of_another_encoding_gets_no_schema(other_encoding_url: str) -> None:
    """Names that the contract allows could not be stored there."""
    connection = await connect(other_encoding_url)
    with pytest.raises(ConfigurationError, match="has the encoding LATIN1 and needs UTF8"):
        await migrate(connection, "stretto")
    assert not await connection.fetchval("SELECT to_regnamespace('stretto') IS NOT NULL")
    await connection.close()


async def test_a_database_of_another_encoding_is_not_served(other_encoding_url: str) -> None:
    """It may have got its tables from an older version."""
    connection = await connect(other_encoding_url)
    await connection.execute("CREATE SCHEMA stretto; SET search_path = stretto")
    await connection.execute(schema_file().read_text("utf-8"))
    await connection.close()
    async with Database(other_encoding_url) as database:
        with pytest.raises(Unreachable, match="has the encoding LATIN1 and needs UTF8"):
            await database.inspect()
