"""What is remembered, and what is not."""

from __future__ import annotations

import gc
from uuid import UUID

import pytest

from stretto.creation.limiter import OWNERS_MAX, OwnerLimiter
from stretto.creation.outcomes import (
    UNCONFIRMED_SECONDS_MAX,
    OutcomeMemory,
    document_for,
    document_of_repeat,
)
from stretto.domain import UserId, digest
from stretto.errors import KeyReused, RateLimited
from support.clock import Clock

GROUP = UUID(int=1).bytes
CREATED = b"{}"
BODY, OTHER_BODY = b"a body", b"another body"
# A body's digest may be another request's fingerprint.
OURS, ANOTHER = digest(OTHER_BODY), b"fedcba9876543210"


def test_an_outcome_answers_only_its_own_request() -> None:
    """Another body learns that the key is taken, and nothing else."""
    memory = OutcomeMemory(2)
    memory.remember(GROUP, OURS, CREATED, digest(BODY))
    success = memory.find(GROUP)
    assert success is not None
    # The digest of a body is no fingerprint, even where they are alike.
    for fingerprint in (ANOTHER, digest(BODY)):
        with pytest.raises(KeyReused):
            document_for(success, fingerprint)
    assert document_of_repeat(success, OTHER_BODY) is None


def test_what_is_recalled_is_what_was_remembered() -> None:
    """A success, as the same document."""
    memory = OutcomeMemory(2)
    assert memory.find(GROUP) is None
    memory.remember(GROUP, OURS, CREATED, digest(BODY))
    success = memory.find(GROUP)
    assert success is not None
    assert CREATED == document_for(success, OURS) == document_of_repeat(success, BODY)


def test_what_is_remembered_is_nothing_to_collect() -> None:
    """However much there is, a full garbage collection does not walk it."""
    memory = OutcomeMemory(1000)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        memory.remember(UUID(int=number).bytes, OURS, CREATED, digest(BODY))
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_the_oldest_outcomes_make_room() -> None:
    """Memory is bounded whatever the load, and holds half of its bound or more."""
    memory = OutcomeMemory(6)
    groups = [UUID(int=number).bytes for number in range(20)]
    for count, group in enumerate(groups, 1):
        memory.remember(group, OURS, CREATED, digest(BODY))
        known = [each for each in groups[:count] if memory.find(each)]
        assert min(count, 4) <= len(known) <= 6
        assert groups[count - len(known) : count] == known == [id_ for id_, _ in memory]
        assert len(memory) == len(known)


def test_forgetting_forgets_all() -> None:
    """After a reconnect the database may be another one."""
    memory = OutcomeMemory(2)
    for number in range(2):
        memory.remember(UUID(int=number).bytes, OURS, CREATED, digest(BODY))
    memory.forget()
    assert not list(memory)
    assert memory.find(UUID(int=0).bytes) is None


def test_what_was_not_confirmed_for_long_is_unknown_until_it_is() -> None:
    """A process that was stopped answers before it learns what was deleted meanwhile."""
    clock = Clock()
    memory = OutcomeMemory(4, clock)
    memory.remember(GROUP, OURS, CREATED, digest(BODY))
    memory.confirm(clock.now)
    clock.now += UNCONFIRMED_SECONDS_MAX
    assert memory.find(GROUP)
    clock.now += 0.001
    assert memory.find(GROUP) is None
    # Not by a look that began before.
    memory.confirm(clock.now - UNCONFIRMED_SECONDS_MAX - 0.001)
    assert memory.find(GROUP) is None
    memory.confirm(clock.now)
    assert memory.find(GROUP)


def test_what_is_remembered_after_forgetting_counts_from_then_on() -> None:
    """It was read since: while looks fail, and forget, new outcomes are remembered as ever."""
    clock = Clock()
    memory = OutcomeMemory(4, clock)
    memory.confirm(clock.now)
    clock.now += 2 * UNCONFIRMED_SECONDS_MAX
    memory.forget()
    memory.remember(GROUP, OURS, CREATED, digest(BODY))
    assert memory.find(GROUP)
    clock.now += UNCONFIRMED_SECONDS_MAX + 0.001
    assert memory.find(GROUP) is None


def test_without_a_watch_what_is_remembered_stays_known() -> None:
    """Where nothing confirms, nothing is deleted; forgetting does not change that."""
    clock = Clock()
    memory = OutcomeMemory(4, clock)
    memory.forget()
    memory.remember(GROUP, OURS, CREATED, digest(BODY))
    clock.now += 1000 * UNCONFIRMED_SECONDS_MAX
    assert memory.find(GROUP)


def test_one_outcome_is_dropped_alone() -> None:
    """Whichever generation it is in; one that is not there is no error."""
    memory = OutcomeMemory(4)
    groups = [UUID(int=number).bytes for number in range(4)]
    for group in groups:
        memory.remember(group, OURS, CREATED, digest(BODY))
    for group in (groups[0], groups[3], UUID(int=9).bytes):
        memory.drop(group)
        assert memory.find(group) is None
    assert groups[1:3] == [id_ for id_, _ in memory]


def test_a_limit_admits_a_burst_and_then_its_rate() -> None:
    """Owners are limited one by one, and asked to wait so long."""
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
    """An owner that keeps trying is still admitted at the rate."""
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
