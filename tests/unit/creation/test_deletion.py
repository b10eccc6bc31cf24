"""Deleting groups for their owners: what is forgotten, who is woken, who waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID, uuid4

import pytest

from stretto.creation import deletion
from stretto.creation.deletion import HUNG_SECONDS, SLOW_SECONDS, WAITING_MAX, GroupDeleter
from stretto.creation.suspects import SUSPECT_SECONDS
from stretto.domain import UserId
from stretto.errors import InternalError, NotFound, Overloaded
from stretto.runtime.runner import Runner
from stretto.store_errors import ReadCancelled, Unreachable
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.creation.deletion import Delete, Deletion

ALICE, BOB, CAROL = UserId("alice"), UserId("bob"), UserId("carol")


class FakeStore:
    """Knows groups by their owners, and which of them cannot be deleted."""

    newest: ClassVar[FakeStore]

    def __init__(self) -> None:
        self.groups: dict[UUID, UserId] = {}
        self.deleted: set[UUID] = set()
        self.stuck: set[UUID] = set()
        self.asked: list[tuple[UserId, bool]] = []
        """Of each statement its owner, and whether it is hasty."""
        self.bounds: list[float | None] = []
        """How long each may take."""
        self.turns = 0
        self.error: Exception | None = None
        self.clock = 0.0
        self.seconds: dict[UserId, float] = {}
        """How long an owner's deletions take."""
        self.opened = asyncio.Event()
        self.opened.set()

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[Delete]:
        self.turns += 1
        yield self._delete

    async def _delete(
        self, wanted: Deletion, /, *, is_hasty: bool, seconds_max: float | None = None
    ) -> bool | None:
        self.asked.append((wanted.owner, is_hasty))
        self.bounds.append(seconds_max)
        await asyncio.sleep(0)
        await self.opened.wait()
        self.clock += self.seconds.get(wanted.owner, 0.001)
        if self.error is not None:
            raise self.error
        if wanted.group_id in self.stuck:
            raise ReadCancelled
        if wanted.group_id in self.deleted:
            return False
        if self.groups.get(wanted.group_id) != wanted.owner:
            return None
        self.deleted.add(wanted.group_id)
        return True


class Deleting:
    """A deleter that runs, and what it has called."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.forgotten: list[bytes] = []
        self.wakes = 0
        self.deleter = GroupDeleter(self.store, self.forgotten.append, [self._wake])

    def _wake(self) -> None:
        self.wakes += 1

    def group(self, owner: UserId = ALICE) -> UUID:
        """Return a new group."""
        id_ = uuid4()
        self.store.groups[id_] = owner
        return id_


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes in statements alone."""
    monkeypatch.setattr(deletion, "_clock_seconds", lambda: FakeStore.newest.clock)


@asynccontextmanager
async def running() -> AsyncIterator[Deleting]:
    """Run a deleter."""
    deleting = Deleting()
    FakeStore.newest = deleting.store
    async with Runner(lambda _: None) as runner:
        runner.start(deleting.deleter)
        yield deleting
        await runner.stop(deleting.deleter)


async def test_a_group_is_deleted_once_and_found_deleted_then() -> None:
    """Both calls return; readers of the log are woken by the first alone."""
    async with running() as deleting:
        group = deleting.group()
        await deleting.deleter.delete(group, ALICE)
        await deleting.deleter.delete(group, ALICE)
    assert [group.bytes] * 2 == deleting.forgotten
    assert 1 == deleting.wakes


async def test_another_users_group_is_not_found() -> None:
    """As one that does not exist."""
    async with running() as deleting:
        for group in (deleting.group(BOB), uuid4()):
            with pytest.raises(NotFound):
                await deleting.deleter.delete(group, ALICE)
    assert not deleting.wakes


async def test_a_key_is_forgotten_whatever_became_of_its_deletion() -> None:
    """It may have been committed: a look finds out."""
    async with running() as deleting:
        group = deleting.group()
        deleting.store.error = Unreachable("the connection broke")
        with pytest.raises(Unreachable):
            await deleting.deleter.delete(group, ALICE)
    assert [group.bytes] == deleting.forgotten


async def test_a_group_that_cannot_be_deleted_does_not_keep_others() -> None:
    """Another transaction holds it."""
    async with running() as deleting:
        groups = [deleting.group() for _ in range(3)]
        deleting.store.stuck.add(groups[1])
        outcomes = await asyncio.gather(
            *(deleting.deleter.delete(group, ALICE) for group in groups), return_exceptions=True
        )
    assert [None, ReadCancelled, None] == [each and type(each) for each in outcomes]
    assert {groups[0], groups[2]} == deleting.store.deleted


def asking(deleting: Deleting, *wanted: tuple[UUID, UserId]) -> list[asyncio.Task[None]]:
    """Have tasks ask for these deletions."""
    return [asyncio.create_task(deleting.deleter.delete(*each)) for each in wanted]


async def behind_one(
    deleting: Deleting, owners: list[UserId]
) -> tuple[list[asyncio.Task[None]], list[UserId]]:
    """Have each owner ask for a group's deletion while carol's is under way; return them in order."""
    deleting.store.opened.clear()
    first = asking(deleting, (deleting.group(CAROL), CAROL))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks = asking(deleting, *((deleting.group(owner), owner) for owner in owners))
    await asyncio.sleep(0)
    deleting.store.opened.set()
    await asyncio.gather(*first, *tasks, return_exceptions=True)
    return tasks, [owner for owner, _ in deleting.store.asked[1:]]


async def test_owners_take_turns() -> None:
    """One who deletes many does not keep another waiting for all of them."""
    async with running() as deleting:
        _, order = await behind_one(deleting, [*[ALICE] * 60, BOB])
    assert [ALICE, BOB, ALICE] == order[:3]


async def test_requests_for_one_group_share_its_deletion() -> None:
    """A client that repeats its request keeps others waiting once."""
    async with running() as deleting:
        group = deleting.group()
        await asyncio.gather(*asking(deleting, *[(group, ALICE)] * 5))
        assert [(ALICE, False)] == deleting.store.asked
        deleting.store.stuck.add(stuck := deleting.group())
        outcomes = await asyncio.gather(
            *asking(deleting, *[(stuck, ALICE)] * 5), return_exceptions=True
        )
    assert [ReadCancelled] * 5 == [type(each) for each in outcomes]
    assert 2 == len(deleting.store.asked)


async def test_what_another_owner_asks_for_the_same_group_is_answered_by_itself() -> None:
    """It is not this owner's."""
    async with running() as deleting:
        group = deleting.group()
        outcomes = await asyncio.gather(
            *asking(deleting, (group, BOB), (group, ALICE)), return_exceptions=True
        )
    assert isinstance(outcomes[0], NotFound)
    assert outcomes[1] is None


async def test_who_has_left_is_not_deleted_for() -> None:
    """A client that hangs up keeps none waiting."""
    async with running() as deleting:
        left, stayed = asking(deleting, (deleting.group(), ALICE), (deleting.group(BOB), BOB))
        await asyncio.sleep(0)
        left.cancel()
        await stayed
    assert [(BOB, False)] == deleting.store.asked


async def test_a_lock_is_waited_for_in_haste_while_others_wait() -> None:
    """In the same turn, or in the mailbox."""
    async with running() as deleting:
        await asyncio.gather(
            *asking(deleting, (deleting.group(), ALICE), (deleting.group(BOB), BOB))
        )
    assert [(ALICE, True), (BOB, False)] == deleting.store.asked


async def test_an_owner_whose_deletion_was_slow_comes_last_and_in_haste() -> None:
    """Until one ends quickly."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        await deleting.deleter.delete(deleting.group(), ALICE)
        del deleting.store.seconds[ALICE]
        for _ in range(2):
            await asyncio.gather(
                *asking(deleting, (deleting.group(), ALICE), (deleting.group(BOB), BOB))
            )
    asked = [(ALICE, False), (BOB, True), (ALICE, True), (ALICE, True), (BOB, False)]
    assert asked == deleting.store.asked


async def test_an_owner_whose_deletion_has_hung_has_less_time_for_a_while() -> None:
    """Whatever becomes of its others meanwhile. Twin: one who was slow, and has succeeded."""
    async with running() as deleting:
        deleting.store.seconds = {ALICE: 5.0, BOB: 4.0}
        stuck = deleting.group()
        deleting.store.stuck.add(stuck)
        for _ in range(3):
            with pytest.raises(ReadCancelled):
                await deleting.deleter.delete(stuck, ALICE)
        await deleting.deleter.delete(deleting.group(), ALICE)
        # Of the first one; the later ones prolong nothing.
        deleting.store.clock = 5.0 + SUSPECT_SECONDS
        await deleting.deleter.delete(deleting.group(), ALICE)
        for _ in range(2):
            await deleting.deleter.delete(deleting.group(BOB), BOB)
    bounds = [None, *[HUNG_SECONDS] * 3, None, None, None]
    assert bounds == deleting.store.bounds


async def test_what_has_failed_at_once_has_not_hung() -> None:
    """Twin: a lock that was waited for in haste."""
    async with running() as deleting:
        stuck, other = deleting.group(), deleting.group(BOB)
        deleting.store.stuck.update((stuck, other))
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        for _ in range(2):
            for group, owner in ((stuck, ALICE), (other, BOB)):
                with pytest.raises(ReadCancelled):
                    await deleting.deleter.delete(group, owner)
    assert [None, None, HUNG_SECONDS, None] == deleting.store.bounds


async def test_a_turn_ends_in_time_and_newcomers_come_before_what_is_left() -> None:
    """However many owners' triggers are slow, a newcomer waits for the statement that runs."""
    async with running() as deleting:
        slow = [UserId(f"slow {number}") for number in range(3)]
        deleting.store.seconds = dict.fromkeys(slow, 5.0)
        deleting.store.opened.clear()
        tasks = asking(deleting, *((deleting.group(owner), owner) for owner in slow))
        await until(lambda: deleting.store.asked)
        tasks += asking(deleting, (deleting.group(BOB), BOB))
        await asyncio.sleep(0)
        deleting.store.opened.set()
        await asyncio.gather(*tasks)
    assert [slow[0], BOB, *slow[1:]] == [owner for owner, _ in deleting.store.asked]
    assert 3 == deleting.store.turns


async def test_a_request_waits_no_longer_than_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets an error that passes; its turn is not taken."""
    monkeypatch.setattr(deletion, "ANSWER_SECONDS", 0.01)
    async with running() as deleting:
        deleting.store.opened.clear()
        both = asking(deleting, (deleting.group(), ALICE), (deleting.group(BOB), BOB))
        await asyncio.wait(both, timeout=5)
        deleting.store.opened.set()
        outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert [Unreachable] * 2 == [type(each) for each in outcomes]


async def test_where_the_database_is_gone_all_who_wait_are_answered() -> None:
    """One after the other would wait for the same time-out."""
    async with running() as deleting:
        deleting.store.error = Unreachable("gone")
        tasks, order = await behind_one(deleting, [ALICE, BOB])
    assert [Unreachable] * 2 == [type(each.exception()) for each in tasks]
    assert not order


async def test_a_bug_fails_its_turn_alone() -> None:
    """The next turn deletes."""
    async with running() as deleting:
        deleting.store.error = KeyError("bug")
        with pytest.raises(InternalError):
            await deleting.deleter.delete(deleting.group(), ALICE)
        deleting.store.error = None
        await deleting.deleter.delete(deleting.group(), ALICE)


async def test_a_deleter_that_stops_leaves_no_request_waiting() -> None:
    """Neither in its turn nor behind it, nor one that comes later."""
    async with running() as deleting:
        deleting.store.opened.clear()
        groups = [(deleting.group(), ALICE) for _ in range(WAITING_MAX)]
        tasks = asking(deleting, *groups)
        await until(lambda: deleting.store.asked)
        tasks += asking(deleting, *groups[:3])
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*tasks, *asking(deleting, groups[0]), return_exceptions=True)
    assert {Overloaded} == {type(each) for each in outcomes}
