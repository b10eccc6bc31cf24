"""The leader's and the follower's statements: each guard, and what it guards.

Both kinds of stores pass this: PostgreSQL's, and those in memory on which schedules are explored.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from stretto.creation.attempt import Attempt, AttemptStatus
from stretto.creation.deletion import Deletion
from stretto.domain import NewGroup, UserId
from stretto.errors import Failure
from stretto.postgres.connections import Database
from stretto.store_errors import OutcomeUnknown
from support.both_stores import MemoryStores, PostgresStores, write
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.creation.ports import Write, WriteStore
    from support.both_stores import Stores
    from support.database import Connection

FAILURE = Failure("full", "No more groups.")
LEASE_SECONDS = 5.0


@pytest_asyncio.fixture(params=["memory", "postgresql"])
async def stores(
    request: pytest.FixtureRequest, database_url: str, connection: Connection
) -> AsyncIterator[Stores]:
    """One kind of stores after the other."""
    if request.param == "memory":
        yield MemoryStores()
        return
    async with Database(database_url) as database, AsyncExitStack() as stack:
        yield PostgresStores(database, connection, stack)


@pytest.fixture
def store(stores: Stores) -> WriteStore:
    """A writer's store."""
    return stores.writer()


async def seen(stores: Stores, of: Write) -> Attempt:
    """Return the attempt as a follower reads it."""
    attempt = (await stores.attempts.look(of.group_id, LEASE_SECONDS, of.new_group.owner)).attempt
    assert attempt is not None
    return attempt


async def test_one_of_two_claims_of_a_key_wins(store: WriteStore) -> None:
    """The second claim learns that the attempt exists."""
    first, second = write("k"), write("k")
    assert {first.claim_token} == await store.claim([first])
    assert set() == await store.claim([second])


async def test_a_key_twice_in_one_batch_is_one_claim(store: WriteStore) -> None:
    """The token that comes back says which of the two has won."""
    twins = [write("k"), write("k")]
    assert len(await store.claim(twins)) == 1


async def test_a_follower_sees_attempt_and_group_together(
    stores: Stores, store: WriteStore
) -> None:
    """Nothing, then the claim, then the group that settled it."""
    ours = write("k")
    nothing = await stores.attempts.look(ours.group_id, LEASE_SECONDS, ours.new_group.owner)
    assert (None, None) == (nothing.attempt, nothing.group)
    await store.claim([ours])
    claimed = await stores.attempts.look(ours.group_id, LEASE_SECONDS, ours.new_group.owner)
    assert claimed.group is None
    assert claimed.attempt is not None
    assert not claimed.attempt.lease_over
    assert (AttemptStatus.PENDING, ours.claim_token, ours.fingerprint) == (
        claimed.attempt.status,
        claimed.attempt.claim_token,
        claimed.attempt.fingerprint,
    )
    await store.lead([ours])
    led = await stores.attempts.look(ours.group_id, LEASE_SECONDS, ours.new_group.owner)
    assert led.attempt is not None
    assert led.group is not None
    assert (AttemptStatus.SUCCEEDED, ours.conversation_id, ours.fingerprint) == (
        led.attempt.status,
        led.group.group.conversation_id,
        led.group.fingerprint,
    )


async def test_leading_writes_all_rows_and_settles(stores: Stores, store: WriteStore) -> None:
    """Group, conversation, members, event and outcome come together (G5)."""
    batch = [write("a", members=("bob", 'c"ar\\ol')), write("b", members=())]
    await store.claim(batch)
    assert {w.claim_token for w in batch} == await store.lead(batch)
    assert (2, 2, 2, 4, 2) == await stores.counts()
    expected = [("alice", "owner"), ("bob", "member"), ('c"ar\\ol', "member")]
    assert expected == await stores.members(batch[0].conversation_id)
    assert {AttemptStatus.SUCCEEDED} == {(await seen(stores, w)).status for w in batch}


async def test_admins_are_written_beside_members(stores: Stores, store: WriteStore) -> None:
    """Also where their neighbours in the batch have none."""
    members = [
        "bob",
        {"user_id": "carol", "role": "admin"},
        "dave",
        {"user_id": "a", "role": "admin"},
    ]
    document = {"name": "Team", "members": members}
    new_group = NewGroup.parse(UserId("alice"), document)
    ours, plain = replace(write("a"), new_group=new_group), write("b")
    await store.claim([ours, plain])
    assert {ours.claim_token, plain.claim_token} == await store.lead([ours, plain])
    roles = [
        ("a", "admin"),
        ("alice", "owner"),
        ("bob", "member"),
        ("carol", "admin"),
        ("dave", "member"),
    ]
    assert roles == await stores.members(ours.conversation_id)
    assert [("alice", "owner"), ("bob", "member")] == await stores.members(plain.conversation_id)


async def test_a_lost_claim_leads_nothing(stores: Stores, store: WriteStore) -> None:
    """A claim that vanished in a crash of the server is noticed by the settle."""
    assert set() == await store.lead([write("k")])
    assert (0, 0, 0, 0, 0) == await stores.counts()


async def test_a_fenced_leader_writes_nothing_and_spoils_no_other(
    stores: Stores, store: WriteStore
) -> None:
    """Its token is not the attempt's any more; its neighbours in the batch are led."""
    fenced, neighbour = write("a"), write("b")
    await store.claim([fenced, neighbour])
    assert await stores.attempts.reclaim(fenced.group_id, fenced.claim_token, uuid4(), 0)
    assert {neighbour.claim_token} == await store.lead([fenced, neighbour])
    assert (2, 1, 1, 2, 1) == await stores.counts()


async def test_without_the_fence_a_reclaimed_attempt_would_be_written_by_its_old_leader(
    stores: Stores, store: WriteStore
) -> None:
    """The negative twin: a write with the new token passes, so it is the token that fences."""
    fenced, token = write("a"), uuid4()
    await store.claim([fenced])
    assert await stores.attempts.reclaim(fenced.group_id, fenced.claim_token, token, 0)
    assert {token} == await store.lead([replace(fenced, claim_token=token)])
    assert (1, 1, 1, 2, 1) == await stores.counts()


async def test_a_leader_that_waited_for_the_row_decides_by_what_it_then_finds(
    stores: Stores, store: WriteStore
) -> None:
    """Its snapshot says that the attempt is its own; the row says no longer."""
    ours = write("k")
    await store.claim([ours])
    async with stores.holding(ours, token=uuid4()):
        leading = asyncio.ensure_future(store.lead([ours]))
        await stores.blocked()
    assert set() == await leading
    assert (1, 0, 0, 0, 0) == await stores.counts()


async def test_a_stale_key_is_neither_claimed_nor_led(stores: Stores, store: WriteStore) -> None:
    """A group from before its attempt was swept keeps its key; a batch with it still goes through."""
    old = write("a")
    await store.claim([old])
    await store.lead([old])
    await stores.delete_attempts()
    again = write("a")
    assert set() == await store.claim([again])
    # As when the claim was made before the group was committed:
    await stores.pend(again)
    neighbour = write("b")
    await store.claim([neighbour])
    assert {neighbour.claim_token} == await store.lead([again, neighbour])
    assert (2, 2, 2, 4, 2) == await stores.counts()


async def test_leading_twice_with_one_token_writes_once(stores: Stores, store: WriteStore) -> None:
    """So an unknown outcome is found out by simply leading again."""
    ours = write("k")
    await store.claim([ours])
    assert {ours.claim_token} == await store.lead([ours])
    assert set() == await store.lead([ours])
    assert (1, 1, 1, 2, 1) == await stores.counts()


async def test_a_write_that_was_cut_off_is_unknown_and_may_still_commit(
    stores: Stores,
) -> None:
    """The acknowledgement is lost, the group is there: leading again finds it out."""
    lost: list[str] = []
    store = stores.writer(on_lost=lambda: lost.append("lost"))
    ours = write("k")
    await store.claim([ours])
    async with stores.holding(ours):
        leading = asyncio.ensure_future(store.lead([ours]))
        await stores.blocked()
        store.cut_off()
        with pytest.raises(OutcomeUnknown):
            await leading
    assert ["lost"] == lost

    async def is_settled() -> bool:
        return (await seen(stores, ours)).status is not AttemptStatus.PENDING

    await until(is_settled)
    assert set() == await store.lead([ours])
    assert (1, 1, 1, 2, 1) == await stores.counts()


async def test_only_its_leader_can_fail_an_attempt(stores: Stores, store: WriteStore) -> None:
    """A failure is written under the leader's token and is then final."""
    ours, other = write("k"), write("k")
    await store.claim([ours])
    assert not await store.fail(other, FAILURE)
    assert await store.fail(ours, FAILURE)
    attempt = await seen(stores, ours)
    assert (AttemptStatus.FAILED, FAILURE) == (attempt.status, attempt.failure)
    assert set() == await store.lead([ours])


async def test_an_attempt_whose_group_exists_cannot_fail(stores: Stores, store: WriteStore) -> None:
    """Failed means that there is no group (G4)."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    await stores.delete_attempts()
    await stores.pend(ours)
    assert not await store.fail(ours, FAILURE)


async def test_a_lease_runs_on_the_given_clock(stores: Stores, store: WriteStore) -> None:
    """It is over exactly `lease_seconds` after the claim, and a reclaim starts it anew."""
    ours, token = write("k"), uuid4()
    await store.claim([ours])
    over_at = (await seen(stores, ours)).claimed_at + timedelta(seconds=LEASE_SECONDS)
    attempts = stores.attempts
    stores.set_clock(over_at - timedelta(microseconds=1))
    assert not await attempts.reclaim(ours.group_id, ours.claim_token, token, LEASE_SECONDS)
    stores.set_clock(over_at)
    assert (await seen(stores, ours)).lease_over
    assert await attempts.reclaim(ours.group_id, ours.claim_token, token, LEASE_SECONDS)
    reclaimed = await seen(stores, ours)
    assert (token, False) == (reclaimed.claim_token, reclaimed.lease_over)
    assert not await attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), LEASE_SECONDS)


@pytest.mark.parametrize("token_is_known", [True, False])
async def test_only_the_token_that_was_seen_is_taken_over(
    token_is_known: bool, stores: Stores, store: WriteStore
) -> None:
    """Two followers saw the same dead leader: the second must not take over from the first."""
    ours, first, second = write("k"), uuid4(), uuid4()
    await store.claim([ours])
    assert await stores.attempts.reclaim(ours.group_id, ours.claim_token, first, 0)
    seen_token = first if token_is_known else ours.claim_token
    assert token_is_known is await stores.attempts.reclaim(ours.group_id, seen_token, second, 0)
    assert (second if token_is_known else first) == (await seen(stores, ours)).claim_token


async def test_a_settled_attempt_is_not_reclaimed(stores: Stores, store: WriteStore) -> None:
    """Its token is still there, its lease long over."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    assert not await stores.attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), 0)


async def test_a_reclaim_begins_a_whole_lease(stores: Stores, store: WriteStore) -> None:
    """However long ago the first claim was; it is over when the new leader's time is over."""
    ours, token = write("k"), uuid4()
    await store.claim([ours])
    later = (await seen(stores, ours)).claimed_at + timedelta(days=1)
    stores.set_clock(later)
    assert await stores.attempts.reclaim(ours.group_id, ours.claim_token, token, LEASE_SECONDS)
    assert later == (await seen(stores, ours)).claimed_at
    stores.set_clock(later + timedelta(seconds=LEASE_SECONDS, microseconds=-1))
    assert not (await seen(stores, ours)).lease_over
    assert not await stores.attempts.reclaim(ours.group_id, token, uuid4(), LEASE_SECONDS)


async def test_a_lease_that_begins_further_ahead_than_it_lasts_is_over(
    stores: Stores, store: WriteStore
) -> None:
    """Another clock wrote it, of a primary that is gone: this one need not catch up with it."""
    ours, token = write("k"), uuid4()
    await store.claim([ours])
    claimed_at = (await seen(stores, ours)).claimed_at
    stores.set_clock(claimed_at - timedelta(seconds=LEASE_SECONDS, microseconds=-1))
    assert not (await seen(stores, ours)).lease_over
    assert not await stores.attempts.reclaim(ours.group_id, ours.claim_token, token, LEASE_SECONDS)
    behind = claimed_at - timedelta(seconds=LEASE_SECONDS)
    stores.set_clock(behind)
    assert (await seen(stores, ours)).lease_over
    assert await stores.attempts.reclaim(ours.group_id, ours.claim_token, token, LEASE_SECONDS)
    assert (behind, False) == (
        (await seen(stores, ours)).claimed_at,
        (await seen(stores, ours)).lease_over,
    )


async def test_a_claim_waits_for_no_row_that_is_being_written(
    stores: Stores, store: WriteStore
) -> None:
    """The key is another's; its neighbour is claimed."""
    theirs, free = write("a"), write("b")
    await store.claim([theirs])
    async with stores.holding(theirs):
        assert {free.claim_token} == await store.claim([write("a"), free])


async def test_only_attempts_that_are_ours_and_held_by_no_other_are_unlocked(
    stores: Stores, store: WriteStore
) -> None:
    """What a lead would not wait for, and would settle."""
    held, free, led, gone = (write(key) for key in "abcd")
    await store.claim([held, free, led])
    await store.lead([led])
    others = replace(free, claim_token=uuid4())
    async with stores.holding(held):
        assert {free.claim_token} == await store.unlocked([held, free, led, gone, others])
    assert {held.claim_token, free.claim_token} == await store.unlocked([held, free, led, gone])


async def test_a_leader_that_is_writing_is_not_reclaimed(stores: Stores, store: WriteStore) -> None:
    """The row lock says that it lives, however long ago its lease has run out."""
    ours = write("k")
    await store.claim([ours])
    async with stores.holding(ours):
        assert not await stores.attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), 0)
    assert await stores.attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), 0)


async def test_healing_settles_a_pending_attempt_and_restores_a_deleted_one(
    stores: Stores, store: WriteStore
) -> None:
    """Either way the record says again what the domain tables say."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    for left in (None, replace(ours, fingerprint=b"another body....", claim_token=UUID(int=1))):
        await stores.delete_attempts()
        if left is not None:
            await stores.pend(left)
        await stores.attempts.heal(ours.group_id)
        healed = await seen(stores, ours)
        owner = ours.new_group.owner
        group = (await stores.attempts.look(ours.group_id, LEASE_SECONDS, owner)).group
        assert group is not None
        assert (AttemptStatus.SUCCEEDED, ours.conversation_id, ours.fingerprint) == (
            healed.status,
            healed.conversation_id,
            healed.fingerprint,
        )
        # The times are those of the deed, not of the look; none ends before it began.
        assert max(group.created_at, healed.claimed_at) == healed.settled_at
        if left is None:
            assert group.created_at == healed.claimed_at


async def test_healing_leaves_a_settled_attempt_alone(stores: Stores, store: WriteStore) -> None:
    """It would have nothing to say, and a settled attempt cannot change."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    before = await seen(stores, ours)
    await stores.attempts.heal(ours.group_id)
    assert before == await seen(stores, ours)


async def test_healing_waits_for_no_row_that_is_held(stores: Stores, store: WriteStore) -> None:
    """The group is the answer; the record heals the next time."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    await stores.delete_attempts()
    await stores.pend(ours)
    async with stores.holding(ours):
        await stores.attempts.heal(ours.group_id)
    assert AttemptStatus.PENDING is (await seen(stores, ours)).status
    await stores.attempts.heal(ours.group_id)
    assert AttemptStatus.SUCCEEDED is (await seen(stores, ours)).status


async def test_healing_without_a_group_does_nothing(stores: Stores, store: WriteStore) -> None:
    """Only a committed group can settle an attempt as succeeded."""
    ours = write("k")
    await store.claim([ours])
    await stores.attempts.heal(ours.group_id)
    assert (await seen(stores, ours)).status is AttemptStatus.PENDING


async def delete(stores: Stores, of: Write) -> bool | None:
    """Delete the group of a write for its owner."""
    wanted = Deletion(of.group_id, of.new_group.owner, None)
    async with stores.deletions.deleting() as delete_one:
        return await delete_one(wanted, is_hasty=False)


async def test_a_deleted_group_leaves_a_tombstone_beside_which_nothing_is_made(
    stores: Stores, store: WriteStore
) -> None:
    """A claim with a snapshot from before, which wins since the attempt is gone, leads nothing."""
    first, late = write("k"), write("k")
    assert await delete(stores, first) is None
    await store.claim([first])
    await store.lead([first])
    assert [True, False] == [await delete(stores, first) for _ in range(2)]
    assert set() == await store.claim([late])
    await stores.attempts.heal(late.group_id)
    sighting = await stores.attempts.look(late.group_id, LEASE_SECONDS, late.new_group.owner)
    assert (None, None) == (sighting.attempt, sighting.group)
    assert sighting.tombstone is not None
    assert sighting.tombstone.failure is None
    await stores.pend(late)
    assert set() == await store.lead([late])
    assert not await store.fail(late, FAILURE)
    await stores.attempts.heal(late.group_id)
    assert AttemptStatus.PENDING is (await seen(stores, late)).status


async def test_an_attempt_that_is_held_outlives_its_group(
    stores: Stores, store: WriteStore
) -> None:
    """The deletion does not wait for it; it decides nothing."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    await stores.delete_attempts()
    await stores.pend(ours)
    async with stores.holding(ours):
        assert await delete(stores, ours)
    assert AttemptStatus.PENDING is (await seen(stores, ours)).status
    sighting = await stores.attempts.look(ours.group_id, LEASE_SECONDS, ours.new_group.owner)
    assert sighting.tombstone is not None


async def test_a_watch_reads_each_deletion_once(stores: Stores, store: WriteStore) -> None:
    """From its place on; without a place, none."""
    batch = [write("a"), write("b")]
    await store.claim(batch)
    await store.lead(batch)
    nothing, present = await stores.deletion_log.deletions(None, 10)
    assert [] == [*nothing]
    for each in batch:
        place = present.place
        assert await delete(stores, each)
        deleted, present = await stores.deletion_log.deletions(place, 10)
        assert [each.group_id] == [*deleted]
        present.require(place)
    nothing, _ = await stores.deletion_log.deletions(present.place, 10)
    assert [] == [*nothing]
