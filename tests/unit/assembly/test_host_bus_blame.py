"""Owners for whose events a host's bus has failed: how many are kept, and for how long."""

from __future__ import annotations

from stretto.assembly.host_bus_blame import BLAME_SECONDS, OWNERS_MAX, BlamedOwners
from support.clock import Clock
from support.owned_events import event_of


def test_an_owner_is_blamed_for_so_long_from_the_last_failure_on() -> None:
    """Each failure renews it; the first is a new one."""
    clock = Clock()
    blamed = BlamedOwners(clock)
    assert blamed.add(event_of("alice", 1), "first")
    clock.now += BLAME_SECONDS - 1
    assert not blamed.add(event_of("alice", 2), "second")
    clock.now += BLAME_SECONDS - 1
    other = event_of("alice", 3)
    assert {other.event_id: "second"} == blamed.reasons([other, event_of("bob", 4)])
    clock.now += 1
    assert {} == blamed.reasons([other])


def test_only_the_event_that_failed_last_takes_the_blame_back() -> None:
    """Others may go through all the time."""
    blamed = BlamedOwners(Clock())
    first, last = event_of("alice", 1), event_of("alice", 2)
    blamed.add(first, "no")
    blamed.add(last, "no")
    blamed.take_back(first)
    assert blamed.reasons([first])
    blamed.take_back(last)
    assert {} == blamed.reasons([first])
    blamed.take_back(last)


def test_so_many_owners_are_kept() -> None:
    """The one that failed first is forgotten."""
    blamed = BlamedOwners(Clock())
    events = [event_of(f"owner {n}", n) for n in range(OWNERS_MAX + 1)]
    for event in events:
        blamed.add(event, "no")
    assert {event.event_id for event in events[1:]} == {*blamed.reasons(events)}
