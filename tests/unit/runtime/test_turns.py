"""Large pieces of work: one in each turn of the event loop, owners in rotation."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stretto.runtime.turns import Turns
from support.loop_turns import counted_turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Work:
    """What was done by whom, in which turn of the event loop."""

    def __init__(self, turn: Callable[[], int]) -> None:
        self.turns = Turns()
        self.done: list[tuple[str, int]] = []
        self._turn = turn

    async def do(self, owner: str) -> None:
        """Take a turn."""
        await self.turns.take(owner)
        self.done.append((owner, self._turn()))

    async def do_all(self, owners: str) -> str:
        """Have those work at once, in this order of asking; return in which order they did."""
        await asyncio.gather(*(self.do(owner) for owner in owners))
        return "".join(owner for owner, _ in self.done)


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    """Turns that were not taken."""
    with counted_turns() as turn:
        yield Work(turn)


async def test_each_has_a_turn_of_its_own(work: Work) -> None:
    """Twin: without turns, all are done in the turn in which they were asked for."""
    await work.do_all("aaaa")
    assert 4 == len({number for _, number in work.done})


async def test_owners_are_served_in_rotation(work: Work) -> None:
    """Who asks for many waits for its own, and not the others for them."""
    assert "aabcaa" == await work.do_all("aaaabc")


async def test_several_may_share_a_turn(work: Work) -> None:
    """As many as are allowed; owners are served in rotation then, too."""
    work.turns = Turns(2)
    assert "aaabaa" == await work.do_all("aaaaab")
    numbers = [number for _, number in work.done]
    assert [2, 2, 2] == [numbers.count(number) for number in sorted(set(numbers))]


async def test_a_free_turn_is_taken_without_waiting(work: Work) -> None:
    """The usual case: no request waits for another."""
    with pytest.raises(StopIteration):
        work.turns.take("a").send(None)


async def test_a_client_that_has_left_takes_no_turn(work: Work) -> None:
    """Its work is not done, and the next owner does not wait for it."""
    first, left, last = (asyncio.create_task(work.do(owner)) for owner in "abc")
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(first, last)
    (_, first_number), (owner, last_number) = work.done
    # A turn for the decision, and one for the work; its own would have been one more.
    assert ("c", 2) == (owner, last_number - first_number)


async def test_turns_are_free_again_when_no_caller_waits(work: Work) -> None:
    """Twin: a flag that is never cleared would have every later one wait for ever."""
    assert "ab" == await work.do_all("ab")
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert "abc" == await work.do_all("c")


async def test_what_is_called_in_a_turn_is_called_at_once_or_in_rotation(work: Work) -> None:
    """As much of it as one turn has room for; the last one may have more pieces than are left."""
    work.turns = Turns(3)
    called: list[str] = []

    def begin(owner: str) -> int:
        called.append(owner)
        return 2

    for owner in "aaaab":
        work.turns.call(owner, partial(begin, owner))
    assert "aa" == "".join(called)
    assert work.turns.is_behind
    await asyncio.sleep(0)
    assert "aaab" == "".join(called)
    await asyncio.sleep(0)
    assert ("aaaba", False) == ("".join(called), work.turns.is_behind)


async def test_what_finds_nothing_to_do_leaves_its_turn_to_others(work: Work) -> None:
    """It was done meanwhile, as a session that has ended."""
    called: list[int] = []

    def begin(pieces: int) -> int:
        called.append(pieces)
        return pieces

    for pieces in (0, 1, 0, 0, 1, 1):
        work.turns.call("a", partial(begin, pieces))
    assert [0, 1] == called
    await asyncio.sleep(0)
    assert [0, 1, 0, 0, 1] == called
    number = work.turns.number
    await asyncio.sleep(0)
    assert (number + 1, [0, 1, 0, 0, 1, 1]) == (work.turns.number, called)


async def test_a_loop_without_work_is_left_alone(work: Work) -> None:
    """Turns that were taken are over one turn of the loop later, and nothing more is scheduled."""
    work.turns.call("a", lambda: 0)
    await work.turns.take("a")
    for _ in range(3):
        await asyncio.sleep(0)
    number = work.turns.number
    await asyncio.sleep(0)
    assert number == work.turns.number
