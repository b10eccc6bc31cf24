"""Runs what a command does, on the database that the settings name."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import (
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, TypeVar

import uvloop

from stretto.commands.console import has_said, say
from stretto.commands.failures import failure_of
from stretto.postgres.connections import GRACE_SECONDS, READ_SECONDS, Database
from stretto.postgres.driver_errors import DRIVER_ERRORS
from stretto.postgres.standby import waits_for_standby
from stretto.provision import database_connection, database_place
from stretto.runtime.stop import ORDER_SECONDS
from stretto.store_errors import Unreachable
from stretto.telemetry.logs import configured_logging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from stretto.config import Settings
    from stretto.postgres.driver_connection import Connection

Result = TypeVar("Result")

# A commit that waits for a standby for so long is reported.
STANDBY_SECONDS: Final = 5.0
# A command that reports an outcome waits for the standby as long as an operator may need to start
# it. The read itself is ended by the server's own time-out.
OUTCOME_SECONDS: Final = 3600.0
# The loop's own end waits for every lookup of a name, also for those that nothing waits for any more:
# half a minute and more where the DNS does not answer. All else has ended by then.
CLOSE_SECONDS: Final = 1.0
# The loop's own: its queue, its wake-up and its signals need eight. What is opened later can fail by
# itself.
FILES_MIN: Final = 16


def run(
    work: Coroutine[Any, Any, Result], settings: Settings, *, exit_code: int | None = None
) -> Result:
    """Run it to its end, with the log as the settings have it.

    `exit_code` is that of a process which has nothing to do after a success.
    """

    def make_loop() -> _Loop:
        loop = _Loop()
        loop.exit_code = exit_code
        return loop

    as_json = None if settings.log_format == "auto" else settings.log_format == "json"
    with closing(work):
        _require_files()
        with (
            configured_logging(level=settings.log_level, as_json=as_json),
            asyncio.Runner(loop_factory=make_loop) as runner,
        ):
            return runner.run(work)


def _require_files() -> None:
    """Raise `OSError` where the loop could not begin for want of files: it could not be closed then."""
    with ExitStack() as stack:
        for _ in range(FILES_MIN // 2):
            for end in os.pipe():
                stack.callback(os.close, end)


class _Loop(uvloop.Loop):
    """Ends the process if it cannot be closed in time: a DNS that is away may hold it up."""

    exit_code: int | None = None

    def close(self) -> None:
        """Close the loop; after `CLOSE_SECONDS` without an end, `leave`."""
        leaving = Timer(CLOSE_SECONDS, leave, (sys.exc_info()[1], self.exit_code))
        leaving.daemon = True
        leaving.start()
        try:
            super().close()
        finally:
            leaving.cancel()


def leave(error: BaseException | None, exit_code: int | None) -> None:
    """End the process as its usual end would; do nothing where its exit code is not known yet."""
    if error is not None:
        message, exit_code = failure_of(error) or ("", None)
    if exit_code is None:
        return
    for handler in logging.getLogger().handlers:
        handler.close()
    if error is not None:
        has_said(f"stretto: {message}")
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(exit_code)


@asynccontextmanager
async def connected(
    settings: Settings, *, writes: bool, needs_tables: bool = True, makes: bool = False
) -> AsyncIterator[Connection]:
    """Provide a connection to the database; raises as `provision` does.

    The commits of a command that writes are watched. One that only reads waits for no standby,
    unless it reads an outcome (`opened`). Without a database URL only a command that `makes` a
    database may be the first in its data dir.
    """
    schema = settings.component.db_schema
    with _ended_in_order():
        async with (
            database_place(settings, say, makes=makes, migrates=needs_tables) as place,
            database_connection(place.dsn, schema, needs_tables=needs_tables) as connection,
            _watched_commits(place.dsn, schema) if writes else nullcontext(),
        ):
            yield connection


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """On SIGTERM cancel the command's task, as Ctrl-C does, and end by the signal after that.

    The driver then cancels the statement, which the server would go on with. A signal that is no part
    of the same order ends the process at once.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_IGN:
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    restoring: asyncio.TimerHandle | None = None

    def restore() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)

    def terminate() -> None:
        nonlocal restoring
        if restoring is None:
            restoring = loop.call_later(ORDER_SECONDS, restore)
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        restore()
        if restoring is not None:
            restoring.cancel()
            signal.raise_signal(signal.SIGTERM)


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
