"""The watch has writers let go of a pool that its host closes, and of no other."""

from __future__ import annotations

from functools import partial

import pytest

from stretto.postgres.hosts_pool import LOOK_SECONDS, PoolWatch


class World:
    """A pool, and two writers on it, each of which may fail."""

    def __init__(self) -> None:
        self.is_closing = False
        self.failing = ""
        """The writer whose connection the pool fails to take back."""
        self.released: list[str] = []
        releases = [partial(self.release, writer) for writer in ("first", "second")]
        self.watch = PoolWatch(lambda: self.is_closing, releases)

    async def release(self, writer: str) -> None:
        """Let go, or fail."""
        if writer == self.failing:
            raise LookupError
        self.released.append(writer)


async def test_writers_keep_the_connections_of_an_open_pool() -> None:
    """Nothing is asked of them."""
    world = World()
    assert await world.watch.run_once() == 0
    assert [] == world.released


async def test_writers_let_go_of_a_pool_that_closes() -> None:
    """Time and again, with a pause in between: one that was at a write lets go after it."""
    world = World()
    world.is_closing = True
    assert [2, 2] == [await world.watch.run_once() for _ in range(2)]
    assert ["first", "second"] * 2 == world.released
    assert world.watch.pace is not None
    assert world.watch.pace.seconds == LOOK_SECONDS
    assert world.watch.pace.full > 2


@pytest.mark.parametrize(("failing", "other"), [("first", "second"), ("second", "first")])
async def test_a_pool_that_fails_to_take_one_back_gets_the_others(failing: str, other: str) -> None:
    """The host's `reset` may raise what it likes: that is a crash, and the watch goes on."""
    world = World()
    world.is_closing, world.failing = True, failing
    with pytest.raises(LookupError):
        await world.watch.run_once()
    assert [other] == world.released
