"""The inbox: a message's effects once, however often it comes."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

import stretto
from stretto.postgres import inbox as inbox_module
from stretto.postgres.queries import QUERIES
from support.database import connect, lock_waiters
from support.waiting import until

if TYPE_CHECKING:
    from support.database import Connection

MESSAGE = uuid.UUID(int=1)


async def is_first(connection: Connection, name: str = "counter") -> bool:
    """Deal with the message in a transaction of its own."""
    async with connection.transaction():
        return await stretto.Inbox(name).first_time(connection, MESSAGE)


async def test_a_message_is_new_once_to_each_consumer(connection: Connection) -> None:
    """Consumers know nothing of each other."""
    assert [True, False] == [await is_first(connection), await is_first(connection)]
    assert await is_first(connection, "another")


async def test_what_was_rolled_back_was_never_dealt_with(connection: Connection) -> None:
    """The record shares the effects' fate."""
    transaction = connection.transaction()
    await transaction.start()
    assert await stretto.Inbox("counter").first_time(connection, MESSAGE)
    await transaction.rollback()
    assert await is_first(connection)


@pytest.mark.parametrize("first_commits", [True, False])
async def test_a_second_delivery_waits_for_how_the_first_ends(
    first_commits: bool, connection: Connection, database_url: str
) -> None:
    """And has the effects only where the first was rolled back."""
    other = await connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    assert await stretto.Inbox("counter").first_time(connection, MESSAGE)
    second = asyncio.ensure_future(is_first(other))
    watch = await connect(database_url)
    await until(
        lambda: watch.fetchval(
            "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1",
            other.get_server_pid(),
        )
    )
    await (transaction.commit() if first_commits else transaction.rollback())
    assert (not first_commits) == await second
    await asyncio.gather(other.close(), watch.close())


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_consumer_counts_a_message_once_however_often_it_comes(
    is_guarded: bool, connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times one after another and three at once; without the record it counts every time."""
    if not is_guarded:

        async def always(*_: object) -> bool:
            return True

        monkeypatch.setattr(stretto.Inbox, "first_time", always)
    await connection.execute("CREATE TABLE public.counter AS SELECT 0 AS messages")

    async def consume() -> None:
        own = await connect(database_url)
        async with own.transaction():
            if await stretto.Inbox("counter").first_time(own, MESSAGE):
                await own.execute("UPDATE public.counter SET messages = messages + 1")
        await own.close()

    for _ in range(3):
        await consume()
    await asyncio.gather(*(consume() for _ in range(3)))
    counted = await connection.fetchval("SELECT messages FROM public.counter")
    assert (1 if is_guarded else 6) == counted


async def test_outside_a_transaction_is_a_programmers_error(connection: Connection) -> None:
    """Record and effects would part."""
    with pytest.raises(RuntimeError, match="together with the effects"):
        await stretto.Inbox("counter").first_time(connection, MESSAGE)


@pytest.mark.parametrize("message", [7, None, b"7"])
async def test_a_message_is_named_by_a_uuid(message: Any, connection: Connection) -> None:
    """Its text will do; another kind is refused by its argument's name."""
    async with connection.transaction():
        with pytest.raises(TypeError, match=r"^message_id must be uuid.UUID or str, not <class"):
            await stretto.Inbox("counter").first_time(connection, message)
        assert await stretto.Inbox("counter").first_time(connection, str(MESSAGE))  # type: ignore[arg-type]


SCHEMA = 'the "shop"'
IN_SCHEMA = stretto.Inbox("counter", schema=SCHEMA)


@pytest.fixture
async def shop(connection: Connection) -> Connection:
    """A connection to a database of a consumer's own, which has none of our tables."""
    await connection.execute(f"DROP SCHEMA stretto CASCADE; CREATE SCHEMA {quoted(SCHEMA)}")
    return connection


def quoted(schema: str) -> str:
    """Return the schema as a statement names it."""
    return '"{}"'.format(schema.replace('"', '""'))


async def columns_and_constraints(connection: Connection, schema: str) -> list[str]:
    """Return what defines the table."""
    rows = await connection.fetch(
        """SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull,
                            pg_get_expr(adbin, adrelid)) AS line
           FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
           WHERE attrelid = $1::text::regclass AND attnum > 0
           UNION ALL
           SELECT concat_ws(' ', conname, pg_get_constraintdef(oid))
           FROM pg_constraint WHERE conrelid = $1::text::regclass
           ORDER BY line""",
        f"{quoted(schema)}.inbox",
    )
    return [row["line"] for row in rows]


async def test_the_table_of_a_consumer_is_that_of_the_schema(connection: Connection) -> None:
    """Column by column, constraint by constraint."""
    await connection.execute(f"CREATE SCHEMA {quoted(SCHEMA)}")
    await IN_SCHEMA.create_table(connection)
    ours = await columns_and_constraints(connection, "stretto")
    assert len(ours) >= 5
    assert ours == await columns_and_constraints(connection, SCHEMA)


@pytest.mark.parametrize("inbox", [IN_SCHEMA, stretto.Inbox("counter")])
async def test_a_consumer_has_its_inbox_in_a_database_of_its_own(
    inbox: stretto.Inbox, shop: Connection
) -> None:
    """In the schema that it names, or in that of its search_path."""
    await inbox.create_table(shop)
    for expected in (True, False):
        async with shop.transaction():
            assert expected == await inbox.first_time(shop, MESSAGE)
    found = "SELECT nspname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
    schema = await shop.fetchval(f"{found} WHERE relname = 'inbox'")
    assert (SCHEMA if inbox is IN_SCHEMA else "public") == schema


async def test_a_role_that_may_create_nothing_finds_the_table(
    shop: Connection, database_url: str, role: str, role_url: str
) -> None:
    """Consumers call it at each start; only the first one needs the right."""
    await shop.execute(f"GRANT USAGE ON SCHEMA {quoted(SCHEMA)} TO {quoted(role)}")
    consumer = await connect(role_url)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await IN_SCHEMA.create_table(consumer)
    await IN_SCHEMA.create_table(shop)
    await IN_SCHEMA.create_table(consumer)
    await consumer.close()


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_consumers_that_start_at_once_create_one_table(
    is_guarded: bool, shop: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first; without the lock it fails."""
    if not is_guarded:
        statement = "SELECT to_regclass($1) IS NOT NULL"
        monkeypatch.setattr(inbox_module, "QUERIES", {**QUERIES, "has_inbox": statement})
    other = await connect(database_url)
    transaction = shop.transaction()
    await transaction.start()
    await IN_SCHEMA.create_table(shop)
    second = asyncio.ensure_future(IN_SCHEMA.create_table(other))
    watch = await connect(database_url)
    await lock_waiters(watch, 1)
    await transaction.commit()
    if is_guarded:
        await second
    else:
        with pytest.raises((asyncpg.DuplicateTableError, asyncpg.UniqueViolationError)):
            await second
    await asyncio.gather(other.close(), watch.close())


async def test_a_consumer_sweeps_its_own_old_records(
    shop: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at a time; not those of another consumer, and none that is younger."""
    monkeypatch.setattr(inbox_module, "SWEPT_MAX", 2)
    await IN_SCHEMA.create_table(shop)
    await shop.execute(
        f"""INSERT INTO {quoted(SCHEMA)}.inbox (consumer, message_id, received_at)
            SELECT name, gen_random_uuid(), clock_timestamp() - make_interval(hours => 24 * 30 + h)
            FROM unnest(ARRAY['counter', 'another']) AS name, unnest(ARRAY[-1, 1, 1, 1]) AS h"""
    )
    assert [2, 1, 0] == [await IN_SCHEMA.sweep(shop, 30) for _ in range(3)]
    left = f"SELECT consumer, count(*) FROM {quoted(SCHEMA)}.inbox GROUP BY 1 ORDER BY 1"
    assert [("another", 4), ("counter", 1)] == [tuple(row) for row in await shop.fetch(left)]
