"""Owners for whose events a host's bus has failed: how many are kept, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.assembly.host_bus_blame import BLAME_SECONDS, OWNERS_MAX, BlamedOwners
from stretto.assembly.host_bus_calls import NoAnswer
from stretto.observations import ActorCrashed
from support.clock import Clock
from support.owned_events import event_of

if TYPE_CHECKING:
    from stretto.observations import Observation


def test_an_owner_is_blamed_for_so_long_from_the_last_failure_on() -> None:
    """Each failure renews it; a bug is reported with the first one."""
    clock, observed = Clock(), list["Observation"]()
    blamed = BlamedOwners(observed.append, clock)
    blamed.add(event_of("alice", 1), LookupError())
    clock.now += BLAME_SECONDS - 1
    blamed.add(event_of("alice", 2), ValueError())
    blamed.add(event_of("bob", 4), NoAnswer(1.5))
    assert [ActorCrashed] == [type(each) for each in observed]
    clock.now += BLAME_SECONDS - 1
    blamed.take_back(event_of("bob", 4))
    other = event_of("alice", 3)
    assert {other.event_id: "publish raised ValueError"} == blamed.reasons(
        [other, event_of("bob", 4)]
    )
    clock.now += 1
    assert {} == blamed.reasons([other])


def test_only_the_event_that_failed_last_takes_the_blame_back() -> None:
    """Others may go through all the time."""
    blamed = BlamedOwners(lambda _: None, Clock())
    first, last = event_of("alice", 1), event_of("alice", 2)
    blamed.add(first, ValueError())
    blamed.add(last, ValueError())
    blamed.take_back(first)
    assert blamed.reasons([first])
    blamed.take_back(last)
    assert {} == blamed.reasons([first])
    blamed.take_back(last)


def test_so_many_owners_are_kept() -> None:
    """The one that failed first is forgotten."""
    blamed = BlamedOwners(lambda _: None, Clock())
    events = [event_of(f"owner {n}", n) for n in range(OWNERS_MAX + 1)]
    for event in events:
        blamed.add(event, ValueError())
    assert {event.event_id for event in events[1:]} == {*blamed.reasons(events)}
