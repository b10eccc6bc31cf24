"""Owners who are refused again and again keep no newcomer waiting for long, however many they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.breakers import OWNERS_MAX, REFUSED_SECONDS, OwnerBreakers
from stretto.creation.flight import public_error
from stretto.creation.ports import Led, SettledAsFailed
from stretto.domain import UserId
from stretto.errors import DatabaseUnavailable, Failure, HookFailed
from stretto.observations import OwnerPaused
from stretto.store_errors import HookError, Refused, RefusedAgain, StoreError
from support.clock import Clock
from support.costly_writes import COLD, HOT, OTHER, World, answer_of, write

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from stretto.creation.ports import Write, WriteResult

HOOK_SECONDS = 0.1
VETO = SettledAsFailed(Failure("full", "No more groups."))


def refusing_world(*owners: UserId) -> World:
    """Return a world whose hook takes its time for each lead, and refuses these owners."""
    world = World(share_of=lambda write: write.new_group.owner)
    world.store.lead_seconds = HOOK_SECONDS
    world.store.failing = dict.fromkeys(owners, (Refused(VETO.failure), HOOK_SECONDS))
    return world


@pytest.mark.parametrize(("owners", "each"), [(10, 10), (40, 2), (90, 1)])
async def test_a_newcomer_does_not_wait_for_all_who_are_refused(
    owners: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although they retry at once, and its group has the highest id; only until all are known."""
    world = refusing_world(*(UserId(f"bad{number}") for number in range(owners)))
    numbers, lead = iter(range(1_000_000)), world.store.lead
    vetoed, waits = set[UserId](), list[float]()

    def ask(owner: UserId) -> tuple[UserId, asyncio.Future[WriteResult]]:
        return owner, world.mailbox.ask(write(owner, next(numbers)))

    def ask_as_newcomer() -> tuple[float, asyncio.Future[WriteResult]]:
        new = write(UserId(f"new{len(waits)}"), next(numbers))
        last = replace(new, group_id=UUID(int=2**64 + new.group_id.int))
        return world.clock.now, world.mailbox.ask(last)

    asked = [ask(owner) for owner in world.store.failing for _ in range(each)]
    newcomer = ask_as_newcomer()

    def act() -> None:
        nonlocal newcomer
        for n, (owner, answered) in enumerate(asked):
            if answered.done():
                vetoed.update({owner} if answer_of(answered) == VETO else ())
                asked[n] = ask(owner)
        since, answered = newcomer
        if answered.done():
            assert Led() == answered.result()
            waits.append(world.clock.now - since)
            newcomer = ask_as_newcomer()

    async def lead_beside_clients(writes: Sequence[Write], *, is_hasty: bool) -> set[UUID]:
        act()
        return await lead(writes, is_hasty=is_hasty)

    monkeypatch.setattr(world.store, "lead", lead_beside_clients)
    while len(waits) < 100:
        await world.writers[0].run_once()
        # Of those who are paused, the clients come back later.
        world.clock.now += 0.001
        act()
    assert waits[0] < 0.2 * owners + 3, waits[0]
    assert max(waits[1:]) < 3, waits
    assert vetoed == set(world.store.failing)


async def test_those_refused_are_led_after_the_others_the_longest_ago_first() -> None:
    """One who was refused once does not wait for those who are refused all the time."""
    world = refusing_world(HOT, OTHER)
    await world.answers(write(HOT, 1))
    world.clock.now += 1
    await world.answers(write(OTHER, 2))
    answers = await world.answers(write(OTHER, 3), write(HOT, 4), write(COLD, 5))
    assert [VETO, VETO, Led()] == answers
    assert [[3, 4, 5], [5], [3, 4], [4], [3]] == world.leads()
    world.clock.now += REFUSED_SECONDS
    assert -math.inf == world.breakers.refused_at(HOT)


async def test_parts_are_led_in_the_order_of_the_groups() -> None:
    """In every process the same, whatever the age: else they could deadlock each other."""
    world = refusing_world(HOT)
    await world.answers(write(HOT, 1))
    ages = {5: 9, 6: 8, 7: 7}
    writes = [replace(write(COLD, n), conversation_id=UUID(int=age)) for n, age in ages.items()]
    await world.answers(write(HOT, 4), *writes)
    assert [[4, 5, 6, 7], [5, 6, 7], [4]] == world.leads()


async def test_where_many_are_refused_each_costs_one_statement() -> None:
    """Once a batch had no time for all: single ones, and after successes twice as many each."""
    world = refusing_world(HOT)
    world.store.failing[HOT] = Refused(VETO.failure), APART_SECONDS_MAX
    filler = [world.mailbox.ask(write(COLD, n)) for n in range(1000, 1100)]
    asked = world.mailbox.ask(write(HOT, 1))
    await world.writers[0].run_once()
    assert world.breakers.are_many_refused
    while world.mailbox:
        await world.writers[0].run_once()
    assert VETO == asked.result()
    assert {Led()} == {answer_of(each) for each in filler}
    world.breakers.are_many_refused = world.breakers.are_newest_first = True
    world.breakers.close(HOT)
    world.clock.now += REFUSED_SECONDS
    await world.answers(write(HOT, 1), *(write(OTHER, n) for n in range(2, 10)))
    assert [[1], [2], [3, 4], [5, 6, 7, 8], [9]] == world.leads()
    assert not world.breakers.are_many_refused


@pytest.mark.parametrize(
    ("is_veto", "kind", "code"),
    [(True, HookError, HookFailed.code), (False, RefusedAgain, DatabaseUnavailable.code)],
    ids=["a hook", "the database"],
)
async def test_the_error_of_a_paused_owner_names_who_has_refused(
    is_veto: bool, kind: type[StoreError], code: str
) -> None:
    """Without a hook, no client and no alert hears of the host's own code."""
    world = refusing_world(HOT)
    refused = Refused(VETO.failure, is_veto=is_veto)
    world.store.failing[HOT] = refused, APART_SECONDS_MAX
    await world.answers(write(HOT, 1), write(COLD, 2))
    (paused,) = (event for event in world.events if isinstance(event, OwnerPaused))
    assert kind is type(paused.error)
    answers = await world.answers(write(HOT, 3), write(COLD, 4))
    (error,) = (each for each in answers if isinstance(each, StoreError))
    answer = public_error(error)
    assert (kind, code) == (type(error), answer.code)
    assert (answer.retry_after_seconds or 0) > 1
    assert ("The database refuses groups of this owner" in answer.detail) != is_veto


async def test_probes_of_paused_owners_take_a_bounded_time_beside_others() -> None:
    """Each goes through in 0.4 s: the rest is put back, and the oldest is tried first."""
    world = refusing_world()
    paused = [UserId(f"slow{number}") for number in range(8)]
    for number, owner in enumerate(paused):
        world.breakers.keep(write(owner, number), 0.1, HookError("slow"))
        world.store.slow[owner] = 0.4
    world.clock.now += 5
    asked = [
        world.mailbox.ask(replace(write(owner, n), group_id=UUID(int=99 - n)))
        for n, owner in enumerate(paused)
    ]
    filler = [world.mailbox.ask(write(COLD, 200 + n)) for n in range(100 - len(asked))]
    newcomer = world.mailbox.ask(write(OTHER, 400))
    began = world.clock.now
    while not asked[0].done():
        await world.writers[0].run_once()
    assert world.clock.now - began < APART_SECONDS_MAX + 1.0
    assert [True] * 2 + [False] * 5 == [asked[n].done() for n in (0, 1, 3, 4, 5, 6, 7)]
    while world.mailbox:
        await world.writers[0].run_once()
    assert {Led()} == {answer_of(each) for each in (*asked, *filler, newcomer)}


async def test_after_a_probe_was_refused_the_others_of_its_owner_make_room() -> None:
    """They may be refused as well, one by one; they are not failed."""
    world = refusing_world(HOT)
    world.breakers.keep(write(HOT, 0), 0.1, HookError("hang"))
    world.clock.now += 5
    asked = [world.mailbox.ask(write(HOT, n)) for n in range(1, 4)]
    filler = [world.mailbox.ask(write(COLD, 10 + n)) for n in range(100)]
    await world.writers[0].run_once()
    assert [VETO] == [answer_of(each) for each in asked if each.done()]
    assert [1] == world.leads()[-1]
    while world.mailbox:
        await world.writers[0].run_once()
    assert [VETO] * 3 == [answer_of(each) for each in asked]
    assert {Led()} == {answer_of(each) for each in filler}


def test_owners_who_were_refused_are_bounded_in_number() -> None:
    """The latest are kept."""
    clock = Clock()
    breakers = OwnerBreakers(lambda _: None, clock)
    clock.now += 1
    for number in range(OWNERS_MAX + 1):
        breakers.note_refused(UserId(f"u{number}"))
    refused = [breakers.refused_at(UserId(f"u{n}")) == clock.now for n in (0, 1, OWNERS_MAX)]
    assert [False, True, True] == refused
