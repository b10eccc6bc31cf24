"""The transaction in which statements read whole tables: how they are planned, and when they end."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.postgres.driver_connection import Connection

# A look at a socket costs nothing beside a scan.
WATCH_SECONDS: Final = 1.0


@asynccontextmanager
async def scanning(connection: Connection) -> AsyncIterator[None]:
    """Run statements in one snapshot, with plans for whole tables; none outlives its client.

    A client that is killed cancels nothing, and the server by itself looks for it only when it has
    rows to send. For this transaction alone, so that it holds behind a pooler too.
    """
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute(QUERIES["lock_log"])
        await connection.execute(QUERIES["allow_scans"])
        # Refused where the server's system cannot look, such as Windows.
        with suppress(asyncpg.InvalidParameterValueError):
            async with connection.transaction():
                await connection.execute(QUERIES["watch_client"], f"{WATCH_SECONDS:g}s")
        yield
