"""A lag is the age of the oldest event that is owed, and goes on ageing while it is."""

from __future__ import annotations

import pytest

from stretto.store_errors import Unreachable
from stretto.targets.lag import LOOK_SECONDS, Lag


class World:
    """A clock, and a store that counts how often it is asked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.age: float | None = None
        self.error: Exception | None = None
        self.asked = 0
        self.lag = Lag(self.oldest_seconds, lambda: self.now)

    async def oldest_seconds(self) -> float | None:
        self.asked += 1
        if self.error:
            raise self.error
        return self.age


async def test_it_is_as_old_as_the_oldest_and_ages_until_nothing_is_owed() -> None:
    """Also while the actor is stuck, and asks nothing."""
    world = World()
    world.age = 60.0
    await world.lag.look()
    assert 60.0 == world.lag.seconds
    world.now += 30
    assert 90.0 == world.lag.seconds
    world.age = None
    await world.lag.look()
    assert 0.0 == world.lag.seconds
    world.now += 30
    assert 0.0 == world.lag.seconds


async def test_the_store_is_asked_at_most_once_a_second() -> None:
    """However many turns an actor takes."""
    world = World()
    for _ in range(3):
        await world.lag.look()
    assert 1 == world.asked
    world.now += LOOK_SECONDS - 0.01
    await world.lag.look()
    assert 1 == world.asked
    world.now += 0.01
    await world.lag.look()
    assert 2 == world.asked


async def test_nothing_is_known_while_the_store_cannot_be_asked() -> None:
    """A 0 would hide what other instances see. So before the first look."""
    world = World()
    assert world.lag.seconds is None
    await world.lag.look()
    assert 0.0 == world.lag.seconds
    world.now += LOOK_SECONDS
    world.error = Unreachable()
    with pytest.raises(Unreachable):
        await world.lag.look()
    assert world.lag.seconds is None
    world.error = None
    await world.lag.look()
    assert 0.0 == world.lag.seconds


async def test_an_event_that_waited_before_the_store_was_lost_ages_no_longer() -> None:
    """It may have been handed over. The next look that works, at the next turn, says how old it is."""
    world = World()
    world.age = 7.0
    await world.lag.look()
    world.now += LOOK_SECONDS
    world.error = Unreachable()
    for _ in range(2):
        with pytest.raises(Unreachable):
            await world.lag.look()
        assert world.lag.seconds is None
        world.now += 60
    world.error, world.age = None, 128.0
    await world.lag.look()
    assert 128.0 == world.lag.seconds
    assert 4 == world.asked
