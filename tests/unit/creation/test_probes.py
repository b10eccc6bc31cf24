"""Owners who may be victims are probed beside culprits, however many those are and however long they hang."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from stretto.creation.breakers import (
    OWNER_SECONDS_MAX,
    PAUSE_RATIO,
    RETURN_SECONDS,
    VICTIM_PAUSE_SECONDS_MAX,
    OwnerBreakers,
)
from stretto.creation.ports import Led
from stretto.creation.probes import PROBE_RATIO, Standing
from stretto.domain import UserId
from stretto.store_errors import HookEnded, HookError, HookInterrupted, Stalled, StoreError
from support.clock import Clock
from support.costly_writes import COLD, HANG_SECONDS, HOT, OTHER, World, answer_of, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.ports import Write, WriteResult

HANG: Final = HookError("hang")
CONFLICT: Final = HookInterrupted("lock")
# What a hook that hangs has while others wait, and what a lock is waited for.
HASTY_SECONDS: Final = 0.75
LOCK_SECONDS: Final = 0.25


def breakers_with(culprits: Sequence[UserId], victims: Sequence[UserId]) -> OwnerBreakers:
    """Return breakers, with a clock of their own, that have paused these; no pause is over."""
    breakers = OwnerBreakers(lambda _: None, Clock())
    for owner in culprits:
        breakers.charge(write(owner, 1), 1.0, HANG)
        breakers.keep(write(owner, 1), 0.1, HANG)
    for owner in victims:
        breakers.charge(write(owner, 1), OWNER_SECONDS_MAX, CONFLICT)
    return breakers


def clock_of(breakers: OwnerBreakers) -> Clock:
    """Return the clock that the test owns."""
    clock = breakers.clock_seconds
    assert isinstance(clock, Clock)
    return clock


def probe(breakers: OwnerBreakers, owner: UserId, seconds: float, error: StoreError = HANG) -> bool:
    """Have a probe fail after so long, if it may be tried."""
    if not breakers.begin_probe(owner):
        return False
    clock_of(breakers).now += seconds
    breakers.keep(write(owner, 1), seconds, error)
    breakers.end_probe(owner)
    return True


@pytest.mark.parametrize("error", [CONFLICT, HANG])
def test_a_culprits_probe_keeps_no_victim_from_its_own(error: StoreError) -> None:
    """Neither while it hangs nor afterwards; nor one whose hang no probe has shown again."""
    breakers = breakers_with([HOT, OTHER], [])
    clock = clock_of(breakers)
    breakers.charge(write(COLD, 1), OWNER_SECONDS_MAX, error)
    clock.now += 100
    assert breakers.begin_probe(HOT)
    assert breakers.may_probe(COLD)
    assert not breakers.may_probe(OTHER)
    clock.now += HANG_SECONDS
    breakers.keep(write(HOT, 1), HANG_SECONDS, HANG)
    breakers.end_probe(HOT)
    assert breakers.may_probe(COLD)
    assert not breakers.may_probe(OTHER)
    clock.now += PROBE_RATIO * HANG_SECONDS
    assert breakers.may_probe(OTHER)


def test_a_victims_probe_keeps_all_others_waiting() -> None:
    """While it is under way, and so many times as long: most of the time is left for the others."""
    breakers = breakers_with([HOT], [COLD, OTHER])
    clock_of(breakers).now += 100
    assert breakers.begin_probe(COLD)
    assert not breakers.may_probe(HOT)
    assert not breakers.may_probe(OTHER)
    breakers.end_probe(COLD)
    assert probe(breakers, COLD, LOCK_SECONDS, CONFLICT)
    assert not breakers.may_probe(HOT)
    assert not breakers.may_probe(OTHER)
    clock_of(breakers).now += PROBE_RATIO * LOCK_SECONDS
    assert breakers.may_probe(HOT)
    assert breakers.may_probe(OTHER)


def test_who_is_in_conflict_waits_for_no_probe_of_one_that_is_not() -> None:
    """Nor for the first probe of each of many owners whose hook hangs."""
    breakers = breakers_with([], [COLD])
    breakers.charge(write(HOT, 1), OWNER_SECONDS_MAX, HANG)
    clock_of(breakers).now += 100
    assert breakers.begin_probe(HOT)
    assert breakers.may_probe(COLD)
    breakers.keep(write(HOT, 1), HANG_SECONDS, HANG)
    breakers.end_probe(HOT)
    assert breakers.may_probe(COLD)


def test_a_victims_short_probe_ends_no_wait_after_a_culprits_long_one() -> None:
    """Victims would have the time of the culprits shortened."""
    breakers = breakers_with([HOT, OTHER], [COLD])
    clock_of(breakers).now += 100
    assert probe(breakers, HOT, HANG_SECONDS)
    assert probe(breakers, COLD, LOCK_SECONDS, CONFLICT)
    clock_of(breakers).now += PROBE_RATIO * LOCK_SECONDS
    assert not breakers.may_probe(OTHER)


def test_an_owner_has_one_probe_at_a_time() -> None:
    """Also if a batch that began before has met a lock meanwhile."""
    breakers = breakers_with([HOT], [])
    clock_of(breakers).now += 100
    assert breakers.begin_probe(HOT)
    breakers.charge(write(HOT, 2), OWNER_SECONDS_MAX, CONFLICT)
    clock_of(breakers).now += VICTIM_PAUSE_SECONDS_MAX
    assert not breakers.begin_probe(HOT)
    breakers.end_probe(HOT)
    assert breakers.begin_probe(HOT)


def test_culprits_take_turns_within_one_share_of_the_time() -> None:
    """However many they are."""
    breakers = breakers_with([UserId(f"bad{number}") for number in range(50)], [])
    clock, spent = clock_of(breakers), 0.0
    began = clock.now = clock.now + 100
    for _ in range(300):
        for owner in list(breakers._open):
            spent += 1.0 if probe(breakers, owner, 1.0) else 0.0
        clock.now += 0.5
    assert spent <= (clock.now - began) / (1 + PROBE_RATIO) + 1.0


@pytest.mark.parametrize("is_culprit", [True, False])
def test_who_waits_is_told_when_a_probe_may_be_tried(is_culprit: bool) -> None:
    """Not only when its own pause is over: it would be refused again and again until then."""
    owners = (HOT, OTHER)
    breakers = breakers_with(*((owners, []) if is_culprit else ([], owners)))
    clock_of(breakers).now += 100
    assert 1 == breakers.error_of(OTHER).retry_after_seconds
    assert probe(breakers, HOT, 2.1, HANG if is_culprit else CONFLICT)
    expected = math.ceil(PROBE_RATIO * 2.1)
    assert expected == breakers.error_of(OTHER).retry_after_seconds
    clock_of(breakers).now += 1
    assert expected - 1 == breakers.error_of(OTHER).retry_after_seconds


@pytest.mark.parametrize(
    ("error", "expected"),
    [(HANG, PAUSE_RATIO * HANG_SECONDS), (CONFLICT, PROBE_RATIO * HANG_SECONDS)],
)
async def test_the_answer_to_a_probe_that_fails_gives_the_pause(
    error: StoreError, expected: float
) -> None:
    """As those answers give it whose requests are not tried."""
    world = World()
    world.breakers.charge(write(HOT, 1), OWNER_SECONDS_MAX, error)
    world.clock.now += 10
    world.store.failing[HOT] = error, HANG_SECONDS
    answers = await world.answers(write(HOT, 1), write(HOT, 2))
    told = [each.retry_after_seconds for each in answers if isinstance(each, StoreError)]
    assert [expected] * 2 == told


@pytest.mark.parametrize("error", [HookEnded("hang"), Stalled("hang"), HANG])
def test_a_write_that_was_ended_pauses_its_owner_for_a_short_time_at_first(
    error: StoreError,
) -> None:
    """It may have waited for a lock. If it costs as much again, it has the debt of both."""
    breakers = OwnerBreakers(lambda _: None, clock := Clock())
    long, short = PAUSE_RATIO * HANG_SECONDS, VICTIM_PAUSE_SECONDS_MAX
    breakers.charge(write(HOT, 1), HANG_SECONDS, error)
    assert breakers._open[HOT].until - clock.now == (long if error is HANG else short)
    # By another writer, in a batch that began before.
    breakers.charge(write(HOT, 2), OWNER_SECONDS_MAX, error)
    assert Standing.UNPROBED is breakers._open[HOT].standing
    assert breakers._open[HOT].until - clock.now <= (long if error is HANG else short)
    breakers.close(HOT)
    clock.now += short
    breakers.charge(write(HOT, 3), OWNER_SECONDS_MAX, error)
    is_long = breakers._open[HOT].until - clock.now > PAUSE_RATIO * HANG_SECONDS
    assert is_long == (error is not HANG)
    breakers.close(HOT)


def test_a_victim_has_no_debt() -> None:
    """Its probe has met the lock: what it has cost before was that."""
    breakers = OwnerBreakers(lambda _: None, clock := Clock())
    breakers.charge(write(HOT, 1), HANG_SECONDS, HookEnded("hang"))
    clock.now += VICTIM_PAUSE_SECONDS_MAX
    assert breakers.begin_probe(HOT)
    breakers.keep(write(HOT, 1), LOCK_SECONDS, CONFLICT)
    breakers.end_probe(HOT)
    breakers.close(HOT)
    breakers.charge(write(HOT, 1), HANG_SECONDS, HookEnded("hang"))
    assert breakers._open[HOT].until - clock.now == VICTIM_PAUSE_SECONDS_MAX


def test_a_culprits_probe_makes_room_for_victims() -> None:
    """For one that may be probed, and one whose client comes back about now."""
    breakers, mailbox = breakers_with([HOT, OTHER], [COLD]), World(share_of=owner_of).mailbox
    clock = clock_of(breakers)
    clock.now += 100
    assert not breakers.others_wait(mailbox)
    assert breakers.begin_probe(HOT)
    assert not breakers.others_wait(mailbox)
    # It is asked to wait for a second, and may take another to come back.
    assert 1 == breakers.error_of(COLD).retry_after_seconds
    assert breakers.others_wait(mailbox)
    clock.now += 1 + RETURN_SECONDS
    assert not breakers.others_wait(mailbox)
    # Another culprit would wait in any case.
    breakers.error_of(OTHER)
    assert not breakers.others_wait(mailbox)


def test_a_victim_who_is_charged_again_is_awaited_as_before() -> None:
    """Its clients were asked to wait: they come back, whatever another writer's batch has met."""
    breakers, mailbox = breakers_with([HOT], [COLD]), World(share_of=owner_of).mailbox
    clock_of(breakers).now += 100
    assert breakers.begin_probe(HOT)
    breakers.error_of(COLD)
    breakers.charge(write(COLD, 1), LOCK_SECONDS, CONFLICT)
    assert breakers.others_wait(mailbox)


async def test_a_request_of_a_victim_waits_for_no_other_than_a_culprit() -> None:
    """As one of any paused owner, it has to wait for its pause in any case."""
    breakers, mailbox = breakers_with([HOT], [COLD]), World(share_of=owner_of).mailbox
    mailbox.ask(write(COLD, 1))
    clock_of(breakers).now += 100
    assert not breakers.others_wait(mailbox)
    assert breakers.begin_probe(HOT)
    assert breakers.others_wait(mailbox)
    # A probe of its own is under way.
    assert breakers.begin_probe(COLD)
    assert not breakers.others_wait(mailbox)
    mailbox.ask(write(OTHER, 2))
    assert breakers.others_wait(mailbox)


@pytest.mark.parametrize("culprit_is_older", [True, False])
async def test_who_has_failed_least_often_is_probed_first(culprit_is_older: bool) -> None:
    """One who may be a victim does not wait behind a culprit in its own batch."""
    world = World()
    for owner, error in ((HOT, HANG), (COLD, CONFLICT)):
        world.breakers.charge(write(owner, 1), OWNER_SECONDS_MAX, error)
    world.breakers.keep(write(HOT, 1), 0.1, HANG)
    world.clock.now += 10
    hot, cold = (1, 2) if culprit_is_older else (2, 1)
    assert [Led()] * 2 == await world.answers(write(HOT, hot), write(COLD, cold))
    assert [[cold], [hot]] == world.leads()


@pytest.mark.parametrize("is_culprit", [True, False])
async def test_only_a_culprit_has_the_time_of_its_hook(is_culprit: bool) -> None:
    """While no other waits: a victim's hook, if it hangs after all, is found out in haste."""
    world = World()
    world.breakers.charge(write(HOT, 1), OWNER_SECONDS_MAX, HANG)
    if is_culprit:
        world.breakers.keep(write(HOT, 1), 0.1, HANG)
    world.clock.now += 10
    haste, lead = list[bool](), world.store.lead

    async def noted(writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        haste.append(is_hasty)
        return await lead(writes, is_hasty=is_hasty)

    world.store.lead = noted  # type: ignore[method-assign]
    assert [Led()] == await world.answers(write(HOT, 1))
    assert [not is_culprit] == haste


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_victim_that_has_claimed_waits_for_the_probe_of_another_writer(
    is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an old error, the lease that it has just renewed would keep its client out for seconds."""
    if not is_guarded:
        monkeypatch.setattr(OwnerBreakers, "awaits_probe", lambda *_: False)
    world = World(writers=2)
    for owner in (HOT, COLD):
        world.breakers.charge(write(owner, 1), OWNER_SECONDS_MAX, CONFLICT)
    world.clock.now += 10
    has_begun, may_end, lead = asyncio.Event(), asyncio.Event(), world.store.lead

    async def held(writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        has_begun.set()
        await may_end.wait()
        return await lead(writes, is_hasty=is_hasty)

    world.store.lead = held  # type: ignore[method-assign]
    hot = world.mailbox.ask(write(HOT, 1))
    probing = asyncio.create_task(world.writers[0].run_once())
    await has_begun.wait()
    cold = world.mailbox.ask(replace(write(COLD, 2), is_claimed=True))
    await world.writers[1].run_once()
    world.mailbox.ask(replace(write(COLD, 3), is_claimed=True))
    await world.writers[1].run_once()
    # They are in no mailbox meanwhile: a writer would take them again and again.
    assert (is_guarded, 0) == (not cold.done(), len(world.mailbox))
    may_end.set()
    await probing
    assert Led() == answer_of(hot)
    if is_guarded:
        await world.writers[1].run_once()
    assert is_guarded == (answer_of(cold) == Led())


async def test_a_culprit_waits_for_no_probe() -> None:
    """Another culprit's takes the time of its hook: it is answered at once."""
    breakers = breakers_with([HOT, COLD], [OTHER])
    clock_of(breakers).now += 100
    assert breakers.begin_probe(HOT)
    assert not breakers.awaits_probe(COLD)
    # Nor does a victim wait for a culprit's: it may have its own.
    assert not breakers.awaits_probe(OTHER)
    assert breakers.may_probe(OTHER)


def test_a_victim_waits_for_a_probe_under_way_and_not_for_a_pause() -> None:
    """Not for its own pause, nor for the time that a failed probe leaves to the others."""
    breakers = breakers_with([], [HOT])
    clock_of(breakers).now += 10
    breakers.charge(write(COLD, 1), OWNER_SECONDS_MAX, CONFLICT)
    assert breakers.begin_probe(HOT)
    assert not breakers.awaits_probe(COLD)
    clock_of(breakers).now += 10
    assert breakers.awaits_probe(COLD)
    # No pause of its own.
    assert not breakers.awaits_probe(OTHER)
    breakers.keep(write(HOT, 1), 1.0, CONFLICT)
    breakers.end_probe(HOT)
    assert not breakers.awaits_probe(COLD)


def owner_of(each: Write) -> UserId:
    """Return the share of a write, as in a component."""
    return each.new_group.owner


class Town:
    """Owners with one client each that obeys `Retry-After`, on a clock of the test's own."""

    def __init__(self, hanging: int, held_until: float) -> None:
        self.world = World(share_of=owner_of)
        self.began, self.lead = self.world.clock.now, self.world.store.lead
        self.hanging = [UserId(f"bad{number}") for number in range(hanging)]
        self.victims = [UserId(f"victim{number}") for number in range(3)]
        self.held_until = self.began + held_until
        self.world.store.lead = self.lead_beside_clients  # type: ignore[method-assign]
        self.numbers = count(1)
        self.back: dict[UserId, float] = {}
        """How long after the lock's end each victim had its first success."""
        self.asked: dict[UserId, asyncio.Future[WriteResult]] = {}
        self.agenda: list[tuple[float, UserId]] = []
        self.refusals: dict[UserId, int] = {}

    async def lead_beside_clients(
        self, writes: Sequence[Write], *, is_hasty: bool = False
    ) -> set[UUID]:
        """Hang for some, as long as no other waits; wait for the lock for others."""
        owners = {each.new_group.owner for each in writes}
        clock = self.world.clock
        if owners & set(self.victims) and clock.now < self.held_until:
            clock.now += LOCK_SECONDS
            raise HookInterrupted("lock")
        if owners & set(self.hanging):
            end = clock.now + HANG_SECONDS
            soon = clock.now + HASTY_SECONDS
            while clock.now < end:
                clock.now += HASTY_SECONDS / 5
                self.come()
                others_wait = self.world.breakers.others_wait(self.world.mailbox)
                if clock.now >= soon and (is_hasty or len(owners) > 1 or others_wait):
                    raise HookEnded("hang")
            raise HookError("hang")
        return await self.lead(writes, is_hasty=is_hasty)

    def come(self) -> None:
        """Have those clients ask whose time has come."""
        while self.agenda and self.agenda[0][0] <= self.world.clock.now:
            _, owner = heappop(self.agenda)
            self.asked[owner] = self.world.mailbox.ask(write(owner, next(self.numbers)))

    async def live(self, seconds: float) -> None:
        """Let so much time pass."""
        clock, owners = self.world.clock, (*self.hanging, *self.victims, COLD)
        self.agenda = [(clock.now, owner) for owner in owners]
        while clock.now < self.began + seconds:
            self.come()
            if self.world.mailbox:
                await self.world.writers[0].run_once()
            clock.now += 0.05
            for owner in [owner for owner, asked in self.asked.items() if asked.done()]:
                self.note(owner, answer_of(self.asked.pop(owner)))

    def note(self, owner: UserId, answer: WriteResult | BaseException) -> None:
        """Note what a client got, and when it comes back."""
        now, pause = self.world.clock.now, 0.5
        if isinstance(answer, StoreError):
            pause = answer.retry_after_seconds or 1
            self.refusals[owner] = self.refusals.get(owner, 0) + 1
        elif owner in self.victims and now >= self.held_until:
            self.back.setdefault(owner, now - self.held_until)
        heappush(self.agenda, (now + pause, owner))


@pytest.mark.parametrize("hanging", [0, 1, 3, 20])
async def test_victims_are_back_soon_after_the_locks_end(hanging: int) -> None:
    """As soon beside tenants whose hook hangs; each pause is 2.5 s at most, and told in whole seconds."""
    town = Town(hanging, held_until=12.0)
    await town.live(40)
    assert set(town.victims) == set(town.back)
    others = 2 * HASTY_SECONDS + (1 + PROBE_RATIO) * HASTY_SECONDS * (hanging > 0)
    assert max(town.back.values()) < VICTIM_PAUSE_SECONDS_MAX + 1 + others, town.back
    assert 0 == town.refusals.get(COLD, 0)
