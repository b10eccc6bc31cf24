"""The inbox: a message's effects once, however often it comes."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest

import stretto
from support.database import connect
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
