"""Owners for whom the host's code was late: how long they are known, and what others wait."""

from __future__ import annotations

from typing import Final

import pytest

from stretto.creation import laggards as laggards_module
from stretto.creation.laggards import (
    AUTHORIZE_SECONDS,
    LATE_CALLS_MAX,
    LATE_SECONDS_MIN,
    MEMORY_SECONDS,
    RETRY_AFTER_SECONDS_MAX,
    Laggards,
)
from stretto.domain import UserId

ALICE: Final = UserId("alice")
BOB: Final = UserId("bob")


class World:
    """Laggards at a time that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.laggards = Laggards(lambda: self.now)

    def be_late(self, number: int) -> None:
        """Have so many calls be late, each of another owner."""
        for each in range(number):
            self.laggards.note_late(UserId(f"late{each}"))


@pytest.fixture
def world() -> World:
    """Nobody is late yet."""
    return World()


def test_an_owner_is_a_laggard_until_it_is_answered(world: World) -> None:
    """Each answer counts, whatever it says."""
    world.laggards.note_late(ALICE)
    assert (True, False) == (ALICE in world.laggards, BOB in world.laggards)
    world.laggards.note_answered(BOB, 0.01)
    assert ALICE in world.laggards
    world.laggards.note_answered(ALICE, 0.01)
    assert ALICE not in world.laggards


def test_one_who_does_not_come_again_is_forgotten(world: World) -> None:
    """After its last late call, not after its first."""
    world.laggards.note_late(ALICE)
    world.laggards.note_late(BOB)
    world.now += MEMORY_SECONDS - 1
    world.laggards.note_late(ALICE)
    world.now += 1
    assert (True, False) == (ALICE in world.laggards, BOB in world.laggards)
    world.now += MEMORY_SECONDS - 1
    assert ALICE not in world.laggards


def test_so_many_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was late the longest ago is forgotten first."""
    monkeypatch.setattr(laggards_module, "LAGGARDS_MAX", 2)
    for owner in (ALICE, BOB, ALICE, UserId("carol")):
        world.laggards.note_late(owner)
    assert (True, False) == (ALICE in world.laggards, BOB in world.laggards)


@pytest.mark.parametrize(
    ("others", "patience"), [(LATE_CALLS_MAX, AUTHORIZE_SECONDS), (LATE_CALLS_MAX + 1, 0.4)]
)
def test_while_many_are_late_nobody_else_waits_long(
    others: int, patience: float, world: World
) -> None:
    """A laggard has the whole time: or a host that has become slow for all would answer nobody."""
    world.laggards.note_answered(BOB, 0.1)
    world.be_late(others)
    assert patience == world.laggards.patience_seconds(ALICE)
    world.laggards.note_late(ALICE)
    assert AUTHORIZE_SECONDS == world.laggards.patience_seconds(ALICE)


@pytest.mark.parametrize(
    ("answers", "patience"),
    [
        ((0.001,), LATE_SECONDS_MIN),
        ((0.1,), 0.4),
        ((0.1, 0.3, 0.2), 1.2),
        ((0.1, 1.5), AUTHORIZE_SECONDS),
        ((), AUTHORIZE_SECONDS),
    ],
)
def test_the_time_follows_from_the_slowest_answer(
    answers: tuple[float, ...], patience: float, world: World
) -> None:
    """Not from the last one; where there is none, nothing is known."""
    world.be_late(LATE_CALLS_MAX + 1)
    for seconds in answers:
        world.laggards.note_answered(BOB, seconds)
    assert patience == pytest.approx(world.laggards.patience_seconds(ALICE))


@pytest.mark.parametrize("slowest", [0.01, 0.3])
def test_the_slowest_answer_is_forgotten(slowest: float, world: World) -> None:
    """A host may have become quick; without an answer of late nothing is known again."""
    world.laggards.note_answered(BOB, slowest)
    world.now += MEMORY_SECONDS
    world.be_late(LATE_CALLS_MAX + 1)
    assert AUTHORIZE_SECONDS == world.laggards.patience_seconds(ALICE)
    world.laggards.note_answered(BOB, 0.1)
    assert pytest.approx(0.4) == world.laggards.patience_seconds(ALICE)


def test_one_that_leaves_late_is_a_laggard(world: World) -> None:
    """Where it is known what late is: below the whole time."""
    world.laggards.note_left(ALICE, AUTHORIZE_SECONDS - 0.1)
    assert ALICE not in world.laggards
    world.laggards.note_answered(BOB, 0.1)
    world.laggards.note_left(ALICE, 0.39)
    assert ALICE not in world.laggards
    world.laggards.note_left(ALICE, 0.41)
    assert ALICE in world.laggards


@pytest.mark.parametrize(
    ("late", "seconds"), [(0, 1), (64, 1), (65, 2), (640, 10), (5000, RETRY_AFTER_SECONDS_MAX)]
)
def test_clients_come_back_when_it_may_be_their_turn(late: int, seconds: int, world: World) -> None:
    """So many calls at once, each as long as it may be."""
    world.be_late(late)
    assert seconds == world.laggards.retry_after_seconds()
