"""A host's pool whose connections come back changed: what a reset of asyncpg's does not undo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import pytest

import stretto
from stretto.postgres import hosts_pool
from stretto.postgres.connections import Database
from stretto.postgres.driver_connection import OUR_TYPES, is_recoded
from stretto.postgres.groups import PostgresGroupStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.database import Connection

DEADLINE_SECONDS: Final = 60
ALICE: Final = "alice"
# Beside those of arrays, which follow their elements.
SCALARS: Final = (
    *("bool", "bytea", "name", "int8", "int4", "text", "tid"),
    *("json", "float8", "timestamptz", "uuid", "pg_lsn", "xid8"),
)


def team(key: str) -> stretto.NewGroup:
    """Return a group to create."""
    return stretto.NewGroup.parse(stretto.UserId(ALICE), {"name": key, "members": ["bob"]})


async def recode(connection: Any) -> None:
    """Do as a handler of a host's that would rather have texts."""
    await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")


def pool_for(url: str) -> asyncpg.Pool:
    """Return a host's pool, in which the connection that came last is given out first."""
    return asyncpg.create_pool(
        url, min_size=0, max_size=12, server_settings={"search_path": "stretto,public"}
    )


async def test_every_type_that_our_statements_use_is_looked_at(connection: Connection) -> None:
    """Its number is the same in every database; and a codec for it is noticed, and gone again."""
    numbers = await connection.fetchval(
        "SELECT array_agg(oid ORDER BY oid) FROM pg_type"
        " WHERE typname = ANY ($1) AND typnamespace = 'pg_catalog'::regnamespace",
        SCALARS,
    )
    assert numbers == [*OUR_TYPES]
    for name in SCALARS:
        assert not is_recoded(connection)
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=str, decoder=str, format="text"
        )
        assert is_recoded(connection), name
        await connection.reset_type_codec(name, schema="pg_catalog")


async def spoil(pool: asyncpg.Pool, sessions: int) -> None:
    """Have a host's handlers give back so many sessions with other codecs."""
    used = [await pool.acquire() for _ in range(sessions)]
    for each in used:
        await recode(each)
        await pool.release(each)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_session_with_other_codecs_is_replaced_before_it_is_used(
    is_guarded: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known without a statement."""
    if not is_guarded:
        monkeypatch.setattr(hosts_pool, "is_recoded", lambda _: False)
    async with pool_for(database_url) as pool, Database(database_url, pool=pool) as database:
        await spoil(pool, 3)
        connection = await database.acquire()
        assert is_guarded is not is_recoded(connection)
        assert isinstance(await connection.fetchval("SELECT gen_random_uuid()"), UUID) == is_guarded
        await database.release(connection)


async def test_a_lead_in_a_used_session_commits_no_group_without_the_hosts_rows(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not know its own tokens, and call the hook for none of its groups."""
    monkeypatch.setattr(hosts_pool, "RECODED_MAX", 12)
    await connection.execute("CREATE TABLE public.counted (group_id uuid)")

    async def count(handle: Any, created: Sequence[tuple[Any, Any]]) -> None:
        rows = [(group.group_id,) for group, _ in created]
        await handle.executemany("INSERT INTO public.counted VALUES ($1)", rows)

    settings = stretto.ComponentSettings(writers=1)
    async with (
        pool_for(database_url) as pool,
        stretto.open_component(pool=pool, on_create=count, settings=settings) as component,
    ):
        await component.create("a", team("a"))
        await spoil(pool, 6)
        # The writer's session ends, as in a failover.
        (store,) = component._running.write_stores
        assert store._connection is not None
        pid = store._connection.get_server_pid()
        await connection.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)
        for key in ("b", "c"):
            await component.create(key, team(key))
        lacking = await connection.fetchval(
            "SELECT count(*) FROM stretto.chat_group LEFT JOIN public.counted USING (group_id)"
            " WHERE counted.group_id IS NULL"
        )
        assert 0 == lacking


async def test_a_pool_that_gives_no_other_session_is_a_database_that_is_away(
    database_url: str,
) -> None:
    """The host's `init` has begun to set codecs: a few connections are tried, and it is said why."""
    callback = {"init": None}

    async def init(connection: Any) -> None:
        if callback["init"] is not None:
            await callback["init"](connection)

    async with (
        asyncpg.create_pool(
            database_url,
            min_size=0,
            max_size=8,
            init=init,
            server_settings={"search_path": "stretto"},
        ) as pool,
        stretto.open_component(
            pool=pool, settings=stretto.ComponentSettings(writers=1)
        ) as component,
    ):
        await component.create("a", team("a"))
        callback["init"] = recode  # type: ignore[assignment]
        await pool.expire_connections()
        with pytest.raises(stretto.Unreachable, match="a pool of its own"):
            await component._running.reads.groups.groups_of_member(stretto.UserId(ALICE), None, 9)
        callback["init"] = None
        groups = await component._running.reads.groups.groups_of_member(
            stretto.UserId(ALICE), None, 9
        )
        assert 1 == len(groups)


async def test_a_session_that_misses_our_tables_is_not_used_again(database_url: str) -> None:
    """A handler has left a temporary table, or a role: it costs one read, and not each of them."""
    async with pool_for(database_url) as pool, Database(database_url, pool=pool) as database:
        used = await pool.acquire()
        await used.execute("CREATE TEMPORARY TABLE chat_group (x int)")
        await pool.release(used)
        groups, alice = PostgresGroupStore(database), stretto.UserId(ALICE)
        with pytest.raises(stretto.Unreachable):
            await groups.groups_of_owner(alice, None, 9)
        assert [] == await groups.groups_of_owner(alice, None, 9)
