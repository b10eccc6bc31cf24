"""Owners whose writes hang keep no newcomer out, however many they are and however often they retry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.breakers import OWNER_SECONDS_MAX, OWNERS_MAX, OwnerBreakers
from stretto.creation.ports import Led, SettledAsFailed, Write
from stretto.creation.proofs import KNOWN_SECONDS
from stretto.creation.suspects import (
    HANG_RATIO,
    NEWCOMERS_APART_SECONDS,
    NEWCOMERS_APART_SECONDS_MAX,
    NEWCOMERS_MAX,
    NEWCOMERS_SECONDS,
    SUSPECT_SECONDS,
    SUSPECTS_MAX,
    Suspects,
)
from stretto.domain import UserId
from stretto.errors import AttemptPending, Failure, Overloaded
from stretto.observations import OwnerPaused
from stretto.store_errors import HookEnded, HookError, Refused, Stalled, StoreError, Transient
from support.clock import Clock
from support.costly_writes import COLD, HOT, OTHER, World, answer_of, write

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.ports import WriteResult

HANG_SECONDS = 0.25
HANG = HookEnded("hang")


def hanging_world(owners: int, error: StoreError = HANG) -> World:
    """Return a world in which the writes of so many owners hang, and all others take 1 ms."""
    world = World(share_of=lambda write: write.new_group.owner)
    world.store.lead_seconds = 0.001
    for number in range(owners):
        world.store.failing[UserId(f"bad{number}")] = error, HANG_SECONDS
    return world


async def suspected_world(*owners: UserId) -> World:
    """Return a world in which the writes of these owners, and no other's, have hung."""
    world = World()
    world.store.failing = dict.fromkeys(owners, (HANG, HANG_SECONDS))
    await world.answers(*(write(owner, 900 + n) for n, owner in enumerate(owners)))
    assert len(owners) == len(world.breakers.suspects)
    assert not world.breakers
    return world


@pytest.mark.parametrize(
    ("owners", "each", "seconds"), [(20, 10, 2.0), (90, 3, 2.0), (200, 2, 7.0)]
)
async def test_a_newcomer_is_led_in_the_next_batches_where_many_owners_hang(
    owners: int, each: int, seconds: float
) -> None:
    """Within seconds, a new owner each time; so all who hang are paused, although they retry."""
    world = hanging_world(owners)
    numbers = iter(range(1_000_000))

    def ask(owner: UserId) -> tuple[UserId, asyncio.Future[WriteResult]]:
        return owner, world.mailbox.ask(write(owner, next(numbers)))

    asked = [ask(owner) for owner in world.store.failing for _ in range(each)]
    await world.writers[0].run_once()
    assert not world.breakers
    for number in range(100):
        _, newcomer = ask(UserId(f"new{number}"))
        began = world.clock.now
        while not newcomer.done():
            await world.writers[0].run_once()
        assert Led() == newcomer.result()
        assert world.clock.now - began < seconds
        failed = [owner for owner, answered in asked if answered.done() and answer_of(answered)]
        asked = [each for each in asked if not each[1].done()] + [ask(owner) for owner in failed]
    assert owners <= world.pauses().count(OwnerPaused)


@pytest.mark.parametrize("error", [HookEnded("hang"), HookError("lock"), Stalled("hang")])
async def test_what_had_no_time_in_a_batch_that_hung_is_tried_apart_from_newcomers(
    error: StoreError,
) -> None:
    """It stays claimed, is tried alone, and is no suspect once it has gone through."""
    world = hanging_world(5, error)
    hanging = [write(owner, n) for n, owner in enumerate(world.store.failing)]
    innocent = [world.mailbox.ask(each) for each in (*hanging, write(COLD, 10), write(OTHER, 11))]
    await world.writers[0].run_once()
    assert [True] * 4 + [False] * 3 == [each.done() for each in innocent]
    assert {COLD, OTHER} <= {*world.breakers.suspects._suspects}
    newcomer = world.mailbox.ask(write(HOT, 20))
    world.store.calls.clear()
    await world.writers[0].run_once()
    assert [Led()] * 3 == [each.result() for each in (newcomer, *innocent[-2:])]
    assert [("claim", [20]), ("lead", [20])] == world.store.calls[:2]
    assert sorted([[4], [10], [11]]) == sorted(world.leads()[1:])
    assert not {COLD, OTHER, HOT} & {*world.breakers.suspects._suspects}


async def test_an_owner_whose_writes_go_through_slowly_takes_turns_with_newcomers() -> None:
    """Such a write proves that it hangs no more than a newcomer's does, and takes the time of all."""
    world = hanging_world(1)
    world.breakers.note_led([HOT], OWNER_SECONDS_MAX)
    asked = [
        write(HOT, 1),
        write(HOT, 2),
        write(HOT, 3),
        write(COLD, 10),
        write(UserId("bad0"), 20),
    ]
    for each in asked:
        world.mailbox.ask(each)
    await world.writers[0].run_once()
    alone = [number for numbers in world.leads()[1:] for number in numbers]
    assert alone.index(10) < sorted(alone.index(number) for number in alone if number < 4)[1]


@pytest.mark.parametrize(("before", "turn"), [(0.1, [51, 50, 0]), (0.001, [0, 51, 50])])
async def test_many_requests_of_a_slow_owner_leave_time_to_all_others(
    before: float, turn: list[int]
) -> None:
    """Each takes less than others can bear; what another took with them is not its own time."""
    world = World()
    world.store.failing_together, world.store.slow[HOT] = HANG, 0.1
    world.breakers.note_led([COLD], 0.01)
    world.breakers.note_led([HOT], before)
    world.breakers.note_led([HOT, COLD], 1.0)
    writes = [*(write(HOT, number) for number in range(40)), write(OTHER, 50), write(COLD, 51)]
    asked = [world.mailbox.ask(each) for each in writes]
    await world.writers[0].run_once()
    assert turn == [ids[0] for ids in world.leads()[1:4]]
    assert [Led()] * 2 == [each.result() for each in asked[-2:]]


async def test_where_the_proven_take_all_the_time_the_others_are_tried_apart_as_well() -> None:
    """Else the one who hangs would be in each of their batches, and is never found."""
    world = hanging_world(1)
    world.store.lead_seconds = 0.02
    proven = [UserId(f"proven{number}") for number in range(60)]
    await world.answers(*(write(owner, n) for n, owner in enumerate(proven)))
    waiting = [world.mailbox.ask(write(UserId("bad0"), 100)), world.mailbox.ask(write(COLD, 101))]
    for turn in range(1, 3):
        asked = [world.mailbox.ask(write(owner, 200 * turn + n)) for n, owner in enumerate(proven)]
        await world.writers[0].run_once()
        assert sum(each.done() for each in asked) >= 50
        assert (turn == 1) == (COLD in world.breakers.suspects)
        assert proven[-1] not in world.breakers.suspects
    assert Led() == waiting[1].result()


async def test_an_owner_whose_write_hung_alone_is_tried_once_and_after_the_others() -> None:
    """What is left of it gets that error unclaimed; then those come that were not tried yet."""
    owners = [UserId(f"bad{number}") for number in range(6)]
    world = await suspected_world(*owners)
    for owner in (OTHER, UserId("last")):
        world.breakers.suspects.note_untried(owner, HANG_SECONDS)
    hung = [write(owner, 10 * n + m) for n, owner in enumerate(owners, 1) for m in range(3)]
    # The oldest and the newest of all.
    untried = write(OTHER, 1), write(UserId("last"), 99)
    answers = await world.answers(*hung, *untried, write(COLD, 2))
    assert [HookEnded] * 18 == [type(each) for each in answers[:18]]
    assert [Led()] * 3 == answers[18:]
    shared, *alone = world.leads()
    assert [2] == shared
    assert [[1], [99]] == sorted(alone[:2])
    assert [1] * 4 == [len(lead) for lead in alone[2:]]
    assert 4 == len({lead[0] // 10 for lead in alone[2:]})
    assert {2, *(lead[0] for lead in alone)} == {
        number for name, ids in world.store.calls if name == "claim" for number in ids
    }


async def test_a_hang_after_others_of_its_batch_went_through_is_charged() -> None:
    """Although no other has gone through while it hung."""
    world = await suspected_world(HOT)
    world.store.lead_seconds = 0.001
    world.store.failing[HOT] = HANG, HANG_SECONDS
    asked = [world.mailbox.ask(write(owner, n)) for n, owner in enumerate((HOT, COLD))]
    world.writers[0]._batch_max = 2
    world.mailbox.ask(write(OTHER, 9))
    await world.writers[0].run_once()
    assert [HookEnded, Led] == [type(answer_of(each)) for each in asked]
    assert [OwnerPaused] == world.pauses()


async def test_a_suspect_who_keeps_no_other_waiting_is_led_as_any_other() -> None:
    """Together, and not in haste where it is one request: its hook may take long."""
    world = await suspected_world(HOT)
    world.store.failing.clear()
    assert [Led()] * 2 == await world.answers(write(HOT, 1), write(HOT, 2))
    assert [[1, 2]] == world.leads()
    assert world.breakers.suspects.error_of(HOT) is None


@pytest.mark.parametrize("owners", [(HOT,), (HOT, OTHER)], ids=["HOT", "HOT-OTHER"])
async def test_a_veto_clears_a_suspect(owners: tuple[UserId, ...]) -> None:
    """The hook has come to its end, also for one who keeps no other waiting."""
    world = await suspected_world(*owners)
    failure = Failure("full", "No more groups.")
    world.store.failing = dict.fromkeys(owners, (Refused(failure), 0.0))
    answers = await world.answers(*(write(owner, n) for n, owner in enumerate(owners)))
    assert [SettledAsFailed(failure)] * len(owners) == answers
    assert {None} == {world.breakers.suspects.error_of(owner) for owner in owners}


async def test_an_attempt_of_another_shows_nothing_of_those_that_hang() -> None:
    """The hook has not run for it: that all may be slow is as likely as before."""
    world = await suspected_world(HOT, OTHER)
    world.breakers.suspects.note_untried(COLD, HANG_SECONDS)
    claim = world.store.claim

    async def lost(writes: Sequence[Write]) -> set[UUID]:
        won = await claim(writes)
        return set() if writes[0].new_group.owner == COLD else won

    world.store.claim = lost  # type: ignore[method-assign]
    await world.answers(write(HOT, 1), write(OTHER, 2), write(COLD, 3))
    assert [[2], [1]] == world.leads()
    assert [] == world.pauses()


async def test_what_fails_slowly_for_another_reason_makes_no_suspects() -> None:
    """A full disk is no owner's: the rest is written together again."""
    world = World()
    world.store.failing[HOT] = Transient("disk full"), APART_SECONDS_MAX
    asked = [world.mailbox.ask(write(owner, n)) for n, owner in enumerate((HOT, COLD, OTHER))]
    await world.writers[0].run_once()
    assert [True, False, False] == [each.done() for each in asked]
    assert not world.breakers.suspects


async def test_where_successes_are_slow_as_well_the_rest_is_written_together_again() -> None:
    """A hook that is slow for all, and has just been given the time that it needs."""
    world = World()
    world.store.failing[HOT] = HANG, HANG_SECONDS
    world.store.lead_seconds = APART_SECONDS_MAX
    world.breakers.note_led([COLD])
    asked = [world.mailbox.ask(write(owner, n)) for n, owner in enumerate((HOT, COLD, OTHER))]
    asked.append(world.mailbox.ask(write(UserId("last"), 9)))
    await world.writers[0].run_once()
    assert [False, True, False, False] == [each.done() for each in asked]
    assert not world.breakers.suspects


async def test_beside_successes_that_take_long_what_had_no_time_is_tried_apart() -> None:
    """A hook that takes long for all, and hangs for much longer for one owner."""
    world = World()
    world.store.failing[HOT] = HANG, 5 * OWNER_SECONDS_MAX
    world.store.lead_seconds = OWNER_SECONDS_MAX
    world.breakers.note_led([COLD])
    owners = (HOT, COLD, OTHER, UserId("last"))
    asked = [world.mailbox.ask(write(owner, n)) for n, owner in enumerate(owners)]
    await world.writers[0].run_once()
    assert [True, True, False, False] == [each.done() for each in asked]
    assert [True, False, True, True] == [owner in world.breakers.suspects for owner in owners]


def test_a_success_much_shorter_than_the_hangs_clears_only_its_own_owner() -> None:
    """Where the hook takes long for all, each success would else have all who hang share batches."""
    breakers = OwnerBreakers(lambda _: None, clock := Clock())
    clock.now += 1
    breakers.suspects.note_hang(HOT, HANG, 5 * OWNER_SECONDS_MAX)
    breakers.suspects.note_untried(OTHER, 5 * OWNER_SECONDS_MAX)
    breakers.suspects.note_untried(UserId("ended soon"), OWNER_SECONDS_MAX)
    breakers.suspects.note_untried(COLD, 5 * OWNER_SECONDS_MAX)
    breakers.note_led([COLD], OWNER_SECONDS_MAX)
    assert [HOT, OTHER] == list(breakers.suspects._suspects)


def test_a_slow_success_ends_what_was_suspected_since_the_last_quick_one() -> None:
    """Where all are slow, a hang says nothing; one beside quick successes does."""
    breakers = OwnerBreakers(lambda _: None, clock := Clock())
    breakers.suspects.note_hang(HOT, HANG, HANG_SECONDS)
    clock.now += 1
    breakers.note_led([COLD], OWNER_SECONDS_MAX / 2)
    clock.now += 1
    breakers.suspects.note_untried(OTHER, HANG_SECONDS)
    breakers.note_led([COLD], OWNER_SECONDS_MAX)
    assert HOT in breakers.suspects
    assert OTHER not in breakers.suspects
    assert breakers.suspects.error_of(HOT) is not None
    breakers.note_led([HOT])
    assert breakers.suspects.error_of(HOT) is None


def test_an_owner_whose_pause_is_forgotten_is_a_suspect() -> None:
    """Of many paused owners not each has had a probe: they must not share batches all at once."""
    breakers = OwnerBreakers(lambda _: None, clock := Clock())
    breakers.charge(write(HOT, 1), OWNER_SECONDS_MAX, HANG)
    clock.now += 2 * SUSPECT_SECONDS + 10
    breakers.drop_stale()
    assert HOT not in breakers
    assert HOT in breakers.suspects


def test_of_too_many_paused_owners_the_oldest_is_a_suspect() -> None:
    """Its write may still hang: it must not share the batches of others at once."""
    breakers = OwnerBreakers(lambda _: None, Clock())
    for number in range(OWNERS_MAX + 1):
        breakers.charge(write(UserId(f"x{number}"), number), OWNER_SECONDS_MAX, HANG)
    assert UserId("x0") not in breakers
    assert UserId("x0") in breakers.suspects
    assert 1 == len(breakers.suspects)


def test_suspects_are_few_and_are_forgotten() -> None:
    """The oldest goes where there are too many; an error is kept until the owner is cleared.

    One who had no time is not kept for longer each time: it may be innocent.
    """
    suspects = Suspects(clock := Clock())
    suspects.note_untried(OTHER, HANG_SECONDS)
    suspects.note_hang(HOT, HANG, HANG_SECONDS)
    clock.now += SUSPECT_SECONDS / 2
    suspects.note_untried(OTHER, HANG_SECONDS)
    suspects.note_hang(HOT, HANG, HANG_SECONDS)
    suspects.note_untried(COLD, HANG_SECONDS)
    clock.now += SUSPECT_SECONDS / 4
    error = suspects.error_of(HOT)
    assert isinstance(error, HookEnded)
    assert error is not HANG
    assert (None, None) == (suspects.error_of(COLD), suspects.error_of(UserId("last")))
    clock.now += SUSPECT_SECONDS / 4
    suspects.drop_stale()
    assert [True, True, False] == [owner in suspects for owner in (HOT, COLD, OTHER)]
    for number in range(SUSPECTS_MAX):
        suspects.note_untried(UserId(f"x{number}"), HANG_SECONDS)
    assert SUSPECTS_MAX == len(suspects)
    assert HOT not in suspects


async def test_a_suspect_that_had_no_time_waits_on() -> None:
    """It is answered by a later batch, and not failed for the hangs of others."""
    world = await suspected_world(*(UserId(f"bad{number}") for number in range(5)))
    for owner in list(world.store.failing):
        world.breakers.suspects.discard(owner)
        world.breakers.suspects.note_untried(owner, HANG_SECONDS)
    world.breakers.suspects.note_untried(COLD, HANG_SECONDS)
    bad = [write(owner, 10 + n) for n, owner in enumerate(world.store.failing)]
    # The newest come first, and in the next turn the oldest.
    answers = await world.answers(*bad, write(COLD, 1))
    assert Led() == answers[-1]
    assert [[14], [13], [12], [11], [1], [10]] == world.leads()


async def test_a_newcomer_beside_those_who_hang_is_tried_before_them() -> None:
    """It has come after them."""
    world = await suspected_world(HOT)
    world.store.failing = {UserId(f"bad{n}"): (HANG, HANG_SECONDS) for n in range(3)}
    bad = [write(owner, n) for n, owner in enumerate(world.store.failing)]
    assert Led() == (await world.answers(*bad, write(COLD, 9)))[-1]
    assert [[0, 1, 2, 9], [9], [2], [1], [0]] == world.leads()


async def test_where_ever_new_owners_hang_no_newcomer_shares_the_batch_of_those_who_are_known() -> (
    None
):
    """Three who hang come with each turn, and one who does not: each batch would hang, not few."""
    world = World(share_of=lambda write: write.new_group.owner)
    world.store.lead_seconds = 0.001
    numbers = iter(range(1, 1_000_000))

    def ask(owner: UserId) -> asyncio.Future[WriteResult]:
        return world.mailbox.ask(write(owner, next(numbers)))

    assert [Led()] == await world.answers(write(HOT, next(numbers)))
    newcomers, shared, began = [], 0, world.clock.now
    for turn in range(20):
        for _ in range(3):
            owner = UserId(f"bad{len(world.store.failing)}")
            world.store.failing[owner] = HANG, HANG_SECONDS
            ask(owner)
        newcomers.append(ask(UserId(f"new{turn}")))
        known = ask(HOT)
        world.store.calls.clear()
        world.clock.now += 1
        await world.writers[0].run_once()
        assert Led() == known.result()
        shared += max(map(len, world.leads())) > 1
    assert all(each.done() for each in newcomers[:-2])
    assert 1 < shared <= (world.clock.now - began) / NEWCOMERS_APART_SECONDS + 1


async def newcomers_apart() -> World:
    """Return a world in which a newcomer has hung alone, and HOT is known."""
    world = World(share_of=lambda write: write.new_group.owner)
    world.store.lead_seconds = 0.001
    world.breakers.note_led([HOT])
    world.clock.now += KNOWN_SECONDS
    world.store.failing[OTHER] = HANG, HANG_SECONDS
    world.breakers.suspects.note_batch_hang()
    await world.answers(write(OTHER, 1))
    assert world.breakers.suspects.are_newcomers_apart
    return world


def test_newcomers_are_alone_for_longer_where_the_next_batches_hang_too() -> None:
    """Each costs its time; a batch that hangs meanwhile, or long afterwards, says nothing of that."""
    suspects = Suspects(clock := Clock())
    lengths = []
    for _ in range(5):
        suspects.note_batch_hang()
        suspects.note_hang(OTHER, HANG, HANG_SECONDS, is_newcomer=True)
        suspects.discard(OTHER)
        began = clock.now
        while suspects.are_newcomers_apart:
            suspects.note_batch_hang()
            clock.now += NEWCOMERS_APART_SECONDS / 2
        lengths.append((clock.now - began) / NEWCOMERS_APART_SECONDS)
    assert [1, 2, 4, 8, 8] == lengths
    clock.now += 2 * NEWCOMERS_APART_SECONDS_MAX
    suspects.note_batch_hang()
    clock.now += NEWCOMERS_APART_SECONDS
    assert not suspects.are_newcomers_apart


async def test_newcomers_are_alone_for_a_time_after_a_batch_that_hung() -> None:
    """Though some hang alone meanwhile: where their hook takes long, their batches go through."""
    world = await newcomers_apart()
    for number in range(10):
        if not world.breakers.suspects.are_newcomers_apart:
            break
        owner = UserId(f"slow{number}")
        world.store.failing[owner] = HANG, HANG_SECONDS
        await world.answers(write(owner, 10 + number), write(HOT, 30 + number))
    assert NEWCOMERS_APART_SECONDS == pytest.approx(
        number * (HANG_SECONDS + 0.001), abs=HANG_SECONDS + 0.1
    )
    await world.answers(write(COLD, 50), write(UserId("new"), 51))
    assert [[50, 51]] == world.leads()


@pytest.mark.parametrize(
    ("seconds", "count"), [(0.0, NEWCOMERS_MAX), (NEWCOMERS_SECONDS / 4, 4)], ids=["quick", "slow"]
)
async def test_once_newcomers_have_cost_as_much_as_a_hang_they_share_batches_again(
    seconds: float, count: int
) -> None:
    """The successes of those who are known cost nothing."""
    world = await newcomers_apart()
    suspects = world.breakers.suspects
    for number in range(count):
        assert suspects.are_newcomers_apart
        world.breakers.note_led([HOT, UserId(f"new{number}")], seconds)
    assert not suspects.are_newcomers_apart
    # One who is known to hang: its next hang says nothing new of newcomers.
    await world.answers(write(OTHER, 2), write(COLD, 3))
    assert not suspects.are_newcomers_apart
    assert OTHER in suspects


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_owner_who_is_known_has_newcomers_share_batches_though_it_hangs(
    is_known: bool,
) -> None:
    """It is not one of them. One whose first write has just gone through may be."""
    world = World()
    world.store.lead_seconds = 0.001
    await world.answers(write(HOT, 1))
    world.clock.now += KNOWN_SECONDS / 2
    await world.answers(write(HOT, 9))
    world.clock.now += KNOWN_SECONDS / 2 - (0.0 if is_known else 1.0)
    world.store.failing[HOT] = HANG, HANG_SECONDS
    await world.answers(write(HOT, 2), write(COLD, 3), write(OTHER, 4))
    assert HOT in world.breakers.suspects
    assert is_known != world.breakers.suspects.are_newcomers_apart


async def test_an_owner_who_has_hung_stays_apart_though_its_next_write_goes_through() -> None:
    """Its hook may hang for some of its groups. It is tried before those who hang, and for a time."""
    world = await suspected_world(HOT, OTHER)
    world.clock.now += 1
    world.breakers.suspects._newcomers_left = 0
    del world.store.failing[HOT]
    await world.answers(write(HOT, 1), write(COLD, 2))
    await world.answers(write(OTHER, 3), write(HOT, 4), write(COLD, 5))
    assert [[5], [4], [3]] == world.leads()
    world.clock.now += SUSPECT_SECONDS - 1
    world.breakers.suspects._newcomers_left = 0
    await world.answers(write(HOT, 6), write(COLD, 7))
    assert [[6, 7]] == world.leads()


async def test_where_newcomers_are_alone_and_none_hangs_only_who_is_known_has_them_wait() -> None:
    """Else each of their batches would end after a part of it."""
    world = await newcomers_apart()
    world.store.failing.clear()
    world.store.lead_seconds = OWNER_SECONDS_MAX / 4 + 0.001
    world.writers[0]._batch_max = 8
    for waiting, count in ((UserId("last"), 8), (HOT, 4)):
        world.breakers.suspects._newcomers_left = 10.0
        numbers = range(10 * count, 10 * count + 8)
        asked = [world.mailbox.ask(write(UserId(f"new{n}"), n)) for n in numbers]
        last = world.mailbox.ask(write(waiting, 10 * count + 9))
        await world.writers[0].run_once()
        assert count == sum(each.done() for each in asked)
        while not all(each.done() for each in (*asked, last)):
            await world.writers[0].run_once()


async def test_a_newcomer_whose_batch_hung_and_who_hangs_alone_is_a_newcomer_still() -> None:
    """It became a suspect untried."""
    world = World()
    world.store.failing[OTHER] = HANG, HANG_SECONDS
    world.breakers.suspects.note_batch_hang()
    world.breakers.suspects.note_untried(OTHER, HANG_SECONDS)
    await world.answers(write(OTHER, 1))
    assert world.breakers.suspects.are_newcomers_apart


@pytest.mark.parametrize(
    ("ratio", "are_apart"), [(HANG_RATIO * 2, True), (HANG_RATIO / 2, False)], ids=["long", "short"]
)
async def test_a_slow_success_has_newcomers_share_batches_if_the_hang_was_not_much_longer(
    ratio: float, are_apart: bool
) -> None:
    """Then all are slow."""
    world = await newcomers_apart()
    world.breakers.suspects.note_hang(COLD, HANG, ratio, is_newcomer=True)
    world.clock.now += 1
    world.breakers._led_quickly_at = -1.0
    world.breakers.note_led([HOT], 1.0)
    assert are_apart == world.breakers.suspects.are_newcomers_apart


async def test_newcomers_apart_keep_their_turn_before_suspects_and_after_the_known() -> None:
    """A key that is contended is claimed as such."""
    world = await newcomers_apart()
    world.store.failing.clear()
    last = write(UserId("last"), 7)
    world.writers[0]._batches.contended.add(last.group_id)
    asked = (write(OTHER, 4), write(COLD, 5), write(HOT, 6), last, write(UserId("new"), 8))
    assert [Led()] * 5 == await world.answers(*asked)
    assert [[6], [7], [8], [5], [4]] == world.leads()


async def test_a_newcomer_who_keeps_no_other_waiting_is_led_as_any_other() -> None:
    """Together, and not in haste where it is one request: its hook may take long."""
    world = await newcomers_apart()
    assert [Led()] * 2 == await world.answers(write(COLD, 2), write(COLD, 3))
    assert [[2, 3]] == world.leads()


async def test_suspects_whose_clients_have_left_take_no_time_of_those_who_wait() -> None:
    """Nothing is claimed for them; what was claimed before stays pending."""
    world = await suspected_world(HOT, OTHER, COLD)
    world.store.failing.clear()
    left = replace(write(HOT, 1), is_abandoned=lambda: True)
    claimed = replace(write(OTHER, 2), is_abandoned=lambda: True, is_claimed=True)
    answers = await world.answers(left, claimed, write(COLD, 3))
    assert [Overloaded, AttemptPending, Led] == [type(each) for each in answers]
    assert [("claim", [3]), ("lead", [3])] == world.store.calls


async def test_what_is_shared_is_written_although_its_client_has_left() -> None:
    """It costs hardly anything, and the client need not come back."""
    world = await suspected_world(HOT)
    left = replace(write(COLD, 1), is_abandoned=lambda: True)
    world.breakers.note_led([COLD])
    assert [Led(), Led()] == await world.answers(left, write(COLD, 2))


async def test_while_more_come_who_hang_the_first_of_the_innocent_are_tried() -> None:
    """Five who hang, and are new, come with each turn, and a newcomer waits for its end."""
    world = World(share_of=lambda write: write.new_group.owner)
    world.store.lead_seconds = 0.001
    numbers = iter(range(1, 1_000_000))

    def ask(owner: UserId) -> asyncio.Future[WriteResult]:
        return world.mailbox.ask(write(owner, next(numbers)))

    def ask_hanging(count: int) -> None:
        for _ in range(count):
            owner = UserId(f"bad{len(world.store.failing)}")
            world.store.failing[owner] = HANG, HANG_SECONDS
            ask(owner)

    ask_hanging(4)
    innocent = ask(COLD)
    ask_hanging(2)
    await world.writers[0].run_once()
    assert COLD in world.breakers.suspects
    for turn in range(10):
        ask_hanging(5)
        world.writers[0]._batch_max = len(world.mailbox)
        newcomer = ask(UserId(f"new{turn}"))
        await world.writers[0].run_once()
        newcomer.cancel()
    assert innocent.done()
    assert Led() == innocent.result()


async def test_after_a_batch_that_hung_suspects_have_their_own_time() -> None:
    """Else one was tried in a turn, however quick."""
    world = hanging_world(5)
    innocent = [UserId(f"innocent{number}") for number in range(4)]
    for owner in innocent:
        world.breakers.suspects.note_untried(owner, HANG_SECONDS)
    for number, owner in enumerate(world.store.failing):
        world.mailbox.ask(write(owner, 10 + number))
    asked = [world.mailbox.ask(write(owner, n)) for n, owner in enumerate(innocent)]
    await world.writers[0].run_once()
    assert all(each.done() for each in asked)


async def test_after_one_hang_of_a_suspect_a_newcomer_has_its_turn() -> None:
    """It need not wait for a second."""
    world = await suspected_world(HOT, OTHER)
    asked = [world.mailbox.ask(write(owner, n)) for n, owner in enumerate((HOT, OTHER))]
    world.writers[0]._batch_max = 2
    newcomer = world.mailbox.ask(write(COLD, 9))
    began = world.clock.now
    await world.writers[0].run_once()
    assert world.clock.now - began == pytest.approx(HANG_SECONDS)
    assert all(isinstance(answer_of(each), HookEnded) for each in asked)
    await world.writers[0].run_once()
    assert Led() == newcomer.result()


@pytest.mark.parametrize("step", ["claim", "lead"])
async def test_one_that_fails_alone_before_suspects_does_not_fail_them(step: str) -> None:
    """Such as a newcomer whose hook hangs as well."""
    world = await suspected_world(HOT)
    world.store.failing.clear()
    works, hang = getattr(world.store, step), Stalled("hang")

    async def fail(writes: Sequence[Write], **options: bool) -> set[UUID]:
        if writes[0].new_group.owner == COLD:
            raise hang
        led: set[UUID] = await works(writes, **options)
        return led

    setattr(world.store, step, fail)
    assert [hang, Led()] == await world.answers(write(COLD, 1), write(HOT, 2))


async def test_a_contended_key_whose_claim_fails_does_not_fail_suspects() -> None:
    """They come after it."""
    world = await suspected_world(HOT)
    world.store.failing.clear()
    world.writers[0]._batches.contended.add(write(COLD, 1).group_id)
    claim, hang = world.store.claim, Stalled("hang")

    async def fail(writes: Sequence[Write]) -> set[UUID]:
        if writes[0].new_group.owner == COLD:
            raise hang
        return await claim(writes)

    world.store.claim = fail  # type: ignore[method-assign]
    assert [hang, Led()] == await world.answers(write(COLD, 1), write(HOT, 2))


async def test_an_owner_whose_contended_key_hangs_is_paused() -> None:
    """Its claim is ended in each batch, apart from those of others."""
    world = World()
    world.store.lead_seconds = 0.001
    claim, hang = world.store.claim, Stalled("hang")
    world.writers[0]._batches.contended.add(write(HOT, 1).group_id)
    world.writers[0]._batch_max = 2

    async def stall(writes: Sequence[Write]) -> set[UUID]:
        if writes[0].new_group.owner == HOT:
            world.clock.now += HANG_SECONDS
            raise hang
        return await claim(writes)

    world.store.claim = stall  # type: ignore[method-assign]
    for number in (10, 20):
        asked = [world.mailbox.ask(write(HOT, 1)), world.mailbox.ask(write(COLD, number))]
        world.mailbox.ask(write(OTHER, number + 1))
        await world.writers[0].run_once()
        assert [Stalled, Led] == [type(answer_of(each)) for each in asked]
        await world.writers[0].run_once()
    assert [OwnerPaused] == world.pauses()


@pytest.mark.parametrize("kind", ["contended", "paused"])
async def test_a_suspect_keeps_no_contended_key_and_no_probe_waiting(kind: str) -> None:
    """Of its own batch: its hook must not have all of a write's time while they wait."""
    world = await suspected_world(HOT)
    world.store.failing.clear()
    lead, hasty = world.store.lead, dict[UserId, bool]()
    if kind == "contended":
        world.writers[0]._batches.contended.add(write(COLD, 2).group_id)
    else:
        world.breakers.charge(write(COLD, 2), OWNER_SECONDS_MAX, HANG)
        world.clock.now += 10 * OWNER_SECONDS_MAX

    async def noted(writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        hasty[writes[0].new_group.owner] = is_hasty
        return await lead(writes, is_hasty=is_hasty)

    world.store.lead = noted  # type: ignore[method-assign]
    assert [Led()] * 2 == await world.answers(write(HOT, 1), write(COLD, 2))
    assert {HOT: True, COLD: kind == "paused"} == hasty


async def test_one_who_hangs_alone_in_its_batch_is_a_suspect() -> None:
    """Those who come next are written before it."""
    world = World()
    world.store.failing[HOT] = HANG, HANG_SECONDS
    await world.answers(write(HOT, 1))
    await world.answers(write(HOT, 2), write(COLD, 3))
    assert [[3], [2]] == world.leads()


def test_a_kept_error_keeps_no_frames() -> None:
    """Those of the writer and of the host's hook."""
    suspects = Suspects(Clock())
    try:
        raise HANG
    except HookEnded as error:
        suspects.note_hang(HOT, error, HANG_SECONDS)
    kept = suspects._suspects[HOT].error
    assert kept is not None
    assert kept.__traceback__ is None
