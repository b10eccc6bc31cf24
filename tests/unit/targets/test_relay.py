"""The relay, with a store and a bus of the test's own: its lease, its place, refused events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from stretto.observations import (
    ActorCrashed,
    ActorRestarted,
    EventDeadLettered,
    EventsRelayed,
    PlaceLost,
    TargetFailed,
    TargetRecovered,
    UpkeepFailed,
)
from stretto.runtime.runner import Run, wait_until
from stretto.store_errors import Unreachable
from stretto.targets.bus import BusUnavailable
from stretto.targets.delivery import Delivery
from stretto.targets.lag import LOOK_SECONDS
from stretto.targets.refused import PAUSE, TRIES_MAX
from stretto.targets.relay import RENEWALS, OutboxRelay
from stretto.targets.settings import RelaySettings
from support.clock import Clock
from support.log_events import logged, place
from support.scripted_store import ScriptedStore
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent, LoggedEvent
    from stretto.events.place import Place
    from stretto.observations import Observation

ONE, TWO = logged(1), logged(2)
# Never in a test's time: what happens is due to a wake-up.
NO_POLL = RelaySettings(poll_seconds=3600)
DEADLINE_SECONDS = 30


class Bus:
    """Records what is published, and answers as the test says."""

    def __init__(self, reasons: Any = None) -> None:
        self.reasons = {} if reasons is None else reasons
        self.error: Exception | None = None
        self.published: list[int] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Any:
        if self.error is not None:
            raise self.error
        self.published += [event.event_id.int for event in events]
        return self.reasons


class World:
    """A relay, its store and its bus."""

    def __init__(self, *errors: Exception, settings: RelaySettings = NO_POLL) -> None:
        self.store, self.bus, self.clock = ScriptedStore(*errors), Bus(), Clock()
        self.observed: list[Observation] = []
        self.settings = settings
        self.relay = self.another()

    def another(self) -> OutboxRelay:
        """Return a relay of another process."""
        return OutboxRelay(self.store, self.bus, self.observed.append, self.settings, self.clock)


async def test_events_are_published_in_order_and_the_place_moves_behind_them() -> None:
    """A batch at a time; a full one leaves work."""
    world = World(settings=RelaySettings(batch_max=2))
    world.store.events = [logged(n) for n in range(1, 4)]
    assert [2, 1, 0] == [await world.relay.run_once() for _ in range(3)]
    assert [1, 2, 3] == world.bus.published
    assert place(4) == world.store.place
    assert [2, 1] == [each.published for each in world.observed if isinstance(each, EventsRelayed)]


async def test_one_relay_publishes_and_another_takes_over() -> None:
    """At once if the first one stops; else when its lease is over."""
    world = World()
    other = world.another()
    world.store.events = [ONE]
    assert [1, 0] == [await world.relay.run_once(), await other.run_once()]
    world.store.events = [ONE, TWO]
    world.clock.now += world.settings.poll_seconds
    assert 0 == await other.run_once()
    await world.relay.close()
    world.clock.now += world.settings.poll_seconds
    assert 1 == await other.run_once()
    assert [1, 2] == world.bus.published


@pytest.mark.parametrize("is_fenced", [True, False])
async def test_a_relay_that_was_stopped_for_longer_than_its_lease_moves_nothing(
    is_fenced: bool,
) -> None:
    """Its events are published twice; without the fence, the place would go back."""
    world = World()
    world.store.events = [ONE]
    publish = world.bus.publish

    async def stopped(events: Sequence[CommittedEvent]) -> Any:
        # While it publishes, its lease ends, and another one publishes this event and the next.
        world.bus.publish = publish  # type: ignore[method-assign]
        world.store.token = None
        world.store.events = [ONE, TWO]
        assert 2 == await other.run_once()
        if not is_fenced:
            world.store.token = world.relay._token
        return await publish(events)

    other = world.another()
    await world.relay._lease()
    world.bus.publish = stopped  # type: ignore[method-assign]
    await world.relay.run_once()
    assert [1, 2, 1] == world.bus.published
    assert is_fenced == (place(3) == world.store.place)
    assert is_fenced == (world.relay._place is None)
    world.clock.now += 1000
    world.store.token = other._token
    assert 0 == await world.relay.run_once()
    assert world.relay._place is None


async def test_the_lease_is_renewed_before_it_ends() -> None:
    """And not at every turn."""
    world = World()
    seconds = world.settings.relay_lease_seconds
    for _ in range(3):
        await world.relay.run_once()
    assert 1 == world.store.leases
    world.clock.now += seconds / RENEWALS
    await world.relay.run_once()
    assert 2 == world.store.leases


@pytest.mark.parametrize("error", [BusUnavailable(), TimeoutError()])
async def test_a_relay_that_cannot_publish_gives_the_lease_back(error: Exception) -> None:
    """Another process may reach the bus; nothing counts against the events."""
    world = World()
    world.store.events = [ONE]
    world.bus.error = error
    with pytest.raises(BusUnavailable):
        await world.relay.run_once()
    assert (None, place(1), []) == (world.store.token, world.store.place, world.store.refused)
    world.bus.error = None
    assert 1 == await world.another().run_once()


async def test_a_place_that_was_swept_goes_on_where_the_log_begins() -> None:
    """No relay had run for as long as events are kept; the operator learns of it."""
    world = World()
    world.store.start = 5
    world.store.events = [logged(7)]
    assert NO_POLL.batch_max == await world.relay.run_once()
    assert 1 == await world.relay.run_once()
    assert PlaceLost("relay") == world.observed[0]
    assert [7] == world.bus.published


async def test_an_event_that_is_refused_holds_up_no_other_one() -> None:
    """It becomes a delivery, which is tried again for itself."""
    world = World()
    world.store.events = [ONE, TWO]
    world.bus.reasons = {ONE.event.event_id: "too large"}
    assert 2 == await world.relay.run_once()
    assert [(ONE.event.event_id, "too large")] == world.store.refused
    assert place(3) == world.store.place
    world.bus.reasons = {}
    world.store.due = [Delivery(ONE.event, 1)]
    world.clock.now += LOOK_SECONDS
    await world.relay.run_once()
    assert [ONE.event.event_id] == world.store.sent
    assert [1, 2, 1] == world.bus.published


class SlowBus(Bus):
    """Carries so many events within a lease, and no more."""

    def __init__(self, events_max: int) -> None:
        super().__init__()
        self.events_max = events_max
        self.parts: list[int] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Any:
        self.parts.append(len(events))
        if len(events) > self.events_max:
            raise TimeoutError
        return await super().publish(events)


def slow_world(events_max: int, events: int = 8) -> tuple[World, SlowBus]:
    """Return a world whose relay begins with parts of four events, and a slow bus."""
    world = World(settings=RelaySettings(poll_seconds=3600, publish_bytes_max=4 * size_of(ONE)))
    world.store.events = [logged(n) for n in range(1, events + 1)]
    world.bus = world.relay._bus = bus = SlowBus(events_max)
    return world, bus


def size_of(each: LoggedEvent) -> int:
    """Return how many bytes an event counts."""
    return len(each.event.envelope) + sum(map(len, each.event.recipients))


async def test_a_page_is_published_in_parts_and_the_place_moves_behind_each() -> None:
    """Also where a part has room for none of them: each event is published."""
    world, bus = slow_world(9)
    assert 8 == await world.relay.run_once()
    assert [4, 4] == bus.parts
    assert [4, 4] == [each.published for each in world.observed if isinstance(each, EventsRelayed)]
    world = World(settings=RelaySettings(poll_seconds=3600, publish_bytes_max=1))
    world.store.events = [ONE, TWO]
    assert 2 == await world.relay.run_once()
    assert [1, 2] == world.bus.published


async def test_a_slow_bus_gets_smaller_parts_until_one_goes_through() -> None:
    """Whatever a lease is enough for goes through: no backlog is too large."""
    world, bus = slow_world(1)
    for _ in range(2):
        with pytest.raises(BusUnavailable):
            await world.relay.run_once()
    bus.error = None
    with pytest.raises(BusUnavailable):
        await world.relay.run_once()
    assert ([4, 2, 1, 2], [1], place(2)) == (bus.parts, bus.published, world.store.place)


async def test_what_the_bus_has_taken_is_not_published_again_when_the_next_part_fails() -> None:
    """Not by another process either: the place has moved."""
    world, bus = slow_world(4, events=7)
    world.store.events[4:] = [logged(5, "alice", "bob" * 99), logged(6), logged(7)]
    bus.events_max = 4
    publish = bus.publish

    async def failing(events: Sequence[CommittedEvent]) -> Any:
        if 5 in [event.event_id.int for event in events]:
            raise TimeoutError
        return await publish(events)

    bus.publish = failing  # type: ignore[method-assign]
    with pytest.raises(BusUnavailable):
        await world.relay.run_once()
    assert ([1, 2, 3, 4], place(5), None) == (bus.published, world.store.place, world.store.token)
    bus.publish = publish  # type: ignore[method-assign]
    other = world.another()
    assert 3 == await other.run_once()
    assert [*range(1, 8)] == bus.published


async def test_parts_grow_again_behind_a_failure() -> None:
    """A bus that was away for a moment is not slow for ever."""
    world, bus = slow_world(0, events=12)
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            await world.relay.run_once()
    bus.events_max = 9
    assert 12 == await world.relay.run_once()
    assert ([4, 2, 1], [1, 1, 1, 3, 4, 2]) == (bus.parts[:3], bus.parts[3:])


async def test_the_lease_is_renewed_between_the_parts_of_a_page() -> None:
    """A page may take longer than a lease."""
    world, bus = slow_world(9)
    publish = bus.publish

    async def slowly(events: Sequence[CommittedEvent]) -> Any:
        world.clock.now += world.settings.relay_lease_seconds / RENEWALS
        return await publish(events)

    bus.publish = slowly  # type: ignore[method-assign]
    await world.relay.run_once()
    assert 2 == world.store.leases
    assert place(9) == world.store.place


async def test_a_page_ends_where_another_relay_has_moved_on_meanwhile() -> None:
    """It had the lease between two parts, and has given it back: the place must not go back."""
    world, bus = slow_world(9)
    publish = bus.publish

    async def slowly(events: Sequence[CommittedEvent]) -> Any:
        world.clock.now += world.settings.relay_lease_seconds
        return await publish(events)

    lease = world.store.lease

    async def lease_again(token: UUID, seconds: float) -> Place | None:
        if world.store.leases:
            world.store.place = place(9)
        return await lease(token, seconds)

    bus.publish = slowly  # type: ignore[method-assign]
    world.store.lease = lease_again  # type: ignore[method-assign]
    await world.relay.run_once()
    assert ([4], place(9)) == (bus.parts, world.store.place)


async def test_refused_events_come_in_parts_too() -> None:
    """What was published of them is settled before the next part."""
    world, bus = slow_world(9, events=0)
    world.store.due = [Delivery(logged(n).event, 1) for n in range(1, 7)]
    world.clock.now += LOOK_SECONDS
    await world.relay.run_once()
    assert ([4, 2], 6) == (bus.parts, len(world.store.sent))


async def test_the_first_refusal_is_reported_with_its_cause_and_so_is_the_recovery() -> None:
    """Not only the dead letter, twelve tries later."""
    world = World()
    world.bus.reasons = {ONE.event.event_id: "too large"}
    world.store.events = [ONE]
    await world.relay.run_once()
    world.bus.reasons = {}
    world.store.events = [ONE, TWO]
    await world.relay.run_once()
    targets = (TargetFailed, TargetRecovered)
    assert [TargetFailed("relay", "too large"), TargetRecovered("relay")] == [
        each for each in world.observed if isinstance(each, targets)
    ]


async def test_a_bus_that_comes_back_is_reported() -> None:
    """That it was away, is the failure of a turn, which the runner reports."""
    world = World()
    world.store.events = [ONE]
    world.bus.error = BusUnavailable()
    with pytest.raises(BusUnavailable):
        await world.relay.run_once()
    world.bus.error = None
    await world.relay.run_once()
    assert TargetRecovered("relay") in world.observed
    assert not [each for each in world.observed if isinstance(each, TargetFailed)]


async def test_a_bug_of_a_bus_ends_the_small_parts_of_a_slow_link() -> None:
    """Alone in its part, an event does not show whether it is to blame."""
    world = World()
    world.store.events = [ONE, TWO]
    world.bus.error = BusUnavailable()
    for _ in range(40):
        with pytest.raises(BusUnavailable):
            await world.relay.run_once()
    assert 1 == world.relay._publish_bytes
    world.bus.error = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await world.relay.run_once()
    assert NO_POLL.publish_bytes_max == world.relay._publish_bytes


async def test_a_bug_that_refused_events_meet_again_refuses_them_once_more() -> None:
    """It would end every turn; what comes behind them in the log would never be published."""
    world = World()
    world.bus.error = ValueError("a bug")
    world.store.due = [Delivery(ONE.event, TRIES_MAX - 1)]
    await world.relay.run_once()
    (put_off,) = world.store.put_off
    assert (True, "publish raised ValueError") == (put_off.is_try, put_off.dead_reason)
    assert ActorCrashed("relay", world.bus.error) in world.observed


async def test_an_event_that_is_refused_too_often_is_a_dead_letter() -> None:
    """Before that, its pauses grow."""
    world = World()
    world.bus.reasons = {ONE.event.event_id: "too large"}
    for tries in (1, TRIES_MAX - 1):
        world.clock.now += LOOK_SECONDS
        world.store.due = [Delivery(ONE.event, tries)]
        await world.relay.run_once()
    second, last = world.store.put_off
    assert PAUSE.seconds_first <= second.seconds < last.seconds <= PAUSE.seconds_max
    assert (None, "too large") == (second.dead_reason, last.dead_reason)
    assert second.is_try
    assert [] == world.store.sent
    assert EventDeadLettered(ONE.event.event_id, "too large") in world.observed


async def test_a_wake_up_wakes_the_relay_and_stop_ends_it() -> None:
    """Without waiting for the next poll."""
    world = World()
    task = asyncio.create_task(Run(world.relay, lambda _: None).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await world.store.looked.wait()
        world.store.events.append(ONE)
        assert [] == world.bus.published
        world.relay.wake()
        await until(lambda: world.bus.published)
        world.relay.stop()
        await task
    assert (place(2), None) == (world.store.place, world.store.token)


async def test_events_that_follow_a_wake_up_closely_are_published_with_it() -> None:
    """Groups created one after the other cost two statements for many events."""
    world, gathered = World(), asyncio.Event()
    pauses: list[float] = []

    async def wait(event: asyncio.Event, seconds: float) -> bool:
        if seconds == NO_POLL.poll_seconds:
            return await wait_until(event, seconds)
        pauses.append(seconds)
        world.store.looked.set()
        return await gathered.wait()

    task = asyncio.create_task(Run(world.relay, lambda _: None, wait).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await world.store.looked.wait()
        world.store.looked.clear()
        world.store.events.append(ONE)
        world.relay.wake()
        await world.store.looked.wait()
        world.store.events.append(TWO)
        world.relay.wake()
        gathered.set()
        await until(lambda: len(world.bus.published) == 2)
        world.relay.stop()
        await task
    assert NO_POLL.gather_seconds == pauses[0]
    assert [2] == [each.published for each in world.observed if isinstance(each, EventsRelayed)]


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ([UpkeepFailed], Unreachable()),
        ([UpkeepFailed], BusUnavailable()),
        ([ActorCrashed, ActorRestarted], ZeroDivisionError()),
    ],
)
async def test_no_error_ends_the_relay(expected: list[type[Observation]], error: Exception) -> None:
    """It is reported, and the next turn comes."""
    world = World(error)
    observed: list[Observation] = []
    task = asyncio.create_task(Run(world.relay, observed.append).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await world.store.looked.wait()
        world.relay.stop()
        await task
    assert expected == [type(event) for event in observed]


@pytest.mark.parametrize("moment", ["page", "publish", "advance"])
async def test_a_wake_up_during_a_turn_leads_to_another_turn(moment: str) -> None:
    """At any moment of it: what it is about may be newer than what the turn has read."""
    world = World()
    owner: object = world.bus if moment == "publish" else world.store
    waking = getattr(owner, moment)

    async def wake(*arguments: Any) -> Any:
        result = await waking(*arguments)
        if TWO not in world.store.events:
            world.store.events.append(TWO)
            world.relay.wake()
        return result

    world.store.events.append(ONE)
    with patch.object(owner, moment, wake):
        task = asyncio.create_task(Run(world.relay, lambda _: None).turns())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await until(lambda: 2 in world.bus.published)
            world.relay.stop()
            await task
    assert [1, 2] == world.bus.published
