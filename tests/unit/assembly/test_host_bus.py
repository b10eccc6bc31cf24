"""A host's bus that fails for some events: what is to blame is refused, the others go through."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stretto.assembly import host_bus_calls
from stretto.assembly.host_bus import NO_TURN, PROBES_MAX, HostsBus
from stretto.assembly.host_bus_again import AGAIN_OWNERS_MAX, BEHIND_PAUSE
from stretto.assembly.host_bus_calls import CutShort, HostsBusCalls, NoAnswer
from stretto.assembly.host_bus_patience import PATIENCE_SHARE, Patience
from stretto.assembly.host_bus_trial import FEW_OWNERS_MAX, Trial
from stretto.observations import ActorCrashed
from stretto.targets.bus import BusUnavailable
from stretto.targets.delivery import Delivery
from stretto.targets.refused import PAUSE, TRIES_MAX
from support.clock import Clock
from support.owned_events import event_of
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observation

# A bus that answers does so at once: this is how long one is waited for that hangs.
LEASE_SECONDS = 2.0
ONE, TWO, THREE = (event_of(owner, n) for n, owner in enumerate(("alice", "bob", "carol"), 1))


class FailsFor:
    """Raises, or hangs, if one of these events is there; refuses the third where it is alone."""

    def __init__(self, error: type[BaseException] | None, *events: CommittedEvent) -> None:
        self.error = error
        self.events: Collection[CommittedEvent] = events
        self.calls: list[list[int]] = []
        self.published: list[CommittedEvent] = []
        self.under_way = 0

    async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        self.calls.append([event.event_id.int for event in events])
        if any(event in self.events for event in events):
            if self.error is not None:
                raise self.error
            self.under_way += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.under_way -= 1
        self.published += events
        return {events[0].event_id: "no"} if [*events] == [THREE] else {}


class DoesFew(FailsFor):
    """Does so many things at once, in the order in which they come."""

    def __init__(self, places: int, *events: CommittedEvent) -> None:
        super().__init__(None, *events)
        self.places = asyncio.Semaphore(places)

    async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        async with self.places:
            return await super().publish(events)


def hosts(
    bus: Any,
    observe: Callable[[Observation], None] = lambda _: None,
    clock: Clock | None = None,
) -> HostsBus:
    """Return what is tested, with a short lease."""
    if clock is None:
        return HostsBus(bus, observe, LEASE_SECONDS)
    return HostsBus(bus, observe, LEASE_SECONDS, clock)


class Behind:
    """What lies behind in the log; counts how often it was read."""

    def __init__(self, *events: CommittedEvent) -> None:
        self.events = list(events)
        self.reads = 0

    async def __call__(self) -> AsyncIterator[CommittedEvent]:
        self.reads += 1
        for event in self.events:
            yield event


class Odd(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize(
    "error",
    [ValueError, TimeoutError, SystemExit, asyncio.CancelledError, Odd, BusUnavailable, None],
)
async def test_an_event_for_which_a_bus_fails_holds_up_no_other(
    error: type[BaseException] | None,
) -> None:
    """It is refused, as one that the bus refuses itself; a bug is reported."""
    bus, observed = FailsFor(error, ONE), list["Observation"]()
    reasons = dict(await hosts(bus, observed.append).publish([ONE, TWO, THREE]))
    assert "no" == reasons.pop(THREE.event_id)
    assert [ONE.event_id] == [*reasons]
    assert reasons[ONE.event_id].startswith("publish raised" if error else "publish took longer")
    assert {2, 3} == {event.event_id.int for event in bus.published}
    assert [ActorCrashed] * (error is not None) == [type(each) for each in observed]
    assert 0 == bus.under_way


async def test_a_bus_that_fails_for_every_event_refuses_none() -> None:
    """Else all would become dead letters before the bug is mended."""
    bus, observed = FailsFor(LookupError, ONE, TWO), list["Observation"]()
    with pytest.raises(LookupError):
        await hosts(bus, observed.append).publish([ONE, TWO])
    assert not observed


async def test_a_bus_that_hangs_for_every_event_refuses_none() -> None:
    """The twin; it has been asked for an event of each owner, and no call goes on."""
    bus = FailsFor(None, ONE, TWO, THREE)
    with pytest.raises(BusUnavailable, match="no answer in time"):
        await hosts(bus).publish([ONE, TWO], Behind(THREE))
    # Side by side, then for another owner's further back, and then each by itself.
    assert [[1, 2], [1], [2], [3], [2], [1]] == bus.calls
    assert 0 == bus.under_way


@pytest.mark.parametrize("error", [ValueError, BusUnavailable, None])
async def test_events_of_one_owner_alone_are_to_blame_if_others_further_back_go_through(
    error: type[Exception] | None,
) -> None:
    """However many there are in a row: a page of them would hold up all that follows."""
    evil = [event_of("evil", n) for n in range(1, 257)]
    bus = FailsFor(error, *evil)
    behind = Behind(event_of("evil", 257), event_of("bob", 258), event_of("bob", 259))
    reasons = await hosts(bus).publish(evil, behind)
    assert {event.event_id for event in evil} == {*reasons}
    assert [258] == [event.event_id.int for event in bus.published]
    assert 1 == behind.reads


@pytest.mark.parametrize("places", [1, 3])
async def test_an_owner_for_whom_the_bus_hangs_keeps_no_other_from_a_bus_that_does_few_things_at_once(
    places: int,
) -> None:
    """As a pool of connections, each of which a call of that owner's may keep."""
    evil = [event_of(f"evil {n % 4}", n) for n in range(1, 17)]
    bus = DoesFew(places, *evil)
    doubted = HostsBus(bus, lambda _: None, LEASE_SECONDS / 2)
    others = [event_of(f"good {n}", n) for n in range(17, 33)]
    refused: set[UUID] = set()
    for _ in range(4):
        # What it has found out is kept for the next time, where it has found no other owner yet.
        try:
            refused = {*await doubted.publish([*evil, *others])}
        except BusUnavailable:
            continue
        break
    assert {event.event_id for event in evil} == refused
    assert {*others} == {*bus.published}
    assert 0 == bus.under_way


async def test_owners_for_whom_the_bus_has_hung_come_behind_others() -> None:
    """Nothing had waited behind; what comes later shows that the bus is there."""
    bus = FailsFor(None, ONE)
    doubted = hosts(bus)
    with pytest.raises(BusUnavailable):
        await doubted.publish([ONE])
    bus.calls.clear()
    dave = event_of("dave", 4)
    assert [ONE.event_id] == [*await doubted.publish([ONE, TWO, dave])]
    # None is published together: a call for one of all of them might keep the only place.
    assert [[2], [4], [1]] == bus.calls
    # It was the bus: it is tried once more, and no owner is to blame.
    bus = FailsFor(None, ONE)
    doubted = hosts(bus)
    with pytest.raises(BusUnavailable):
        await doubted.publish([ONE])
    bus.events = []
    assert {} == await doubted.publish([ONE, TWO])
    assert {} == await doubted.publish([ONE, TWO])


async def test_the_log_is_read_for_one_event_of_each_of_so_many_owners() -> None:
    """A bus that is away, and a long log: neither gets more than this."""
    others = [event_of(f"owner {n // 2}", n) for n in range(2, 100)]
    bus = FailsFor(LookupError, ONE, *others)
    with pytest.raises(LookupError):
        await hosts(bus).publish([ONE], Behind(*others))
    assert [[1], *([2 * n] for n in range(1, 1 + PROBES_MAX)), [1]] == bus.calls


async def test_a_bus_that_says_it_is_away_is_not_asked_for_each_event() -> None:
    """Only for one of each owner: it may say so for one owner, such as of its shard."""
    events = [event_of(f"owner {n // 3}", n) for n in range(99)]
    bus = FailsFor(BusUnavailable, *events)
    with pytest.raises(BusUnavailable):
        await hosts(bus).publish(events)
    # All together; then of each of so many owners all, and one alone.
    assert 1 + 2 * PROBES_MAX == len(bus.calls)


async def test_a_bus_that_is_away_for_one_owner_holds_up_no_other() -> None:
    """Whichever of the owner's events that is, and however many come before."""
    events = [event_of("alice", n) for n in range(1, 100)]
    bus = FailsFor(BusUnavailable, events[50])
    assert [51] == [each.int for each in await hosts(bus).publish(events)]
    assert len(bus.published) > len(events) - 2
    assert len(bus.calls) < len(events) + 10


async def test_a_failure_for_all_together_alone_is_none() -> None:
    """Such as a bus that cannot take many at once."""

    class TakesOne(FailsFor):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            if len(events) > 1:
                raise ValueError
            return await super().publish(events)

    bus, observed = TakesOne(ValueError), list["Observation"]()
    assert {} == await hosts(bus, observed.append).publish([ONE, TWO])
    assert [ONE, TWO] == bus.published
    assert not observed


async def test_a_bus_that_comes_back_meanwhile_has_refused_nothing() -> None:
    """What has failed is tried once more when the bus has answered; its groups stay in order."""
    first, second = (event_of("alice", n, "team") for n in (1, 2))
    other = event_of("bob", 3)

    class ComesBack(FailsFor):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            self.events = [first] if len(self.calls) < 4 else []
            return await super().publish(events)

    bus = ComesBack(ConnectionError)
    assert {} == await hosts(bus).publish([first, second, other])
    ours = [event for event in bus.published if event != other]
    assert [first, second] == ours


async def test_events_of_a_group_stay_behind_the_one_that_fails() -> None:
    """Published alone, too, they are in order; what follows the failure is not tried before it."""
    group = [event_of("alice", n, "team") for n in range(1, 5)]
    bus = FailsFor(ValueError, group[2])
    reasons = await hosts(bus).publish([*group, event_of("bob", 5)])
    assert [3, 4] == [each.int for each in reasons]
    assert [1, 2, 5] == sorted(event.event_id.int for event in bus.published)


async def test_new_events_of_an_owner_to_blame_follow_without_a_try() -> None:
    """Else each page with one of them would be published one by one, or wait for it."""
    bus = FailsFor(None, ONE, event_of("alice", 4))
    doubted = hosts(bus)
    await doubted.publish([ONE, TWO])
    bus.calls.clear()
    reasons = await doubted.publish([event_of("alice", 4), TWO, THREE])
    assert ([[2, 3]], [4]) == (bus.calls, [each.int for each in reasons])
    # Its events are no probes either.
    bus.calls.clear()
    bus.events = [TWO]
    with pytest.raises(BusUnavailable):
        await doubted.publish([TWO], Behind(event_of("alice", 5)))
    assert [[2], [2]] == bus.calls


async def test_an_owner_is_to_blame_until_the_event_goes_through() -> None:
    """Not until another one of its events does: then the next failure would hold up others again."""
    bus = FailsFor(ValueError, ONE)
    doubted = hosts(bus)
    await doubted.publish([ONE, TWO])
    other = event_of("alice", 4)
    assert [] == await doubted.publish_again([Delivery(other, 1, "alice")])
    assert [other.event_id] == [*await doubted.publish([other])]
    bus.events = []
    assert [] == await doubted.publish_again([Delivery(ONE, 1, "alice")])
    assert {} == await doubted.publish([other])


@pytest.mark.parametrize("error", [ValueError, TimeoutError, BusUnavailable, Odd, None])
async def test_a_refused_event_that_fails_again_is_put_off_alone(
    error: type[BaseException] | None,
) -> None:
    """It counts as a try, since others go through, and is a dead letter in the end."""
    bus = FailsFor(error, ONE)
    deliveries = [Delivery(each, TRIES_MAX - 1) for each in (ONE, TWO, THREE)]
    put_offs = await hosts(bus).publish_again(deliveries)
    assert [(ONE.event_id, True), (THREE.event_id, True)] == [
        (each.event_id, each.is_try)
        for each in sorted(put_offs, key=lambda each: each.event_id.int)
    ]
    assert all(each.dead_reason for each in put_offs)
    assert [TWO, THREE] == bus.published
    assert 0 == bus.under_way


async def test_a_refused_event_that_fails_counts_only_where_the_bus_takes_others() -> None:
    """While it is away, nothing becomes a dead letter; nor is an owner to blame."""
    bus, clock = FailsFor(ConnectionError, ONE), Clock()
    doubted = hosts(bus, clock=clock)
    (put_off,) = await doubted.publish_again([Delivery(ONE, TRIES_MAX - 1)])
    assert (False, None) == (put_off.is_try, put_off.dead_reason)
    bus.events = []
    assert {} == await doubted.publish([event_of("alice", 4), TWO])
    bus.events = [ONE]
    clock.now += PAUSE.longest(1) + 1
    assert not (await doubted.publish_again([Delivery(ONE, 1)]))[0].is_try
    await doubted.publish([TWO])
    assert (await doubted.publish_again([Delivery(ONE, 1)]))[0].is_try


async def test_behind_a_refused_event_that_hangs_its_owners_others_wait() -> None:
    """Each would keep the bus busy. They are put off untried, longer each time; those of others are not."""
    bus, clock = FailsFor(None, ONE), Clock()
    doubted = hosts(bus, clock=clock)
    others = [event_of("alice", n) for n in (4, 5)]
    pauses = []
    # What hangs beside others is tried alone the next time.
    for _ in range(8):
        await doubted.publish_again([Delivery(ONE, 1)])
        await doubted.publish([THREE])
        clock.now += BEHIND_PAUSE.seconds_max
        deliveries = [Delivery(each, 1) for each in (ONE, *others, TWO)]
        put_offs = {each.event_id: each for each in await doubted.publish_again(deliveries)}
        assert {ONE.event_id, *(each.event_id for each in others)} == {*put_offs}
        assert [True, False, False] == [put_offs[each.event_id].is_try for each in (ONE, *others)]
        pauses.append(put_offs[others[0].event_id].seconds)
        await doubted.publish([THREE])
        # Also one that comes new.
        bus.calls.clear()
        (put_off,) = await doubted.publish_again([Delivery(event_of("alice", 6), 0)])
        assert pytest.approx(pauses[-1]) == put_off.seconds
        assert not put_off.is_try
        assert [] == bus.calls
        clock.now += BEHIND_PAUSE.seconds_max
    assert 2.0 <= pauses[0] <= 4.0 < pauses[2] < pauses[-1] <= BEHIND_PAUSE.seconds_max
    assert BEHIND_PAUSE.seconds_max / 2 <= pauses[-1]
    # One of them that goes through ends that.
    assert [] == await doubted.publish_again([Delivery(others[0], 1)])
    deliveries = [Delivery(each, 1) for each in (ONE, others[1])]
    put_offs = {each.event_id: each for each in await doubted.publish_again(deliveries)}
    assert 2.0 <= put_offs[others[1].event_id].seconds <= 4.0


async def test_refused_events_of_a_few_owners_are_tried_at_a_time() -> None:
    """New events need the bus meanwhile."""

    class Counts(FailsFor):
        most = 0

        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(0)
            self.under_way -= 1
            return {}

    bus = Counts(None)
    events = [event_of(f"owner {n}", n) for n in range(AGAIN_OWNERS_MAX + 3)]
    assert [] == await hosts(bus).publish_again([Delivery(each, 1) for each in events])
    assert AGAIN_OWNERS_MAX == bus.most


async def test_a_dead_letter_blames_its_owner_no_more() -> None:
    """It is tried no more: nothing would show that the cause is mended."""
    bus = FailsFor(ValueError, ONE)
    doubted = hosts(bus)
    await doubted.publish([ONE, TWO])
    (dead,) = await doubted.publish_again([Delivery(ONE, TRIES_MAX - 1)])
    assert dead.dead_reason is not None
    assert {} == await doubted.publish([event_of("alice", 4), TWO])


async def test_a_bus_that_takes_too_long_for_many_is_to_get_fewer() -> None:
    """Each alone it takes them at once."""

    class Slow(FailsFor):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            if len(events) > 1:
                await asyncio.Event().wait()
            return await super().publish(events)

    doubted = hosts(Slow(None))
    assert {} == await doubted.publish([ONE, TWO])
    assert doubted.was_slow
    await doubted.publish([ONE])
    assert not doubted.was_slow


async def test_a_bus_that_answers_nothing_in_time_gets_more() -> None:
    """Up to a lease: each call of it may take long, and it is not known yet."""

    class Slow(FailsFor):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            await asyncio.sleep(0.75 * lease_seconds)
            return await super().publish(events)

    lease_seconds = 0.4
    doubted = HostsBus(Slow(None), lambda _: None, lease_seconds)
    failures = 0
    for _ in range(4):
        try:
            assert {} == await doubted.publish([ONE, TWO])
            break
        except BusUnavailable:
            failures += 1
    assert 1 <= failures <= 3


async def test_a_bus_that_is_known_to_be_slow_gets_more_time() -> None:
    """A lease at most."""
    clock, share = Clock(), PATIENCE_SHARE * LEASE_SECONDS

    class Slow(FailsFor):
        seconds = 0.0

        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            clock.now += self.seconds
            return await super().publish(events)

    bus = Slow(None)
    doubted = hosts(bus, clock=clock)
    for bus.seconds, expected in [(0.0, share), (0.3, 0.9), (9.0, LEASE_SECONDS), (0.0, share)]:
        await doubted.publish([ONE, TWO])
        assert expected == pytest.approx(doubted._patience.seconds)


async def test_a_refused_event_that_hangs_puts_no_blame_on_what_waits_for_it() -> None:
    """It is cut short, and tried again with the bus to itself: that counts."""
    bus, clock = DoesFew(1, ONE), Clock()
    doubted = hosts(bus, clock=clock)
    # It is waited for for longer than what the log has next.
    doubted._patience.note_answer(LEASE_SECONDS)
    again = asyncio.create_task(doubted.publish_again([Delivery(ONE, 1)]))
    await until(lambda: bus.under_way)
    doubted._patience.note_answer(0.0)
    assert {} == await doubted.publish([TWO, event_of("dave", 4)])
    assert not doubted.was_slow
    assert [False] == [each.is_try for each in await again]
    clock.now += BEHIND_PAUSE.seconds_max
    assert {} == await doubted.publish([TWO])
    assert [True] == [each.is_try for each in await doubted.publish_again([Delivery(ONE, 1)])]
    assert {} == await doubted.publish([TWO, event_of("dave", 5)])


async def test_what_waits_for_a_refused_event_makes_no_slow_bus() -> None:
    """Else the next one that hangs would keep it busy for three times as long."""
    clock = Clock()

    class Waits(FailsFor):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            if TWO in events:
                clock.now += 0.5
            return await super().publish(events)

    bus = Waits(None, ONE)
    doubted = hosts(bus, clock=clock)
    again = asyncio.create_task(doubted.publish_again([Delivery(ONE, 1)]))
    await until(lambda: bus.under_way)
    await doubted.publish([TWO, THREE])
    assert PATIENCE_SHARE * LEASE_SECONDS == doubted._patience.seconds
    await again
    await doubted.publish([TWO, THREE])
    assert pytest.approx(1.5) == doubted._patience.seconds


async def test_a_refused_event_that_is_mended_goes_through_beside_one_that_hangs() -> None:
    """Of a bus that does one thing at a time: else it would fail for ever, and be a dead letter."""
    bus, clock = DoesFew(1, ONE), Clock()
    doubted = hosts(bus, clock=clock)
    await doubted.publish([THREE])
    bus.calls.clear()
    for expected in ({ONE.event_id, TWO.event_id}, {ONE.event_id, TWO.event_id}, {ONE.event_id}):
        put_offs = await doubted.publish_again([Delivery(ONE, 1), Delivery(TWO, 1)])
        assert expected == {each.event_id for each in put_offs}
        clock.now += BEHIND_PAUSE.seconds_max
        await doubted.publish([event_of("dave", 4)])
    # Beside each other, and then the first alone, which waits; what may have waited for it goes through.
    assert [[1], [4], [1], [4], [2], [4]] == bus.calls
    # Later as well: who has kept the bus busy comes last.
    clock.now += BEHIND_PAUSE.seconds_max
    (put_off,) = await doubted.publish_again([Delivery(ONE, 1), Delivery(event_of("dave", 4), 1)])
    assert ONE.event_id == put_off.event_id


async def test_a_refused_event_that_is_cut_short_has_not_failed() -> None:
    """Though the bus has answered a later call before."""
    bus = FailsFor(None, ONE, THREE)
    doubted = hosts(bus)
    # It is waited for for longer than what the log has next.
    doubted._patience.note_answer(LEASE_SECONDS)
    again = asyncio.create_task(doubted.publish_again([Delivery(ONE, 1)]))
    await until(lambda: bus.under_way)
    doubted._patience.note_answer(0.0)
    assert {} == await doubted.publish([TWO, event_of("dave", 4)])
    assert [THREE.event_id] == [*await doubted.publish([THREE, TWO])]
    assert [(ONE.event_id, False)] == [(each.event_id, each.is_try) for each in await again]
    assert 1 == sum(call == [1] for call in bus.calls)


async def test_what_a_bus_refuses_slowly_beside_others_is_tried_alone() -> None:
    """As where it waits for a place of its own, and gives that up."""

    class GivesUp(DoesFew):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            try:
                async with asyncio.timeout(0.9 * PATIENCE_SHARE * LEASE_SECONDS):
                    await self.places.acquire()
            except TimeoutError:
                raise LookupError from None
            try:
                return await FailsFor.publish(self, events)
            finally:
                self.places.release()

    skipped = Clock()
    doubted = HostsBus(
        GivesUp(1, ONE), lambda _: None, LEASE_SECONDS, lambda: time.monotonic() + skipped.now
    )
    deliveries = [Delivery(ONE, 1), Delivery(TWO, 1)]
    tries = []
    for _ in range(2):
        await doubted.publish([event_of("dave", 4)])
        put_offs = await doubted.publish_again(deliveries)
        tries.append({each.event_id: each.is_try for each in put_offs})
        skipped.now += BEHIND_PAUSE.seconds_max
        deliveries.reverse()
    assert [{ONE.event_id: False, TWO.event_id: False}, {ONE.event_id: True}] == tries


async def test_a_refused_event_begins_after_the_log_has_had_its_turn() -> None:
    """Of a bus that does few things at once, the log needs all to see whom it fails for."""
    bus = DoesFew(9, ONE, TWO)
    doubted = hosts(bus)
    log = asyncio.create_task(doubted.publish([ONE, THREE]))
    await until(lambda: bus.under_way)
    again = asyncio.create_task(doubted.publish_again([Delivery(TWO, 1)]))
    reasons = await log
    assert [ONE.event_id, THREE.event_id] == [*reasons]
    assert [2] not in bus.calls
    await again
    assert [2] in bus.calls


async def test_owners_for_whom_the_bus_hangs_are_known_at_once_if_it_answers_later_calls() -> None:
    """They do not wait for others: a round for each would be a delay for all."""
    evil = [event_of(f"evil {n}", n) for n in range(4, 8)]
    bus = FailsFor(None, *evil)
    doubted = hosts(bus)
    assert {event.event_id for event in evil} == {*await doubted.publish([*evil, TWO])}
    assert [[4, 5, 6, 7, 2], [4], [5], [6], [7], [2]] == bus.calls


async def test_parts_stay_as_large_where_a_bus_fails_for_an_owner() -> None:
    """Each failure costs the same time: with few events for each, others would fall behind."""
    doubted = hosts(FailsFor(None, ONE))
    await doubted.publish([ONE, TWO])
    assert not doubted.was_slow
    # Nor does its own time-out say that it was too much.
    bus = FailsFor(TimeoutError)
    doubted = hosts(bus)
    bus.events = [ONE]
    await doubted.publish([ONE, TWO])
    assert not doubted.was_slow


async def test_hundreds_of_owners_for_whom_the_bus_raises_hide_nobody_behind_them() -> None:
    """Each time others are asked for, and more of them."""
    evil = [event_of(f"evil {n}", n) for n in range(1, 341)]
    bus = FailsFor(BusUnavailable, *evil)
    doubted = hosts(bus)
    for turn in range(4):
        try:
            reasons = await doubted.publish(evil[:40], Behind(*evil[40:], event_of("bob", 999)))
        except BusUnavailable:
            assert turn < 3
        else:
            break
    assert {event.event_id for event in evil[:40]} == {*reasons}


def of_owner(owner: str, number: int) -> CommittedEvent:
    """Return the event of a creation, whose recipients begin with the owner."""
    return replace(event_of(owner, number), recipients=(owner,))


async def test_owners_for_whom_the_bus_has_answered_come_before_others() -> None:
    """They have had theirs before it is known for whom it hangs."""
    evil = [event_of(f"evil {n}", n) for n in range(1, 4)]
    bus = DoesFew(1, *evil)
    doubted = hosts(bus)
    await doubted.publish([of_owner("alice", 11), of_owner("bob", 12)])
    bus.calls.clear()
    await doubted.publish([*evil, of_owner("alice", 13), of_owner("bob", 14)])
    assert [[1, 2, 3, 13, 14], [13], [14], [1]] == bus.calls[:4]


async def test_who_had_no_turn_beside_calls_that_hang_is_not_to_blame() -> None:
    """Its event is published beside the log, and its next one in the log's turn."""
    evil = [event_of(f"evil {n}", n) for n in range(1, 41)]
    bus = DoesFew(1, *evil)
    doubted = HostsBus(bus, lambda _: None, LEASE_SECONDS / 2)
    await doubted.publish([of_owner("alice", 51), of_owner("bob", 52)])
    good = event_of("good", 53)
    reasons = await doubted.publish([*evil[:20], of_owner("alice", 54), good, *evil[20:]])
    assert NO_TURN == reasons[good.event_id]
    hung = next(each for each in evil if reasons[each.event_id] != NO_TURN)
    bus.calls.clear()
    put_offs = await doubted.publish_again([Delivery(hung, 1), Delivery(good, 1)])
    assert [good.event_id.int] == bus.calls[0]
    assert [hung.event_id] == [each.event_id for each in put_offs]
    assert {} == await doubted.publish([event_of("good", 55)])


async def test_a_single_event_of_the_log_cuts_no_refused_one_short() -> None:
    """With one event at a time, each would be tried alone, while the log waits."""
    bus = FailsFor(None, ONE)
    doubted = hosts(bus)
    again = asyncio.create_task(doubted.publish_again([Delivery(ONE, 1)]))
    await until(lambda: bus.under_way)
    assert {} == await doubted.publish([TWO])
    assert [True] == [each.is_try for each in await again]
    assert [[1], [2]] == bus.calls


async def test_an_event_without_recipients_is_published_as_any_other() -> None:
    """Such a row may have been written by hand."""
    bus = FailsFor(None)
    event = replace(ONE, recipients=())
    assert {} == await hosts(bus).publish([event, TWO])
    assert [event, TWO] == bus.published


class GoesOn(FailsFor):
    """Its calls go on after they were cancelled, until it is told."""

    def __init__(self, *events: CommittedEvent) -> None:
        super().__init__(None, *events)
        self.is_going_on = False
        self.may_end = asyncio.Event()

    async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        try:
            return await super().publish(events)
        except asyncio.CancelledError:
            self.is_going_on = True
            await self.may_end.wait()
            raise
        finally:
            self.is_going_on = False


@pytest.fixture
def unawaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that were cancelled are not waited for."""
    monkeypatch.setattr(host_bus_calls, "CANCELLED_CALL_SECONDS", 0.0)


class InThread(FailsFor):
    """Has one thread, which goes on with what it has begun, until it may end."""

    def __init__(self, *events: CommittedEvent) -> None:
        super().__init__(None, *events)
        self.thread = asyncio.Lock()
        self.may_end = asyncio.Event()
        self.work: list[asyncio.Task[dict[UUID, str]]] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        await self.thread.acquire()
        self.work.append(asyncio.create_task(self._work(events)))
        self.work[-1].add_done_callback(lambda _: self.thread.release())
        return await asyncio.shield(self.work[-1])

    async def _work(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        if any(event in self.events for event in events):
            self.calls.append([event.event_id.int for event in events])
            await self.may_end.wait()
            return {}
        return await super().publish(events)


@pytest.mark.parametrize(
    ("bus", "to_blame"),
    [(InThread(ONE, TWO), {"alice"}), (FailsFor(None, ONE, TWO), {"alice", "bob"})],
    ids=["goes-on", "ends"],
)
async def test_no_owner_is_to_blame_for_what_waits_for_a_thread(
    bus: FailsFor, to_blame: set[str]
) -> None:
    """That a cancelled call goes on cannot be seen; what the bus has taken shows it, published once more."""
    calls = HostsBusCalls(bus)
    async with Trial(calls, Patience(0.1, Clock()), THREE) as trial:
        await trial.run([ONE, TWO], is_again=True)
        assert to_blame == {*trial.hung}
        assert {"alice", "bob"} - to_blame == trial.unsure
        assert [] == [call for call in bus.calls if call == [2]] or isinstance(bus, FailsFor)
    if isinstance(bus, InThread):
        bus.may_end.set()
        await asyncio.gather(*bus.work)


@pytest.mark.usefixtures("unawaited")
async def test_a_refused_event_has_no_bus_to_itself_beside_a_call_that_goes_on() -> None:
    """Its owner gets no other call meanwhile: each may keep a place. Then it is tried alone at once."""
    bus, clock = GoesOn(ONE), Clock()
    doubted = hosts(bus, clock=clock)
    for _ in range(3):
        (put_off,) = await doubted.publish_again([Delivery(ONE, 1)])
        assert not put_off.is_try
        assert 2.0 <= put_off.seconds <= 4.0
        clock.now += BEHIND_PAUSE.seconds_first
    assert [[1]] == bus.calls
    bus.may_end.set()
    await until(lambda: not doubted._calls.goes_on_for("alice"))
    assert {} == await doubted.publish([TWO])
    assert [True] == [each.is_try for each in await doubted.publish_again([Delivery(ONE, 1)])]
    assert [[1], [2], [1]] == bus.calls
    # Its calls end now: beside others again.
    await until(lambda: not doubted._calls.goes_on_for("alice"))
    await doubted.publish([TWO])
    clock.now += BEHIND_PAUSE.seconds_max
    await doubted.publish_again([Delivery(ONE, 1)])
    assert [[1]] == bus.calls[4:]


@pytest.mark.usefixtures("unawaited")
async def test_an_owner_whose_call_goes_on_gets_no_other_one() -> None:
    """Though the bus answers others: each may keep a place."""
    bus, clock = GoesOn(ONE), Clock()
    doubted = hosts(bus, clock=clock)
    await doubted.publish_again([Delivery(ONE, 1)])
    await doubted.publish([TWO])
    clock.now += BEHIND_PAUSE.seconds_first
    (put_off,) = await doubted.publish_again([Delivery(ONE, 1)])
    assert 2.0 <= put_off.seconds <= 4.0
    assert [[1], [2]] == bus.calls
    bus.may_end.set()
    await until(lambda: not bus.is_going_on)


async def test_who_is_suspected_is_published_after_others() -> None:
    """These show that the bus is there, where nothing else of the page does."""
    bus, dave = FailsFor(None, ONE), event_of("dave", 4)
    doubted = hosts(bus)
    with pytest.raises(BusUnavailable):
        await doubted.publish([ONE])
    await doubted.publish([TWO])
    bus.calls.clear()
    assert [ONE.event_id] == [*await doubted.publish([ONE, dave])]
    assert [[4], [1], [4], [1]] == bus.calls


async def test_a_call_that_was_cancelled_is_not_cancelled_again() -> None:
    """It may be cleaning up: whoever waits for it goes on, and it ends in its time."""
    bus = GoesOn(ONE)
    calls = HostsBusCalls(bus)
    publishing = asyncio.create_task(
        calls.publish_within(1e6, [ONE], calls.begin(), can_be_cut=True)
    )
    await until(lambda: bus.under_way)
    cutting = asyncio.create_task(calls.cut_short())
    await until(lambda: bus.is_going_on)
    await calls.cancel(dict.fromkeys(calls._left))
    assert bus.is_going_on
    bus.may_end.set()
    with pytest.raises(CutShort):
        await publishing
    await cutting


def trial_of(bus: FailsFor, published: CommittedEvent | None = None) -> Trial:
    """Return one with little patience."""
    return Trial(HostsBusCalls(bus), Patience(0.2, Clock()), published)


MANY = [event_of(f"evil {n}", 10 + n) for n in range(FEW_OWNERS_MAX + 1)]


async def test_many_for_whom_a_bus_with_places_left_hangs_are_known_after_one_round() -> None:
    """The event that the bus has taken, published behind theirs, goes through."""
    bus = FailsFor(None, *MANY)
    async with trial_of(bus, TWO) as trial:
        await trial.run(MANY, is_again=True)
        assert {f"evil {n}" for n in range(len(MANY))} == {*trial.hung}
    assert [*([event.event_id.int] for event in MANY), [2]] == bus.calls


async def test_many_for_whom_a_bus_without_places_left_hangs_are_tried_alone() -> None:
    """The event behind theirs has no turn."""
    bus = DoesFew(2, *MANY)
    async with trial_of(bus, TWO) as trial:
        await trial.run(MANY, is_again=True)
        assert f"evil {FEW_OWNERS_MAX}" in trial.hung
    # Alone, after the bus has shown that it takes calls again: first who has waited for the others.
    assert [[10], [11], [2], [10 + FEW_OWNERS_MAX]] == bus.calls[:4]


async def test_few_of_whom_each_call_may_go_on_get_one_each() -> None:
    """All at once would take more threads, and one after the other is found out as soon."""
    bus = FailsFor(None, *MANY[:2])
    async with trial_of(bus, TWO) as trial:
        await trial.run(MANY[:2], is_again=True)
        assert {"evil 0", "evil 1"} == {*trial.hung}
    assert [[10], [2], [11]] == bus.calls


async def test_the_first_for_whom_a_bus_with_one_place_hangs_comes_last() -> None:
    """It has kept out those behind it; then it is the only one that hangs, and needs no call alone."""
    bus, dave = DoesFew(1, ONE), event_of("dave", 4)
    async with trial_of(bus, THREE) as trial:
        await trial.run([ONE, TWO, dave])
        assert not trial.answered
        await trial.run([TWO, dave, ONE])
        assert {"alice"} == {*trial.hung}
        assert trial.unsure == {"alice"}
    # The third one: the bus takes calls again after the first round.
    assert [[1], [3], [2], [4], [1]] == bus.calls
    bus.calls.clear()
    async with trial_of(bus) as trial:
        await trial.run([TWO, ONE, dave])
        assert {TWO.event_id, dave.event_id} == {*trial.answered}
    assert [[2], [1], [2], [4], [1]] == bus.calls


async def test_one_that_hangs_while_it_is_not_known_whether_the_bus_is_free_is_not_to_blame() -> (
    None
):
    """What was cancelled before may keep the only place; the twin follows an answer."""
    bus = DoesFew(1, ONE)
    calls = HostsBusCalls(bus)
    for expected in (set(), {"alice"}):
        async with Trial(calls, Patience(0.1, Clock()), None) as trial:
            if not expected:
                with pytest.raises(NoAnswer):
                    await calls.publish_within(0.0, [ONE], calls.begin())
            await trial.run([ONE], is_again=True)
            assert expected == {*trial.hung}
            assert {"alice"} - expected == trial.unsure
        await calls.publish([TWO], calls.begin())


async def test_known_owners_are_asked_first_whether_the_bus_is_there() -> None:
    """Others behind may be more for whom it hangs; and of those that hang alone the last is asked first."""
    bus = DoesFew(1, *MANY)
    doubted = hosts(bus)
    known = replace(TWO, recipients=("bob",))
    await doubted.publish([known])
    bus.calls.clear()
    reasons = await doubted.publish(MANY[:2], Behind(*MANY[2:4], known))
    assert [[10, 11], [10], [2]] == bus.calls[:3]
    assert {MANY[0].event_id, MANY[1].event_id} == {*reasons}
    # Nothing else waits: each alone.
    bus.calls.clear()
    with pytest.raises(BusUnavailable):
        await hosts(bus).publish(MANY[:2])
    assert [[10, 11], [10], [11], [10]] == bus.calls


async def test_who_has_hung_is_published_behind_others_next_time() -> None:
    """Also one that was asked from further back, and had no turn of its own."""
    bus, dave = DoesFew(1, *MANY), event_of("dave", 4)
    doubted = hosts(bus)
    with pytest.raises(BusUnavailable):
        await doubted.publish(MANY[:1], Behind(MANY[1], TWO, dave))
    bus.calls.clear()
    await doubted.publish([*MANY[:2], TWO, dave])
    assert [[2], [4]] == bus.calls[:2]


async def test_what_may_have_waited_for_others_comes_before_them_the_next_time() -> None:
    """Also where none of them is known to be well: of a bus with three places, the first three had those."""
    bus, healthy = DoesFew(3, *MANY), [event_of(f"healthy {n}", 100 + n) for n in range(3)]
    doubted = hosts(bus)
    known = replace(TWO, recipients=("bob",))
    await doubted.publish([known])
    bus.calls.clear()
    reasons = await doubted.publish([*MANY, *healthy, known])
    assert not {event.event_id for event in healthy} & {*reasons}
    # All together, the known one, a round; that one, and a round in which they come first.
    assert [[2], [10], [11], [12], [2], [102], [101], [100]] == bus.calls[1:9]


async def test_an_owner_that_keeps_out_others_waits_from_when_they_have_had_their_turn() -> None:
    """Its call may have gone on in the only thread: else it would begin as soon as that ends."""
    bus, clock = FailsFor(None, ONE), Clock()
    doubted = hosts(bus, clock=clock)
    await doubted.publish([ONE, TWO])
    clock.now += BEHIND_PAUSE.seconds_first
    # As if no call had been answered since.
    with pytest.raises(NoAnswer):
        await doubted._calls.publish_within(0.0, [ONE], doubted._calls.begin())
    clock.now += BEHIND_PAUSE.seconds_first
    bus.calls.clear()
    async with asyncio.timeout(10), doubted._to_itself:
        # The log has events for it.
        (put_off,) = await doubted.publish_again([Delivery(ONE, 1)])
    assert 2.0 <= put_off.seconds <= 4.0
    await doubted.publish([TWO])
    clock.now += 1.0
    (put_off,) = await doubted.publish_again([Delivery(ONE, 1)])
    assert 1.0 <= put_off.seconds <= 3.0
    assert [[2]] == bus.calls
    clock.now += BEHIND_PAUSE.seconds_first
    await doubted.publish_again([Delivery(ONE, 1)])
    assert [[2], [1]] == bus.calls


async def test_what_may_have_waited_for_a_thread_waits_no_longer_each_time() -> None:
    """It is not its fault; and no try is counted where no later call was answered."""
    bus, clock = FailsFor(None, ONE), Clock()
    doubted = hosts(bus, clock=clock)
    for _ in range(5):
        (put_off,) = await doubted.publish_again([Delivery(ONE, 1)])
        assert 2.0 <= put_off.seconds <= 4.0
        assert not put_off.is_try
        clock.now += BEHIND_PAUSE.seconds_first
    assert [[1]] * 5 == bus.calls
