"""Greets the members of each new group once, although its event comes over NATS at least once.

The greeting and the inbox's record commit together, in a database of the consumer's own:

    python examples/consume_jetstream.py nats://127.0.0.1 postgresql://shop:secret@localhost/shop
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import nats

import stretto

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy
    from nats.aio.msg import Msg

INBOX: Final = stretto.Inbox("greeter")
TABLES: Final = """CREATE TABLE IF NOT EXISTS greeting (group_id text, group_name text, member_ids text[]);
CREATE TABLE IF NOT EXISTS set_aside (reason text, event bytea)"""
# The server keeps the place of the consumer `greeter`; what is not acknowledged comes again.
SOURCE: Final = ("stretto.events.>", "greeter", "stretto_events")
# An event that fails so often is set aside, or it would come for ever.
DELIVERIES_MAX: Final = 5
# What is away is waited for, and so is a stream that is not there yet.
AWAY: Final = (OSError, nats.errors.Error, asyncpg.PostgresError, asyncpg.InterfaceError)


async def greet(event: dict[str, Any], connection: PoolConnectionProxy[asyncpg.Record]) -> None:
    """Greet all members with one row, unless the event has come before."""
    async with connection.transaction():
        if await INBOX.first_time(connection, UUID(event["id"])):
            # A group of more than 100 has no `member_ids`: its members have to be read.
            row = (event["subject"], event["data"]["name"], event["data"].get("member_ids"))
            await connection.execute("INSERT INTO greeting VALUES ($1, $2, $3)", *row)


async def consume(message: Msg, connection: PoolConnectionProxy[asyncpg.Record]) -> None:
    """Have the event's effect, if it has one; acknowledge it after the commit."""
    try:
        event = json.loads(message.data)
        # Each change of a group has an event too, of another type: it is acknowledged alone.
        if event["type"] == "group.created":
            await greet(event, connection)
    except Exception as error:
        if connection.is_closed():
            raise  # The database is to blame, not the event.
        if message.metadata.num_delivered < DELIVERIES_MAX:
            return await message.nak(delay=1)
        row = (repr(error), message.data)
        await connection.execute("INSERT INTO set_aside VALUES ($1, $2)", *row)
    return await message.ack()


async def ignore(_: Exception) -> None:
    """Be called for what ends a connection: it is raised too, and `main` says so once."""


async def main(bus_url: str, database_url: str) -> None:
    """Consume until SIGTERM."""
    stop, failures = asyncio.Event(), 0
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    while not stop.is_set():
        try:
            async with (
                await nats.connect(
                    bus_url, error_cb=ignore, allow_reconnect=False, max_reconnect_attempts=1
                ) as bus,
                asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool,
                pool.acquire() as connection,
            ):
                await INBOX.create_table(connection)
                await connection.execute(TABLES)
                events = await bus.jetstream().pull_subscribe(*SOURCE)
                failures = 0
                while not stop.is_set():
                    with suppress(TimeoutError):
                        await consume((await events.fetch(1, timeout=1))[0], connection)
        except AWAY as error:
            if failures == 0:
                print(f"waiting: {error!r}", flush=True)
            await asyncio.sleep(min(0.5 * 2**failures, 8))
            failures += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
