"""Provides what the settings name: a database that answers, and NATS.

Without a database URL the service runs a PostgreSQL of its own, in the data dir. It runs a NATS of
its own where the settings ask for one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.embedded.lock_file import sole_service
from stretto.embedded.nats import embedded_nats
from stretto.embedded.place import has_cluster
from stretto.embedded.postgres import CONNECTIONS, embedded_postgres
from stretto.embedded.watch import watched_server
from stretto.postgres.connections import Database
from stretto.postgres.database_url import place_of
from stretto.postgres.driver_errors import is_lasting, is_missing_right, is_of_url
from stretto.postgres.lanes import connections
from stretto.postgres.migrate import migrate
from stretto.postgres.migration_runs import is_migrating
from stretto.postgres.migration_steps import newest_number
from stretto.postgres.remedies import remedy, remedy_of_waiting
from stretto.setting_texts import EMBEDDED
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Outdated, Unmigrated, Unreachable
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from stretto.config import Settings
    from stretto.postgres.driver_connection import Connection

# A database that is being started or failed over needs some seconds; a wrong address never works.
START_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5
# Of the embedded server, beside the workers': for commands, and for psql.
CONNECTIONS_SPARE: Final = 40


@dataclass(frozen=True, slots=True)
class Place:
    """Where the data are, and the folder of the embedded server's programs if it is embedded."""

    dsn: str
    programs: Path | None


@asynccontextmanager
async def database_place(
    settings: Settings,
    notify: Callable[[str], None],
    *,
    is_service: bool = False,
    makes: bool = False,
    migrates: bool = True,
    on_lost: Callable[[str], object] | None = None,
) -> AsyncIterator[Place]:
    """Provide the database as long as the context lasts.

    An embedded one is migrated too, unless the caller does that itself (`migrates` is false). It
    belongs to one service at a time; commands share it. Where there is none, the service makes one,
    and so does a command that `makes` one. `notify` gets each message for the operator as one line;
    `on_lost` gets the one about a server that has ended by itself. Raises `EmbeddedError` or
    `ConfigurationError`.
    """
    if not settings.is_embedded:
        yield Place(settings.database_url, None)
        return
    if not (is_service or makes or has_cluster(settings.data_dir)):
        # A new, empty one has nothing to show, and would look sound.
        message = (
            f"there is no database in {settings.data_dir.resolve()}: run the command in the folder of"
            " the service, or set STRETTO_DATABASE_URL, or STRETTO_DATA_DIR"
        )
        raise ConfigurationError(message)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            embedded_postgres(
                settings.data_dir,
                notify=notify,
                settings={"max_connections": str(_connections(settings))},
            )
        )
        if is_service:
            stack.enter_context(sole_service(server.data_dir))
        if on_lost is not None:
            log = server.data_dir / "postgres/log"
            await stack.enter_async_context(watched_server("PostgreSQL", server.pid, log, on_lost))
        if server.is_new and not is_service:
            # The operator may have meant another database: this one has nothing to show.
            notify(
                f"STRETTO_DATABASE_URL is not set: this is a new, empty database in"
                f" {server.data_dir}"
            )
        schema = settings.component.db_schema
        if migrates:
            async with database_connection(server.dsn, schema, needs_tables=False) as connection:
                await migrate(connection, schema)
        yield Place(server.dsn, server.bin_dir)


def _connections(settings: Settings) -> int:
    """Return how many connections the embedded server needs for all workers and some commands."""
    held = connections(1, settings.workers, settings.component.writers)
    return max(CONNECTIONS, held + CONNECTIONS_SPARE)


@asynccontextmanager
async def bus_place(
    settings: Settings, on_lost: Callable[[str], object] | None = None
) -> AsyncIterator[str]:
    """Provide the URL of NATS as long as the context lasts; empty where none is set.

    `on_lost` is called as in `database_place`. Raises `EmbeddedError`.
    """
    url = settings.component.nats_url
    if url != EMBEDDED:
        yield url
        return
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_nats(settings.data_dir))
        if on_lost is not None:
            log = settings.data_dir / "nats/nats.log"
            await stack.enter_async_context(watched_server("NATS", server.pid, log, on_lost))
        yield server.url


@asynccontextmanager
async def database_connection(
    dsn: str, schema: str, *, needs_tables: bool = True, awaits_tables: bool = False
) -> AsyncIterator[Connection]:
    """Provide one connection; wait up to `START_SECONDS` for a database that does not answer yet.

    Raises `Unreachable`, and `ConfigurationError` where the URL cannot be used, or where the tables are
    needed and cannot be used as they are: another start needs an operator. `awaits_tables` gives a
    migration as much time before.
    """
    async with Database(dsn, schema=schema) as database:
        connection = await _acquire_patiently(database, place_of(dsn))
        try:
            if needs_tables:
                await _require_schema(database, connection, START_SECONDS * awaits_tables)
            yield connection
        finally:
            await database.release(connection)


async def _require_schema(
    database: Database,
    connection: Connection,
    patience_seconds: float,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock_seconds: Callable[[], float] = time.monotonic,
) -> None:
    """Return once the schema can be served; wait so long for an older one, or for a migration.

    Raises `ConfigurationError`, and `Unreachable` where a migration was at work: another start may
    succeed without an operator. `pause` and `clock_seconds` are for tests.
    """
    deadline, is_said, is_at_work = clock_seconds() + patience_seconds, False, False
    while True:
        # Between two of its steps a migration is not seen.
        is_at_work = is_at_work or (patience_seconds > 0 and await is_migrating(connection))
        try:
            is_newer = await database.require_schema(connection)
            break
        except Unreachable as error:
            awaited = Unmigrated if is_at_work else Outdated
            if clock_seconds() >= deadline or not isinstance(error, awaited):
                if is_at_work and isinstance(error, Unmigrated):
                    raise Unreachable(f"a migration is at work: {error}") from error
                raise ConfigurationError(str(error)) from error
            if not is_said:
                logger.warning("schema.awaited", cause=str(error), seconds=patience_seconds)
                is_said = True
        await pause(RETRY_SECONDS)
    if is_newer:
        logger.warning("schema.newer", known=newest_number())


async def _acquire_patiently(
    database: Database, place: str, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> Connection:
    """Return a connection; the pause between two tries is for tests.

    Raises `Unreachable`, and `ConfigurationError` for a URL with which no try can succeed, or a
    right that our first statements lack.
    """
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        try:
            return await database.acquire(may_take_long=True, sees_all=True)
        except Unreachable as error:
            cause = error.__cause__
            # PgBouncer answers so for its own server; for our settings only where we send some.
            is_pooler = isinstance(cause, asyncpg.ProtocolViolationError) and not database.is_pooled
            if is_pooler or is_lasting(cause):
                message = f"no connection to the database at {place}: {error}"
                if not is_pooler:
                    message = f"{message}; {remedy(cause)}"
                is_unfit = is_of_url(cause) or is_missing_right(cause)
                raise (ConfigurationError if is_unfit else Unreachable)(message) from error
            if asyncio.get_running_loop().time() >= deadline:
                message = f"no connection to the database at {place} within {START_SECONDS:.0f} s"
                message = f"{message}: {error}; {remedy_of_waiting(cause)}"
                raise Unreachable(message) from error
        await pause(RETRY_SECONDS)
