"""A service that starts while its schema is migrated: it waits for what a migration makes fit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stretto import provision
from stretto.postgres.connections import Database
from stretto.postgres.migrate import grant, migrate
from stretto.postgres.migration_runs import is_migrating, sole_session, sole_transaction
from stretto.postgres.migration_steps import newest_number
from stretto.provision import START_SECONDS, _require_schema, database_connection
from stretto.runtime.stop import Stop
from stretto.server import _database_answers
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Unreachable
from support.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.database import Connection

DEADLINE_SECONDS = 10
OLDER = "UPDATE schema_version SET number = number - 1"
OUR_OWN = "UPDATE schema_version SET number = number + 1"
TOO_NEW = "UPDATE schema_version SET (number, serves_from) = (number + 1, number + 1)"


async def never(_: float) -> None:
    """Fail where the schema is waited for."""
    pytest.fail("it waits for what no migration mends")


async def require(
    url: str,
    pause: Callable[[float], Awaitable[object]],
    seconds: float = START_SECONDS,
    clock: Clock | None = None,
) -> None:
    """Wait for the schema as a start does."""
    async with asyncio.timeout(DEADLINE_SECONDS), Database(url) as database:
        connection = await database.acquire()
        try:
            await _require_schema(database, connection, seconds, pause, clock or Clock())
        finally:
            await database.release(connection)


async def begin_migrating(connection: Connection) -> None:
    """Have a migration be at work, in one of its steps."""
    await connection.execute("SELECT pg_advisory_lock($1)", int.from_bytes(b"stretto", "big"))


async def end_migrating(connection: Connection) -> None:
    """End that step."""
    await connection.execute("SELECT pg_advisory_unlock_all()")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a start logs while it waits."""
    lines: list[str] = []

    class Log:
        def warning(self, event: str, **values: object) -> None:
            lines.append(f"{event}: {values.get('cause')}")

    monkeypatch.setattr(provision, "logger", Log())
    return lines


async def test_an_older_schema_is_waited_for_until_it_is_migrated(
    database_url: str, connection: Connection, said: list[str]
) -> None:
    """One line says for what, and what to run."""
    pauses = 0

    async def pause(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            await connection.execute(OUR_OWN)

    await connection.execute(OLDER)
    await require(database_url, pause)
    older, ours = newest_number() - 1, newest_number()
    assert 3 == pauses
    behind = f"the database has schema {older}, this stretto needs {ours}; run `stretto migrate`"
    assert [f"schema.awaited: {behind}"] == said


async def test_a_schema_that_is_missing_is_waited_for(
    database_url: str, connection: Connection, said: list[str]
) -> None:
    """While the migration that makes it is at work, as where a deployment starts both at once."""

    async def pause(_: float) -> None:
        await end_migrating(connection)
        await migrate(connection, "stretto")

    await connection.execute("DROP SCHEMA stretto CASCADE")
    await begin_migrating(connection)
    await require(database_url, pause)
    assert 1 == len(said)


async def test_rights_are_waited_for(
    role: str, role_url: str, connection: Connection, said: list[str]
) -> None:
    """They come after the last step: in a transaction of their own."""

    async def pause(_: float) -> None:
        await end_migrating(connection)
        await grant(connection, "stretto", [role])

    await begin_migrating(connection)
    await require(role_url, pause)
    assert 1 == len(said)


async def test_tables_and_rights_that_no_migration_gives_end_the_start_at_once(
    role_url: str, database_url: str, connection: Connection, said: list[str]
) -> None:
    """The twin: an operator has forgotten them, and sees the command that helps."""
    with pytest.raises(ConfigurationError, match="run `stretto migrate --grant-to"):
        await require(role_url, never)
    await connection.execute("DROP SCHEMA stretto CASCADE")
    with pytest.raises(ConfigurationError, match="run `stretto migrate`"):
        await require(database_url, never)
    assert [] == said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (TOO_NEW, "run a newer version"),
        ("DROP TABLE inbox", "restore them from a backup"),
        ("TRUNCATE schema_version", "schema_version is empty"),
    ],
)
async def test_what_no_migration_of_ours_mends_ends_the_start_at_once(
    change: str, message: str, database_url: str, connection: Connection, said: list[str]
) -> None:
    """Also while one is at work."""
    await connection.execute(change)
    async with sole_transaction(connection):
        with pytest.raises(ConfigurationError, match=message):
            await require(database_url, never)
    assert [] == said


async def test_a_command_waits_for_no_schema(
    database_url: str, connection: Connection, said: list[str]
) -> None:
    """Its operator does, and sees the answer."""
    await connection.execute(OLDER)
    with pytest.raises(ConfigurationError, match="run `stretto migrate`"):
        await require(database_url, never, 0)
    with pytest.raises(ConfigurationError, match="run `stretto migrate`"):
        async with (
            asyncio.timeout(START_SECONDS / 2),
            database_connection(database_url, "stretto"),
        ):
            pass
    assert [] == said


@pytest.mark.parametrize("is_at_work", [True, False])
async def test_after_a_vain_wait_another_start_may_succeed_where_a_migration_is_at_work(
    database_url: str, connection: Connection, *, is_at_work: bool, said: list[str]
) -> None:
    """It builds an index for longer than a start waits; without one an operator must act."""
    clock = Clock()
    await connection.execute(OLDER)

    async def pause(_: float) -> None:
        # The migration is between two steps now.
        await end_migrating(connection)
        clock.now += START_SECONDS / 2

    if is_at_work:
        await begin_migrating(connection)
    expected = Unreachable if is_at_work else ConfigurationError
    with pytest.raises(expected, match="run `stretto migrate`") as raised:
        await require(database_url, pause, clock=clock)
    assert is_at_work == ("a migration is at work" in str(raised.value))
    assert 1 == len(said)


async def test_a_migration_that_is_at_work_is_seen(
    database_url: str, connection: Connection
) -> None:
    """In each of its ways, from another session; a lock of another key is none."""
    async with database_connection(database_url, "stretto") as other:
        assert not await is_migrating(other)
        async with sole_transaction(connection):
            assert await is_migrating(other)
        async with sole_session(connection, "stretto"):
            assert await is_migrating(other)
        await connection.execute("SELECT pg_advisory_lock(1), pg_advisory_lock(1, 2)")
        assert not await is_migrating(other)


async def test_tables_that_came_between_two_looks_are_not_lost(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration has committed after the look for tables, and before that for the number."""
    found = [["lead_groups_4"], []]

    async def require_rights(_: Database, __: object) -> list[str]:
        return found.pop(0)

    monkeypatch.setattr(Database, "_require_rights", require_rights)
    await require(database_url, never)
    assert [] == found


async def test_a_service_starts_once_the_migration_has_ended(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """It neither ends nor serves before."""
    monkeypatch.setattr(provision, "RETRY_SECONDS", 0.01)
    await connection.execute(OLDER)
    waiting = asyncio.create_task(_database_answers(database_url, "stretto", Stop(0)))
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.3)
    assert not waiting.done()
    await connection.execute(OUR_OWN)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await waiting
    assert 1 == len(said)
