"""Owners for whose events a host's bus has failed: how many are kept, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from stretto.assembly.host_bus_blame import (
    BLAME_SECONDS,
    OWNERS_MAX,
    UNSURE,
    BlamedOwners,
    owner_of,
)
from stretto.assembly.host_bus_calls import NoAnswer
from stretto.events.log import CommittedEvent
from stretto.observations import ActorCrashed
from stretto.targets.bus import BusUnavailable
from support.clock import Clock
from support.owned_events import event_of

if TYPE_CHECKING:
    from stretto.observations import Observation

FIRST, SECOND, THIRD = (event_of("alice", number) for number in (1, 2, 3))
BOBS = event_of("bob", 4)


class Made(NamedTuple):
    """What is tested, and what it works with."""

    blamed: BlamedOwners
    clock: Clock
    observed: list[Observation]


def make() -> Made:
    """Return new ones."""
    clock, observed = Clock(), list["Observation"]()
    return Made(BlamedOwners(observed.append, clock), clock, observed)


def hung() -> NoAnswer:
    """Return what is raised where a call hangs."""
    return NoAnswer(1.5, is_own=True)


def test_new_events_of_an_owner_are_refused_for_the_reason_of_the_last_failure() -> None:
    """Those of others are not; nor are any while no owner is to blame."""
    blamed = make().blamed
    assert {} == blamed.reasons([FIRST, BOBS])
    blamed.add(FIRST, LookupError("secret"))
    assert {SECOND.event_id: "publish raised LookupError"} == blamed.reasons([SECOND, BOBS])
    blamed.add(SECOND, hung())
    assert {THIRD.event_id: "publish took longer than 1.5 s"} == blamed.reasons([THIRD, BOBS])
    assert ["alice"] == [owner for owner in ("alice", "bob") if owner in blamed]


def test_no_document_is_read_while_no_owner_is_to_blame() -> None:
    """Each event of the log comes by here."""
    unreadable = CommittedEvent(FIRST.event_id, ("alice",), b"no document")
    blamed = make().blamed
    assert {} == blamed.reasons([unreadable])
    blamed.take_back(unreadable)


def test_the_owner_is_that_of_the_group() -> None:
    """A change's recipients need not begin with it."""
    assert "a member" == FIRST.recipients[0]
    assert "alice" == owner_of(FIRST)


def test_an_owner_is_blamed_for_so_long_from_the_last_failure_on() -> None:
    """Each failure renews it."""
    blamed, clock, _ = make()
    blamed.add(FIRST, LookupError())
    blamed.add(BOBS, LookupError())
    clock.now += BLAME_SECONDS - 1
    blamed.add(SECOND, ValueError())
    clock.now += 1
    # Bob's is older by now, though alice was to blame before him.
    assert {THIRD.event_id: "publish raised ValueError"} == blamed.reasons([THIRD, BOBS])
    assert "bob" not in blamed
    clock.now += BLAME_SECONDS - 2
    assert "alice" in blamed
    assert blamed.are_any_sure
    clock.now += 1
    assert not blamed.are_any_sure
    assert "alice" not in blamed
    assert {} == blamed.reasons([THIRD])


def test_of_each_owner_one_bug_is_reported() -> None:
    """It comes with every try. Once the owner was not to blame any more, the next one is another."""
    blamed, clock, observed = make()
    error = LookupError()
    blamed.add(FIRST, error)
    blamed.add(FIRST, ValueError())
    assert [ActorCrashed("relay", error)] == observed
    blamed.add(BOBS, ValueError())
    assert 2 == len(observed)
    blamed.take_back(FIRST)
    blamed.add(FIRST, ValueError())
    assert 3 == len(observed)
    clock.now += BLAME_SECONDS
    blamed.add(FIRST, ValueError())
    assert 4 == len(observed)


@pytest.mark.parametrize("error", [hung(), BusUnavailable()], ids=["hangs", "is away"])
def test_that_a_bus_hangs_or_says_that_it_is_away_is_no_bug_to_report(error: Exception) -> None:
    """Nor does it hide one that comes after it, or have the same one reported again."""
    blamed, _, observed = make()
    blamed.add(FIRST, error)
    assert [] == observed
    blamed.add(FIRST, LookupError())
    blamed.add(FIRST, error)
    blamed.add(FIRST, LookupError())
    assert 1 == len(observed)


def test_events_follow_one_of_which_it_is_not_known_why_it_has_failed() -> None:
    """Else they would come before it; but the bus of another process need not be asked for that."""
    blamed, _, observed = make()
    blamed.have_follow(FIRST)
    assert {SECOND.event_id: UNSURE} == blamed.reasons([SECOND])
    assert not blamed.are_any_sure
    assert [] == observed
    blamed.add(FIRST, LookupError())
    assert blamed.are_any_sure
    assert 1 == len(observed)


def test_what_follows_makes_no_blame_unsure() -> None:
    """Nor does it go on for longer: the first event is what shows that the cause is mended."""
    blamed, clock, _ = make()
    blamed.add(FIRST, LookupError())
    clock.now += BLAME_SECONDS - 1
    blamed.have_follow(SECOND)
    assert blamed.are_any_sure
    assert {THIRD.event_id: "publish raised LookupError"} == blamed.reasons([THIRD])
    clock.now += 1
    assert "alice" not in blamed
    blamed.have_follow(FIRST)
    blamed.have_follow(SECOND)
    blamed.take_back(FIRST)
    assert "alice" not in blamed


def test_only_the_event_that_failed_last_takes_the_blame_back() -> None:
    """Others may go through all the time."""
    blamed = make().blamed
    blamed.add(FIRST, ValueError())
    blamed.add(SECOND, ValueError())
    blamed.add(BOBS, ValueError())
    blamed.take_back(FIRST)
    assert "alice" in blamed
    blamed.take_back(SECOND)
    assert ["bob"] == [owner for owner in ("alice", "bob") if owner in blamed]
    blamed.take_back(SECOND)


def test_so_many_owners_are_kept() -> None:
    """The one that failed first is forgotten; one that failed again is not the first any more."""
    blamed = make().blamed
    events = [event_of(f"owner {n}", n) for n in range(OWNERS_MAX + 1)]
    for event in [*events[:-1], events[0], events[-1]]:
        blamed.add(event, ValueError())
    assert {*events} - {events[1]} == {each for each in events if owner_of(each) in blamed}
