"""Runs what a command does, on the database that the settings name."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from stretto.commands.console import say
from stretto.postgres.connections import Database
from stretto.provision import database_connection, database_place
from stretto.telemetry.logs import configured_logging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from stretto.config import Settings
    from stretto.postgres.driver_connection import Connection

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result], settings: Settings) -> Result:
    """Run it to its end, with the log as the settings have it."""
    as_json = None if settings.log_format == "auto" else settings.log_format == "json"
    with (
        configured_logging(level=settings.log_level, as_json=as_json),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(work)


@asynccontextmanager
async def connected(settings: Settings, *, needs_tables: bool = True) -> AsyncIterator[Connection]:
    """Provide a connection to the database; raises as `provision` does."""
    schema = settings.component.db_schema
    async with (
        database_place(settings, say) as place,
        database_connection(place.dsn, schema, needs_tables=needs_tables) as connection,
    ):
        yield connection


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """Provide the database for stores, once it answers and has the tables."""
    schema = settings.component.db_schema
    async with database_place(settings, say) as place:
        async with database_connection(place.dsn, schema):
            pass
        async with Database(place.dsn, schema=schema) as database:
            yield database
