"""Events that a host's bus has refused, published again: what is tried when, and what counts as a try."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest

from stretto.assembly import host_bus_again
from stretto.assembly.host_bus_again import (
    BEHIND_PAUSE,
    PLACES,
    PLACES_MAX,
    REST_TIMES,
    SLOW_PLACES_MAX,
    RefusedAgain,
)
from stretto.assembly.host_bus_blame import BlamedOwners, owner_of
from stretto.assembly.host_bus_calls import HostsBusCalls
from stretto.assembly.host_bus_patience import Patience
from stretto.targets.delivery import Delivery
from stretto.targets.refused import PAUSE, TRIES_MAX
from support.bus_again import now
from support.owned_events import event_of
from support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from typing import Any
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observation
    from stretto.targets.delivery import PutOff

LEASE_SECONDS = 5.0
Result = TypeVar("Result")
ALICE, BOB, CAROL = (event_of(owner, n) for n, owner in enumerate(("alice", "bob", "carol"), 1))

OTHER = event_of("other", 999)
SIX = [event_of(f"owner {n}", 10 + n) for n in range(6)]


class Bus:
    """Fails for some owners; records what it gets."""

    def __init__(self, places: int) -> None:
        self.hangs: set[str] = set()
        self.raises: dict[str, BaseException] = {}
        self.raises_after_seconds = 0.0
        self.raises_together = False
        self.refuses: set[UUID] = set()
        self.takes_seconds = 0.0
        self.calls: list[list[int]] = []
        self.under_way = 0
        self.places = asyncio.Semaphore(places)

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        if OTHER not in events:
            self.calls.append([event.event_id.int for event in events])
        self.under_way += 1
        try:
            async with self.places:
                return await self._publish(events)
        finally:
            self.under_way -= 1

    async def _publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        owners = {owner_of(event) for event in events}
        if owners & self.hangs:
            await asyncio.Event().wait()
        for owner in owners & self.raises.keys():
            await asyncio.sleep(self.raises_after_seconds)
            raise self.raises[owner]
        if self.raises_together and len(events) > 1:
            raise ValueError
        await asyncio.sleep(self.takes_seconds)
        return {event.event_id: "no" for event in events if event.event_id in self.refuses}


class World:
    """What is tested, over such a bus."""

    def __init__(self, places: int = 1000) -> None:
        self.bus = Bus(places)
        self.patience = Patience(LEASE_SECONDS, now)
        self.calls = HostsBusCalls(self.bus, self.patience, now)
        self.observed: list[Observation] = []
        self.blamed = BlamedOwners(self.observed.append, now)
        self.good: dict[str, None] = {}
        self.again = RefusedAgain(self.calls, self.blamed, self.patience, self.good, now)

    async def publish(self, *events: CommittedEvent, tries: int = 1) -> dict[int, PutOff]:
        """Publish events again; return those that were put off."""
        put_offs = await self.again.publish([Delivery(each, tries) for each in events])
        return {each.event_id.int: each for each in put_offs}

    async def beside(self, publishing: Coroutine[Any, Any, Result]) -> Result:
        """Publish while the bus gets another owner's event each half second."""
        others = asyncio.create_task(self._answer_others())
        try:
            return await publishing
        finally:
            others.cancel()

    async def _answer_others(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self.answer()

    async def answer(self) -> None:
        """Have the bus answer for another owner."""
        await self.calls.publish([OTHER])

    def make_slow(self, events: Sequence[CommittedEvent]) -> None:
        """Have it known that their owners' events fail slowly, a while ago."""
        for event in events:
            self.again._slow[owner_of(event)] = host_bus_again._Slow(1, now())

    def parts(self, *events: CommittedEvent) -> list[list[int]]:
        """Return which are published together."""
        found = self.again.parts([Delivery(each, 1) for each in events])
        return [[each.event.event_id.int for each in part] for part in found]


def hanging(world: World, owners: int) -> list[CommittedEvent]:
    """Return an event of each of so many owners for whom the bus hangs."""
    events = [event_of(f"bad {n}", 100 + n) for n in range(owners)]
    world.bus.hangs = {owner_of(event) for event in events}
    return events


def publish_all(
    world: World, events: Sequence[CommittedEvent]
) -> list[asyncio.Task[dict[int, PutOff]]]:
    """Publish each event by itself, all at once."""
    return [asyncio.create_task(world.publish(each)) for each in events]


async def end(*tasks: asyncio.Task[dict[int, PutOff]]) -> None:
    """Cancel what is under way."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@in_virtual_time
async def test_what_goes_through_takes_the_blame_back() -> None:
    """New events of its owner are tried in the log's turn again."""
    world = World()
    world.blamed.add(ALICE, ValueError())
    assert {} == await world.publish(ALICE, BOB)
    assert "alice" not in world.blamed


@in_virtual_time
async def test_an_event_that_the_bus_refuses_is_put_off_and_its_owner_is_still_to_blame() -> None:
    """As any bus may refuse one: a try has failed."""
    world = World()
    world.bus.refuses = {ALICE.event_id}
    world.blamed.add(ALICE, ValueError())
    put_offs = await world.publish(ALICE, BOB)
    assert [(1, True)] == [(number, each.is_try) for number, each in put_offs.items()]
    assert "alice" in world.blamed
    # One call for both: a slow bus is asked once.
    assert [[1, 2]] == world.bus.calls


@pytest.mark.parametrize("error", [ValueError(), TimeoutError(), SystemExit(), None])
@in_virtual_time
async def test_a_failure_is_the_events_own_while_the_bus_takes_others(
    error: BaseException | None,
) -> None:
    """Beside others its owner is to blame; what was published together with it goes through."""
    world = World()
    if error is None:
        world.bus.hangs = {"alice"}
    else:
        world.bus.raises = {"alice": error}
    put_offs = await world.beside(world.publish(ALICE, BOB))
    assert [(1, True)] == [(number, each.is_try) for number, each in put_offs.items()]
    assert world.blamed.are_any_sure
    assert "bob" not in world.blamed


@in_virtual_time
async def test_while_the_bus_takes_nothing_no_try_counts() -> None:
    """Else all would become dead letters while it is away; nor is an owner to blame."""
    world = World()
    world.bus.raises = {"alice": ConnectionError()}
    put_offs = await world.publish(ALICE, tries=TRIES_MAX - 1)
    assert (False, None) == (put_offs[1].is_try, put_offs[1].dead_reason)
    assert not world.blamed.are_any_sure
    # The twin that hangs.
    world.bus.raises, world.bus.hangs = {}, {"alice"}
    put_offs = await world.publish(ALICE, tries=TRIES_MAX - 1)
    assert (False, None) == (put_offs[1].is_try, put_offs[1].dead_reason)
    assert not world.blamed.are_any_sure


@in_virtual_time
async def test_a_failure_counts_if_the_bus_has_answered_since_the_last_try() -> None:
    """However long its pause was: a bus with few events answers seldom."""
    world = World()
    world.bus.raises = {"alice": ConnectionError()}
    for seconds, is_try in ((0.5, True), (1.0, False)):
        await world.answer()
        await asyncio.sleep(PAUSE.longest(1) - 0.5 + seconds)
        if is_try:
            await world.answer()
            await asyncio.sleep(PAUSE.longest(1))
        assert is_try is (await world.publish(ALICE))[1].is_try


@in_virtual_time
async def test_the_last_try_makes_a_dead_letter_and_blames_its_owner_no_more() -> None:
    """It is tried no more, and cannot show that the cause is mended."""
    world = World()
    await world.answer()
    world.bus.raises = {"alice": ValueError()}
    await world.publish(ALICE)
    assert "alice" in world.blamed
    put_offs = await world.publish(ALICE, tries=TRIES_MAX - 1)
    assert "publish raised ValueError" == put_offs[1].dead_reason
    assert "alice" not in world.blamed


@in_virtual_time
async def test_a_failure_of_events_of_one_owner_shows_in_each_alone() -> None:
    """A bus may fail for several together, or for one of them."""
    world = World()
    world.bus.raises_together = True
    events = [event_of("alice", n) for n in (1, 4, 5)]
    assert {} == await world.publish(*events)
    assert [[1, 4, 5], [1], [4], [5]] == world.bus.calls


@in_virtual_time
async def test_an_owner_whose_events_failed_together_gets_a_part_of_its_own() -> None:
    """Of a slow bus a few owners' are published together, the others not before they have failed so."""
    world = World()
    assert [[n] for n in range(10, 16)] == world.parts(*SIX)
    world.patience.note_answer(1.5)
    assert [[10, 11], [12, 13], [14, 15]] == world.parts(*SIX)
    world.bus.raises = {"owner 0": ValueError()}
    await world.publish(*SIX[:2])
    # That of the other one has gone through since.
    assert [[11, 12], [13, 14], [15], [10]] == world.parts(*SIX)


@in_virtual_time
async def test_an_owners_events_are_in_one_part() -> None:
    """Those of others between them are not."""
    other = event_of("alice", 4)
    assert [[1, 4], [2]] == World().parts(ALICE, BOB, other)


@in_virtual_time
async def test_an_owner_has_one_call_under_way() -> None:
    """The next one is put off untried, for a second at most."""
    world = World()
    world.bus.hangs = {"alice"}
    first = asyncio.create_task(world.publish(ALICE))
    await asyncio.sleep(0)
    assert {"alice"} == {*world.again.busy_owners}
    put_off = (await world.publish(event_of("alice", 4)))[4]
    assert not put_off.is_try
    assert 0 < put_off.seconds <= PAUSE.longest(0)
    await first
    assert [[1]] == world.bus.calls
    assert not world.again.busy_owners


@in_virtual_time
async def test_a_call_that_the_log_has_left_is_its_owners_only_one_until_it_ends() -> None:
    """Two at once would take two places."""
    world = World()
    world.bus.hangs = {"owner 0"}
    left = asyncio.create_task(world.calls.publish(SIX[:1]))
    world.again.go_on(left, ["owner 0"])
    assert {"owner 0"} == {*world.again.busy_owners}
    assert not (await world.publish(SIX[0]))[10].is_try
    await asyncio.wait({left})
    await asyncio.sleep(0)
    assert [[10]] == world.bus.calls
    assert not world.again.busy_owners
    # Together with others it would fail again.
    world.patience.note_answer(1.5)
    assert [[11, 12], [13, 14], [15], [10]] == world.parts(*SIX)


@pytest.mark.parametrize("does_hang", [False, True])
@in_virtual_time
async def test_the_owner_of_a_left_call_that_fails_waits_and_so_do_other_slow_ones(
    does_hang: bool,
) -> None:
    """Else each would keep out others once more at once."""
    world = World(places=1)
    world.bus.takes_seconds = 0.01
    if does_hang:
        world.bus.hangs = {"alice"}
    else:
        world.bus.raises, world.bus.raises_after_seconds = {"alice": TimeoutError()}, 2.0
    world.make_slow([BOB])
    left = asyncio.create_task(world.calls.publish([ALICE]))
    await asyncio.sleep(1.0)
    world.again.go_on(left, ["alice"])
    await world.beside(asyncio.wait({left}))
    took_seconds = min(now() - 1.0, world.patience.stall_seconds)
    world.bus.calls.clear()
    put_offs = await world.publish(ALICE, BOB, CAROL)
    assert [[3]] == world.bus.calls
    assert {"alice", "bob"} == {*world.again.slow_owners}
    assert put_offs[1].seconds >= put_offs[2].seconds > took_seconds


@in_virtual_time
async def test_a_left_call_for_some_owners_says_of_none_that_it_is_slow() -> None:
    """Each alone shows for whom it has failed."""
    world = World()
    world.bus.raises, world.bus.raises_after_seconds = {"alice": TimeoutError()}, 2.0
    left = asyncio.create_task(world.calls.publish([ALICE, BOB]))
    world.again.go_on(left, ["alice", "bob"])
    await asyncio.wait({left})
    assert not world.again.slow_owners


@in_virtual_time
async def test_a_left_call_that_was_cancelled_or_answered_says_nothing_of_its_owner() -> None:
    """It did not hang."""
    world = World()
    world.bus.takes_seconds = 1.0
    tasks = [asyncio.create_task(world.calls.publish([each])) for each in SIX[:2]]
    for task, owner in zip(tasks, ("owner 0", "owner 1"), strict=True):
        world.again.go_on(task, [owner])
    await asyncio.sleep(0.5)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert not world.again.busy_owners
    world.patience.note_answer(1.5)
    assert [[10, 11], [12, 13], [14, 15]] == world.parts(*SIX)


@in_virtual_time
async def test_behind_an_event_that_fails_slowly_its_owners_others_wait_longer_each_time() -> None:
    """Each may keep others out. They are put off untried; those of others are not."""
    world = World()
    world.bus.hangs = {"alice"}
    others = [event_of("alice", n) for n in (4, 5)]
    pauses = []
    for turn in range(6):
        put_offs = await world.beside(world.publish(ALICE, *others))
        # At first all together: that shows nothing of one event.
        assert [turn > 0, False, False] == [put_offs[n].is_try for n in (1, 4, 5)]
        pauses.append(put_offs[4].seconds)
        assert ["alice"] == [*world.again.slow_owners]
        # Also one that comes new, and no call begins for it.
        world.bus.calls.clear()
        put_off = (await world.publish(event_of("alice", 6), BOB))[6]
        assert (False, [[2]]) == (put_off.is_try, world.bus.calls)
        assert put_off.seconds == pytest.approx(pauses[-1], abs=1.0)
        await asyncio.sleep(pauses[-1])
        world.bus.calls.clear()
    first, most = BEHIND_PAUSE.seconds_first, BEHIND_PAUSE.seconds_max
    assert first / 2 <= pauses[0] <= first
    assert most / 2 <= pauses[-1] <= most


@in_virtual_time
async def test_an_event_that_goes_through_ends_the_wait_of_its_owner() -> None:
    """Its cause is mended."""
    world = World()
    world.bus.hangs = {"alice"}
    await world.beside(world.publish(ALICE))
    await asyncio.sleep(BEHIND_PAUSE.seconds_first)
    world.bus.hangs = set()
    assert {} == await world.publish(ALICE)
    assert not world.again.slow_owners
    assert {} == await world.publish(event_of("alice", 4))


@pytest.mark.parametrize(("is_slow", "share"), [(False, 0.9), (True, 1.0)])
@in_virtual_time
async def test_what_fails_quickly_makes_its_owner_wait_for_nothing(
    is_slow: bool, share: float
) -> None:
    """It keeps nothing out: each of its events is tried."""
    world = World()
    world.bus.raises = {"alice": TimeoutError()}
    world.bus.raises_after_seconds = share * world.patience.quick_seconds
    other = event_of("alice", 4)
    await world.publish(ALICE, other)
    assert is_slow is ("alice" in world.again.slow_owners)
    assert ([[1, 4]] if is_slow else [[1, 4], [1], [4]]) == world.bus.calls


@in_virtual_time
async def test_of_a_slow_owner_one_event_is_published_at_a_time() -> None:
    """All together would only fail as slowly, once more."""
    world = World()
    world.bus.hangs = {"alice"}
    await world.beside(world.publish(ALICE))
    await asyncio.sleep(BEHIND_PAUSE.seconds_first)
    world.bus.calls.clear()
    await world.beside(world.publish(ALICE, event_of("alice", 4)))
    assert [[1]] == world.bus.calls


@in_virtual_time
async def test_what_may_have_waited_for_others_is_tried_again_after_a_second() -> None:
    """Its owner is not known to be slow: nothing was answered while it waited."""
    world = World()
    world.bus.hangs = {"alice"}
    put_offs = await world.publish(ALICE, event_of("alice", 4))
    assert not world.again.slow_owners
    assert all(not each.is_try for each in put_offs.values())
    assert put_offs[4].seconds <= PAUSE.longest(0)


@pytest.mark.parametrize("places", [1, 1000])
@in_virtual_time
async def test_what_has_kept_out_others_is_followed_by_a_rest(places: int) -> None:
    """Of a bus with one place, others have it for most of the time; one with more needs no rest."""
    world = World(places)
    world.bus.hangs = {"bob"}
    began_at = now()
    await world.beside(world.publish(BOB))
    took_seconds = now() - began_at
    assert ["bob"] == [*world.again.slow_owners]
    await asyncio.sleep(BEHIND_PAUSE.seconds_first)
    assert ([] if places == 1 else ["bob"]) == [*world.again.slow_turn()]
    world.bus.calls.clear()
    put_offs = await world.beside(world.publish(BOB))
    if places == 1:
        kept_out_seconds = min(took_seconds, world.patience.stall_seconds)
        rest_seconds = REST_TIMES * kept_out_seconds - BEHIND_PAUSE.seconds_first
        assert pytest.approx(rest_seconds) == put_offs[2].seconds
        assert not world.bus.calls
    else:
        assert [[2]] == world.bus.calls


@in_virtual_time
async def test_two_owners_are_tried_at_once_and_more_where_the_bus_takes_others_meanwhile() -> None:
    """Twice as many each time, so many at most: calls that hang are many, and others have places all the same."""
    world = World()
    tasks = publish_all(world, hanging(world, 200))
    await asyncio.sleep(0.1)
    most = [world.bus.under_way]
    for _ in range(5):
        await asyncio.sleep(0.2)
        await world.answer()
        await asyncio.sleep(world.patience.seconds + 2 * world.patience.look_seconds)
        most.append(world.bus.under_way)
    assert (PLACES, PLACES_MAX) == (most[0], max(most))
    assert PLACES < most[1] < PLACES_MAX
    await end(*tasks)


@in_virtual_time
async def test_one_owner_is_tried_at_once_where_calls_that_hang_keep_out_others() -> None:
    """The bus does few things at once: the others are to have a place."""
    world = World(places=1)
    await asyncio.wait(publish_all(world, hanging(world, 2)))
    tasks = publish_all(world, hanging(world, 4))
    await asyncio.sleep(0.1)
    assert 1 == world.bus.under_way
    await end(*tasks)


@in_virtual_time
async def test_owners_for_whom_the_bus_has_answered_wait_for_no_others() -> None:
    """Those that hang may have all of the other places."""
    world = World()
    tasks = publish_all(world, hanging(world, 4))
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(world.publish(BOB))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    world.good["alice"] = None
    assert {} == await world.publish(ALICE)
    assert not waiting.done()
    await end(*tasks, waiting)


@in_virtual_time
async def test_an_owner_that_fails_has_no_place_among_the_good_any_more() -> None:
    """Whatever it was before."""
    world = World()
    world.good |= {"alice": None, "bob": None}
    world.bus.raises = {"alice": ValueError()}
    await world.publish(ALICE, BOB)
    assert ["bob"] == [*world.good]


@in_virtual_time
async def test_an_owner_that_may_have_waited_for_others_stays_among_the_good() -> None:
    """Nothing is answered behind its call: it may have had no place."""
    world = World()
    world.good["alice"] = None
    world.bus.hangs = {"alice"}
    await world.publish(ALICE)
    assert ["alice"] == [*world.good]


@in_virtual_time
async def test_slow_owners_take_no_place_from_others() -> None:
    """Each of theirs keeps one for as long as it hangs."""
    world = World()
    slow = hanging(world, 4)
    world.make_slow(slow)
    tasks = publish_all(world, slow)
    await asyncio.sleep(0.1)
    assert PLACES == world.bus.under_way
    began_at = now()
    assert {} == await world.publish(ALICE)
    assert began_at == now()
    await end(*tasks)


@in_virtual_time
async def test_few_calls_of_slow_owners_are_under_way_at_once() -> None:
    """Also where the bus takes others' calls: it may do few things at once, and the log's would wait."""
    world = World()
    slow = hanging(world, PLACES_MAX)
    world.make_slow(slow)
    tasks, most = publish_all(world, slow), 0
    for _ in range(8):
        await asyncio.sleep(0.1)
        most = max(most, world.bus.under_way)
        await world.answer()
        await asyncio.sleep(world.patience.seconds + 2 * world.patience.look_seconds)
    assert SLOW_PLACES_MAX == most
    await end(*tasks)


@in_virtual_time
async def test_a_slow_owner_that_waited_for_a_place_rests_once_it_has_it() -> None:
    """The one before it has kept out others meanwhile."""
    world = World(places=1)
    events = hanging(world, 3)
    world.make_slow(events)
    tasks = publish_all(world, events)
    await asyncio.wait(tasks)
    third = tasks[2].result()[102]
    assert [[100], [101]] == world.bus.calls
    assert not third.is_try
    assert third.seconds > world.patience.seconds


@in_virtual_time
async def test_of_too_many_owners_the_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried anew, and the others are not."""
    monkeypatch.setattr(host_bus_again, "SLOW_OWNERS_MAX", 2)
    world = World()
    names = [f"owner {n}" for n in range(3)]
    world.bus.raises = dict.fromkeys(names, TimeoutError())
    world.bus.raises_after_seconds = world.patience.quick_seconds
    for n in (0, 1, 0, 2):
        await world.publish(event_of(names[n], n + 10))
        await asyncio.sleep(BEHIND_PAUSE.seconds_max)
    assert ["owner 0", "owner 2"] == [*world.again.slow_owners]
    assert ["owner 0", "owner 2"] == [*world.again._apart]


@in_virtual_time
async def test_of_many_slow_owners_a_few_have_a_turn_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them in the end, and again."""
    monkeypatch.setattr(host_bus_again, "SLOW_TURN_OWNERS", 2)
    world = World()
    world.make_slow(SIX[:5])
    turns = [world.again.slow_turn() for _ in range(3)]
    assert [["owner 0", "owner 1"], ["owner 2", "owner 3"], ["owner 4", "owner 0"]] == turns


@in_virtual_time
async def test_in_a_turn_those_come_first_for_whom_it_has_failed_least() -> None:
    """A new one may be there again by now."""
    world = World()
    world.make_slow([ALICE, BOB])
    world.again._slow["alice"] = host_bus_again._Slow(2, now())
    assert ["bob", "alice"] == world.again.slow_turn()


@in_virtual_time
async def test_slow_owners_that_wait_or_of_whom_one_is_under_way_have_no_turn() -> None:
    """What is taken of them would be put off at once: a row is written for nothing."""
    world = World()
    world.bus.hangs = {"alice", "bob"}
    world.make_slow([BOB, CAROL])
    await world.beside(world.publish(ALICE))
    publishing = asyncio.create_task(world.publish(BOB))
    await asyncio.sleep(0.1)
    assert {"alice", "bob", "carol"} == {*world.again.slow_owners}
    assert ["carol"] == world.again.slow_turn()
    await end(publishing)


@in_virtual_time
async def test_a_cancelled_publishing_leaves_no_owner_busy_and_no_place_taken() -> None:
    """The relay cancels it at its end, and may begin anew."""
    world = World()
    tasks = publish_all(world, hanging(world, 4))
    await asyncio.sleep(0.1)
    await end(*tasks)
    assert not world.again.busy_owners
    world.bus.hangs = set()
    assert {} == await world.publish(ALICE)


@in_virtual_time
async def test_a_reason_says_what_has_failed() -> None:
    """In the dead letter."""
    world = World()
    world.bus.hangs = {"alice"}
    put_offs = await world.beside(world.publish(ALICE, tries=TRIES_MAX - 1))
    assert (put_offs[1].dead_reason or "").startswith("publish took longer than ")
