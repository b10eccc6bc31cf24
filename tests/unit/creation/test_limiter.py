"""How many new attempts an owner may start, by a clock of the test's own."""

from __future__ import annotations

import pytest

from stretto.creation import limiter as limiter_module
from stretto.creation.limiter import OwnerLimiter
from stretto.domain import UserId
from stretto.errors import RateLimited
from support.clock import Clock

ALICE, BOB, CAROL = map(UserId, ("alice", "bob", "carol"))


def admitted(limiter: OwnerLimiter, owner: UserId, tries: int) -> int:
    """Count how many of an owner's attempts at one moment are admitted."""
    count = 0
    for _ in range(tries):
        try:
            limiter.admit(owner)
        except RateLimited:
            continue
        count += 1
    return count


def test_a_long_absence_earns_no_more_than_one_burst() -> None:
    """A second's worth, however long the owner was away."""
    clock = Clock(0)
    limiter = OwnerLimiter(3, clock)
    assert 3 == admitted(limiter, ALICE, 10)
    clock.now = 3600
    assert 3 == admitted(limiter, ALICE, 10)


def test_a_rate_below_one_a_second_admits_one_after_its_pause() -> None:
    """And says how long that is."""
    clock = Clock(0)
    limiter = OwnerLimiter(0.1, clock)
    assert 1 == admitted(limiter, ALICE, 3)
    clock.now = 4
    with pytest.raises(RateLimited) as limited:
        limiter.admit(ALICE)
    assert 6 == limited.value.retry_after_seconds
    clock.now = 10
    limiter.admit(ALICE)


def test_the_owner_that_was_not_seen_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others keep what they have used up."""
    monkeypatch.setattr(limiter_module, "OWNERS_MAX", 2)
    limiter = OwnerLimiter(1, Clock(0))
    limiter.admit(ALICE)
    limiter.admit(BOB)
    assert 0 == admitted(limiter, ALICE, 1)  # seen later than bob now
    limiter.admit(CAROL)
    assert 0 == admitted(limiter, CAROL, 1)
    assert 0 == admitted(limiter, ALICE, 1)
    assert 1 == admitted(limiter, BOB, 1)


def test_a_rate_of_nothing_is_no_limit() -> None:
    """And remembers no owner."""
    limiter = OwnerLimiter(0, Clock(0))
    assert 100 == admitted(limiter, ALICE, 100)
    assert 0 == len(limiter._buckets)


def test_a_token_for_what_was_not_started_is_given_back() -> None:
    """Also where nothing is limited, and nothing was taken."""
    limiter = OwnerLimiter(1, Clock(0))
    for _ in range(3):
        limiter.admit(ALICE)
        limiter.give_back(ALICE)
    assert 1 == admitted(limiter, ALICE, 2)
    limiter = OwnerLimiter(0, Clock(0))
    limiter.give_back(ALICE)
    assert 3 == admitted(limiter, ALICE, 3)
