"""A flight and those who wait for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.creation.creator import GroupCreator
from stretto.creation.flight import Flight, by_age
from stretto.creation.settings import CreatorSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import AttemptPending, Overloaded

if TYPE_CHECKING:
    from stretto.creation.ports import Write, WriteResult

ALICE = UserId("alice")
TEAM = NewGroup.parse(ALICE, {"name": "Team"})
KEY = IdempotencyKey("k")


class SilentWriters:
    """Writers that never answer."""

    def ask(self, _: Write) -> asyncio.Future[WriteResult]:
        return asyncio.get_running_loop().create_future()


class NoAttempts:
    """A store that is not asked."""

    async def look(self, group_id: UUID, lease_seconds: float) -> object:
        raise AssertionError

    heal = reclaim = look


async def test_a_flight_forgets_who_waits_no_more() -> None:
    """Whether they were answered or have left; one who still waits keeps it from being abandoned."""
    settings = CreatorSettings(stop_seconds=0)
    creator = GroupCreator(SilentWriters(), NoAttempts(), settings, lambda _: None)  # type: ignore[arg-type]
    async with creator:
        first = asyncio.create_task(creator.create(KEY, TEAM, wait_seconds=10))
        await asyncio.sleep(0)
        with pytest.raises(AttemptPending):
            await creator.create(KEY, TEAM, wait_seconds=0)
        (flight,) = creator._flights._flights.values()
        assert 1 == len(flight.waiters)
        assert not flight.is_abandoned
        second = asyncio.create_task(creator.create(KEY, TEAM, wait_seconds=10))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert 1 == len(flight.waiters)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert {} == flight.waiters
        assert flight.is_abandoned
        last = asyncio.create_task(creator.create(KEY, TEAM, wait_seconds=10))
        await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await last


async def test_a_write_knows_whether_a_request_waits_for_it() -> None:
    """As long as its flight goes on."""
    flight = Flight(UUID(int=1), TEAM, b"", b"")
    write = flight.new_write()
    waiter = flight.join(asyncio.get_running_loop().time() + 10)
    assert not write.is_abandoned()
    waiter.cancel()
    await asyncio.sleep(0)
    assert write.is_abandoned()


def test_flights_are_counted_by_how_long_they_have_been() -> None:
    """Each class begins with the age that names it; an empty one is shown as well."""
    flights = [
        Flight(UUID(int=1), TEAM, TEAM.fingerprint(), b"", started_at=100 - age)
        for age in (0, 0.5, 1, 4.9, 30, 999)
    ]
    assert {"0s": 2, "1s": 2, "5s": 0, "30s": 2} == by_age(flights, 100)
