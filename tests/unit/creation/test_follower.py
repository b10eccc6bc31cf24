"""What a flight does in turns, and how long it pauses in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.creation.age import OutOfRange
from stretto.creation.attempt import Sighting, Tombstone
from stretto.creation.flight import Flight
from stretto.creation.follower import POLL, TURNS_MAX, Follower
from stretto.creation.ports import NotLed, Write, WriteResult
from stretto.domain import NewGroup, UserId
from stretto.errors import AttemptFailed, AttemptPending, Failure, GroupDeleted

if TYPE_CHECKING:
    from stretto.creation.ports import AttemptStore


class Vanishing:
    """Stores and writers in which every claim is taken away again."""

    sighting = Sighting(None, None)

    async def look(self, *_: object) -> Sighting:
        """See nothing, or what a test says."""
        return self.sighting

    async def heal(self, *_: object) -> None:
        """Unused."""

    async def reclaim(self, *_: object) -> bool:
        """Unused."""
        return False

    def ask(self, _: Write) -> asyncio.Future[WriteResult]:
        """Never lead."""
        answered: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        answered.set_result(NotLed())
        return answered


async def test_a_key_that_is_taken_away_again_and_again_comes_back_ever_later() -> None:
    """Each turn costs the writers' batch a wait; in the end the attempt is pending."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    world = Vanishing()
    attempts: AttemptStore = world
    new_group = NewGroup.parse(UserId("alice"), {"name": "Team"})
    flight = Flight(UUID(int=1), new_group, new_group.fingerprint(), b"")
    follower = Follower(world, attempts, 5.0, lambda _: None, pause)
    with pytest.raises(AttemptPending):
        await follower.pursue(flight, flight.new_write())
    longest = [POLL.longest(turn) for turn in range(1, TURNS_MAX)]
    assert all(
        bound / 2 <= seconds <= bound for bound, seconds in zip(longest, pauses, strict=True)
    )


async def _no_pause(_: float) -> None:
    """Go on."""


async def test_a_deleted_group_ends_a_flight_and_a_late_request() -> None:
    """Nothing is written, and nothing is healed."""
    world = Vanishing()
    attempts: AttemptStore = world
    world.sighting = Sighting(None, None, Tombstone(datetime.now(UTC), None))
    new_group = NewGroup.parse(UserId("alice"), {"name": "Team"})
    flight = Flight(UUID(int=1), new_group, new_group.fingerprint(), b"")
    follower = Follower(world, attempts, 5.0, lambda _: None, _no_pause)
    with pytest.raises(GroupDeleted):
        await follower.pursue(flight, flight.new_write())
    with pytest.raises(GroupDeleted):
        await follower.require_attempt(
            flight.group_id, new_group.owner, flight.fingerprint, OutOfRange(0, 1)
        )


async def test_a_failure_whose_record_was_swept_is_still_a_failure() -> None:
    """Its tombstone has the code."""
    world = Vanishing()
    attempts: AttemptStore = world
    failure = Failure("quota", "gone")
    world.sighting = Sighting(None, None, Tombstone(datetime.now(UTC), failure))
    new_group = NewGroup.parse(UserId("alice"), {"name": "Team"})
    flight = Flight(UUID(int=1), new_group, new_group.fingerprint(), b"")
    follower = Follower(world, attempts, 5.0, lambda _: None, _no_pause)
    assert failure == await follower.pursue(flight, flight.new_write())
    with pytest.raises(AttemptFailed):
        await follower.require_attempt(
            flight.group_id, new_group.owner, flight.fingerprint, OutOfRange(0, 1)
        )
