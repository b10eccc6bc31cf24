"""No owner's failures cost the others' time for long: who is paused, when, and how that ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.breakers import (
    OWNER_SECONDS_MAX,
    OWNERS_MAX,
    PAUSE,
    PAUSE_RATIO,
    STALE_SECONDS,
    VICTIM_PAUSE_SECONDS_MAX,
    OwnerBreakers,
)
from stretto.creation.ports import Led, NotLed, SettledAsFailed, Write
from stretto.creation.probes import PROBE_RATIO
from stretto.creation.suspects import SUSPECT_SECONDS
from stretto.domain import UserId
from stretto.errors import AttemptPending, Failure, Overloaded, StrettoError
from stretto.observations import Observation, OwnerPaused, OwnerResumed
from stretto.store_errors import (
    HookCutOff,
    HookEnded,
    HookError,
    HookInterrupted,
    Locked,
    OutcomeUnknown,
    Refused,
    Stalled,
    StoreError,
    Transient,
    Unreachable,
)
from support.clock import Clock
from support.costly_writes import (
    COLD,
    HANG_SECONDS,
    HOT,
    OTHER,
    CostlyStore,
    World,
    answer_of,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


async def paused_world(error: StoreError, seconds: float = HANG_SECONDS) -> World:
    """Return a world in which an owner has been paused for what it has cost."""
    world = World()
    world.store.failing[HOT] = error, seconds
    first, second = await world.answers(write(HOT, 1), write(COLD, 2))
    assert isinstance(first, type(error))
    assert Led() == second
    assert HOT in world.breakers
    return world


@pytest.mark.parametrize("seconds", [OWNER_SECONDS_MAX, HANG_SECONDS])
async def test_one_slow_failure_of_an_owner_is_all_that_its_batch_waits_for(seconds: float) -> None:
    """Its other requests get the same error untried; the neighbours are created."""
    world = World()
    error = HookError("hang")
    world.store.failing[HOT] = error, seconds
    hot = [write(HOT, number) for number in range(1, 11)]
    answers = await world.answers(*hot, write(COLD, 20), write(OTHER, 21))
    assert [error] * 10 + [Led()] * 2 == answers
    whole, alone, *rest = world.leads()
    assert ([*range(1, 11), 20, 21], [1]) == (whole, alone)
    assert [20, 21] == sorted(number for lead in rest for number in lead)
    assert [OwnerPaused] == world.pauses()


@pytest.mark.parametrize("error", [HookError("hang"), Locked("row"), Transient("40001")])
async def test_a_paused_owner_is_answered_before_anything_is_claimed(error: StoreError) -> None:
    """With the error that its last write met, and the rest of the pause; its neighbours share a batch."""
    world = await paused_world(error)
    answers = await world.answers(write(HOT, 3), write(COLD, 4), write(HOT, 5))
    assert Led() == answers[1]
    assert [("claim", [4]), ("lead", [4])] == world.store.calls
    for answer in (answers[0], answers[2]):
        assert isinstance(answer, type(error))
        pause = PAUSE_RATIO * HANG_SECONDS
        if isinstance(error, Transient):
            pause = VICTIM_PAUSE_SECONDS_MAX
        assert pause <= (answer.retry_after_seconds or 0) < pause + 1


@pytest.mark.parametrize(("neighbours", "is_paused"), [(20, True), (2, False)])
async def test_failures_that_come_at_once_pay_for_taking_the_batch_apart(
    neighbours: int, is_paused: bool
) -> None:
    """One statement would have written the neighbours; where they are few, that costs little."""
    world = World()
    world.store.failing[HOT] = HookError("bug"), 0.0
    world.store.lead_seconds = OWNER_SECONDS_MAX / 10
    await world.answers(write(HOT, 1), *(write(COLD, 2 + number) for number in range(neighbours)))
    assert is_paused == (HOT in world.breakers)
    assert COLD not in world.breakers


async def test_each_pays_for_its_own_failures_and_by_their_number_for_the_rest() -> None:
    """A neighbour's single failure is not charged with what a tenant's many cost, or one's hang."""
    world = World()
    world.store.failing = {HOT: (HookError("bug"), 0.0), COLD: (HookError("slow"), 0.01)}
    world.store.lead_seconds = 0.04
    await world.answers(*(write(HOT, n) for n in (1, 2, 3)), write(COLD, 4), write(OTHER, 5))
    costs = {owner: cost for owner, (cost, _) in world.breakers._costs.items()}
    assert {HOT: pytest.approx(0.03), COLD: pytest.approx(0.02)} == costs


async def test_what_the_server_says_at_once_pauses_no_owner() -> None:
    """One key's poison is cheap beside a few: its owner's other keys are created, batch for batch."""
    world = World()
    world.store.failing[HOT] = HookError("bug"), 0.001
    for number in range(0, 30, 3):
        await world.answers(*(write(HOT, number + more) for more in (1, 2)), write(COLD, number))
        assert [number + 1] in world.leads()
        assert [number + 2] in world.leads()
        world.clock.now += 1
    assert [] == world.pauses()


async def test_small_costs_add_up_and_are_forgiven_over_the_time() -> None:
    """What comes slowly enough is borne; what does not is paused."""
    world = World()
    cost = OWNER_SECONDS_MAX * 0.6
    world.store.failing[HOT] = HookError("slow"), cost / 2
    for number in range(10):
        await world.answers(write(HOT, 2 * number), write(COLD, 2 * number + 1))
        world.clock.now += PAUSE_RATIO * cost
    assert [] == world.pauses()
    for number in range(100, 120, 2):
        await world.answers(write(HOT, number), write(COLD, number + 1))
    assert [OwnerPaused] == world.pauses()


async def test_an_owner_who_is_alone_is_not_paused() -> None:
    """It costs no other; a mended hook is met by the very next request."""
    world = World()
    world.store.failing[HOT] = HookError("hang"), HANG_SECONDS
    await world.answers(write(HOT, 1))
    await world.answers(write(HOT, 2), write(HOT, 3))
    assert [] == world.pauses()


async def test_an_owner_who_is_alone_in_its_batch_is_paused_where_others_wait() -> None:
    """They have waited in the mailbox."""
    world = World()
    world.writers[0]._batch_max = 1
    world.store.failing[HOT] = HookError("hang"), HANG_SECONDS
    for each in (write(HOT, 1), write(COLD, 2)):
        world.mailbox.ask(each)
    await world.writers[0].run_once()
    assert [OwnerPaused] == world.pauses()


@pytest.mark.parametrize("error", [Stalled("hang"), HookCutOff("lost")])
@pytest.mark.parametrize("others_led", [True, False])
async def test_a_write_that_the_server_has_ended_is_its_owners_where_others_go_through(
    others_led: bool, error: StoreError
) -> None:
    """Of this writer or of another, meanwhile: else the server may be slow for all."""
    world = World(writers=2)
    other = CostlyStore(world.clock)
    world.writers[1]._batches._leads._store = world.writers[1]._batches._store = other
    world.store.failing[HOT] = error, HANG_SECONDS
    stall = world.store.lead

    async def lead(writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        if others_led:
            world.clock.now += 0.01
            world.mailbox.ask(write(OTHER, 9))
            await world.writers[1].run_once()
        world.mailbox.ask(write(COLD, 8))
        return await stall(writes, is_hasty=is_hasty)

    world.store.lead = lead  # type: ignore[method-assign]
    (answer,) = await world.answers(write(HOT, 1))
    assert isinstance(answer, type(error))
    assert others_led == (HOT in world.breakers)


async def test_a_claim_that_the_server_has_ended_is_charged_as_well() -> None:
    """A trigger on the attempts may hang."""
    world = World()
    stalled = Stalled("hang")

    async def claim(writes: Sequence[Write]) -> set[UUID]:
        world.clock.now += HANG_SECONDS
        world.breakers.note_led([COLD])
        world.mailbox.ask(write(COLD, 8))
        raise stalled

    world.store.claim = claim  # type: ignore[method-assign]
    assert [stalled] == await world.answers(write(HOT, 1))
    assert [OwnerPaused] == world.pauses()


async def test_the_pause_after_a_hang_in_the_server_grows() -> None:
    """Once a probe has shown that no other owner holds what this one waits for."""
    world = await paused_world(Stalled("hang"), 1.0)
    assert world.breakers._open[HOT].until == world.clock.now + VICTIM_PAUSE_SECONDS_MAX
    world.clock.now += PAUSE_RATIO + 1
    await world.answers(write(HOT, 3))
    assert 1 == world.breakers._open[HOT].failures
    assert world.breakers._open[HOT].until >= world.clock.now + PAUSE_RATIO


@pytest.mark.parametrize("error", [Transient("disk full"), Stalled("slow")])
async def test_what_fails_for_all_pauses_no_owner(error: StoreError) -> None:
    """A full disk is no owner's; when it is over, each goes on at once."""
    world = World()
    for owner in (HOT, COLD, OTHER):
        world.store.failing[owner] = error, HANG_SECONDS
    await world.answers(write(HOT, 1), write(COLD, 2), write(OTHER, 3))
    assert [] == world.pauses()


async def test_the_rest_of_a_batch_that_took_too_long_goes_back_to_the_mailbox() -> None:
    """Innocent requests are not failed for the time that others have taken, nor claimed again."""
    world = World()
    error = HookError("hang")
    world.store.failing[HOT] = error, APART_SECONDS_MAX
    world.store.lead_seconds = 0.5
    answers = await world.answers(*(write(HOT, n) for n in (1, 2)), write(COLD, 3), write(OTHER, 4))
    assert [error, error, Led(), Led()] == answers
    assert [[1, 2, 3, 4], [1], [4], [3]] == world.leads()
    assert 1 == len([ids for name, ids in world.store.calls if name == "claim"])


async def test_what_waits_is_not_kept_waiting_by_the_innocent_either() -> None:
    """Requests that go through slowly, one by one, make room as those do that fail."""
    world = World()
    world.store.lead_seconds = APART_SECONDS_MAX * 0.6
    world.store.failing_together = HookError("too long together")
    asked = [world.mailbox.ask(write(HOT, number)) for number in range(1, 6)]
    world.writers[0]._batch_max = 5
    late = world.mailbox.ask(write(COLD, 9))
    await world.writers[0].run_once()
    assert [[1, 2, 3, 4, 5], [1], [2]] == world.leads()
    assert not late.done()
    assert [True, True, False, False, False] == [each.done() for each in asked]
    while not late.done():
        await world.writers[0].run_once()
    assert Led() == late.result()


async def test_what_was_claimed_and_put_back_is_not_told_that_nothing_was_done() -> None:
    """A newcomer takes its place; its attempt stays pending, as its client learns."""
    world = World(share_of=lambda each: each.new_group.owner)
    world.store.lead_seconds = APART_SECONDS_MAX * 0.6
    world.store.failing_together = HookError("too long together")
    asked = [world.mailbox.ask(write(HOT, number)) for number in range(1, 6)]
    world.writers[0]._batch_max = 5
    asked.append(world.mailbox.ask(write(HOT, 6)))
    await world.writers[0].run_once()
    assert [True, True, False, False, False, False] == [each.done() for each in asked]
    world.mailbox.messages_max = len(world.mailbox)
    for number in (7, 8):
        world.mailbox.ask(write(UserId(f"newcomer {number}"), number))
    rejected = {each.exception(): each for each in asked[2:] if each.done()}
    kinds = {type(error): error for error in rejected if isinstance(error, StrettoError)}
    # Of the owner with the longest queue: the newest, which was not claimed, and the one before it.
    assert {Overloaded, AttemptPending} == set(kinds)
    assert rejected[kinds[Overloaded]] is asked[5]
    assert 1 == kinds[AttemptPending].retry_after_seconds


async def test_what_a_bug_leaves_untried_is_answered_and_not_put_back() -> None:
    """Its request would be written although its caller has been answered."""
    world = World()
    world.store.lead_seconds = APART_SECONDS_MAX * 0.6
    world.store.failing_together = HookError("too long together")
    asked = [world.mailbox.ask(write(HOT, number)) for number in range(1, 6)]
    late = world.mailbox.ask(write(COLD, 9))
    writer = world.writers[0]
    writer._batch_max = 5

    def fail() -> None:
        raise ZeroDivisionError

    writer._wakes = [fail]
    with pytest.raises(ZeroDivisionError):
        await writer.run_once()
    assert [late] == [each.answered for each in world.mailbox.take_queued()]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [Led(), Led()] == results[:2]
    assert [OutcomeUnknown] * 3 == [type(each) for each in results[2:]]


async def test_slow_successes_are_charged_beyond_what_the_neighbours_take() -> None:
    """An owner whose writes succeed slowly is paused, and its neighbours are led before the rest."""
    world = World()
    world.store.failing_together = HookError("too long together")
    world.store.slow[HOT] = OWNER_SECONDS_MAX / 2
    asked = [world.mailbox.ask(write(HOT, number)) for number in range(1, 9)]
    cold = [world.mailbox.ask(write(COLD, number)) for number in (10, 11)]
    await world.writers[0].run_once()
    assert all(Led() == each.result() for each in cold)
    assert [True] * 2 + [False] * 6 == [each.done() for each in asked]
    assert [OwnerPaused] == world.pauses()
    await world.writers[0].run_once()
    assert all(isinstance(answer_of(each), Stalled) for each in asked[2:])


async def test_where_all_are_slow_no_owner_is_paused() -> None:
    """A batch that fails together, and is slow one by one for each owner."""
    world = World()
    world.store.failing_together = HookError("too long together")
    world.store.lead_seconds = OWNER_SECONDS_MAX
    writes = [write(owner, 10 * n + m) for n in range(3) for m, owner in enumerate((HOT, COLD))]
    assert [Led()] * 6 == await world.answers(*writes)
    assert [] == world.pauses()


async def test_owners_whose_writes_go_through_come_first() -> None:
    """Ten owners whose hook hangs keep out none that has been led before."""
    world = World()
    world.store.lead_seconds = 0.001
    hanging = [UserId(f"x{number}") for number in range(10)]
    assert [Led()] == await world.answers(write(COLD, 1))
    error = HookEnded("hang")
    world.store.failing = dict.fromkeys(hanging, (error, 0.75))
    began = world.clock.now
    asked = [world.mailbox.ask(write(owner, 10 + n)) for n, owner in enumerate(hanging)]
    cold = world.mailbox.ask(write(COLD, 99))
    await world.writers[0].run_once()
    assert Led() == cold.result()
    assert [99] == world.leads()[2]
    assert world.clock.now - began < 0.75 + 2 * 0.75 + 0.1
    while not all(each.done() for each in asked):
        cold = world.mailbox.ask(write(COLD, 100))
        await world.writers[0].run_once()
        assert Led() == cold.result()
    assert [OwnerPaused] * 10 == world.pauses()


@pytest.mark.parametrize("others_led", [True, False])
async def test_a_slow_success_alone_is_charged_where_others_wait_and_go_through(
    others_led: bool,
) -> None:
    """By another writer, meanwhile: else the server may be slow for all."""
    world = World()
    lead = world.store.lead

    async def slowly(writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        world.clock.now += OWNER_SECONDS_MAX
        world.mailbox.ask(write(COLD, 8))
        if others_led:
            world.breakers.note_led([OTHER])
        return await lead(writes, is_hasty=is_hasty)

    world.store.lead = slowly  # type: ignore[method-assign]
    assert [Led()] == await world.answers(write(HOT, 1))
    assert others_led == (HOT in world.breakers)


async def test_a_success_alone_that_takes_as_long_as_others_is_not_charged() -> None:
    """The host's hook takes long for all, and another writer leads meanwhile."""
    world = World()
    lead = world.store.lead

    async def slowly(writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        world.clock.now += OWNER_SECONDS_MAX
        world.mailbox.ask(write(COLD, 8))
        world.breakers.note_led([OTHER], OWNER_SECONDS_MAX)
        return await lead(writes, is_hasty=is_hasty)

    world.store.lead = slowly  # type: ignore[method-assign]
    assert [Led()] == await world.answers(write(HOT, 1))
    assert [] == world.pauses()


async def test_after_the_pause_one_request_is_a_probe_after_the_others() -> None:
    """Alone, in haste and once; what fails is paused for longer, and its others are not tried."""
    world = await paused_world(HookError("slow"), 0.25)
    for failures in range(1, 8):
        longest = max(PAUSE.longest(failures), PAUSE_RATIO * 1)
        world.clock.now += longest
        answers = await world.answers(write(HOT, 10), write(COLD, 11), write(HOT, 12))
        assert [[11], [10]] == world.leads()
        assert isinstance(answers[0], HookError)
        assert isinstance(answers[2], HookError)
        least = max(PAUSE.longest(failures) / 2, PAUSE_RATIO * 0.25)
        assert least <= (answers[2].retry_after_seconds or 0) <= longest + 1
    assert [OwnerPaused] == world.pauses()


@pytest.mark.parametrize("error", [Locked("row"), HookInterrupted("lock"), Transient("40001")])
@pytest.mark.parametrize("seconds", [0.001, 0.25, 2.0])
async def test_the_pause_after_a_passing_conflict_stays_short(
    seconds: float, error: StoreError
) -> None:
    """The owner may wait for a lock that another holds: that cannot be seen; probes keep their ratio."""
    breakers = OwnerBreakers(lambda _: None, clock := Clock())
    breakers.charge(write(HOT, 1), OWNER_SECONDS_MAX, error)
    longest = min(max(PAUSE.seconds_first, PAUSE_RATIO * seconds), VICTIM_PAUSE_SECONDS_MAX)
    for _ in range(8):
        clock.now += VICTIM_PAUSE_SECONDS_MAX + PROBE_RATIO * seconds
        assert breakers.begin_probe(HOT)
        breakers.keep(write(HOT, 1), seconds, error)
        breakers.end_probe(HOT)
        assert breakers._open[HOT].until <= clock.now + longest
        clock.now += PROBE_RATIO * seconds * 0.99
        assert not breakers.may_probe(HOT)
    # An error that the owner alone can have caused: from now on its pauses grow.
    for failures in range(1, 5):
        breakers.keep(write(HOT, 1), seconds, HookError("hang"))
        assert breakers._open[HOT].until >= clock.now + PAUSE.longest(failures) / 2


async def test_a_probe_that_goes_through_ends_the_pause() -> None:
    """The others of its batch follow together. Batches are shared once its hang is long ago."""
    world = await paused_world(HookError("hang"))
    world.store.failing.clear()
    world.clock.now += PAUSE_RATIO * HANG_SECONDS
    answers = await world.answers(*(write(HOT, n) for n in (1, 2, 3)), write(COLD, 4))
    assert [Led()] * 4 == answers
    assert [[4], [1], [2, 3]] == world.leads()
    assert [OwnerPaused, OwnerResumed] == world.pauses()
    await world.answers(write(HOT, 5), write(COLD, 6))
    assert [[6], [5]] == world.leads()
    world.clock.now += SUSPECT_SECONDS
    await world.answers(write(HOT, 7), write(COLD, 8))
    assert [[7, 8]] == world.leads()


async def test_a_veto_ends_the_pause_as_a_success_does() -> None:
    """The hook has answered."""
    world = await paused_world(HookError("hang"))
    failure = Failure("full", "No more groups.")
    world.store.failing[HOT] = Refused(failure), 0.0
    world.clock.now += PAUSE_RATIO * HANG_SECONDS
    assert [SettledAsFailed(failure)] == await world.answers(write(HOT, 1))
    assert HOT not in world.breakers


async def test_a_probe_that_shows_nothing_leaves_the_pause_as_it_is() -> None:
    """Another's attempt, or a locked table; the next request is the next probe."""
    world = await paused_world(HookError("hang"))
    world.clock.now += PAUSE_RATIO * HANG_SECONDS
    world.store.failing.clear()
    world.store.fenced = {1}
    assert NotLed() == (await world.answers(write(HOT, 1)))[0]
    assert HOT in world.breakers
    world.store.failing[HOT] = Locked("table"), 0.0
    world.store.is_table_locked = True
    (answer,) = await world.answers(write(HOT, 2))
    assert isinstance(answer, Locked)
    world.store.failing.clear()
    assert [Led()] == await world.answers(write(HOT, 3))


async def test_a_database_that_goes_away_under_a_probe_ends_the_probe() -> None:
    """The next one may be tried when it is back."""
    world = await paused_world(HookError("hang"))
    world.clock.now += PAUSE_RATIO * HANG_SECONDS
    world.store.failing[HOT] = Unreachable("away"), 0.0
    (answer,) = await world.answers(write(HOT, 1))
    assert isinstance(answer, Unreachable)
    world.store.failing.clear()
    assert [Led()] == await world.answers(write(HOT, 2))


def test_one_probe_at_a_time_over_all_writers() -> None:
    """Nor another owner's soon after one that failed: the time is for those who are not paused."""
    clock = Clock()
    breakers = OwnerBreakers(lambda _: None, clock)
    for owner in (HOT, COLD):
        breakers.charge(write(owner, 1), 1.0, HookError("hang"))
    clock.now += PAUSE_RATIO
    assert breakers.begin_probe(HOT)
    assert not breakers.begin_probe(COLD)
    breakers.keep(write(HOT, 1), 1.0, HookError("hang"))
    breakers.end_probe(HOT)
    assert not breakers.begin_probe(COLD)
    clock.now += PROBE_RATIO
    assert breakers.begin_probe(COLD)


def test_of_too_many_owners_the_oldest_goes() -> None:
    """Of those who are paused, and of those who have cost something."""
    breakers = OwnerBreakers(lambda _: None, lambda: 0.0)
    for number in range(OWNERS_MAX + 1):
        for seconds in (OWNER_SECONDS_MAX * 2, OWNER_SECONDS_MAX / 2):
            owner = UserId(f"{seconds}-{number}")
            breakers.charge(write(owner, number), seconds, HookError("hang"))
    assert (OWNERS_MAX, OWNERS_MAX) == (len(breakers), len(breakers._costs))
    assert UserId(f"{OWNER_SECONDS_MAX * 2}-0") not in breakers


def test_a_paused_owner_who_does_not_come_back_is_forgotten() -> None:
    """Where no owner is paused, batches are not looked through."""
    clock, events = Clock(), list[Observation]()
    breakers = OwnerBreakers(events.append, clock)
    breakers.charge(write(HOT, 1), 1.0, HookError("hang"))
    clock.now += PAUSE_RATIO + STALE_SECONDS - 1
    breakers.drop_stale()
    assert breakers
    clock.now += 1
    breakers.drop_stale()
    assert not breakers
    assert [OwnerPaused, OwnerResumed] == [type(event) for event in events]


async def test_a_probe_whose_attempt_is_pending_follows() -> None:
    """It takes the attempt over after the lease: else an owner with retried keys stays paused."""
    world = await paused_world(HookError("hang"))
    world.clock.now += PAUSE_RATIO * HANG_SECONDS

    async def claim(_: Sequence[Write]) -> set[UUID]:
        return set()

    world.store.claim = claim  # type: ignore[method-assign, assignment]
    assert [NotLed()] == await world.answers(write(HOT, 1))
    assert HOT in world.breakers
