"""Writers' stores whose leads run a hook, and hooks that are a few statements."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.postgres.connections import Database
from stretto.postgres.writes import PostgresWriteStore
from support.both_stores import write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from stretto.domain import CreatedGroup, NewGroup
    from stretto.postgres.driver_connection import Connection as InnerConnection
    from stretto.postgres.hook import OnCreate

    Created = Sequence[tuple[CreatedGroup, NewGroup]]

# Nothing here takes as long: a hook that hangs must not hang the suite.
DEADLINE_SECONDS: Final = 30
HOST_TABLES: Final = """
    CREATE TABLE public.tenant (name text PRIMARY KEY);
    CREATE TABLE public.channel (
        group_id uuid PRIMARY KEY,
        tenant text REFERENCES public.tenant DEFERRABLE INITIALLY IMMEDIATE
    );
"""


class Stores:
    """Makes writers' stores with a hook; closes them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.lost: list[str] = []
        self.made: list[PostgresWriteStore] = []

    def __call__(self, hook: OnCreate) -> PostgresWriteStore:
        """Return a store whose leads run the hook."""
        self.made.append(
            PostgresWriteStore(self.database, lambda: self.lost.append("lost"), on_create=hook)
        )
        return self.made[-1]


@asynccontextmanager
async def open_stores(database_url: str, *, is_hosts_pool: bool) -> AsyncIterator[Stores]:
    """Stores on a host's pool, or on connections of the component's own; a pool gets all back."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        asyncpg.create_pool(
            database_url, min_size=0, max_size=4, server_settings={"search_path": "stretto"}
        ) as pool,
        Database(pool=pool) if is_hosts_pool else Database(database_url) as database,
    ):
        stores = Stores(database)
        yield stores
        for store in stores.made:
            await store.close()
        assert pool.get_size() == pool.get_idle_size()


async def led_by(store: PostgresWriteStore, key: str = "k") -> set[UUID]:
    """Claim and lead one write."""
    ours = write(key)
    await store.claim([ours])
    led = await store.lead([ours])
    assert led <= {ours.claim_token}
    return led


def running(*statements: str) -> OnCreate:
    """Return a hook that runs these statements."""

    async def hook(connection: InnerConnection, _: Created) -> None:
        for statement in statements:
            await connection.execute(statement)

    return hook
