"""A failover loses the webhook's move to another address, which its living instances make again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from stretto.webhook.rules import RETRY_SECONDS
from stretto.webhook.store import PostgresWebhookStore
from stretto.webhook.target import UNSERVED_SECONDS
from support.database import commit_event
from support.webhook_instances import World
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from stretto.postgres.connections import Database
    from stretto.targets.delivery import ReaderTarget
    from support.database import Connection
    from support.webhook_instances import Instance

DEADLINE_SECONDS = 60
HOUR = timedelta(hours=1)
OTHERS, THIRDS = bytes(32), bytes([3] * 32)


@pytest.fixture
async def world(database: Database) -> AsyncIterator[World]:
    """The instances of a rolling restart."""
    async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as stack:
        yield World(database, stack)


class Standby:
    """What a standby has of the reader, to which a failover sets it back."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names = 0

    async def keep(self) -> str:
        """Keep the row as it is now; return a name for it."""
        self._names += 1
        name = f"kept_{self._names}"
        await self._connection.execute(f"CREATE TEMP TABLE {name} AS TABLE outbox_reader")
        return name

    async def promote(self, name: str | None) -> None:
        """Let the row be what it was then; none at all without a name."""
        async with self._connection.transaction():
            await self._connection.execute("DELETE FROM outbox_reader")
            if name is not None:
                await self._connection.execute(f"INSERT INTO outbox_reader TABLE {name}")


@pytest.fixture
def standby(connection: Connection) -> Standby:
    """An asynchronous one, which may lack any number of moves."""
    return Standby(connection)


async def turns(world: World, *instances: Instance) -> None:
    """Let three seconds pass, in which these take their turns."""
    for _ in range(3):
        world.move(1)
        for each in instances:
            await each.work()


async def test_a_move_that_a_failover_loses_is_made_again_at_once(
    world: World, connection: Connection, standby: Standby
) -> None:
    """The instances with the old address have ended: for three minutes no event would go anywhere."""
    old = await world.start(await world.receiver())
    await turns(world, old)
    kept = await standby.keep()
    new = await world.start(await world.receiver())
    await turns(world, new)
    await standby.promote(kept)
    event = await commit_event(connection)
    await turns(world, new)
    assert ([], [event]) == (old.receiver.ids, new.receiver.ids)


async def test_an_instance_that_has_not_made_the_move_makes_it_again(
    world: World, connection: Connection, standby: Standby
) -> None:
    """The first one with the new address has ended; the second one has found it to be the target."""
    await world.start(await world.receiver())
    kept = await standby.keep()
    receiver = await world.receiver()
    await world.start(receiver)
    second = await world.start(receiver)
    await turns(world, second)
    await standby.promote(kept)
    event = await commit_event(connection)
    await turns(world, second)
    assert [event] == receiver.ids


@pytest.mark.parametrize("lost", ["the last move", "two moves", "the row"])
@pytest.mark.parametrize("alive", [*permutations("abc"), *permutations("ab")])
async def test_of_the_living_instances_the_one_started_last_gets_the_events(
    lost: str, alive: tuple[str, ...], world: World, connection: Connection, standby: Standby
) -> None:
    """Whatever a failover has lost, in whatever order they see it; and they do not take turns at it."""
    instances: dict[str, Instance] = {}
    kept: list[str | None] = [None]
    for name in "abc":
        instances[name] = await world.start(await world.receiver())
        world.move(1)
        kept.append(await standby.keep())
    await turns(world, *instances.values())
    await standby.promote(kept[{"the row": 0, "two moves": 1, "the last move": 2}[lost]])
    living = [instances[name] for name in alive]
    await turns(world, *living)
    moved_at = await connection.fetchval("SELECT target_since FROM outbox_reader")
    await world.wait(2 * UNSERVED_SECONDS, *living)
    assert moved_at == await connection.fetchval("SELECT target_since FROM outbox_reader")
    event = await commit_event(connection)
    await turns(world, *living)
    assert {name: [event] * (name == max(alive)) for name in alive} == {
        name: instances[name].receiver.ids for name in alive
    }


@pytest.mark.parametrize("behind", [timedelta(0), HOUR])
@pytest.mark.parametrize("has_old_address", [True, False])
async def test_a_start_after_the_failover_decides(
    behind: timedelta,
    has_old_address: bool,
    world: World,
    connection: Connection,
    standby: Standby,
) -> None:
    """However far the new primary's clock is behind: the lost move is older."""
    old_receiver = await world.receiver()
    await world.start(old_receiver)
    kept = await standby.keep()
    new = await world.start(await world.receiver())
    await turns(world, new)
    await standby.promote(kept)
    world.jump(-behind.total_seconds())
    # To the old address it is no move: it is the target. So one with yet another has started before.
    last = await world.start(await world.receiver())
    if has_old_address:
        last = await world.start(old_receiver)
    await turns(world, new, last)
    event = await commit_event(connection)
    await turns(world, new, last)
    assert ([], [event]) == (new.receiver.ids, last.receiver.ids)


async def test_of_two_moves_the_later_one_has_the_greater_time(
    world: World, connection: Connection
) -> None:
    """Also where the clock has gone back; and the reader's clock is never behind it."""
    await world.start(await world.receiver())
    moves: list[datetime] = []
    for seconds in (0, -3600, 0, 1):
        world.jump(seconds)
        await world.start(await world.receiver())
        (row,) = await connection.fetch("SELECT target_since, clock_ahead FROM outbox_reader")
        assert row["target_since"] <= world.now + row["clock_ahead"]
        moves.append(row["target_since"])
    assert sorted(set(moves)) == moves


async def test_what_is_put_off_after_the_move_is_tried_less_and_less(
    world: World, connection: Connection, standby: Standby
) -> None:
    """The move's time was far ahead, since events had waited long; the row set back knows of none."""
    old = await world.start(await world.receiver())
    kept = await standby.keep()
    await commit_event(connection)
    old.receiver.answers.append({"status": 500})
    await old.work()
    await connection.execute("UPDATE outbox_delivery SET due_at = due_at + interval '1 day'")
    new = await world.start(await world.receiver())
    await turns(world, new)
    await standby.promote(kept)
    await connection.execute("DELETE FROM outbox_delivery")
    await turns(world, new)
    new.receiver.answers += [{"status": 500}] * 2
    await commit_event(connection)
    await turns(world, new)
    await world.wait(RETRY_SECONDS[0] * 2, new)
    assert 2 == await connection.fetchval("SELECT max(tries) FROM outbox_delivery")


@pytest.mark.parametrize("meanwhile", ["it is served", "nothing", "a third one", "there and back"])
async def test_a_lost_move_replaces_the_target_that_was_seen(
    meanwhile: str, world: World, connection: Connection, standby: Standby
) -> None:
    """Not one that came since, or came back; that its senders live, and serve it, is no reason to wait."""

    def store(digest: bytes) -> PostgresWebhookStore:
        return PostgresWebhookStore(world.database, digest, lambda: world.now)

    async def seen(by: PostgresWebhookStore) -> ReaderTarget:
        await by.oldest_seconds()
        assert by.target is not None
        return by.target

    other, ours, third = store(OTHERS), store(URL_DIGEST), store(THIRDS)
    await other.open()
    kept = await standby.keep()
    await ours.open()
    move = ours.move
    assert move is not None
    await standby.promote(kept)
    before = await seen(ours)
    world.move(60)
    if meanwhile == "it is served":
        await other.serve(await seen(other))
        assert before != await seen(ours)
    elif meanwhile != "nothing":
        await third.open()
        if meanwhile == "there and back":
            await store(OTHERS).open()
    await ours.move_again(move, before)
    after = await seen(ours)
    assert (meanwhile in ("it is served", "nothing")) == after.is_ours
    assert after.is_ours == (move.at == after.moved_at)
