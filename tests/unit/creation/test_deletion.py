"""Deleting groups for their owners: what is forgotten, who is woken, who waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID, uuid4

import pytest

from stretto.creation import deletion
from stretto.creation.deletion import SLOW_SECONDS, WAITING_MAX, GroupDeleter
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
        self.turns = 0
        self.error: Exception | None = None
        self.clock = 0.0
        self.seconds: dict[UserId, float] = {}
        """How long an owner's deletions take."""
        self.breaks_off = False
        """Whether a hasty deletion that takes long fails."""
        self.opened = asyncio.Event()
        self.opened.set()
        self.passes: set[UserId] = set()
        """Owners whose deletions do not wait until it is open."""

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[Delete]:
        self.turns += 1
        yield self._delete

    async def _delete(self, wanted: Deletion, /, *, is_hasty: bool) -> bool | None:
        self.asked.append((wanted.owner, is_hasty))
        await asyncio.sleep(0)
        if wanted.owner not in self.passes:
            await self.opened.wait()
        seconds = self.seconds.get(wanted.owner, 0.001)
        self.clock += seconds
        if self.error is not None:
            raise self.error
        is_broken_off = self.breaks_off and is_hasty and seconds >= SLOW_SECONDS
        if wanted.group_id in self.stuck or is_broken_off:
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
        slow = GroupDeleter(self.store, self.forgotten.append, [self._wake])
        self.deleter = GroupDeleter(self.store, self.forgotten.append, [self._wake], slow)
        self.deleters = [self.deleter, slow]

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
        for deleter in deleting.deleters:
            runner.start(deleter)
        yield deleting
        await runner.stop(*deleting.deleters)


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
        assert [(ALICE, True)] == deleting.store.asked
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
    assert [(BOB, True)] == deleting.store.asked


async def test_what_takes_long_is_broken_off_and_has_all_of_its_time_then() -> None:
    """So do that owner's next ones, until one of them is quick."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        deleting.store.breaks_off = True
        for _ in range(2):
            await deleting.deleter.delete(deleting.group(), ALICE)
        del deleting.store.seconds[ALICE]
        for _ in range(2):
            await deleting.deleter.delete(deleting.group(), ALICE)
    asked = [(ALICE, True), (ALICE, False), (ALICE, False), (ALICE, False), (ALICE, True)]
    assert asked == deleting.store.asked


async def test_what_an_owner_has_queued_is_left_to_the_second_deleter_with_it() -> None:
    """One that takes long is enough; others come before the rest."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        _, order = await behind_one(deleting, [*[ALICE] * 3, BOB])
    assert [(ALICE, True), (BOB, True)] == deleting.store.asked[1:3]
    assert [(ALICE, False)] * 2 == deleting.store.asked[3:]
    assert 4 == len(order)


async def test_no_more_deletions_of_slow_owners_wait_than_of_others() -> None:
    """Each of them holds its client's connection."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        await deleting.deleter.delete(deleting.group(), ALICE)
        deleting.store.opened.clear()
        tasks = asking(deleting, (deleting.group(), ALICE))
        await until(lambda: len(deleting.store.asked) == 2)
        for _ in range(2):
            tasks += asking(deleting, *[(deleting.group(), ALICE)] * (WAITING_MAX // 2 + 1))
            for _ in range(5):
                await asyncio.sleep(0)
        assert any(each.done() and isinstance(each.exception(), Overloaded) for each in tasks)
        for each in tasks:
            each.cancel()
        deleting.store.opened.set()


async def test_what_was_slow_once_is_forgotten() -> None:
    """Whether it was deleted, or failed with all of its time."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        await deleting.deleter.delete(deleting.group(), ALICE)
        deleting.store.clock = SUSPECT_SECONDS
        await deleting.deleter.delete(deleting.group(), ALICE)
        deleting.store.clock += 1
        await deleting.deleter.delete(deleting.group(), ALICE)
    assert [True, False, True] == [is_hasty for _, is_hasty in deleting.store.asked]


async def test_a_group_that_is_not_there_shows_nothing() -> None:
    """Else an owner would be quick again and again in between."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        await deleting.deleter.delete(deleting.group(), ALICE)
        del deleting.store.seconds[ALICE]
        with pytest.raises(NotFound):
            await deleting.deleter.delete(uuid4(), ALICE)
        await deleting.deleter.delete(deleting.group(), ALICE)
    assert [True, False, False] == [is_hasty for _, is_hasty in deleting.store.asked]


async def test_what_is_not_known_to_have_ended_was_slow_as_well() -> None:
    """A connection that was cut: its owner would come first again, and cut the next one."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = 6.0
        deleting.store.error = Unreachable("cut")
        with pytest.raises(Unreachable):
            await deleting.deleter.delete(deleting.group(), ALICE)
        deleting.store.error = None
        await deleting.deleter.delete(deleting.group(), ALICE)
    assert [True, False] == [is_hasty for _, is_hasty in deleting.store.asked]


async def test_what_fails_at_once_is_tried_once() -> None:
    """A constraint of the host's; its owner is not slow. Twin: what fails with all of its time."""
    async with running() as deleting:
        deleting.store.stuck.add(stuck := deleting.group())
        for seconds in (0.0, SLOW_SECONDS):
            deleting.store.seconds[ALICE] = seconds
            with pytest.raises(ReadCancelled):
                await deleting.deleter.delete(stuck, ALICE)
    assert [True, True, False] == [is_hasty for _, is_hasty in deleting.store.asked]


async def test_an_owner_who_is_slow_keeps_no_other_waiting() -> None:
    """Whatever it has sent: the first deleter works meanwhile."""
    async with running() as deleting:
        deleting.store.seconds[ALICE] = SLOW_SECONDS
        await deleting.deleter.delete(deleting.group(), ALICE)
        deleting.store.opened.clear()
        slow = asking(deleting, *((deleting.group(), ALICE) for _ in range(3)))
        await until(lambda: len(deleting.store.asked) == 2)
        deleting.store.passes.add(BOB)
        await deleting.deleter.delete(deleting.group(BOB), BOB)
        assert [False] * 3 == [each.done() for each in slow]
        deleting.store.opened.set()
        await asyncio.gather(*slow)


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


async def delete_again_and_again(deleting: Deleting, owner: UserId, count: int) -> None:
    """Delete groups of an owner, one after the other."""
    for _ in range(count):
        await deleting.deleter.delete(deleting.group(owner), owner)


def deletions_waited(asked: list[UserId], owner: UserId) -> int:
    """Return for how many deletions an owner who always has one to do has waited at most."""
    places = [-1, *(place for place, each in enumerate(asked) if each == owner)]
    return max(after - before for before, after in pairwise(places))


@pytest.mark.parametrize("seconds", [0.04, 0.06])
async def test_who_comes_again_at_once_waits_for_what_a_turn_had_no_time_for(
    seconds: float,
) -> None:
    """Each waits for two deletions of every other at most, although a turn has time for half of them."""
    owners = [UserId(f"owner {number}") for number in range(20)]
    async with running() as deleting:
        deleting.store.seconds = dict.fromkeys(owners, seconds)
        if seconds >= SLOW_SECONDS:
            for owner in owners:
                deleting.deleter.suspects.note_untried(owner, seconds)
        await asyncio.gather(*(delete_again_and_again(deleting, each, 30) for each in owners))
    assert {seconds < SLOW_SECONDS} == {is_hasty for _, is_hasty in deleting.store.asked}
    asked = [owner for owner, _ in deleting.store.asked]
    assert 2 * len(owners) >= max(deletions_waited(asked, owner) for owner in owners)


async def test_an_owner_who_is_quick_waits_for_no_more_than_a_turn_of_slow_newcomers() -> None:
    """Although it comes again, and they have had none."""
    slow = [UserId(f"slow {number}") for number in range(20)]
    async with running() as deleting:
        deleting.store.seconds = dict.fromkeys(slow, 0.2)
        tasks = asking(deleting, *((deleting.group(owner), owner) for owner in slow))
        await delete_again_and_again(deleting, BOB, 7)
        await asyncio.gather(*tasks)
    assert 4 == deletions_waited([owner for owner, _ in deleting.store.asked], BOB)


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
