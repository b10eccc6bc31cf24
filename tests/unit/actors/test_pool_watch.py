"""The watch has writers let go of a pool that its host closes, and of no other."""

from __future__ import annotations

import asyncio

import pytest

from stretto.actors.pool_watch import LOOK_SECONDS, PoolWatch
from stretto.protocol.ports import ActorCrashed, Event


class World:
    """A pool, and two writers on it, the first of which may fail."""

    def __init__(self) -> None:
        self.is_closing = False
        self.error: Exception | None = None
        self.released: list[str] = []
        self.events: list[Event] = []
        self.pauses: list[float] = []
        self.watch = PoolWatch(
            lambda: self.is_closing, [self.first, self.second], self.events.append, self.pause
        )

    async def first(self) -> None:
        """Let go, or fail."""
        if self.error is not None:
            raise self.error
        self.released.append("first")

    async def second(self) -> None:
        """Let go."""
        self.released.append("second")

    async def pause(self, seconds: float) -> None:
        """Close the pool after the first look, and end after the third."""
        self.pauses.append(seconds)
        self.is_closing = True
        if len(self.pauses) == 3:
            raise asyncio.CancelledError


async def test_writers_keep_the_connections_of_an_open_pool() -> None:
    """Nothing is asked of them."""
    world = World()
    assert await world.watch.run_once() == 0
    assert [] == world.released


async def test_writers_let_go_of_a_pool_that_closes() -> None:
    """Time and again: one that was at a write lets go after it."""
    world = World()
    with pytest.raises(asyncio.CancelledError):
        await world.watch.run()
    assert ["first", "second"] * 2 == world.released
    assert [LOOK_SECONDS] * 3 == world.pauses


async def test_a_pool_that_fails_to_take_one_back_gets_the_others() -> None:
    """The host's `reset` may raise what it likes."""
    world = World()
    world.is_closing, world.error = True, LookupError()
    await world.watch.run_once()
    assert ["second"] == world.released
    assert [ActorCrashed("pool watch", world.error)] == world.events
