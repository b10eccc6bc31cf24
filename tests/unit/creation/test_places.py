"""Owners take turns for the statements that heal and reclaim."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from stretto.creation import places
from stretto.creation.places import PLACES_MAX, SLOW_SECONDS, WAIT_SECONDS, OwnerPlaces
from stretto.creation.suspects import SUSPECT_SECONDS
from stretto.domain import UserId
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ALICE, BOB, CAROL = UserId("alice"), UserId("bob"), UserId("carol")


class Statements:
    """Statements that hold their places until they are ended."""

    def __init__(self) -> None:
        self.places = OwnerPlaces()
        self.began: list[UserId] = []
        self.now = 0.0
        self._ends: list[tuple[UserId, asyncio.Event]] = []

    async def ask(self, owner: UserId) -> asyncio.Task[None]:
        """Have a statement of this owner's ask for a place."""

        async def hold() -> None:
            async with self.places.place(owner):
                self.began.append(owner)
                end = asyncio.Event()
                self._ends.append((owner, end))
                await end.wait()

        task = asyncio.create_task(hold())
        await turns()
        return task

    async def end(self, owner: UserId, seconds: float = 0.0) -> None:
        """End this owner's statement, after so many seconds."""
        self.now += seconds
        index = next(index for index, (each, _) in enumerate(self._ends) if each == owner)
        self._ends.pop(index)[1].set()
        await turns()


async def turns() -> None:
    """Let all that can run come as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Statements:
    """Their time is the test's."""
    monkeypatch.setattr(places, "_clock_seconds", lambda: made.now)
    made: Statements = Statements()
    return made


@asynccontextmanager
async def ended(*tasks: asyncio.Task[None]) -> AsyncIterator[None]:
    """Cancel what is left."""
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_owner_has_one_place_at_a_time(statements: Statements) -> None:
    """However many keys it has; another owner has the other one."""
    tasks = [await statements.ask(owner) for owner in (ALICE, ALICE, ALICE, BOB)]
    async with ended(*tasks):
        assert [ALICE, BOB] == statements.began


async def test_owners_take_turns(statements: Statements) -> None:
    """One with many keys does not keep another waiting for all of them."""
    owners = [ALICE, BOB, ALICE, ALICE, BOB, CAROL]
    tasks = [await statements.ask(owner) for owner in owners]
    async with ended(*tasks):
        for owner in (ALICE, ALICE, CAROL):
            await statements.end(owner)
        assert [ALICE, BOB, ALICE, CAROL, ALICE] == statements.began


async def test_owners_who_are_slow_share_one_place(statements: Statements) -> None:
    """The other one is left to everybody else, and is theirs again once they were quick, or later."""
    for owner in (ALICE, BOB):
        await statements.ask(owner)
        await statements.end(owner, SLOW_SECONDS)
    tasks = [await statements.ask(owner) for owner in (ALICE, BOB, CAROL)]
    async with ended(*tasks):
        assert [CAROL] == statements.began[3:]
        await statements.end(ALICE)
        await statements.end(BOB)
        await statements.end(CAROL)
        tasks += [await statements.ask(owner) for owner in (ALICE, BOB)]
        assert [ALICE, BOB] == statements.began[5:]


async def test_what_was_slow_is_forgotten(statements: Statements) -> None:
    """After a while it may only have waited for a lock."""
    for owner in (ALICE, BOB):
        await statements.ask(owner)
        await statements.end(owner, SLOW_SECONDS)
    statements.now += SUSPECT_SECONDS
    tasks = [await statements.ask(owner) for owner in (ALICE, BOB)]
    async with ended(*tasks):
        assert [ALICE, BOB] == statements.began[2:]


async def test_who_waits_too_long_is_told(
    statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And takes no place afterwards."""
    tasks = [await statements.ask(owner) for owner in (ALICE, BOB)]
    async with ended(*tasks):
        monkeypatch.setattr(places, "WAIT_SECONDS", 0.0)
        late = await statements.ask(CAROL)
        with pytest.raises(Unreachable, match="had their turns for 0 s"):
            await late
        monkeypatch.setattr(places, "WAIT_SECONDS", WAIT_SECONDS)
        await statements.end(ALICE)
        tasks.append(await statements.ask(ALICE))
        assert [ALICE, BOB, ALICE] == statements.began


async def test_a_turn_that_comes_as_its_waiter_leaves_is_given_on(statements: Statements) -> None:
    """Else the place would be lost for ever."""
    tasks = [await statements.ask(owner) for owner in (ALICE, BOB)]
    waiting = [await statements.ask(UserId(f"user-{number}")) for number in range(PLACES_MAX)]
    async with ended(*tasks, *waiting):
        # The turn of the first one comes, and it has not run since.
        statements.places._leave(ALICE)
        waiting[0].cancel()
        await turns()
        assert "user-1" == statements.began[-1]
