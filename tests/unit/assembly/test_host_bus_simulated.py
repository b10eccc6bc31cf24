"""Buses of many kinds, with the real relay over a store in memory: how late others' events are, in virtual time.

The bad owners are those for whom a bus fails. None of the others' events may be missing, or a dead letter.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from stretto.assembly.host_bus import HostsBus
from stretto.assembly.host_bus_blame import owner_of
from stretto.events.log import LoggedEvent
from stretto.runtime.runner import Run
from stretto.targets.doubted_relay import DoubtedRelay
from stretto.targets.settings import RelaySettings
from support.bus_again import STATEMENT_SECONDS, Kind, KindOfBus, SharedStore, now
from support.log_events import HISTORY
from support.owned_events import event_of
from support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from support.bus_again import Fault

    Made = tuple[float, str]

SETTINGS = RelaySettings()
BAD = "bad"


def stream(seconds: int, a_second: int = 5, owners: int = 50) -> list[Made]:
    """Return when events of others are made, and whose they are."""
    return [(n / a_second, f"other {n % owners}") for n in range(seconds * a_second)]


def bad(owners: int, times: Iterable[int] = (10,)) -> list[Made]:
    """Return an event of each of so many bad owners at each of these times."""
    return [(at, f"{BAD} {n}") for at in times for n in range(owners)]


def hangs(owner: str, _seconds: float) -> Fault:
    """Hang for bad owners."""
    return "hangs" if owner.startswith(BAD) else None


def hangs_later(owner: str, seconds: float) -> Fault:
    """Hang for bad owners for whom it has answered before."""
    return "hangs" if owner.startswith(BAD) and seconds > 20 else None


def raises(owner: str, _seconds: float) -> Fault:
    """Raise for bad owners."""
    return "raises" if owner.startswith(BAD) else None


def away(fault: Fault, begin: float, end: float) -> Callable[[str, float], Fault]:
    """Return what fails for all events for a while."""
    return lambda _, seconds: fault if begin <= seconds < end else None


def slow(seconds: float) -> float:
    """Return how long a call takes: long, for 10 s."""
    return 2.0 if 20 <= seconds < 30 else 0.005


def now_and_then_slow(seconds: float) -> float:
    """Return how long a call takes: long for a third of the time."""
    return 2.0 if 15 < seconds < 60 and seconds % 12 < 4 else 0.005


def half(owner: str, _seconds: float) -> Fault:
    """Hang for an owner who is not to blame: the bus of another process takes its events."""
    return "hangs" if owner == "half" else None


@dataclass(frozen=True)
class Scenario:
    """A bus for each process, and the events of a log."""

    name: str
    late_seconds: float
    """How late an event of others may be."""
    kinds: tuple[Kind, ...]
    events: list[Made]
    seconds: int = 120
    counts_from: float = 0.0
    """The end of an outage: what was made before is not late until then."""
    statement_seconds: float = STATEMENT_SECONDS
    """How long the database takes for each, of which five are under way at once."""


# When events of bad owners are made.
AGAIN = (10, *range(12, 60, 3))
# More than one of the relay.
PAGE = bad(1, [5] * 300)
NEW_RAISE = [(n / 40, f"{BAD} {n}") for n in range(40 * 20)]
NEW = [(10.0 + n, f"{BAD} {n}") for n in range(60)]


def hanging(late_seconds: float, owners: int, **kind: object) -> Scenario:
    """Return one with owners for whom the bus hangs, again and again."""
    name = f"{owners} hang, " + ", ".join(f"{each}={value}" for each, value in kind.items())
    events = stream(70) + bad(owners, AGAIN)
    return Scenario(name, late_seconds, (Kind(hangs, **kind),), events)  # type: ignore[arg-type]


def at_random(
    late_seconds: float, bad_owners: int, owners: int, a_second: int, **kind: object
) -> Scenario:
    """Return one with such owners who make events as it comes."""
    by_chance, at, events = random.Random(1), 0.0, []
    while at < 90:
        turn = by_chance.randrange(owners)
        events.append((at, f"{BAD if turn < bad_owners else 'other'} {turn}"))
        at += by_chance.expovariate(a_second)
    name = f"{bad_owners} of {owners} hang, {a_second} a second at random, " + ", ".join(
        f"{each}={value}" for each, value in kind.items()
    )
    return Scenario(name, late_seconds, (Kind(hangs_later, **kind),), events, seconds=290)  # type: ignore[arg-type]


def one(
    name: str, late_seconds: float, kind: Kind, events: list[Made], counts_from: float = 0.0
) -> Scenario:
    """Return one with one process."""
    return Scenario(name, late_seconds, (kind,), events, counts_from=counts_from)


def among(late_seconds: float, bad_owners: int, owners: int, **kind: object) -> Scenario:
    """Return one with owners for whom the bus hangs after a while, among so many who make events in turn."""
    name = f"{bad_owners} of {owners} hang, " + ", ".join(f"{a}={b}" for a, b in kind.items())
    # A prime number: each owner has turns behind each other.
    turns = [(n, n * 37 % owners) for n in range(8 * 90)]
    events = [(n / 8, f"{BAD if turn < bad_owners else 'other'} {turn}") for n, turn in turns]
    return Scenario(name, late_seconds, (Kind(hangs_later, **kind),), events, seconds=250)  # type: ignore[arg-type]


def outage(late_seconds: float, fault: Fault, **kind: object) -> Scenario:
    """Return one with a bus that is away for 40 s, for all owners."""
    name = f"all {fault[:-1] if fault else ''}, " + ", ".join(f"{a}={b}" for a, b in kind.items())
    bus = Kind(away(fault, 20, 60), **kind)  # type: ignore[arg-type]
    return one(name, late_seconds, bus, stream(90, owners=400), counts_from=60)


SCENARIOS = [
    hanging(8.0, 1, places=1),
    hanging(10.0, 3, places=1),
    hanging(19.0, 8, places=1),
    hanging(2.5, 1, places=4),
    hanging(8.5, 8, places=4),
    hanging(2.5, 1, places=1000),
    hanging(4.5, 8, places=1000),
    hanging(5.0, 1, places=1, own_seconds=2.0),
    hanging(17.0, 8, places=1, own_seconds=2.0),
    hanging(7.5, 8, places=4, own_seconds=2.0),
    hanging(5.0, 1, places=1, own_seconds=2.0, is_in_thread=True),
    hanging(11.0, 3, places=1, own_seconds=2.0, is_in_thread=True),
    hanging(7.5, 8, places=4, own_seconds=2.0, is_in_thread=True),
    hanging(4.5, 8, places=1000, own_seconds=2.0, is_in_thread=True),
    hanging(14.5, 3, places=1, cleanup_seconds=0.9),
    hanging(13.5, 8, places=4, cleanup_seconds=0.9),
    hanging(17.0, 40, places=10),
    hanging(10.5, 40, places=10, own_seconds=2.0),
    among(41.0, 5, 25, places=1),
    among(50.0, 15, 45, places=1),
    among(41.0, 15, 45, places=1, own_seconds=2.0, is_in_thread=True),
    among(14.5, 12, 32, places=4),
    among(19.0, 30, 90, places=4, own_seconds=2.0),
    at_random(31.0, 5, 25, 8, places=1),
    at_random(69.0, 15, 45, 15, places=1),
    at_random(45.0, 15, 45, 8, places=1, own_seconds=2.0),
    at_random(45.0, 15, 45, 15, places=1, own_seconds=2.0, is_in_thread=True),
    at_random(22.0, 8, 50, 8, places=1, own_seconds=2.0),
    at_random(19.0, 20, 100, 30, places=4),
    one("hundreds hang at once", 12.0, Kind(hangs), stream(60) + bad(280)),
    one("hundreds raise at once", 0.1, Kind(raises), stream(30) + bad(280)),
    one("one raises", 0.1, Kind(raises), stream(60) + bad(1, range(10, 40))),
    one("a page of one that hangs", 4.0, Kind(hangs), stream(30) + PAGE),
    one("a page of one that raises", 0.1, Kind(raises), stream(30) + PAGE),
    one("and in the only place", 7.5, Kind(hangs, 1, own_seconds=2.0), stream(30) + PAGE),
    one("a new one each second", 6.0, Kind(hangs), stream(90) + NEW),
    one("a new one each second, places=10", 7.5, Kind(hangs, 10), stream(90) + NEW),
    one("slow for 10 s, places=1", 8.0, Kind(takes=slow, places=1), stream(60)),
    one("slow for 10 s, places=4", 5.5, Kind(takes=slow, places=4), stream(60)),
    one("slow for 10 s, places=1000", 5.5, Kind(takes=slow), stream(60)),
    one("slow now and then", 5.5, Kind(takes=now_and_then_slow, places=1), stream(90)),
    outage(6.0, "hangs", places=1),
    outage(10.0, "hangs", places=4),
    outage(10.0, "hangs", places=1000),
    outage(3.5, "hangs", places=1, own_seconds=2.0),
    outage(0.1, "raises", places=1),
    Scenario(
        "forty new ones raise each second, a slow database",
        2.0,
        (Kind(raises, 10),),
        stream(20, 20, owners=20) + NEW_RAISE,
        seconds=40,
        statement_seconds=0.05,
    ),
    Scenario(
        "one process of two hangs for all", 13.0, (Kind(away("hangs", 20, 999)), Kind()), stream(90)
    ),
    # That of the other process has its turn after a minute.
    Scenario(
        "one process of two hangs for one owner",
        120.0,
        (Kind(half), Kind()),
        stream(200) + [(float(at), "half") for at in range(10, 190, 5)],
        seconds=320,
    ),
]


@dataclass(frozen=True)
class Outcome:
    """What came of the others' events."""

    late_seconds: float
    missing: int
    dead: int


async def simulate(scenario: Scenario) -> Outcome:
    """Run a relay of each process, and make the events."""
    store = SharedStore(scenario.statement_seconds)
    got, started = dict["UUID", float](), now()
    relays = [
        DoubtedRelay(store, HostsBus(bus, lambda _: None, 5.0, now), lambda _: None, SETTINGS, now)
        for bus in (KindOfBus(kind, got) for kind in scenario.kinds)
    ]
    runs = [Run(relay, lambda _: None, clock_seconds=now).turns() for relay in relays]
    tasks = [*map(asyncio.create_task, runs)]
    made: dict[UUID, float] = {}
    for number, (at, owner) in enumerate(sorted(scenario.events), 1):
        await asyncio.sleep(started + at - now())
        # A creation's recipients begin with the owner.
        event = replace(event_of(owner, number), recipients=(owner,))
        store.events.append(LoggedEvent(event, HISTORY, number))
        if not owner.startswith(BAD):
            made[event.event_id] = max(now(), started + scenario.counts_from)
        for relay in relays:
            relay.wake()
    await asyncio.sleep(started + scenario.seconds - now())
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    late = [got[event_id] - at for event_id, at in made.items() if event_id in got]
    dead = [each for each in store.deliveries.values() if each.dead_reason is not None]
    innocent = [each for each in dead if not owner_of(each.event).startswith(BAD)]
    return Outcome(max(late), len(made) - len(late), len(innocent))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[each.name for each in SCENARIOS])
@in_virtual_time
async def test_others_events_are_no_later_than_this(scenario: Scenario) -> None:
    """Whatever a bus does for some owners, or for all for a while."""
    outcome = await simulate(scenario)
    assert (0, 0) == (outcome.missing, outcome.dead)
    assert scenario.late_seconds >= outcome.late_seconds
