"""The relay over a bus that may fail for one event: its lease meanwhile, and what it publishes again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stretto.events.log import LoggedEvent
from stretto.store_errors import Unreachable
from stretto.targets.bus import BusUnavailable, nothing_behind
from stretto.targets.delivery import Delivery, PutOff
from stretto.targets.doubted_relay import AGAIN_MAX, BEHIND_PAGES_MAX, DoubtedRelay
from stretto.targets.lag import LOOK_SECONDS
from stretto.targets.relay import bytes_of
from stretto.targets.settings import RelaySettings
from support.clock import Clock
from support.log_events import HISTORY, place
from support.owned_events import event_of
from support.scripted_store import ScriptedStore
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.events.place import Place
    from stretto.observations import Observation
    from stretto.targets.bus import Behind


def logged(number: int, owner: str = "alice") -> LoggedEvent:
    """Return an event at a position of the same number."""
    return LoggedEvent(event_of(owner, number), HISTORY, number)


ONE, TWO = logged(1), logged(2)


class Bus:
    """Answers as the test says, once it goes on; records what it gets."""

    def __init__(self) -> None:
        self.was_slow = False
        self.goes_on, self.again_goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()
        self.again_goes_on.set()
        self.error: Exception | None = None
        self.reads_on = False
        self.parts: list[list[int]] = []
        self.behind: list[int] = []
        self.again: list[list[int]] = []
        self.ended = 0

    async def publish(
        self, events: Sequence[CommittedEvent], behind: Behind = nothing_behind
    ) -> Mapping[UUID, str]:
        self.parts.append([event.event_id.int for event in events])
        try:
            await self.goes_on.wait()
        finally:
            self.ended += 1
        if self.reads_on:
            self.behind = [event.event_id.int async for event in behind()]
        if self.error is not None:
            raise self.error
        return {}

    async def publish_again(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        self.again.append([each.event.event_id.int for each in deliveries])
        try:
            await self.again_goes_on.wait()
        finally:
            self.ended += 1
        return []


class World:
    """A relay, its store and its bus."""

    def __init__(self, lease_seconds: float = 5.0, batch_max: int = 256) -> None:
        self.store, self.bus, self.clock = ScriptedStore(), Bus(), Clock()
        self.observed: list[Observation] = []
        settings = RelaySettings(relay_lease_seconds=lease_seconds, batch_max=batch_max)
        self.relay = DoubtedRelay(self.store, self.bus, self.observed.append, settings, self.clock)

    async def turn(self) -> int:
        """Take a turn in which the relay looks for refused events."""
        self.clock.now += LOOK_SECONDS
        return await self.relay.run_once()


async def test_refused_events_that_hang_hold_up_no_new_ones() -> None:
    """They are published beside the log; a turn does not begin that twice."""
    world = World()
    world.bus.again_goes_on.clear()
    world.store.due = [Delivery(ONE.event, 1)]
    world.store.events = [TWO]
    await world.turn()
    world.store.due = [Delivery(TWO.event, 1)]
    await world.turn()
    assert ([[2]], place(3)) == (world.bus.parts, world.store.place)
    await until(lambda: world.bus.again)
    assert [[1]] == world.bus.again
    world.bus.again_goes_on.set()
    await until(lambda: len(world.store.sent) == 2)
    assert [[1], [2]] == world.bus.again
    await world.relay.close()


async def test_refused_events_are_taken_in_small_groups() -> None:
    """One that hangs holds up the others of its group."""
    world, taken = World(), list[tuple[int, float]]()
    take = world.store.take

    async def take_some(
        deliveries_max: int, lease_seconds: float, under_way: object = None, **_: object
    ) -> Sequence[Delivery]:
        taken.append((deliveries_max, lease_seconds))
        return await take(deliveries_max, lease_seconds)

    world.store.take = take_some  # type: ignore[assignment,method-assign]
    world.store.due = [Delivery(ONE.event, 1)]
    await world.turn()
    await until(lambda: len(taken) == 2)
    # A group that hangs is settled before another process takes it.
    assert [(AGAIN_MAX, 10.0)] * 2 == taken


async def test_what_ends_the_publishing_of_refused_events_is_the_failure_of_a_turn() -> None:
    """The runner reports it; the next turn begins anew."""
    world = World()

    async def fail(*_: object) -> Sequence[Delivery]:
        raise Unreachable

    take = world.store.take
    world.store.take = fail  # type: ignore[method-assign,assignment]
    world.store.due = [Delivery(ONE.event, 1)]
    await world.turn()
    await until(lambda: world.relay._again_task and world.relay._again_task.done())
    world.store.take = take  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        await world.turn()
    await until(lambda: world.store.sent)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_no_call_outlives_the_relay(is_cancelled: bool) -> None:
    """Neither one of the log nor one of refused events; and the lease is given back."""
    world = World()
    world.bus.goes_on.clear()
    world.bus.again_goes_on.clear()
    world.store.due, world.store.events = [Delivery(ONE.event, 1)], [TWO]
    task = asyncio.create_task(world.turn())
    await until(lambda: world.bus.parts and world.bus.again)
    if is_cancelled:
        task.cancel()
    else:
        world.bus.error = BusUnavailable()
        world.bus.goes_on.set()
    with pytest.raises(asyncio.CancelledError if is_cancelled else BusUnavailable):
        await task
    assert (2, None) == (world.bus.ended, world.store.token)
    await world.relay.close()


@pytest.mark.parametrize("error", [BusUnavailable, LookupError])
async def test_another_process_has_time_to_take_the_lease_after_a_failure(
    error: type[Exception],
) -> None:
    """Whatever the bus raises: that of the other one may work."""
    world = World()
    world.store.events, world.bus.error = [ONE], error()
    with pytest.raises(error):
        await world.turn()
    assert world.store.token is None
    leases = world.store.leases
    assert DoubtedRelay.yield_seconds > RelaySettings().poll_seconds
    world.clock.now += DoubtedRelay.yield_seconds - 0.1
    assert 0 == await world.relay.run_once()
    assert leases == world.store.leases
    world.clock.now += 0.1
    world.bus.error = None
    assert 1 == await world.relay.run_once()


async def test_the_lease_is_renewed_while_the_bus_finds_out_what_is_to_blame() -> None:
    """That may take longer than a lease."""
    world = World(lease_seconds=0.0)
    world.bus.goes_on.clear()
    world.store.events = [ONE]
    task = asyncio.create_task(world.turn())
    await until(lambda: world.store.leases > 3)
    world.bus.goes_on.set()
    assert 1 == await task
    assert place(2) == world.store.place


async def test_a_place_that_another_relay_has_moved_on_meanwhile_stays() -> None:
    """It had the lease between two renewals, and has given it back."""
    world = World(lease_seconds=0.0)
    world.bus.goes_on.clear()
    world.store.events = [ONE]
    task = asyncio.create_task(world.turn())
    await until(lambda: world.bus.parts)
    lease = world.store.lease

    async def lease_again(token: UUID, seconds: float) -> Place | None:
        world.store.place = place(9)
        world.bus.goes_on.set()
        return await lease(token, seconds)

    world.store.lease = lease_again  # type: ignore[method-assign]
    await task
    assert place(9) == world.store.place


async def test_the_bus_reads_on_behind_the_part_page_by_page() -> None:
    """From the next event of the page on to the end of the log."""
    world = World(batch_max=2)
    world.relay._publish_bytes = bytes_of(ONE.event)
    world.store.events = [logged(n) for n in range(1, 6)]
    world.bus.reads_on, world.bus.error = True, BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    assert ([[1]], [2, 3, 4, 5]) == (world.bus.parts, world.bus.behind)


async def test_the_bus_reads_over_rows_of_which_no_event_can_be_made() -> None:
    """They are no event that it could publish instead."""
    world = World(batch_max=2)
    world.store.events = [logged(1), replace(logged(2), is_readable=False), logged(3)]
    world.relay._publish_bytes = bytes_of(ONE.event)
    world.bus.reads_on, world.bus.error = True, BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    assert ([[1]], [3]) == (world.bus.parts, world.bus.behind)


async def test_the_bus_reads_on_for_so_many_pages() -> None:
    """A log of any length: a turn has an end."""
    world = World(batch_max=1)
    world.store.events = [logged(n) for n in range(1, BEHIND_PAGES_MAX + 9)]
    world.bus.reads_on, world.bus.error = True, BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    assert BEHIND_PAGES_MAX == len(world.bus.behind) + 1


async def test_a_bus_that_was_slow_gets_fewer_events() -> None:
    """Half of those that took it too long, whatever a part may have."""
    world = World()
    world.store.events = [logged(n) for n in range(1, 9)]
    world.bus.was_slow = True
    await world.turn()
    assert 4 * bytes_of(ONE.event) == world.relay._publish_bytes
