"""Takes every way through a world, depth first, and judges each state on the way.

A world cannot be copied, so each new branch is run again from the beginning. A state that was seen
before is not entered again: what can follow it was explored then. How many schedules that covers is
counted exactly, as the number of ways from the first state to a last one.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from races.invariants import Witness
from races.likeness import digest
from races.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from races.scenario import Scenario
    from races.world import Step

# Far more than any scenario here needs: a world that never comes to rest must not go unnoticed.
STEPS_MAX: Final = 200
# Collected less often than by default, which would take a third of the time.
GARBAGE_OBJECTS: Final = 100_000


class AnomalyError(AssertionError):
    """A schedule that breaks a guarantee; lists every step of it."""

    def __init__(self, fault: str, schedule: list[str]) -> None:
        steps = "\n".join(f"{number:3}. {step}" for number, step in enumerate(schedule, 1))
        super().__init__(f"{fault}\n{steps}")
        self.fault = fault
        self.schedule = schedule


@dataclass(slots=True)
class Exploration:
    """What was explored."""

    schedules: int = 0
    """Different orders of steps, from the first state to a last one."""
    runs: int = 0
    """Executions of the code: one per branch that led to an unknown state or met a known one."""
    states: int = 0
    steps_max: int = 0


@dataclass(slots=True)
class _Branch:
    """A state on the way, and what is left to try there."""

    key: int
    steps: list[Step]
    position: int = 0
    schedules: int = 0


@dataclass(slots=True)
class Explorer:
    """Explores one scenario."""

    scenario: Scenario
    found: Exploration = field(default_factory=Exploration)
    _way: list[_Branch] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    """How many schedules there are from each state on."""

    def explore(self) -> Exploration:
        """Try everything; raises `AnomalyError` for the first schedule that breaks a guarantee."""
        with _determined():
            while True:
                self._run()
                if not self._turn_back():
                    break
        self.found.states = len(self._known)
        return self.found

    def _run(self) -> None:
        """Execute the way so far, then on along first branches to an end or a known state."""
        self.found.runs += 1
        world = _begin(self.scenario)
        witness = Witness(world)
        try:
            for branch in self._way[:-1]:
                world.take(branch.steps[branch.position])
                witness.follow()
            for branch in self._way[-1:]:
                world.take(branch.steps[branch.position])
            witness.look(final=False)
            self._go_on(world, witness)
        except AssertionError as fault:
            raise AnomalyError(str(fault), self._listed()) from fault
        finally:
            world.end()

    def _go_on(self, world: World, witness: Witness) -> None:
        while True:
            key = digest(world)
            schedules = self._known.get(key)
            if schedules is None:
                steps = world.steps()
                witness.look(final=not steps)
                if steps:
                    assert len(self._way) < STEPS_MAX, "this never comes to rest"
                    self._known[key] = 0
                    self._way.append(_Branch(key, steps))
                    self.found.steps_max = max(self.found.steps_max, len(self._way))
                    world.take(steps[0])
                    witness.look(final=False)
                    continue
                schedules = self._known[key] = 1
            assert schedules, "a state has led to itself"
            if self._way:
                self._way[-1].schedules += schedules
            return

    def _turn_back(self) -> bool:
        """Go to the next untried step; returns whether there is one."""
        while self._way:
            branch = self._way[-1]
            branch.position += 1
            if branch.position < len(branch.steps):
                return True
            self._way.pop()
            self._known[branch.key] = branch.schedules
            if self._way:
                self._way[-1].schedules += branch.schedules
            else:
                self.found.schedules = branch.schedules
        return False

    def _listed(self) -> list[str]:
        """Run the failing schedule once more, to put it into words."""
        world = _begin(self.scenario)
        described = []
        for branch in self._way:
            step = branch.steps[branch.position]
            described.append(world.describe(step))
            try:
                world.take(step)
            except AssertionError:
                break
        world.end()
        return described


def explore(scenario: Scenario) -> Exploration:
    """Explore a scenario; raises `AnomalyError`."""
    return Explorer(scenario).explore()


def _begin(scenario: Scenario) -> World:
    _ids.world = world = World(scenario)
    world.begin()
    return world


class _Ids:
    """Where the code under test takes its ids from: the same schedule gives the same ids."""

    world: World | None = None

    def __call__(self) -> UUID:
        assert self.world is not None
        assert self.world.acting is not None
        return self.world.acting.fresh_id()


_ids = _Ids()


@contextmanager
def _determined() -> Iterator[None]:
    """Take chance out of the code under test."""
    # What is there already stays; worlds that are over are many, small and gone at once.
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    try:
        with (
            patch("stretto.creation.flight.uuid4", _ids),
            patch("stretto.creation.flight.uuid7", _ids),
            patch("random.uniform", lambda low, _: low),
        ):
            yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
