"""What is remembered of owners whose writes have gone through."""

from __future__ import annotations

from stretto.creation.proofs import (
    KNOWN_SECONDS,
    NEWCOMER_SECONDS,
    PROOFS_MAX,
    QUICK_SECONDS,
    Proofs,
)
from stretto.domain import UserId
from support.clock import Clock
from support.costly_writes import COLD, HOT


def test_an_owner_is_proven_at_once_and_known_after_a_while() -> None:
    """A failure alone ends both."""
    proofs = Proofs(clock := Clock())
    proofs.note(HOT, clock.now, QUICK_SECONDS)
    assert (True, False, False) == (
        proofs.is_proven(HOT),
        proofs.is_known(HOT),
        proofs.is_quick(HOT),
    )
    clock.now += KNOWN_SECONDS
    proofs.note(HOT, clock.now, QUICK_SECONDS / 2)
    assert proofs.is_known(HOT)
    assert proofs.is_quick(HOT)
    proofs.forget(HOT)
    proofs.forget(HOT)
    assert not proofs.is_proven(HOT)
    proofs.note(HOT, clock.now, 0.0)
    assert not proofs.is_known(HOT)


def test_the_time_of_a_write_with_others_says_only_that_its_own_is_not_longer() -> None:
    """The others may be slow; what it takes alone is its own."""
    proofs = Proofs(clock := Clock())
    for seconds, is_alone, expected in (
        (5.0, False, 5.0),
        (0.02, True, 0.02),
        (5.0, False, 0.02),
        (0.01, False, 0.01),
        (5.0, True, 5.0),
    ):
        proofs.note(HOT, clock.now, seconds, is_alone=is_alone)
        assert (expected, expected < QUICK_SECONDS) == (
            proofs.expected_seconds(HOT),
            proofs.is_quick(HOT),
        )
    assert NEWCOMER_SECONDS == proofs.expected_seconds(COLD)


def test_the_owner_who_has_succeeded_last_is_remembered_longest() -> None:
    """In a bounded number."""
    proofs = Proofs(clock := Clock())
    proofs.note(HOT, clock.now, 0.0)
    proofs.note(COLD, clock.now, 0.0)
    proofs.note(HOT, clock.now, 0.0)
    for number in range(PROOFS_MAX - 1):
        proofs.note(UserId(f"new{number}"), clock.now, 0.0)
    assert proofs.is_proven(HOT)
    assert not proofs.is_proven(COLD)
