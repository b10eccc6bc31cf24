"""Steps that the tests of faults have in common."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp

from stretto.postgres.check import check_database
from support.api_client import TEAM, Api, Reply, connected_api
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

    from support.service_process import ServiceProcess

    Connection = asyncpg.Connection[asyncpg.Record]

DEADLINE_SECONDS = 20


async def first_row(connection: Connection, query: str) -> asyncpg.Record:
    """Ask until there is a row: what we wait for has no other signal."""
    row = await until(lambda: connection.fetchrow(query))
    assert row is not None
    return row


async def settled_create(api: Api, key: str, document: object = TEAM) -> Reply:
    """Send the same request until it is answered for good, as a client does."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                reply = await api.create(key, document)
            except aiohttp.ClientError:
                continue
            if reply.status not in (409, 503):
                return reply


@asynccontextmanager
async def apis(*services: ServiceProcess) -> AsyncIterator[list[Api]]:
    """Open a client for each service."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected_api(s.url)) for s in services]


@asynccontextmanager
async def writes_held_up(connection: Connection) -> AsyncIterator[None]:
    """Let claims through and leads wait, on a lock that only tests take."""
    await connection.execute(
        """CREATE OR REPLACE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
               SET LOCAL lock_timeout = 0;
               PERFORM pg_advisory_xact_lock_shared(7);
               RETURN NEW;
           END$$;
           CREATE OR REPLACE TRIGGER hold BEFORE INSERT ON conversation
               FOR EACH ROW EXECUTE FUNCTION hold();
           SELECT pg_advisory_lock(7)"""
    )
    yield
    await connection.execute("SELECT pg_advisory_unlock(7)")


LEADER = """SELECT pid FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'stretto'
              AND wait_event = 'advisory'"""


async def sound(connection: Connection) -> bool:
    """Whether the whole database keeps its guarantees."""
    return (await check_database(connection, retention_days=30)).faults == []


END_OURS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE datname = current_database() AND application_name = 'stretto'"""


async def set_read_only(connection: Connection, *, is_read_only: bool) -> None:
    """Have new sessions of the database refuse writes, or take them again."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    setting = "default_transaction_read_only"
    change = f"SET {setting} = on" if is_read_only else f"RESET {setting}"
    await connection.execute(f"ALTER DATABASE {name} {change}")
