"""What is remembered, and what is not."""

from __future__ import annotations

from uuid import UUID

import pytest

from stretto.domain import CreatedGroup, UserId
from stretto.errors import AttemptFailed, Failure, KeyReused, RateLimited
from stretto.protocol.limiter import OWNERS_MAX, OwnerLimiter
from stretto.protocol.memory import Outcome, OutcomeMemory

CREATED = CreatedGroup(UUID(int=1), UUID(int=2))
SUCCEEDED = Outcome(b"ours", CREATED)
FAILED = Outcome(b"ours", Failure("full", "No more groups."))


def test_an_outcome_answers_only_its_own_request() -> None:
    """Another body learns that the key is taken, and nothing else."""
    assert CREATED == SUCCEEDED.group_for(b"ours")
    for outcome in (SUCCEEDED, FAILED):
        with pytest.raises(KeyReused):
            outcome.group_for(b"another")
    with pytest.raises(AttemptFailed):
        FAILED.group_for(b"ours")


def test_the_oldest_outcome_makes_room() -> None:
    """Memory is bounded whatever the load."""
    memory = OutcomeMemory(2)
    for number in range(3):
        memory.remember(UUID(int=number), SUCCEEDED)
    assert [None, SUCCEEDED, SUCCEEDED] == [memory.recall(UUID(int=n)) for n in range(3)]
    assert len(memory) == 2


def test_forgetting_forgets_all() -> None:
    """After a reconnect the database may be another one."""
    memory = OutcomeMemory(2)
    memory.remember(UUID(int=1), SUCCEEDED)
    memory.forget()
    assert memory.recall(UUID(int=1)) is None


def test_a_limit_admits_a_burst_and_then_its_rate() -> None:
    """Owners are limited one by one, and told how long to wait."""
    now = 0.0
    limiter = OwnerLimiter(2, lambda: now)
    alice, bob = UserId("alice"), UserId("bob")
    limiter.admit(alice)
    limiter.admit(alice)
    with pytest.raises(RateLimited) as limited:
        limiter.admit(alice)
    assert limited.value.retry_after_seconds == 1
    limiter.admit(bob)
    now = 0.5
    limiter.admit(alice)
    with pytest.raises(RateLimited):
        limiter.admit(alice)


def test_a_refused_request_takes_no_token() -> None:
    """Whoever keeps knocking still gets in at the rate."""
    now = 0.0
    limiter = OwnerLimiter(1, lambda: now)
    limiter.admit(UserId("alice"))
    for seconds in (0.25, 0.5, 0.75):
        now = seconds
        with pytest.raises(RateLimited):
            limiter.admit(UserId("alice"))
    now = 1.0
    limiter.admit(UserId("alice"))


def test_owners_are_remembered_up_to_a_bound() -> None:
    """An attacker with many names does not fill the memory."""
    limiter = OwnerLimiter(1, lambda: 0.0)
    for number in range(OWNERS_MAX + 10):
        limiter.admit(UserId(f"user {number}"))
    assert len(limiter._buckets) == OWNERS_MAX
