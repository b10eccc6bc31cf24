"""Refusals that take long keep no reliable owner waiting, however many owners are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.breakers import OWNER_SECONDS_MAX, REFUSED_SECONDS
from stretto.creation.ports import Led, SettledAsFailed
from stretto.creation.proofs import KNOWN_SECONDS, QUICK_SECONDS
from stretto.domain import UserId
from stretto.errors import Failure
from stretto.store_errors import HookEnded, Refused
from support.costly_writes import COLD, HOT, OTHER, World, answer_of, write

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.ports import Write, WriteResult

LEAD_SECONDS = 0.005
REFUSED = Refused(Failure("full", "No more groups."))
VETO = SettledAsFailed(REFUSED.failure)
CLIENTS, GOOD, NEWCOMERS = 50, 10, 10


class Crowd:
    """Clients whose owners are refused, beside ten proven owners and a newcomer now and then."""

    def __init__(self, seconds: float, owners: int) -> None:
        """Each refusal takes so long; of so many owners, or of a new one each time if 0."""
        self.world = World(share_of=lambda write: write.new_group.owner)
        self.clock, self.store = self.world.clock, self.world.store
        self.store.lead_seconds = LEAD_SECONDS
        self._seconds, self._owners, self._asked = seconds, owners, 0
        self.good = [UserId(f"good{number}") for number in range(GOOD)]
        self.world.breakers.note_led(self.good, LEAD_SECONDS)
        self._refused = [self._ask_refused() for _ in range(CLIENTS)]
        self._due = dict.fromkeys(self.good, 0.0)
        self._waiting: dict[UserId, tuple[float, asyncio.Future[WriteResult]]] = {}
        self._newcomers, self._began = 0, self.clock.now
        self.waits: dict[UserId, list[float]] = {}

    def act(self) -> None:
        """Have all clients do what is due now."""
        now = self.clock.now
        for owner, (since, answered) in [*self._waiting.items()]:
            if answered.done():
                assert Led() == answer_of(answered)
                self.waits.setdefault(owner, []).append(now - since)
                self._due[owner] = now + 0.2
                del self._waiting[owner]
        for number, (since, answered) in enumerate(self._refused):
            # Of those who are paused, the clients come back later.
            if answered.done() and (answer_of(answered) == VETO or now - since >= 1):
                self._refused[number] = self._ask_refused()
        if self._newcomers < min(NEWCOMERS, 2 * (now - self._began)):
            self._newcomers += 1
            self._due[UserId(f"new{self._newcomers}")] = now
        for owner in [owner for owner, due in self._due.items() if due <= now]:
            del self._due[owner]
            if owner in self.good or owner not in self.waits:
                self._waiting[owner] = now, self._ask(owner)

    async def is_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have one writer work until each newcomer is served."""
        lead = self.store.lead

        async def lead_beside_clients(writes: Sequence[Write], *, is_hasty: bool) -> set[UUID]:
            self.act()
            return await lead(writes, is_hasty=is_hasty)

        monkeypatch.setattr(self.store, "lead", lead_beside_clients)
        while len(self.waits) < GOOD + NEWCOMERS:
            self.act()
            if len(self.world.mailbox):
                await self.world.writers[0].run_once()
            self.clock.now += 0.001

    def _ask(self, owner: UserId) -> asyncio.Future[WriteResult]:
        self._asked += 1
        return self.world.mailbox.ask(write(owner, self._asked))

    def _ask_refused(self) -> tuple[float, asyncio.Future[WriteResult]]:
        owner = UserId(f"bad{self._asked % self._owners if self._owners else self._asked}")
        self.store.failing[owner] = REFUSED, self._seconds
        return self.clock.now, self._ask(owner)


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("owners", [0, CLIENTS], ids=["new owners", "the same owners"])
async def test_reliable_owners_do_not_wait_for_those_who_are_refused(
    seconds: float, owners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do newcomers, for much longer than all those take who have come before."""
    crowd = Crowd(seconds, owners)
    await crowd.is_served(monkeypatch)
    good = [wait for owner in crowd.good for wait in crowd.waits.pop(owner)]
    assert max(good) < 4 * seconds + 0.1
    newcomers = [wait for waits in crowd.waits.values() for wait in waits]
    assert max(newcomers) < 2.5 * CLIENTS * seconds


async def asked_beside_proven(*writes: Write, seconds: float = 0.0) -> World:
    """Have COLD proven and HOT refused in so many seconds, and these written beside each other."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.breakers.note_led([COLD])
    world.store.failing[HOT] = REFUSED, seconds
    await world.answers(*writes)
    return world


async def test_the_proven_are_led_before_newcomers_together() -> None:
    """Of ever new owners who are refused, none was refused before."""
    world = await asked_beside_proven(
        write(HOT, 1), write(COLD, 2), write(OTHER, 3), write(COLD, 4)
    )
    assert [[1, 2, 3, 4], [2, 4], [1, 3], [1], [3]] == world.leads()


async def test_the_known_are_led_before_those_who_are_proven_since_a_short_time() -> None:
    """Ever new owners may be refused with their second write."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.breakers.note_led([COLD])
    world.clock.now += KNOWN_SECONDS
    world.breakers.note_led([HOT])
    world.store.failing[HOT] = REFUSED, 0.0
    await world.answers(write(HOT, 1), write(COLD, 2), write(COLD, 3))
    assert [[1, 2, 3], [2, 3], [1]] == world.leads()


async def test_one_who_is_refused_behind_many_newcomers_is_found_soon() -> None:
    """Each refusal may take long, and reliable owners wait for it."""
    others = [write(UserId(f"new{n}"), n) for n in range(2, 101)]
    # The newest come first.
    world = await asked_beside_proven(write(HOT, 1), *others, seconds=OWNER_SECONDS_MAX)
    _, *parts = world.leads()
    assert sum(1 in part for part in parts) <= 4


async def test_where_a_refusal_took_long_the_first_is_found_at_once() -> None:
    """By halves, each one that has it would take as long again."""
    others = [write(UserId(f"new{n}"), n) for n in range(2, 9)]
    world = await asked_beside_proven(write(HOT, 1), *others, seconds=OWNER_SECONDS_MAX)
    leads = world.leads()
    assert [[*range(1, 9)], [8], [6, 7], [2, 3, 4, 5], [1]] == leads
    # The next time the oldest come first.
    world.breakers.close(HOT)
    world.clock.now += REFUSED_SECONDS
    others = [write(UserId(f"newer{n}"), n) for n in range(12, 19)]
    await world.answers(write(HOT, 11), *others)
    assert [[*range(11, 19)], [11], [12], [13, 14], [15, 16, 17, 18]] == world.leads()


@pytest.mark.parametrize(("waits", "is_left"), [(COLD, True), (OTHER, False), (HOT, False)])
async def test_a_refused_batch_makes_room_for_reliable_owners_soon(
    waits: UserId, is_left: bool
) -> None:
    """After one refusal that took long; not for newcomers, nor for those who were refused."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.breakers.note_led([COLD, HOT])
    world.breakers.note_refused(HOT)
    bad = [UserId(f"bad{number}") for number in range(100)]
    world.store.failing = dict.fromkeys(bad, (REFUSED, 0.9 * APART_SECONDS_MAX / 2))
    asked = [world.mailbox.ask(write(owner, n)) for n, owner in enumerate(bad)]
    world.mailbox.ask(write(waits, 1000))
    await world.writers[0].run_once()
    assert (1 if is_left else 3) == sum(each.done() for each in asked)


async def test_while_many_are_refused_no_batch_with_newcomers_is_led_as_a_whole() -> None:
    """It would take as long as a refusal does, in vain."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.breakers.note_led([COLD, OTHER])
    world.store.failing[HOT] = REFUSED, QUICK_SECONDS
    world.breakers.are_many_refused = world.breakers.are_newest_first = True
    world.store.writes_at_once = True
    answers = await world.answers(write(HOT, 1), write(COLD, 2), write(OTHER, 3))
    assert [VETO, Led(), Led()] == answers
    assert [[2, 3], [1]] == world.leads()
    assert ("claim", [1, 2, 3]) == world.store.calls[0]


@pytest.mark.parametrize("owners", [(COLD, OTHER), (HOT, HOT)], ids=["reliable", "one owner"])
async def test_while_many_are_refused_other_batches_are_led_as_ever(
    owners: tuple[UserId, UserId],
) -> None:
    """Of reliable owners none is expected to be refused; a single owner has no neighbours."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.breakers.note_led([COLD, OTHER])
    world.breakers.are_many_refused = True
    await world.answers(*(write(owner, n) for n, owner in enumerate(owners)))
    assert [[0, 1]] == world.leads()
    assert world.breakers.are_many_refused


async def test_after_a_hang_alone_the_next_one_is_led_alone_as_well() -> None:
    """What fails in another way than by a refusal costs its neighbours as much."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.store.failing = {HOT: (HookEnded("hang"), 0.1), COLD: (REFUSED, 0.0)}
    world.breakers.are_many_refused = world.breakers.are_newest_first = True
    others = [write(UserId(f"new{n}"), n) for n in (3, 4)]
    await world.answers(write(COLD, 1), write(HOT, 2), *others)
    assert [[1], [2], [3], [4]] == world.leads()


async def test_where_all_are_proven_a_refused_batch_is_not_led_as_a_whole_again() -> None:
    """They stand equally well: there is no first part."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.breakers.note_led([COLD, HOT])
    world.store.failing[HOT] = REFUSED, OWNER_SECONDS_MAX
    await world.answers(write(HOT, 1), write(COLD, 2))
    assert [[1, 2], [2], [1]] == world.leads()
