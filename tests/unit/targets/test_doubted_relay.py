"""The relay over a bus that may fail for one event: its lease meanwhile, and what it publishes again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from stretto.events.log import LoggedEvent
from stretto.store_errors import Unreachable
from stretto.targets.bus import BusUnavailable, nothing_behind
from stretto.targets.delivery import Delivery, PutOff
from stretto.targets.doubted_relay import (
    AGAIN_MAX,
    AGAIN_TASKS_MAX,
    BEHIND_PAGES_MAX,
    HAND_OVER,
    SLOW_TASKS_MAX,
    DoubtedRelay,
)
from stretto.targets.lag import LOOK_SECONDS
from stretto.targets.relay import bytes_of
from stretto.targets.settings import RelaySettings
from support.bus_again import now
from support.log_events import HISTORY, place
from support.owned_events import event_of
from support.scripted_store import ScriptedStore
from support.virtual_time import in_virtual_time
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent, LogPage
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
        self.was_slow = self.has_blamed = False
        self.slow_owners: set[str] = set()
        self.turn: list[str] = []
        self.busy_owners: set[str] = set()
        self.goes_on, self.again_goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()
        self.again_goes_on.set()
        self.error: Exception | None = None
        self.reads_on = False
        self.hangs_for = 0
        self.parts: list[list[int]] = []
        self.behind: list[int] = []
        self.again: list[list[int]] = []
        self.ended = 0
        self.is_closed = False

    def slow_turn(self) -> Sequence[str]:
        return self.turn

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
            if deliveries[0].event.event_id.int == self.hangs_for:
                await asyncio.Event().wait()
            await self.again_goes_on.wait()
        finally:
            self.ended += 1
        return []

    def parts_again(self, deliveries: Sequence[Delivery]) -> Sequence[Sequence[Delivery]]:
        return [[each] for each in deliveries]

    async def close(self) -> None:
        self.is_closed = True


class Store(ScriptedStore):
    """Gives out due deliveries, so many of the owners that are asked for; notes what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, float, set[str] | None, set[str]]] = []
        self.take_errors: list[Exception] = []

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: object = None,
        only: Collection[str] | None = None,  # type: ignore[override]
        without: Collection[str] = (),  # type: ignore[override]
    ) -> Sequence[Delivery]:
        owners = None if only is None else {*only}
        self.taken.append((deliveries_max, lease_seconds, owners, {*without}))
        if self.take_errors:
            raise self.take_errors.pop(0)
        fitting = [
            each
            for each in self.due
            if each.owner_id not in without and (only is None or each.owner_id in only)
        ][:deliveries_max]
        self.due = [each for each in self.due if each not in fitting]
        return fitting


class World:
    """A relay, its store and its bus."""

    def __init__(self, lease_seconds: float = 5.0, batch_max: int = 256) -> None:
        self.store, self.bus = Store(), Bus()
        self.observed: list[Observation] = []
        settings = RelaySettings(relay_lease_seconds=lease_seconds, batch_max=batch_max)
        self.relay = DoubtedRelay(self.store, self.bus, self.observed.append, settings, now)

    async def turn(self) -> int:
        """Take a turn in which the relay looks for refused events."""
        await asyncio.sleep(LOOK_SECONDS)
        return await self.relay.run_once()


def due(number: int, owner: str = "alice") -> Delivery:
    """Return a delivery that may be taken."""
    return Delivery(logged(number, owner).event, 1, owner)


@in_virtual_time
async def test_refused_events_that_hang_hold_up_no_new_ones() -> None:
    """They are published beside the log, also those that come later."""
    world = World()
    world.bus.again_goes_on.clear()
    world.store.due, world.store.events = [due(1)], [TWO]
    await world.turn()
    assert ([[2]], place(3)) == (world.bus.parts, world.store.place)
    await until(lambda: world.bus.again)
    world.store.due = [due(3)]
    await world.turn()
    await until(lambda: len(world.bus.again) == 2)
    assert [[1], [3]] == world.bus.again
    world.bus.again_goes_on.set()
    await until(lambda: len(world.store.sent) == 2)
    await world.relay.close()


@in_virtual_time
async def test_refused_events_are_taken_in_small_groups_until_none_is_due() -> None:
    """One that hangs holds up the others of its group."""
    world = World()
    world.store.due = [due(1)]
    await world.turn()
    await until(lambda: len(world.store.taken) == 2)
    # A group that hangs is settled before another process takes it.
    assert [(AGAIN_MAX, 10.0, None, set())] * 2 == world.store.taken


@in_virtual_time
async def test_each_part_is_settled_by_itself() -> None:
    """One that hangs does not keep the others from being settled."""
    world = World()
    world.bus.hangs_for = 1
    world.store.due = [due(1), due(2, "bob")]
    await world.turn()
    await until(lambda: world.store.sent)
    assert [TWO.event.event_id] == world.store.sent
    await world.relay.close()


@in_virtual_time
async def test_parts_that_end_together_are_settled_by_one_statement() -> None:
    """And what ends while it is under way by the next one: the log's turn needs connections as well."""
    world = World()
    settled, goes_on = hold_settlements(world)
    world.bus.again_goes_on.clear()
    world.store.due = [due(n, f"owner {n}") for n in range(1, 4)]
    await world.turn()
    await until(lambda: len(world.bus.again) == 3)
    world.bus.again_goes_on.set()
    await until(lambda: settled)
    for numbers in ((4, 5, 6), (7, 8)):
        world.store.due = [due(n, f"owner {n}") for n in numbers]
        await world.turn()
        await until(lambda: not world.store.due)
    await until(lambda: len(world.bus.again) == 8)
    assert [[1, 2, 3]] == settled
    goes_on.set()
    await until(lambda: len(world.store.sent) == 8)
    assert [[1, 2, 3], [4, 5, 6, 7, 8]] == settled
    await world.relay.close()


def hold_settlements(world: World) -> tuple[list[list[int]], asyncio.Event]:
    """Return what each statement settles, and the event for which these wait."""
    settle, settled, goes_on = world.store.settle, list[list[int]](), asyncio.Event()

    async def hold(sent: Collection[UUID], put_off: Collection[PutOff]) -> list[UUID]:
        settled.append([each.int for each in sent])
        await goes_on.wait()
        return await settle(sent, put_off)

    world.store.settle = hold  # type: ignore[method-assign]
    return settled, goes_on


@in_virtual_time
async def test_one_statement_at_a_time_takes_what_is_due() -> None:
    """The next one leaves out the owners of whom one is under way by then."""
    world = World()
    take, goes_on = world.store.take, asyncio.Event()

    async def hold(*args: Any) -> Sequence[Delivery]:
        deliveries = await take(*args)
        await goes_on.wait()
        return deliveries

    world.store.take = hold  # type: ignore[assignment]
    world.store.due = [due(1, "alice")]
    await world.turn()
    await until(lambda: world.store.taken)
    world.store.due = [due(2, "bob")]
    await world.turn()
    await asyncio.sleep(0.1)
    assert 1 == len(world.store.taken)
    world.bus.busy_owners = {"carol"}
    goes_on.set()
    await until(lambda: len(world.store.taken) > 1)
    assert {"carol"} == world.store.taken[1][3]
    await world.relay.close()


@in_virtual_time
async def test_behind_a_full_group_another_one_begins_at_once() -> None:
    """So many at most: each may hang."""
    world = World()
    world.bus.again_goes_on.clear()
    world.store.due = [due(n) for n in range(1, AGAIN_MAX * (AGAIN_TASKS_MAX + 2))]
    await world.turn()
    await until(lambda: len(world.bus.again) == AGAIN_MAX * AGAIN_TASKS_MAX)
    await world.turn()
    await world.turn()
    assert AGAIN_MAX * AGAIN_TASKS_MAX == len(world.bus.again)
    await world.relay.close()


@in_virtual_time
async def test_a_group_that_is_not_full_has_none_behind_it() -> None:
    """Nothing waits there."""
    world = World()
    world.bus.again_goes_on.clear()
    world.store.due = [due(n) for n in range(1, AGAIN_MAX)]
    await world.turn()
    await until(lambda: world.bus.again)
    await asyncio.sleep(0.1)
    assert 1 == len(world.store.taken)
    await world.relay.close()


@in_virtual_time
async def test_slow_owners_take_turns_of_their_own() -> None:
    """They hold up no others; and of those for whom a call is under way nothing is taken."""
    world = World()
    world.bus.slow_owners, world.bus.busy_owners = {"slow", "both"}, {"busy", "both"}
    world.bus.turn = ["slow"]
    owners = ("alice", "slow", "both", "busy")
    world.store.due = [due(n, owner) for n, owner in enumerate(owners, 1)]
    await world.turn()
    await until(lambda: len(world.store.taken) == 4)
    wanted = {(None, frozenset({"slow", "both", "busy"})), (frozenset({"slow"}), frozenset[str]())}
    found = {
        (only if only is None else frozenset(only), frozenset(without))
        for _, _, only, without in world.store.taken
    }
    assert wanted == found
    assert [[1], [2]] == sorted(world.bus.again)
    assert {"both", "busy"} == {each.owner_id for each in world.store.due}


@in_virtual_time
async def test_so_many_groups_of_slow_owners_are_under_way_at_once() -> None:
    """And as many of others as ever, beside them."""
    world = World()
    world.bus.again_goes_on.clear()
    world.bus.slow_owners, world.bus.turn = {"slow"}, ["slow"]
    slow = [due(n, "slow") for n in range(AGAIN_MAX * (SLOW_TASKS_MAX + 2))]
    world.store.due = [*slow, *(due(1000 + n) for n in range(AGAIN_MAX * AGAIN_TASKS_MAX))]
    await world.turn()
    calls = AGAIN_MAX * (SLOW_TASKS_MAX + AGAIN_TASKS_MAX)
    await until(lambda: len(world.bus.again) == calls)
    await world.turn()
    await asyncio.sleep(0.1)
    assert calls == len(world.bus.again)
    await world.relay.close()


@in_virtual_time
async def test_without_slow_owners_there_is_no_turn_for_them() -> None:
    """The store is asked once for what is due."""
    world = World()
    world.store.due = [due(1)]
    world.bus.again_goes_on.clear()
    await world.turn()
    await until(lambda: world.bus.again)
    assert 1 == len(world.store.taken)
    await world.relay.close()


@in_virtual_time
async def test_slow_owners_of_whom_none_has_a_turn_need_no_statement() -> None:
    """All may wait, as after one that has kept out others."""
    world = World()
    world.bus.slow_owners = {"slow"}
    world.store.due = [due(1, "slow"), due(2)]
    world.bus.again_goes_on.clear()
    await world.turn()
    await until(lambda: world.bus.again)
    assert [frozenset({"slow"})] == [frozenset(without) for *_, without in world.store.taken]
    await world.relay.close()


@in_virtual_time
async def test_what_ends_the_publishing_of_refused_events_is_the_failure_of_a_turn() -> None:
    """Also where another group ends well after it. The runner reports it; the next turn begins anew."""
    world = World()
    world.bus.again_goes_on.clear()
    world.store.due = [due(1)]
    await world.turn()
    await until(lambda: world.bus.again)
    world.store.due, world.store.take_errors = [due(2)], [Unreachable()]
    await world.turn()
    await until(lambda: not world.store.take_errors)
    world.bus.again_goes_on.set()
    await until(lambda: world.store.sent)
    await asyncio.sleep(0.1)
    world.store.due = [due(3)]
    with pytest.raises(Unreachable):
        await world.turn()
    await world.turn()
    await until(lambda: len(world.store.sent) == 2)


@pytest.mark.parametrize(("failing", "other"), [(ONE, TWO), (TWO, ONE)])
@in_virtual_time
async def test_a_part_that_cannot_be_settled_is_the_failure_of_a_turn(
    failing: LoggedEvent, other: LoggedEvent
) -> None:
    """The other parts, which come in the same statement first, are settled all the same."""
    world = World()
    settle = world.store.settle

    async def fail(sent: Collection[UUID], put_off: Collection[PutOff]) -> list[UUID]:
        if failing.event.event_id in sent:
            raise Unreachable
        return await settle(sent, put_off)

    world.store.settle = fail  # type: ignore[method-assign]
    world.store.due = [due(1), due(2, "bob")]
    await world.turn()
    await until(lambda: world.store.sent)
    await asyncio.sleep(0.1)
    assert [other.event.event_id] == world.store.sent
    world.store.due = [due(3)]
    with pytest.raises(Unreachable):
        await world.turn()


@in_virtual_time
async def test_refused_events_are_published_while_the_bus_finds_out_what_is_to_blame() -> None:
    """That may take long, and is no reason for them to wait."""
    world = World()
    world.bus.goes_on.clear()
    world.store.events = [ONE]
    task = asyncio.create_task(world.turn())
    await until(lambda: world.bus.parts)
    world.store.due = [due(2, "bob")]
    await until(lambda: world.store.sent)
    assert not task.done()
    world.bus.goes_on.set()
    await task


@in_virtual_time
async def test_a_call_of_the_log_ends_with_its_turn() -> None:
    """Nor does one of a refused event outlive the relay; the lease is given back."""
    world = World()
    world.bus.goes_on.clear()
    world.bus.again_goes_on.clear()
    world.store.due, world.store.events = [due(1)], [TWO]
    task = asyncio.create_task(world.turn())
    await until(lambda: world.bus.parts and world.bus.again)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (1, None, False) == (world.bus.ended, world.store.token, world.bus.is_closed)
    await world.relay.close()
    assert (2, True) == (world.bus.ended, world.bus.is_closed)


@in_virtual_time
async def test_without_the_lease_no_more_refused_events_are_taken() -> None:
    """The process that has it publishes them."""
    world = World()
    world.bus.again_goes_on.clear()
    world.store.due = [due(1)]
    await world.turn()
    await until(lambda: world.bus.again)
    world.store.events, world.bus.error = [TWO], BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    world.store.due = [due(3)]
    world.bus.again_goes_on.set()
    await until(lambda: world.store.sent)
    await asyncio.sleep(0.1)
    assert [3] == [each.event.event_id.int for each in world.store.due]
    await world.relay.close()


@in_virtual_time
async def test_while_the_bus_fails_for_owners_another_process_gets_the_lease_now_and_then() -> None:
    """Its bus may work: their events go through before they are dead letters. It gets it less often each time."""
    world = World()
    world.bus.has_blamed = True
    handed_over = await hand_overs(world, 4000)
    pauses = [b - a for a, b in pairwise([0.0, *handed_over])]
    wanted = [HAND_OVER.longest(n) for n in range(5)]
    assert [60.0, 120.0, 240.0, 480.0, 900.0] == wanted
    assert pauses[:5] == pytest.approx(wanted, abs=5.0)
    # And at once a minute again, if it fails anew.
    world.bus.has_blamed = False
    assert [] == await hand_overs(world, 2000)
    world.bus.has_blamed = True
    assert [60.0, 180.0] == pytest.approx(await hand_overs(world, 200), abs=5.0)


async def hand_overs(world: World, seconds: float) -> list[float]:
    """Return after how many seconds the relay gave the lease back, turn by turn."""
    began_at, found = now(), list[float]()
    while now() - began_at < seconds:
        had_it = world.relay._place is not None
        await world.turn()
        if had_it and world.store.token is None:
            found.append(now() - began_at)
            # Another process has time to take it.
            await asyncio.sleep(DoubtedRelay.yield_seconds - LOOK_SECONDS - 0.1)
            await world.turn()
            assert world.store.token is None
    return found


@pytest.mark.parametrize("error", [BusUnavailable, LookupError])
@in_virtual_time
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
    await asyncio.sleep(DoubtedRelay.yield_seconds - 0.1)
    assert 0 == await world.relay.run_once()
    assert leases == world.store.leases
    await asyncio.sleep(0.1)
    world.bus.error = None
    assert 1 == await world.relay.run_once()


@in_virtual_time
async def test_the_lease_is_renewed_while_the_bus_finds_out_what_is_to_blame() -> None:
    """That may take longer than a lease."""
    world = World(lease_seconds=0.03)
    world.bus.goes_on.clear()
    world.store.events = [ONE]
    task = asyncio.create_task(world.turn())
    await until(lambda: world.store.leases > 3)
    world.bus.goes_on.set()
    assert 1 == await task
    assert place(2) == world.store.place


@in_virtual_time
async def test_a_place_that_another_relay_has_moved_on_meanwhile_stays() -> None:
    """It had the lease between two renewals, and has given it back."""
    world = World(lease_seconds=0.03)
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


@in_virtual_time
async def test_the_bus_reads_on_behind_the_part_page_by_page() -> None:
    """From the next event of the page on to the end of the log."""
    world = World(batch_max=2)
    world.relay._publish_bytes = bytes_of(ONE.event)
    world.store.events = [logged(n) for n in range(1, 6)]
    world.bus.reads_on, world.bus.error = True, BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    assert ([[1]], [2, 3, 4, 5]) == (world.bus.parts, world.bus.behind)


@in_virtual_time
async def test_the_bus_reads_on_to_the_end_that_the_log_has_then() -> None:
    """What comes while it reads would have no end, where new events are as fast as pages."""
    world = World()
    page = world.store.page

    async def grow(begin: Place, events_max: int) -> LogPage:
        found = await page(begin, events_max)
        world.store.events.append(logged(world.store.events[-1].position + 1))
        return found

    world.store.page = grow  # type: ignore[assignment]
    world.store.events = [ONE]
    world.bus.reads_on, world.bus.error = True, BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    assert [2] == world.bus.behind


@in_virtual_time
async def test_the_bus_reads_over_rows_of_which_no_event_can_be_made() -> None:
    """They are no event that it could publish instead."""
    world = World(batch_max=2)
    world.store.events = [logged(1), replace(logged(2), is_readable=False), logged(3)]
    world.relay._publish_bytes = bytes_of(ONE.event)
    world.bus.reads_on, world.bus.error = True, BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    assert ([[1]], [3]) == (world.bus.parts, world.bus.behind)


@in_virtual_time
async def test_the_bus_reads_on_for_so_many_pages() -> None:
    """A log of any length: a turn has an end."""
    world = World(batch_max=1)
    world.store.events = [logged(n) for n in range(1, BEHIND_PAGES_MAX + 9)]
    world.bus.reads_on, world.bus.error = True, BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.turn()
    assert BEHIND_PAGES_MAX == len(world.bus.behind) + 1


@in_virtual_time
async def test_a_bus_that_was_slow_gets_fewer_events() -> None:
    """Half of those that took it too long, whatever a part may have."""
    world = World()
    world.store.events = [logged(n) for n in range(1, 9)]
    world.bus.was_slow = True
    await world.turn()
    assert 4 * bytes_of(ONE.event) == world.relay._publish_bytes
