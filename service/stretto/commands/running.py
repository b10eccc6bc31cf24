"""Runs what a command does, on the database that the settings name."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import uvloop

from stretto.commands.console import say
from stretto.postgres.connections import GRACE_SECONDS, READ_SECONDS, Database
from stretto.postgres.driver_errors import DRIVER_ERRORS
from stretto.postgres.migrate import waits_for_standby
from stretto.provision import database_connection, database_place
from stretto.store_errors import Unreachable
from stretto.telemetry.logs import configured_logging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from stretto.config import Settings
    from stretto.postgres.driver_connection import Connection

Result = TypeVar("Result")

# A commit that waits for a standby for so long is reported.
STANDBY_SECONDS: Final = 5.0
# A command that reports an outcome waits for the standby as long as an operator may need to start
# it. The read itself is ended by the server's own time-out.
OUTCOME_SECONDS: Final = 3600.0


def run(work: Coroutine[Any, Any, Result], settings: Settings) -> Result:
    """Run it to its end, with the log as the settings have it."""
    as_json = None if settings.log_format == "auto" else settings.log_format == "json"
    with (
        configured_logging(level=settings.log_level, as_json=as_json),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(work)


@asynccontextmanager
async def connected(
    settings: Settings, *, writes: bool, needs_tables: bool = True
) -> AsyncIterator[Connection]:
    """Provide a connection to the database; raises as `provision` does.

    The commits of a command that writes are watched. One that only reads waits for no standby,
    unless it reads an outcome (`opened`).
    """
    schema = settings.component.db_schema
    async with (
        database_place(settings, say, migrates=needs_tables) as place,
        database_connection(place.dsn, schema, needs_tables=needs_tables) as connection,
        _watched_commits(place.dsn, schema) if writes else nullcontext(),
    ):
        yield connection


@asynccontextmanager
async def _watched_commits(dsn: str, schema: str) -> AsyncIterator[None]:
    watching = asyncio.create_task(_report_wait(dsn, schema), name="watch of the commits")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


async def _report_wait(dsn: str, schema: str) -> None:
    """Say once that a commit waits for a synchronous standby: it waits as long as that is away.

    The command's own connection is busy with that commit.
    """
    is_waiting = False
    while not is_waiting:
        await asyncio.sleep(STANDBY_SECONDS)
        # What fails here fails the command as well, or does not matter to it.
        with suppress(*DRIVER_ERRORS, Unreachable):
            async with database_connection(dsn, schema, needs_tables=False) as connection:
                is_waiting = await waits_for_standby(connection)
    say(
        "still waiting: a commit waits for a synchronous standby. Start the standby, or take it out"
        " of synchronous_standby_names. An interrupted command keeps what was committed"
    )


@asynccontextmanager
async def opened(settings: Settings, *, reads_outcomes: bool = False) -> AsyncIterator[Database]:
    """Provide the database for stores, once it answers and has the tables.

    Reading an outcome commits a message, and so waits for a synchronous standby (`attempts.sql`): a
    command that does so is watched like one that writes.
    """
    schema = settings.component.db_schema
    async with database_place(settings, say) as place:
        async with database_connection(place.dsn, schema):
            pass
        cut_seconds = OUTCOME_SECONDS if reads_outcomes else READ_SECONDS + GRACE_SECONDS
        async with (
            Database(place.dsn, schema=schema, cut_seconds=cut_seconds) as database,
            _watched_commits(place.dsn, schema) if reads_outcomes else nullcontext(),
        ):
            yield database
