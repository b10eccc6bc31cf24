"""AttemptLookup: what an owner learns of an attempt, with a store that shows what a test says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from stretto.creation.attempt import Attempt, AttemptStatus, GroupRow, Sighting, Tombstone
from stretto.creation.follower import POLL
from stretto.creation.lookup import AttemptLookup, AttemptReport
from stretto.domain import CreatedGroup, IdempotencyKey, UserId, group_id
from stretto.errors import Failure, GroupDeleted, NotFound

ALICE, KEY = UserId("alice"), IdempotencyKey("k")
ID = group_id(ALICE, KEY)
CLAIMED, SETTLED, CREATED = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3))
GROUP = GroupRow(CreatedGroup(ID, uuid4()), b"f" * 16, CREATED)
PENDING = Attempt(AttemptStatus.PENDING, b"f" * 16, uuid4(), None, None, CLAIMED, None, True)
SUCCEEDED = replace(
    PENDING,
    status=AttemptStatus.SUCCEEDED,
    conversation_id=GROUP.group.conversation_id,
    settled_at=SETTLED,
)
FAILED = replace(
    PENDING,
    status=AttemptStatus.FAILED,
    failure=Failure("full", "No more groups."),
    settled_at=SETTLED,
)


class Store:
    """Shows one sighting, and another once it is healed."""

    def __init__(self, first: Sighting, healed: Sighting | None = None) -> None:
        self.sighting = first
        self._after_healing = healed
        self.looks = 0

    async def look(self, group_id: UUID, lease_seconds: float, owner: UserId, /) -> Sighting:
        assert ID == group_id
        self.looks += 1
        return self.sighting

    async def heal(self, group_id: UUID) -> None:
        assert ID == group_id
        assert self._after_healing is not None, "there is nothing to heal"
        self.sighting = self._after_healing

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        raise AssertionError("a look-up takes nothing over")


async def report(store: Store, wait_seconds: float = 0) -> AttemptReport:
    """Look up at once."""
    return await AttemptLookup(store, 5).look_up(ALICE, KEY, wait_seconds)


async def test_an_attempt_whose_group_exists_is_healed() -> None:
    """And then reported with its own times."""
    store = Store(Sighting(PENDING, GROUP), Sighting(SUCCEEDED, GROUP))
    reported = await report(store)
    assert (AttemptStatus.SUCCEEDED, GROUP.group.conversation_id) == (
        reported.status,
        reported.conversation_id,
    )
    assert (CLAIMED, SETTLED) == (reported.claimed_at, reported.settled_at)


async def test_a_settled_attempt_is_reported_at_once_with_its_own_times() -> None:
    """Nothing is healed, and no wait, however long the wait."""
    store = Store(Sighting(SUCCEEDED, GROUP))
    reported = await report(store, wait_seconds=1000)
    assert (CLAIMED, SETTLED, 1) == (reported.claimed_at, reported.settled_at, store.looks)


async def test_an_attempt_that_was_swept_is_reported_from_its_group() -> None:
    """With the only time that is left, and without putting the attempt back."""
    reported = await report(Store(Sighting(None, GROUP)))
    assert (CREATED, CREATED, False) == (
        reported.claimed_at,
        reported.settled_at,
        reported.is_recorded,
    )


async def test_a_failure_is_reported_with_its_reason() -> None:
    """As it is to a client that sends the request again."""
    reported = await report(Store(Sighting(FAILED, None)))
    assert (AttemptStatus.FAILED, FAILED.failure, SETTLED) == (
        reported.status,
        reported.failure,
        reported.settled_at,
    )


async def test_a_failed_attempt_that_was_swept_is_reported_from_its_tombstone() -> None:
    """With what is left: the code, and when it was settled."""
    failure = Failure("full", "gone")
    reported = await report(Store(Sighting(None, None, Tombstone(SETTLED, failure))))
    assert (AttemptStatus.FAILED, failure, SETTLED, None, False) == (
        reported.status,
        reported.failure,
        reported.settled_at,
        reported.created_at,
        reported.is_recorded,
    )


async def test_an_attempt_whose_group_was_deleted_has_no_state() -> None:
    """Also where a row of it is left: nothing is healed."""
    for attempt in (None, PENDING, SUCCEEDED):
        with pytest.raises(GroupDeleted):
            await report(Store(Sighting(attempt, None, Tombstone(CREATED, None))))


async def test_what_never_was_is_not_found() -> None:
    """Neither attempt nor group."""
    with pytest.raises(NotFound):
        await report(Store(Sighting(None, None)))


async def test_a_pending_attempt_is_waited_for_ever_more_rarely() -> None:
    """Until it is settled, or the wait is over."""
    store = Store(Sighting(PENDING, None))
    assert AttemptStatus.PENDING is (await report(store)).status
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            store.sighting = Sighting(SUCCEEDED, GROUP)

    async with asyncio.timeout(20):
        reported = await AttemptLookup(store, 5, pause).look_up(ALICE, KEY, 1000)
    assert AttemptStatus.SUCCEEDED is reported.status
    longest = [POLL.longest(looks) for looks in range(10)]
    assert all(most / 2 <= s <= most for s, most in zip(pauses, longest, strict=True))
