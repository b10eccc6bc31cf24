"""A host's bus that fails for some events: what is to blame is refused, the others go through."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from stretto.assembly import host_bus
from stretto.assembly.host_bus import ASKED_AT_ONCE_MAX, FEW_EVENTS_MAX, HostsBus
from stretto.assembly.host_bus_blame import UNSURE
from stretto.assembly.host_bus_patience import PATIENCE_SHARE, PATIENCE_TIMES
from stretto.observations import ActorCrashed
from stretto.targets.bus import BusUnavailable
from stretto.targets.delivery import Delivery
from support.bus_trial import (
    Behind,
    DoesFew,
    FailsFor,
    HangsTogether,
    Takes,
    printed_of_late_errors,
)
from support.owned_events import event_of
from support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observation

LEASE_SECONDS = 10.0
PATIENCE_SECONDS = PATIENCE_SHARE * LEASE_SECONDS
ONE, TWO, THREE, FOUR = (
    event_of(owner, n) for n, owner in enumerate(("alice", "bob", "carol", "dave"), 1)
)


def hosts(bus: Any, observe: Callable[[Observation], None] = lambda _: None) -> HostsBus:
    """Return what is tested; its clock is the loop's."""
    return HostsBus(bus, observe, LEASE_SECONDS, asyncio.get_running_loop().time)


def of_owner(owner: str, number: int) -> CommittedEvent:
    """Return the event of a creation, whose recipients begin with the owner."""
    return replace(event_of(owner, number), recipients=(owner,))


def numbers(events: Iterable[CommittedEvent]) -> list[int]:
    """Return the ids of events, the lowest first."""
    return sorted(event.event_id.int for event in events)


class Odd(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize(
    "error",
    [ValueError, TimeoutError, SystemExit, asyncio.CancelledError, Odd, BusUnavailable, None],
)
@in_virtual_time
async def test_an_event_for_which_a_bus_fails_holds_up_no_other(
    error: type[BaseException] | None,
) -> None:
    """It is refused, as one that the bus refuses itself; a bug is reported."""
    bus, observed = FailsFor(error, ONE), list["Observation"]()
    bus.refuses = THREE
    doubted = hosts(bus, observed.append)
    reasons = dict(await doubted.publish([ONE, TWO, THREE, FOUR]))
    assert "no" == reasons.pop(THREE.event_id)
    assert [ONE.event_id] == [*reasons]
    assert reasons[ONE.event_id].startswith("publish raised" if error else "publish took longer")
    assert [2, 3, 4] == numbers(bus.published)
    is_bug = error not in (None, BusUnavailable)
    assert [ActorCrashed] * is_bug == [type(each) for each in observed]
    assert doubted.has_blamed
    assert 0 == bus.under_way


@in_virtual_time
async def test_what_goes_through_together_is_published_once() -> None:
    """And what was refused then is reported as it is."""
    bus = FailsFor(None)
    bus.refuses = ONE
    doubted = hosts(bus)
    assert {} == await doubted.publish([ONE, TWO])
    assert {ONE.event_id: "no"} == await doubted.publish([ONE])
    assert [[1, 2], [1]] == bus.calls
    assert not doubted.has_blamed


@in_virtual_time
async def test_a_bus_that_fails_for_every_event_refuses_none() -> None:
    """Else all would become dead letters before the bug is mended."""
    bus, observed = FailsFor(LookupError, ONE, TWO), list["Observation"]()
    doubted = hosts(bus, observed.append)
    with pytest.raises(LookupError):
        await doubted.publish([ONE, TWO])
    assert not observed
    assert not doubted.has_blamed
    bus.events = []
    assert {} == await doubted.publish([ONE, TWO])


@in_virtual_time
async def test_a_bus_that_hangs_for_every_event_refuses_none() -> None:
    """The twin; it has been asked for an event of each owner and for others', and no call goes on."""
    bus = FailsFor(None, ONE, TWO, THREE)
    doubted = hosts(bus)
    with pytest.raises(BusUnavailable, match="no answer in time"):
        await doubted.publish([ONE, TWO], Behind(THREE))
    assert [[1, 2], [1], [3], [2]] == bus.calls
    assert not doubted.has_blamed
    await asyncio.sleep(0)
    assert 0 == bus.under_way


@pytest.mark.parametrize("error", [ValueError, BusUnavailable, None])
@in_virtual_time
async def test_events_of_one_owner_alone_are_to_blame_if_others_further_back_go_through(
    error: type[Exception] | None,
) -> None:
    """However many there are in a row: a page of them would hold up all that follows."""
    evil = [event_of("evil", n) for n in range(1, 257)]
    bus = FailsFor(error, *evil)
    behind = Behind(event_of("evil", 257), event_of("bob", 258), event_of("bob", 259))
    reasons = await hosts(bus).publish(evil, behind)
    assert {event.event_id for event in evil} == {*reasons}
    assert [258] == numbers(bus.published)
    assert 1 == behind.reads


@pytest.mark.parametrize("places", [1, 3])
@in_virtual_time
async def test_owners_for_whom_the_bus_hangs_keep_no_others_from_a_bus_that_does_few_things_at_once(
    places: int,
) -> None:
    """As a pool of connections, each of which a call of these owners may keep."""
    evil = [event_of(f"evil {n % 4}", n) for n in range(1, 17)]
    others = [event_of(f"good {n}", n) for n in range(17, 33)]
    bus = DoesFew(places, *evil)
    doubted = hosts(bus)
    # What it has found out is kept for the next time, where it has found no other owner yet.
    for _ in range(3):
        try:
            reasons = await doubted.publish([*evil, *others])
        except BusUnavailable:
            continue
        break
    assert {event.event_id for event in evil} <= {*reasons}
    left = [event for event in others if event not in bus.published]
    assert len(left) <= places
    assert {UNSURE} >= {reasons[event.event_id] for event in left}
    bus.calls.clear()
    assert {} == await doubted.publish([event_of("new", 40), event_of("new", 41)])


@in_virtual_time
async def test_what_waits_for_others_that_hang_is_not_to_blame() -> None:
    """Several calls are cancelled at once where none is answered: only the first surely kept out others."""
    evil = [event_of(f"evil {n}", n) for n in range(1, 5)]
    others = [event_of(f"good {n}", n) for n in range(5, 9)]
    bus = DoesFew(1, *evil)
    reasons = await hosts(bus).publish([*evil, *others])
    assert [6, 7, 8] == numbers(bus.published)
    assert UNSURE == reasons[others[0].event_id]
    assert reasons[evil[3].event_id].startswith("publish took longer")


@in_virtual_time
async def test_a_failure_for_all_together_alone_is_none() -> None:
    """Such as a bus that cannot take many at once."""
    bus, observed = HangsTogether(1, ValueError), list["Observation"]()
    doubted = hosts(bus, observed.append)
    assert {} == await doubted.publish([ONE, TWO])
    assert [ONE, TWO] == bus.published
    assert not observed
    assert not doubted.has_blamed


@in_virtual_time
async def test_a_bus_that_answers_after_all_has_published_everything() -> None:
    """What it has refused is refused; what was begun for single owners ends, since newer events follow."""
    may_answer = asyncio.Event()

    class Late(FailsFor):
        async def work(self, events: Sequence[CommittedEvent]) -> None:
            if len(events) > 1:
                await may_answer.wait()
            else:
                await asyncio.Event().wait()

        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            await super().publish(events)
            return {TWO.event_id: "no"}

    bus = Late(None)
    doubted = hosts(bus)
    publishing = asyncio.create_task(doubted.publish([ONE, TWO]))
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    assert [[1, 2], [1]] == bus.calls
    may_answer.set()
    assert {TWO.event_id: "no"} == await publishing
    assert [*doubted.busy_owners] == []
    assert not doubted.has_blamed
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 == bus.under_way


@pytest.mark.parametrize("seconds", [1.0, PATIENCE_SECONDS + 1.0])
@in_virtual_time
async def test_a_turn_that_is_cancelled_leaves_no_call_behind(seconds: float) -> None:
    """Neither the one for all, nor one of those for single owners after some were answered."""
    bus = FailsFor(None, ONE)
    doubted = hosts(bus)
    publishing = asyncio.create_task(doubted.publish([TWO, ONE, THREE]))
    await asyncio.sleep(seconds)
    # By then that for all has been left.
    assert 1 == bus.under_way
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    for _ in range(5):
        await asyncio.sleep(0)
    assert 0 == bus.under_way


@in_virtual_time
async def test_the_log_is_read_for_one_event_of_each_of_so_many_owners() -> None:
    """A bus that is away, and a long log: neither gets more than this."""
    others = [event_of(f"owner {n // 2}", n) for n in range(2, 100)]
    bus, behind = FailsFor(LookupError, ONE, *others), Behind(*others)
    with pytest.raises(LookupError):
        await hosts(bus).publish([ONE], behind)
    assert [[1], [1], *([2 * n] for n in range(1, 1 + ASKED_AT_ONCE_MAX))] == bus.calls
    assert 1 == behind.reads
    assert len(others) == behind.read


@in_virtual_time
async def test_a_bus_that_says_it_is_away_is_not_asked_for_each_event() -> None:
    """Only for one of each owner: it may say so for one owner, such as of its shard."""
    events = [event_of(f"owner {n // 3}", n) for n in range(99)]
    bus = FailsFor(BusUnavailable, *events)
    with pytest.raises(BusUnavailable):
        await hosts(bus).publish(events)
    # All together; then of each of so many owners all, and one alone.
    assert 1 + 2 * ASKED_AT_ONCE_MAX == len(bus.calls)


@in_virtual_time
async def test_a_bus_that_is_away_for_one_event_holds_up_no_other_of_its_owner() -> None:
    """Whichever of the owner's events that is, and however many come before."""
    events = [event_of("alice", n) for n in range(1, 100)]
    bus = FailsFor(BusUnavailable, events[50])
    assert [51] == [each.int for each in await hosts(bus).publish(events)]
    assert [n for n in range(1, 100) if n != 51] == numbers(bus.published)


@in_virtual_time
async def test_more_owners_are_asked_for_each_time_that_none_is_found() -> None:
    """And not the same ones: hundreds for whom the bus raises hide no other."""
    evil = [event_of(f"evil {n}", n) for n in range(1, 341)]
    bus = FailsFor(BusUnavailable, *evil)
    doubted = hosts(bus)
    counts = []
    for _ in range(2):
        bus.calls.clear()
        with pytest.raises(BusUnavailable):
            await doubted.publish(evil[:20], Behind(*evil[20:], event_of("bob", 999)))
        counts.append(len(bus.calls) - 1)
    assert [16 + 16, 20 + 64] == counts
    # First those who had no turn before.
    assert [17] == bus.calls[1]
    reasons = await doubted.publish(evil[:20], Behind(*evil[20:], event_of("bob", 999)))
    assert {event.event_id for event in evil[:20]} == {*reasons}
    # Since it has answered, few are asked for again, and anew.
    bus.calls.clear()
    with pytest.raises(BusUnavailable):
        await doubted.publish(evil[20:40], Behind(*evil[40:]))
    assert 1 + 16 + 16 == len(bus.calls)
    assert [[21], [41]] == bus.calls[1:3]


@in_virtual_time
async def test_so_many_owners_are_asked_for_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the bus takes nothing."""
    monkeypatch.setattr(host_bus, "ASKED_AT_ONCE_MAX", 2)
    evil = [event_of(f"evil {n}", n) for n in range(1, 201)]
    bus = FailsFor(BusUnavailable, *evil)
    doubted = hosts(bus)
    for most in (2, 8, 32, 32):
        bus.calls.clear()
        with pytest.raises(BusUnavailable):
            await doubted.publish(evil[:80], Behind(*evil[80:]))
        assert 1 + 2 * most == len(bus.calls)


@in_virtual_time
async def test_owners_who_were_asked_for_in_vain_come_behind_others() -> None:
    """They may keep out those behind them."""
    bus = FailsFor(BusUnavailable, ONE)
    doubted = hosts(bus)
    with pytest.raises(BusUnavailable):
        await doubted.publish([ONE])
    bus.calls.clear()
    assert [ONE.event_id] == [*await doubted.publish([ONE, TWO, FOUR])]
    assert [[1, 2, 4], [2], [4], [1]] == bus.calls


@in_virtual_time
async def test_an_owner_of_the_page_does_not_stand_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although it had no turn yet: its events would be out of order."""
    monkeypatch.setattr(host_bus, "ASKED_AT_ONCE_MAX", 1)
    bus = FailsFor(BusUnavailable, ONE, TWO, THREE)
    with pytest.raises(BusUnavailable):
        await hosts(bus).publish([ONE, TWO], Behind(event_of("bob", 5), THREE))
    assert [[1, 2], [1], [3]] == bus.calls


@in_virtual_time
async def test_where_all_were_asked_for_they_are_asked_anew() -> None:
    """The bus may be there for them by now."""
    bus = FailsFor(BusUnavailable, ONE, TWO)
    doubted = hosts(bus)
    asked = []
    for _ in range(3):
        bus.calls.clear()
        with pytest.raises(BusUnavailable):
            await doubted.publish([ONE], Behind(TWO))
        asked.append([2] in bus.calls)
    assert [True, False, True] == asked


@in_virtual_time
async def test_those_who_were_asked_for_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many, all are asked for anew."""
    monkeypatch.setattr(host_bus, "ASKED_MAX", 2)
    bus = FailsFor(BusUnavailable, ONE, TWO, THREE)
    doubted = hosts(bus)
    asked = []
    for _ in range(3):
        bus.calls.clear()
        with pytest.raises(BusUnavailable):
            await doubted.publish([ONE], Behind(TWO, THREE))
        asked.append([2] in bus.calls)
    assert [True, True, True] == asked


@in_virtual_time
async def test_owners_for_whom_the_bus_has_answered_come_before_others() -> None:
    """They have had theirs before it is known for whom it hangs."""
    evil = [event_of(f"evil {n}", n) for n in range(1, 4)]
    bus = DoesFew(1, *evil)
    doubted = hosts(bus)
    await doubted.publish([of_owner("alice", 11), of_owner("bob", 12)])
    bus.calls.clear()
    with pytest.raises(BusUnavailable):
        await doubted.publish([evil[0]])
    bus.calls.clear()
    await doubted.publish([*evil, of_owner("alice", 13), of_owner("bob", 14)])
    assert [[1, 2, 3, 13, 14], [13], [14]] == bus.calls[:3]


@in_virtual_time
async def test_the_newest_owners_for_whom_it_has_answered_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One for whom it answers again is a new one. Only creations that it has taken count, with recipients."""
    monkeypatch.setattr(host_bus, "GOOD_OWNERS_MAX", 2)
    bus = FailsFor(ValueError)
    doubted = hosts(bus)
    bus.refuses = of_owner("dave", 14)
    await doubted.publish([of_owner("alice", 11), of_owner("bob", 12)])
    await doubted.publish([of_owner("alice", 13), replace(event_of("erin", 15), recipients=())])
    await doubted.publish([bus.refuses])
    await doubted.publish([of_owner("carol", 16)])
    await doubted.publish([replace(of_owner("frank", 17), event_type="com.example.changed")])
    assert ["alice", "carol"] == [*doubted._good]


@in_virtual_time
async def test_events_of_a_group_stay_behind_the_one_that_fails() -> None:
    """Published alone, too, they are in order; what follows the failure is not tried before it."""
    group = [event_of("alice", n, "team") for n in range(1, 5)]
    bus = FailsFor(ValueError, group[2])
    reasons = await hosts(bus).publish([*group, event_of("bob", 5)])
    assert [3, 4] == [each.int for each in reasons]
    assert [1, 2, 5] == numbers(bus.published)


@in_virtual_time
async def test_new_events_of_an_owner_to_blame_follow_without_a_try() -> None:
    """Else each page with one of them would be published one by one, or wait for it."""
    bus = FailsFor(None, ONE, event_of("alice", 5))
    doubted = hosts(bus)
    reason = (await doubted.publish([ONE, TWO]))[ONE.event_id]
    bus.calls.clear()
    reasons = await doubted.publish([event_of("alice", 5), TWO, THREE])
    assert ([[2, 3]], {5: reason}) == (bus.calls, {each.int: why for each, why in reasons.items()})
    # Where there are no others, there is no call.
    bus.calls.clear()
    assert [5] == [each.int for each in await doubted.publish([event_of("alice", 5)])]
    assert [] == bus.calls
    # Nor is it asked for in others' place.
    bus.error, bus.events = BusUnavailable, [TWO]
    with pytest.raises(BusUnavailable):
        await doubted.publish([TWO], Behind(event_of("alice", 6), event_of("bob", 7)))
    assert [[2], [2]] == bus.calls


@in_virtual_time
async def test_an_owner_is_to_blame_until_the_event_goes_through() -> None:
    """Published again beside the log, where other owners' events are as well."""
    bus = FailsFor(ValueError, ONE)
    doubted = hosts(bus)
    await doubted.publish([ONE, TWO])
    other = event_of("alice", 5)
    deliveries = [Delivery(ONE, 1, "alice"), Delivery(THREE, 1, "carol"), Delivery(other, 1)]
    parts = doubted.parts_again(deliveries)
    assert [[1, 5], [3]] == [numbers(each.event for each in part) for part in parts]
    assert [ONE.event_id] == [each.event_id for each in await doubted.publish_again(parts[0])]
    assert [other.event_id] == [*await doubted.publish([other])]
    bus.events = []
    assert [] == await doubted.publish_again([Delivery(ONE, 1, "alice")])
    assert {} == await doubted.publish([other])
    assert not doubted.has_blamed


@in_virtual_time
async def test_what_still_hangs_is_left_to_go_on_beside_the_log() -> None:
    """As a slow one may yet answer: its owner gets no other call, and nothing says that it is to blame."""
    may_answer = asyncio.Event()

    class Late(FailsFor):
        async def work(self, events: Sequence[CommittedEvent]) -> None:
            if ONE in events or THREE in events:
                await may_answer.wait()

    bus = Late(None)
    doubted = hosts(bus)
    reasons = await doubted.publish([TWO, ONE, THREE])
    assert {ONE.event_id: UNSURE, THREE.event_id: UNSURE} == reasons
    assert ["alice", "carol"] == sorted(doubted.busy_owners)
    assert not doubted.has_blamed
    assert 2 == bus.under_way
    bus.calls.clear()
    assert [5] == [each.int for each in await doubted.publish([event_of("alice", 5), TWO])]
    (put_off,) = await doubted.publish_again([Delivery(ONE, 0, "alice")])
    assert not put_off.is_try
    assert [[2]] == bus.calls
    may_answer.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert [] == [*doubted.busy_owners]


@in_virtual_time
async def test_an_owner_that_had_no_turn_is_not_to_blame() -> None:
    """Its event is published beside the log, and its next ones in the log's turn after that."""
    evil = [event_of(f"evil {n}", n) for n in range(1, 41)]
    bus = DoesFew(1, *evil)
    doubted = hosts(bus)
    await doubted.publish([of_owner("alice", 51)])
    good = event_of("good", 53)
    reasons = await doubted.publish([*evil, of_owner("alice", 54), good])
    assert UNSURE == reasons[good.event_id]
    assert of_owner("alice", 54).event_id not in reasons
    assert not doubted.has_blamed
    await doubted.close()
    assert [] == await doubted.publish_again([Delivery(good, 0)])
    assert {} == await doubted.publish([event_of("good", 55)])


@in_virtual_time
async def test_an_owner_for_whom_it_has_failed_slowly_is_known_at_once() -> None:
    """As with a client that gives up by itself: its events take turns of their own."""

    class GivesUp(FailsFor):
        async def work(self, events: Sequence[CommittedEvent]) -> None:
            if ONE in events:
                await asyncio.sleep(1.0)
                raise TimeoutError

    doubted = hosts(GivesUp(None))
    await doubted.publish([ONE, TWO])
    assert ["alice"] == [*doubted.slow_owners]


@in_virtual_time
async def test_owners_for_whom_it_has_hung_beside_the_log_are_known() -> None:
    """Their refused events take turns of their own."""
    bus = FailsFor(None, ONE)
    doubted = hosts(bus)
    await doubted.publish([TWO, ONE])
    again = asyncio.create_task(doubted.publish_again([Delivery(ONE, 1)]))
    await asyncio.sleep(0.1)
    assert ["alice"] == [*doubted.busy_owners]
    assert {} == await doubted.publish([TWO])
    (put_off,) = await again
    assert put_off.is_try
    assert ["alice"] == [*doubted.slow_owners]
    assert [] == [*doubted.busy_owners]


@pytest.mark.parametrize(
    ("bus", "count", "expected"),
    [
        (HangsTogether(1), FEW_EVENTS_MAX + 1, True),
        (HangsTogether(1), FEW_EVENTS_MAX, False),
        (HangsTogether(1, TimeoutError), FEW_EVENTS_MAX + 1, False),
        (FailsFor(None, event_of("owner 0", 0)), FEW_EVENTS_MAX + 1, False),
    ],
    ids=["many", "few", "its-own-time-out", "one-to-blame"],
)
@in_virtual_time
async def test_a_bus_that_takes_too_long_for_many_is_to_get_fewer(
    bus: FailsFor, count: int, expected: bool
) -> None:
    """Where it takes each owner's; with few events where it fails for an owner, others would fall behind."""
    doubted = hosts(bus)
    await doubted.publish([event_of(f"owner {n}", n) for n in range(count)])
    assert expected == doubted.was_slow
    await doubted.publish([event_of("alice", 99)])
    assert not doubted.was_slow


@in_virtual_time
async def test_a_bus_that_answers_nothing_in_time_gets_more() -> None:
    """Each call of it may take long, and it is not known yet; not where it raises."""
    bus = FailsFor(ConnectionError, ONE, TWO)
    doubted = hosts(bus)
    with pytest.raises(ConnectionError):
        await doubted.publish([ONE, TWO])
    assert pytest.approx(PATIENCE_SECONDS) == doubted._patience.seconds
    bus.error = None
    for times in (2, 4):
        with pytest.raises(BusUnavailable):
            await doubted.publish([ONE, TWO])
        assert pytest.approx(times * PATIENCE_SECONDS) == doubted._patience.seconds
    bus.events = []
    await doubted.publish([ONE, TWO])
    assert pytest.approx(PATIENCE_SECONDS) == doubted._patience.seconds


@in_virtual_time
async def test_a_bus_that_is_known_to_be_slow_is_waited_for() -> None:
    """It is asked for all together once, and then has three times as long."""
    bus = Takes(PATIENCE_SECONDS - 0.1)
    doubted = hosts(bus)
    assert {} == await doubted.publish([ONE, TWO])
    bus.seconds *= PATIENCE_TIMES - 0.1
    assert {} == await doubted.publish([ONE, TWO])
    assert [[1, 2], [1, 2]] == bus.calls


@in_virtual_time
async def test_closing_ends_what_goes_on() -> None:
    """Also what the log's turn has left beside it."""
    bus = FailsFor(None, ONE)
    doubted = hosts(bus)
    again = asyncio.create_task(doubted.publish_again([Delivery(ONE, 1)]))
    await asyncio.sleep(0.1)
    await doubted.close()
    assert 0 == bus.under_way
    await again


@in_virtual_time
async def test_an_error_that_comes_as_the_turn_ends_is_not_printed() -> None:
    """Asyncio would log it with its text."""
    assert [] == await printed_of_late_errors(lambda bus: hosts(bus).publish([ONE]))


class Kept(Exception):
    """An error to which a test has a weak reference."""

    all: ClassVar[list[weakref.ref[Kept]]] = []

    def __init__(self) -> None:
        self.all.append(weakref.ref(self))


@pytest.mark.parametrize("fails_for", [[ONE, TWO], [ONE]], ids=["all", "one"])
@in_virtual_time
async def test_an_error_is_freed_at_once(fails_for: list[CommittedEvent]) -> None:
    """In a reference cycle only the garbage collector would free what its frames hold, such as documents."""
    Kept.all.clear()
    bus = FailsFor(Kept, *fails_for)
    doubted = hosts(bus)
    gc.collect()
    gc.disable()
    try:
        with suppress(Kept):
            await doubted.publish([ONE, TWO])
        await asyncio.sleep(0)
        assert len(Kept.all) > 1
        assert [] == [ref for ref in Kept.all if ref() is not None]
    finally:
        gc.enable()
