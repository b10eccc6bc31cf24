"""Every order of the store's steps, and every fault at each of them, on the real code.

The more requests and processes, the fewer faults: each costs a factor of ten. The longest scenarios
are not part of the suite.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from races import faults
from races.explorer import explore
from races.scenario import OTHER, Deletion, Request, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

# A busy machine makes it slow, not wrong: it is nothing but computing.
pytestmark = pytest.mark.timeout(600)

HERE: Final = Request(0)
THERE: Final = Request(1)
OTHER_HERE: Final = Request(0, body=OTHER)
OTHER_THERE: Final = Request(1, body=OTHER)

ANY: Final = Scenario(requests=(), faults=faults.ALL, faults_max=1)
LOSSES: Final = Scenario(
    requests=(), faults=(*faults.CONNECTION, "crash", "database crash"), faults_max=2
)
VETOES: Final = Scenario(requests=(), faults=("veto", "late", "cut", "crash"), faults_max=2)
# Two processes reach fewer kinds in the same time: these leave a statement on its way.
STRAYS: Final = Scenario(requests=(), faults=("cut", "crash"), faults_max=2, leases_max=0)

HELD: Final = Scenario(requests=(), faults=faults.NEIGHBOURS, faults_max=2, leases_max=0)

BY_OWNER: Final = Deletion(0)
BY_HOST: Final = Deletion(None)
DELETED: Final = Scenario(requests=(HERE, HERE), deletions=(BY_OWNER,), leases_max=0)

SCENARIOS: Final = {
    "3 requests, 1 process, 1 fault": (10_000, replace(ANY, requests=(HERE, HERE, HERE))),
    "2 requests, 2 processes, 1 fault": (500_000, replace(ANY, requests=(HERE, THERE))),
    "2 keys in one batch, 1 in doubt": (
        10,
        replace(HELD, requests=(Request(0, "a"), Request(0, "b")), together=True, faults_max=1),
    ),
    "2 bodies, 1 process, 1 fault": (1_000, replace(ANY, requests=(HERE, OTHER_HERE))),
    "2 bodies, 2 processes, 1 fault": (50_000, replace(ANY, requests=(HERE, OTHER_THERE))),
    "2 requests, 1 process in two steps, 2 losses": (
        100_000,
        replace(LOSSES, requests=(HERE, HERE), in_steps=(0,)),
    ),
    "2 requests, 2 processes, one of them in two steps, 1 fault": (
        100_000,
        replace(ANY, requests=(HERE, THERE), in_steps=(1,)),
    ),
    "2 bodies, 2 processes, one of them in two steps, 1 loss": (
        10_000,
        replace(LOSSES, requests=(HERE, OTHER_THERE), faults_max=1, in_steps=(1,)),
    ),
    "2 keys, 2 writers in 1 process, 1 stray statement": (
        100_000,
        replace(
            STRAYS,
            requests=(Request(0, "a"), Request(0, "b")),
            faults=("cut",),
            faults_max=1,
            writers=2,
        ),
    ),
    "2 requests and a deletion, 1 process, 1 loss": (
        100_000,
        replace(DELETED, faults=("cut", "late", "crash", "database crash"), faults_max=1),
    ),
    "2 requests and a deletion, 2 processes, 1 crash": (
        100_000,
        replace(DELETED, requests=(HERE, THERE), faults=("crash",), faults_max=1),
    ),
    "3 requests and a deletion, 2 processes": (
        100_000,
        replace(DELETED, requests=(HERE, HERE, THERE)),
    ),
    "3 requests and a deletion, 1 process, late replies": (
        10_000,
        replace(DELETED, requests=(HERE, HERE, HERE), replies_late=True),
    ),
    "2 requests, 2 processes, deletions by owner and host": (
        1_000_000,
        replace(DELETED, requests=(HERE, THERE), deletions=(BY_OWNER, BY_HOST)),
    ),
    "2 bodies and a deletion by a host, 2 processes": (
        10_000,
        replace(DELETED, requests=(HERE, OTHER_THERE), deletions=(BY_HOST,)),
    ),
    "2 requests, a deletion and a sweep, 2 processes": (
        1_000_000,
        replace(DELETED, requests=(HERE, THERE), sweeps_max=1, leases_max=1),
    ),
    "2 requests, 2 sweeps, 2 processes, 1 veto": (
        500,
        Scenario(
            requests=(HERE, THERE), sweeps_max=2, faults=("veto",), faults_max=1, leases_max=0
        ),
    ),
    "2 keys in one batch, 2 processes, 1 veto": (
        50_000,
        Scenario(
            requests=(Request(0, "a"), Request(0, "b"), Request(1, "a")),
            together=True,
            leases_max=0,
            faults=("veto",),
            faults_max=1,
        ),
    ),
}
# Half a minute of computing each: `make schedules`.
LONG: Final = {
    "2 requests, 1 process, 2 losses": (500_000, replace(LOSSES, requests=(HERE, HERE))),
    "2 requests, 1 process, 2 vetoes or losses": (
        500_000,
        replace(VETOES, requests=(HERE, HERE)),
    ),
    "2 requests, 2 processes, 2 stray statements": (
        10_000_000,
        replace(STRAYS, requests=(HERE, THERE)),
    ),
    "3 requests, 2 processes, 1 loss": (
        5_000_000,
        replace(LOSSES, requests=(HERE, HERE, THERE), faults_max=1),
    ),
    "2 requests, 2 processes, 2 held or in doubt": (1_000, replace(HELD, requests=(HERE, THERE))),
}
if "LONG" in os.environ:
    SCENARIOS.update(LONG)


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_every_schedule_the_guarantees_hold(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """One group or none, one answer, failed for good; and one retry settles what faults have left."""
    schedules_min, scenario = SCENARIOS[name]
    found = explore(scenario)
    summary = f"{found.schedules:,} schedules in {found.runs:,} runs, {found.states:,} states"
    record_property("explored", f"{name}: {summary}")
    # A floor: an explorer that finds little to explore is broken.
    assert schedules_min <= found.schedules
