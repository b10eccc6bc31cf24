"""A consumer that counts each owner's groups exactly once, although events come at least once.

The bus here delivers every event twice, as a bus does after a lost acknowledgement. The inbox's
record and the count commit together, so that the second delivery has no effect.

    python examples/counter.py postgresql://chat:secret@localhost/chat
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from typing import TYPE_CHECKING, Final

import asyncpg

import stretto

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GROUPS: Final = 3
DEADLINE_SECONDS: Final = 20

TABLE: Final = """CREATE TABLE IF NOT EXISTS public.groups_of_owner (
    owner_id text   PRIMARY KEY,
    groups   bigint NOT NULL
)"""

COUNT: Final = """INSERT INTO public.groups_of_owner AS counter (owner_id, groups) VALUES ($1, 1)
ON CONFLICT (owner_id) DO UPDATE SET groups = counter.groups + 1"""


class Counter:
    """The consumer, and the bus that feeds it."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool
        self._inbox = stretto.Inbox("groups_of_owner")
        self.received = 0
        self.is_done = asyncio.Event()

    async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[uuid.UUID, str]:
        """Deliver each event twice."""
        for event in events:
            await self.consume(event)
            await self.consume(event)
        return {}

    async def consume(self, event: stretto.CommittedEvent) -> None:
        """Count the group of a creation, unless it is already counted."""
        if event.event_type != "group.created":
            return
        owner = json.loads(event.envelope)["data"]["owner_id"]
        async with self._pool.acquire() as connection, connection.transaction():
            if await self._inbox.first_time(connection, event.event_id):
                await connection.execute(COUNT, owner)
        self.received += 1
        if self.received >= 2 * GROUPS:
            self.is_done.set()


async def main(dsn: str) -> None:
    """Create groups; print how many events came and how many groups were counted."""
    owner = stretto.UserId(f"owner-{uuid.uuid4()}")
    # The search_path selects the schema of stretto's tables, the inbox among them.
    async with asyncpg.create_pool(
        dsn, min_size=1, max_size=2, server_settings={"search_path": "stretto"}
    ) as pool:
        async with pool.acquire() as connection:
            await stretto.migrate(connection, "stretto")
            await connection.execute(TABLE)
        counter = Counter(pool)
        async with stretto.open_component(dsn, bus=counter) as component:
            for number in range(GROUPS):
                new_group = stretto.NewGroup.parse(owner, {"name": f"Team {number}"})
                await component.create(str(uuid.uuid4()), new_group)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await counter.is_done.wait()
        counted = await pool.fetchval(
            "SELECT groups FROM public.groups_of_owner WHERE owner_id = $1", owner
        )
    print(f"received: {counter.received}")
    print(f"counted: {counted}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["STRETTO_DATABASE_URL"]))
