"""The writer against a store that goes wrong on command: what is certain, what is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.baton import Baton
from stretto.creation.breakers import OWNER_SECONDS_MAX, OwnerBreakers
from stretto.creation.contention import KEY_SECONDS, ContendedKeys
from stretto.creation.leads import TRIES_MAX
from stretto.creation.ports import Led, NotLed, SettledAsFailed, Write, WriteResult
from stretto.creation.writer import ROWS_MAX, ROWS_OF_GROUP, GroupWriter
from stretto.domain import MEMBERS_MAX, NewGroup, UserId
from stretto.errors import Failure
from stretto.observations import (
    ActorCrashed,
    ActorRestarted,
    AttemptStrayed,
    BatchWritten,
    Observation,
    OwnerPaused,
    WriteFailed,
)
from stretto.runtime.actor import TryAgain
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run, Runner
from stretto.store_errors import (
    HookCutOff,
    HookInterrupted,
    InDoubt,
    Locked,
    Misconfigured,
    OutcomeUnknown,
    Refused,
    StoreError,
    Transient,
    Unreachable,
)
from support.clock import Clock
from support.traces import TRACE_ID, traced_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.observations import Observer

FAILURE = Failure("full", "No more groups.")
Call = tuple[str, list[int]]


def write(number: int, *, is_claimed: bool = False, owner: str = "alice") -> Write:
    """Return a write with this number as the id of its group, and of its conversation: its age."""
    new_group = NewGroup.parse(UserId(owner), {"name": "Team"})
    ids = UUID(int=number), uuid4(), UUID(int=number)
    return Write(*ids, new_group, b"f" * 16, is_claimed)


class ScriptedStore:
    """Does what it is asked, unless `error_of` has an error for that call; in two steps."""

    writes_at_once = False
    is_connected = True

    def __init__(self, error_of: Callable[[Call], Exception | None] = lambda _: None) -> None:
        self.error_of = error_of
        self.calls: list[Call] = []
        self.lost: set[int] = set()
        self.is_table_locked = False
        self.fenced: set[int] = set()
        self.held: set[int] = set()

    async def open(self) -> None:
        raise AssertionError

    async def claim_and_lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        raise AssertionError

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        self._called("claim", writes)
        return {w.claim_token for w in writes if w.group_id.int not in self.lost}

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        self._called("lead", writes)
        return {w.claim_token for w in writes if w.group_id.int not in self.fenced}

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        self._called("unlocked", writes)
        return {w.claim_token for w in writes if w.group_id.int not in self.held}

    async def are_tables_locked(self) -> bool:
        self._called("are_tables_locked", ())
        return self.is_table_locked

    async def fail(self, write: Write, failure: Failure) -> bool:
        self._called("fail", [write])
        assert failure == FAILURE
        return write.group_id.int not in self.fenced

    async def close(self) -> None:
        self.calls.append(("close", []))

    def cut_off(self) -> None:
        self.calls.append(("cut off", []))

    def _called(self, name: str, writes: Sequence[Write]) -> None:
        call = (name, [w.group_id.int for w in writes])
        self.calls.append(call)
        error = self.error_of(call)
        if error is not None:
            raise error


def writer_of(
    mailbox: Mailbox[Write, WriteResult],
    store: ScriptedStore,
    observe: Observer = lambda _: None,
    **options: Any,
) -> GroupWriter:
    """Return a writer that shares its breakers with no other."""
    return GroupWriter(
        Baton(mailbox), store, observe, **{"breakers": OwnerBreakers(observe), **options}
    )


async def answers(
    store: ScriptedStore, *writes: Write, events: list[Observation] | None = None, **options: Any
) -> list[WriteResult | BaseException]:
    """Have one batch written; return what each asker got."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    observed = [] if events is None else events
    writer = writer_of(mailbox, store, observed.append, batch_max=100, **options)
    asked = [mailbox.ask(message) for message in writes]
    assert len(writes) == await writer.run_once()
    return await asyncio.gather(*asked, return_exceptions=True)


async def test_a_batch_is_one_claim_and_one_lead_sorted_by_id() -> None:
    """Two statements, and an order in which replicas cannot deadlock each other."""
    store, events = ScriptedStore(), list[Observation]()
    assert [Led()] * 3 == await answers(store, write(3), write(1), write(2), events=events)
    assert [("claim", [1, 2, 3]), ("lead", [1, 2, 3])] == store.calls
    (event,) = events
    assert isinstance(event, BatchWritten)
    assert (3, 3) == (event.writes, event.led)


async def test_a_lost_claim_is_not_led() -> None:
    """Its request follows; the others go on without it."""
    store = ScriptedStore()
    store.lost = {1}
    assert [NotLed(), Led()] == await answers(store, write(1), write(2))
    assert ("lead", [2]) == store.calls[-1]


async def test_a_reclaimed_write_is_not_claimed_again() -> None:
    """It has its token in the attempt already."""
    store = ScriptedStore()
    assert [Led()] == await answers(store, write(1, is_claimed=True))
    assert [("lead", [1])] == store.calls


async def test_a_poisonous_request_fails_alone() -> None:
    """The batch is rolled back, its halves are led, and only the refused one is failed."""
    store = ScriptedStore(lambda c: Refused(FAILURE) if c[0] == "lead" and 2 in c[1] else None)
    assert [Led(), SettledAsFailed(FAILURE), Led()] == await answers(
        store, write(1), write(2), write(3)
    )
    expected = [
        ("lead", [1, 2, 3]),
        ("lead", [1]),
        ("lead", [2, 3]),
        ("lead", [2]),
        ("fail", [2]),
        ("lead", [3]),
    ]
    assert expected == store.calls[1:]


async def test_a_refused_request_costs_its_neighbours_a_few_statements() -> None:
    """A host's veto does not say whose group it means: halves without one are led together."""
    store = ScriptedStore(lambda c: Refused(FAILURE) if c[0] == "lead" and 9 in c[1] else None)

    results = await answers(store, *(write(number) for number in range(64)))

    assert SettledAsFailed(FAILURE) == results.pop(9)
    assert [Led()] * 63 == results
    # Both halves of the batch, and of each half with the refused one, down to that one.
    assert 1 + 2 * 6 == sum(name == "lead" for name, _ in store.calls)


async def test_a_refused_batch_makes_room_for_others_that_wait() -> None:
    """After a second and one answer; the rest stays claimed, and is led with those that waited."""
    clock = Clock()

    def error_of(call: Call) -> StoreError | None:
        if call[0] != "lead":
            return None
        clock.now += 0.3
        return Refused(FAILURE) if any(number % 4 == 1 for number in call[1]) else None

    mailbox: Mailbox[Write, WriteResult] = Mailbox(100, lambda write: write.new_group.owner)
    store, breakers = ScriptedStore(error_of), OwnerBreakers(lambda _: None, clock)
    writer = writer_of(mailbox, store, batch_max=32, breakers=breakers)
    asked = [mailbox.ask(write(number, owner=f"u{number}")) for number in range(1, 33)]
    late = mailbox.ask(write(0, owner="late"))
    began = clock.now
    await writer.run_once()
    # The whole batch, and its halves down to one request.
    assert clock.now - began <= 6 * 0.3 + APART_SECONDS_MAX
    assert 0 < sum(each.done() for each in asked) < 32
    await writer.run_once()
    assert Led() == late.result()
    while len(mailbox):
        await writer.run_once()
    results = await asyncio.gather(*asked)
    assert {Led: 24, SettledAsFailed: 8} == Counter(map(type, results))
    claimed = [number for name, numbers in store.calls if name == "claim" for number in numbers]
    assert sorted(claimed) == [*range(33)]


@pytest.mark.parametrize("refused_lately", [None, "bob"])
async def test_a_refused_batch_that_takes_long_comes_to_its_end(refused_lately: str | None) -> None:
    """Although others wait after each statement, some of it is answered in each turn.

    Also where newcomers are led first, all together, and one of them is refused each time.
    """
    clock = Clock()

    def error_of(call: Call) -> StoreError | None:
        if call[0] != "lead":
            return None
        clock.now += APART_SECONDS_MAX
        return Refused(FAILURE) if 1 in call[1] else None

    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    breakers = OwnerBreakers(lambda _: None, clock)
    writer = writer_of(mailbox, ScriptedStore(error_of), batch_max=8, breakers=breakers)
    if refused_lately:
        breakers.note_refused(UserId(refused_lately))
    owners = ["alice"] * 4 + ["bob"] * 4
    asked = [mailbox.ask(write(n, owner=owner)) for n, owner in enumerate(owners, start=1)]
    for turn in range(3):
        for number in range(9):
            mailbox.ask(write(100 * turn + 100 + number))
        await writer.run_once()
    assert all(each.done() for each in asked)


async def test_a_database_that_goes_away_while_parts_are_led_ends_the_batch() -> None:
    """Each part would take a time-out."""
    away = Unreachable("away")

    def error_of(call: Call) -> StoreError | None:
        if call[0] != "lead":
            return None
        return Refused(FAILURE) if len(call[1]) == 8 else away

    store = ScriptedStore(error_of)
    assert [away] * 8 == await answers(store, *(write(number) for number in range(8)))
    assert [8, 4] == [len(numbers) for name, numbers in store.calls if name == "lead"]


@pytest.mark.parametrize(("neighbour", "is_paused"), [("bob", True), ("alice", False)])
async def test_refusals_are_charged_to_their_owner(neighbour: str, is_paused: bool) -> None:
    """What is done in vain costs the neighbours; an owner who has none is not paused."""
    clock, events = Clock(), list[Observation]()

    def error_of(call: Call) -> StoreError | None:
        if call[0] != "lead" or 1 not in call[1]:
            return None
        # Four leads are in vain. Three of them, without that of the whole batch, are not enough.
        clock.now += OWNER_SECONDS_MAX / 3.5
        return Refused(FAILURE)

    writes = [write(1), *(write(number, owner=neighbour) for number in range(2, 9))]
    breakers = OwnerBreakers(events.append, clock)
    results = await answers(ScriptedStore(error_of), *writes, breakers=breakers)

    assert [SettledAsFailed(FAILURE), *[Led()] * 7] == results
    assert is_paused == (UserId("alice") in breakers)
    assert is_paused == any(isinstance(event, OwnerPaused) for event in events)


async def test_a_refused_write_whose_attempt_was_taken_away_is_not_reported_failed() -> None:
    """Only a failure that is written is one (G4)."""
    store = ScriptedStore(lambda c: Refused(FAILURE) if c[0] == "lead" else None)
    store.fenced = {1}
    assert [NotLed()] == await answers(store, write(1))


async def test_a_passing_failure_is_tried_again_with_the_same_token() -> None:
    """A deadlock or a full disk is over in a moment, or is answered as unsettled."""
    left = [Transient("deadlock")]
    store = ScriptedStore(lambda c: left.pop() if c[0] == "lead" and left else None)
    assert [Led()] == await answers(store, write(1))
    store = ScriptedStore(lambda c: Transient("disk full") if c[0] == "lead" else None)
    (error,) = await answers(store, write(1))
    assert isinstance(error, Transient)
    assert [("lead", [1])] * TRIES_MAX == store.calls[1:]


async def test_an_unknown_outcome_is_led_again_and_never_failed() -> None:
    """What the first statement committed shows as not led, and its request finds it."""
    left = [OutcomeUnknown("reset")]
    store = ScriptedStore(lambda c: left.pop() if c[0] == "lead" and left else None)
    store.fenced = {1}
    assert [NotLed(), Led()] == await answers(store, write(1), write(2))
    assert [("lead", [1, 2])] * 2 == store.calls[1:]
    store = ScriptedStore(lambda c: OutcomeUnknown("reset") if c[0] == "lead" else None)
    (error,) = await answers(store, write(1))
    assert isinstance(error, OutcomeUnknown)
    assert "fail" not in {name for name, _ in store.calls}


@pytest.mark.parametrize("kind", [OutcomeUnknown, InDoubt, Transient])
async def test_an_unknown_outcome_is_observed_of_each_attempt(kind: type[StoreError]) -> None:
    """With its claim and its trace; what is known to have failed is not."""
    left, events = [kind("reset")], list[Observation]()
    store = ScriptedStore(lambda c: left.pop() if c[0] == "lead" and left else None)
    writes = [replace(write(number), request=traced_request()) for number in (1, 2)]
    await answers(store, *writes, events=events)
    expected = [
        AttemptStrayed(
            *("unknown", each.group_id, UserId("alice"), each.claim_token),
            *(kind.__name__, TRACE_ID),
        )
        for each in writes
        if issubclass(kind, OutcomeUnknown)
    ]
    assert expected == [event for event in events if isinstance(event, AttemptStrayed)]


async def test_after_an_unknown_claim_the_fence_shows_which_were_ours() -> None:
    """All are led: those whose claim did not come through are not."""
    store = ScriptedStore(lambda c: OutcomeUnknown("reset") if c[0] == "claim" else None)
    store.fenced = {1}
    assert [NotLed(), Led()] == await answers(store, write(1), write(2))


async def test_a_key_that_is_held_up_delays_no_other() -> None:
    """Where a batch's claim runs into a lock, each is claimed by itself; what is held follows."""
    store = ScriptedStore(lambda c: Locked("row") if c[0] == "claim" and 2 in c[1] else None)
    assert [Led(), NotLed(), Led()] == await answers(store, write(1), write(2), write(3))
    expected = [("claim", [1, 2, 3]), ("claim", [1]), ("claim", [2]), ("claim", [3])]
    assert [*expected, ("lead", [1, 3])] == store.calls
    assert [NotLed()] == await answers(store, write(2))


ALONE = [Transient("deadlock"), Refused(FAILURE), InDoubt("XX000"), Misconfigured("42703")]


@pytest.mark.parametrize("error", ALONE)
async def test_a_claim_that_fails_fails_alone(error: StoreError) -> None:
    """Whatever the server says: the others are claimed one by one, and led together."""
    store = ScriptedStore(lambda c: error if c[0] == "claim" and 2 in c[1] else None)
    first, poisoned, last = await answers(store, write(1), write(2), write(3))
    assert (Led(), error, Led()) == (first, poisoned, last)
    assert [("claim", [1, 2, 3]), ("claim", [1]), ("claim", [2]), ("claim", [3])] == store.calls[:4]
    assert [("lead", [1, 3])] == store.calls[4:]
    assert [error] == await answers(store, write(2))


@pytest.mark.parametrize("error", [InDoubt("XX000"), Misconfigured("42703")])
async def test_a_lead_that_the_server_refuses_without_settling_it_fails_alone(
    error: StoreError,
) -> None:
    """At once, for it would be refused again; its neighbours have one more try each."""
    store = ScriptedStore(lambda c: error if c[0] == "lead" and 2 in c[1] else None)
    assert [Led(), error, Led()] == await answers(store, write(1), write(2), write(3))
    assert [[1, 2, 3], [1], [2], [3]] == [ids for name, ids in store.calls if name == "lead"]
    assert "fail" not in {name for name, _ in store.calls}


async def test_a_lead_that_costs_the_connection_again_and_again_fails_alone() -> None:
    """The batch is led again, as the failure is mostly the connection's; then each alone, once."""
    lost = OutcomeUnknown("reset")
    store = ScriptedStore(lambda c: lost if c[0] == "lead" and 2 in c[1] else None)
    assert [Led(), lost, Led()] == await answers(store, write(1), write(2), write(3))
    leads = [ids for name, ids in store.calls if name == "lead"]
    assert [*[[1, 2, 3]] * TRIES_MAX, [1], [2], [3]] == leads


async def test_what_fails_slowly_is_not_tried_for_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest stays pending: it would keep those in the mailbox waiting."""
    monkeypatch.setattr("stretto.creation.apart.APART_SECONDS_MAX", 0.0)
    lost = OutcomeUnknown("reset")
    store = ScriptedStore(lambda c: lost if c[0] == "lead" and 2 in c[1] else None)
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    writer = writer_of(mailbox, store, batch_max=3)
    asked = [mailbox.ask(write(number)) for number in range(1, 5)]
    await writer.run_once()
    assert [Led(), False, False] == [asked[0].result(), asked[1].done(), asked[3].done()]
    await writer.run_once()
    assert isinstance(asked[1].exception(), OutcomeUnknown)


async def test_a_database_that_goes_away_meanwhile_is_not_asked_for_every_request() -> None:
    """Each would take a time-out."""
    away, refused = Unreachable("away"), Refused(FAILURE)

    def error_of(call: Call) -> StoreError | None:
        if call[0] != "lead" or call[1] == [1]:
            return None
        return refused if len(call[1]) > 1 else away

    store = ScriptedStore(error_of)
    assert [Led(), away, away] == await answers(store, write(1), write(2), write(3))
    assert [("lead", [1]), ("lead", [2, 3]), ("lead", [2])] == store.calls[-3:]


async def test_what_was_led_before_the_database_went_away_wakes_the_readers() -> None:
    """Its events are in the log."""
    away, refused = Unreachable("away"), Refused(FAILURE)

    def error_of(call: Call) -> StoreError | None:
        if call[0] != "lead" or call[1] == [1]:
            return None
        return refused if len(call[1]) > 1 else away

    events, woken = list[Observation](), list[bool]()
    store, wakes = ScriptedStore(error_of), [lambda: woken.append(True)]
    got = await answers(store, write(1), write(2), write(3), events=events, wakes=wakes)
    assert [Led(), away, away] == got
    assert [True] == woken
    assert [1] == [each.led for each in events if isinstance(each, BatchWritten)]


async def test_a_failure_that_cannot_be_written_is_its_own_requests_failure() -> None:
    """The neighbours behind it are led; its key stays pending."""
    doubt = InDoubt("XX000")

    def error_of(call: Call) -> StoreError | None:
        if call == ("fail", [2]):
            return doubt
        return Refused(FAILURE) if call[0] == "lead" and 2 in call[1] else None

    store = ScriptedStore(error_of)
    assert [Led(), doubt, Led()] == await answers(store, write(1), write(2), write(3))


@pytest.mark.parametrize("numbers", [[1], [1, 2, 3]])
async def test_a_row_that_another_holds_is_left_to_its_request_to_follow(
    numbers: list[int],
) -> None:
    """The others are led together, after one time-out for all of them."""
    store = ScriptedStore(lambda c: Locked("row") if c[0] == "lead" and 1 in c[1] else None)
    store.held = {1}
    expected = [NotLed(), Led(), Led()][: len(numbers)]
    assert expected == await answers(store, *map(write, numbers))
    assert [("lead", numbers), ("unlocked", numbers)] == store.calls[1:3]
    assert [("lead", numbers[1:])][: len(numbers) - 1] == store.calls[3:]


async def test_a_locked_table_is_waited_for_together() -> None:
    """No key is the cause: nothing is written request by request."""
    locked = Locked("table")
    store = ScriptedStore(lambda c: locked if c[0] == "lead" else None)
    store.is_table_locked = True
    assert [locked] * 2 == await answers(store, write(1), write(2))
    leads = [ids for name, ids in store.calls if name == "lead"]
    assert [[1, 2]] * TRIES_MAX == leads


async def test_a_locked_row_beside_the_attempts_fails_its_request_alone() -> None:
    """A row of the host's, such as a user's: it is tried once alone, and its neighbours are led.

    After each of its two time-outs it is asked once whether it was a table.
    """
    store = ScriptedStore(lambda c: Locked("row") if c[0] == "lead" and 2 in c[1] else None)
    first, second, third = await answers(store, write(1), write(2), write(3))
    assert (Led(), Led()) == (first, third)
    assert isinstance(second, Locked)
    leads = [ids for name, ids in store.calls if name == "lead"]
    assert [[1, 2, 3], [1], [2], [3]] == leads
    assert 2 == store.calls.count(("are_tables_locked", []))


@pytest.mark.parametrize("error", [Locked("row"), HookInterrupted("row"), HookCutOff("lost")])
@pytest.mark.parametrize("waiting", [0, 1])
async def test_a_locked_row_is_waited_for_only_while_that_keeps_no_other_waiting(
    waiting: int, error: StoreError
) -> None:
    """The other's turn comes after one time-out; alone, the request has all its tries.

    So has one whose hook has lost its session.
    """
    mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
    store = ScriptedStore(lambda c: error if c == ("lead", [1]) else None)
    writer = writer_of(mailbox, store, batch_max=1)
    asked = mailbox.ask(write(1))
    for number in range(waiting):
        mailbox.ask(write(2 + number))
    await writer.run_once()
    assert isinstance(asked.exception(), type(error))
    leads = [ids for name, ids in store.calls if name == "lead"]
    # A session may have been lost to a failover: a second try shows that.
    tries = 2 if isinstance(error, HookCutOff) else 1
    assert [[1]] * (tries if waiting else TRIES_MAX) == leads


async def test_a_key_whose_claim_was_held_up_is_claimed_after_the_others() -> None:
    """Until its claim goes through: it then shares statements again."""
    is_held = True

    def error_of(call: Call) -> StoreError | None:
        return Locked("claim") if is_held and call[0] == "claim" and 1 in call[1] else None

    mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
    store = ScriptedStore(error_of)
    writer = writer_of(mailbox, store, batch_max=10)
    seen = []
    for numbers in ((1, 2), (1, 3), (1, 4), (1, 5)):
        asked = [mailbox.ask(write(number)) for number in numbers]
        store.calls.clear()
        await writer.run_once()
        seen.append([each.result() for each in asked])
        claims = [ids for name, ids in store.calls if name == "claim"]
        if numbers == (1, 2):
            assert [[1, 2], [1], [2]] == claims
        else:
            assert {(1, 3): [[3], [1]], (1, 4): [[4], [1]], (1, 5): [[1, 5]]}[numbers] == claims
        is_held = is_held and numbers != (1, 3)
    assert [[NotLed(), Led()], [NotLed(), Led()], [Led(), Led()], [Led(), Led()]] == seen


async def test_contended_keys_take_little_time_of_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that have no turn follow, and come again."""
    store = ScriptedStore(lambda c: Locked("claim") if c[0] == "claim" and 1 in c[1] else None)
    mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
    writer = writer_of(mailbox, store, batch_max=10)
    mailbox.ask(write(1))
    await writer.run_once()
    monkeypatch.setattr("stretto.creation.batch.CONTENDED_SECONDS_MAX", 0.0)
    asked = mailbox.ask(write(1))
    store.calls.clear()
    await writer.run_once()
    assert (NotLed(), []) == (asked.result(), store.calls)


async def test_a_key_that_others_have_settled_is_contended_for_a_while_only() -> None:
    """It never comes again; batches are written the short way then."""
    store = ScriptedStore(lambda c: Locked("claim") if c[0] == "claim" and 1 in c[1] else None)
    mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
    writer = writer_of(mailbox, store, batch_max=10)
    now, contended = 100.0, ContendedKeys(lambda: now)
    writer._batches.contended = contended
    mailbox.ask(write(1))
    await writer.run_once()
    assert 1 == len(contended)
    now += KEY_SECONDS
    mailbox.ask(write(2))
    await writer.run_once()
    assert 0 == len(contended)


async def test_a_batch_is_bounded_by_its_rows() -> None:
    """Giants go few at a time, and a small one behind them does not wait for all."""
    members = [f"user{number}" for number in range(MEMBERS_MAX)]
    giant = NewGroup.parse(UserId("alice"), {"name": "Giant", "members": members})
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    writer = writer_of(mailbox, ScriptedStore(), batch_max=100)
    rows = ROWS_OF_GROUP + MEMBERS_MAX
    together = ROWS_MAX // rows
    assert together > 1
    for number in range(together + 1):
        mailbox.ask(replace(write(number), new_group=giant))
    for number in range(100, 110):
        mailbox.ask(write(number))
    assert together == await writer.run_once()
    assert 11 == await writer.run_once()


@pytest.mark.parametrize("step", ["claim", "lead"])
async def test_a_database_that_is_away_is_reported_to_all_at_once(step: str) -> None:
    """Nothing is tried request by request: that would take as many time-outs."""
    store = ScriptedStore(lambda c: Unreachable("away") if c[0] == step else None)
    got = await answers(store, write(1), write(2))
    assert all(isinstance(error, Unreachable) for error in got)
    assert len(store.calls) <= 2


async def test_a_stopped_writer_answers_what_it_held_and_closes_its_store() -> None:
    """The outcome of a write that was cut off is unknown."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    reached = asyncio.Event()

    class HangingStore(ScriptedStore):
        async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
            reached.set()
            await asyncio.Event().wait()
            return set()

    store = HangingStore()
    writer = writer_of(mailbox, store, batch_max=1)
    task = asyncio.create_task(Run(writer, lambda _: None).turns())
    asked = mailbox.ask(write(1))
    await reached.wait()
    task.cancel()
    with pytest.raises(OutcomeUnknown, match="the writer was stopped"):
        await asked
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.calls[-1] == ("close", [])


async def test_a_bug_costs_its_batch_and_not_the_writer() -> None:
    """The next batch is written, on a fresh connection."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    events: list[Observation] = []

    class BuggyStore(ScriptedStore):
        async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
            if not events:
                raise ZeroDivisionError
            return await super().lead(writes)

    store = BuggyStore()
    writer = writer_of(mailbox, store, events.append, batch_max=1)
    task = asyncio.create_task(Run(writer, events.append).turns())
    with pytest.raises(OutcomeUnknown):
        await mailbox.ask(write(1))
    assert await mailbox.ask(write(2)) == Led()
    assert [ActorCrashed, ActorRestarted] == [type(event) for event in events[:2]]
    assert [("claim", [1]), ("close", []), ("claim", [2])] == store.calls[:3]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Fault(BaseException):
    """No `Exception`, and none that ends a process."""


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError, Fault])
async def test_what_ends_a_batch_before_it_is_written_answers_it(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flight waits for ever, and the next batch is written."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    writer = writer_of(mailbox, ScriptedStore(), batch_max=1)

    def fail(*_: object) -> None:
        raise error

    asked = [mailbox.ask(write(number)) for number in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr("stretto.creation.writer.batch_span", fail)
        with pytest.raises(error):
            await writer.run_once()
    assert 1 == await writer.run_once()
    unknown, led = asked
    assert isinstance(unknown.exception(), OutcomeUnknown)
    assert Led() == led.result()


async def test_a_writer_that_never_ran_gives_its_connection_back() -> None:
    """It was opened when the service started; a bug elsewhere ended the start."""
    store = ScriptedStore()
    async with Runner(lambda _: None) as runner:
        await runner.stop(writer_of(Mailbox(1), store, batch_max=1))
    assert ("close", []) in store.calls


async def test_a_writer_that_is_cancelled_while_it_waits_keeps_no_other_waiting() -> None:
    """It pauses, or is gone: what comes now is its sibling's."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    baton, breakers = Baton(mailbox), OwnerBreakers(lambda _: None)
    first, second = (
        GroupWriter(baton, ScriptedStore(), lambda _: None, breakers=breakers, batch_max=1)
        for _ in range(2)
    )
    waiting = asyncio.create_task(first.run_once())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    asked = mailbox.ask(write(1))
    async with asyncio.timeout(5):
        await second.run_once()
    assert Led() == asked.result()


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_writer_that_does_not_reach_the_database_lets_another_try(
    is_idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness asks whether all have failed: one that is never tried would hide it."""
    monkeypatch.setattr(Baton, "_has_been_idle", lambda _: is_idle)
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    baton, breakers = Baton(mailbox), OwnerBreakers(lambda _: None)
    away = ScriptedStore(lambda _: Unreachable("away"))
    first, second = (
        GroupWriter(baton, store, lambda _: None, breakers=breakers, batch_max=1)
        for store in (away, ScriptedStore())
    )
    asked = [mailbox.ask(write(number)) for number in (1, 2)]
    await first.run_once()
    async with asyncio.timeout(5):
        await second.run_once()
    assert isinstance(asked[0].exception(), Unreachable)
    assert Led() == asked[1].result()


def two_writers(
    first: ScriptedStore, second: ScriptedStore, seen: list[Observation]
) -> tuple[Mailbox[Write, WriteResult], GroupWriter, GroupWriter]:
    """Return two writers that share a mailbox."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    baton, breakers = Baton(mailbox), OwnerBreakers(lambda _: None)
    one, two = (
        GroupWriter(baton, store, seen.append, breakers=breakers, batch_max=1)
        for store in (first, second)
    )
    return mailbox, one, two


class ClosedStore(ScriptedStore):
    """Has no connection, and the server has none left for it."""

    is_connected = False

    async def open(self) -> None:
        raise Unreachable("too many connections")


async def test_a_writer_that_cannot_connect_leaves_requests_to_one_that_can() -> None:
    """It tries on its own after a pause; the other one writes all."""
    away, seen = ClosedStore(), list[Observation]()
    mailbox, first, second = two_writers(away, ScriptedStore(), seen)
    asked = mailbox.ask(write(1))
    with pytest.raises(TryAgain):
        await first.run_once()
    assert [WriteFailed] == [type(event) for event in seen]
    async with asyncio.timeout(5):
        await second.run_once()
    assert Led() == asked.result()
    assert [] == away.calls


async def test_a_writer_that_loses_its_connection_while_it_waits_puts_requests_back() -> None:
    """Nothing is claimed yet: the other one writes them."""
    lost = ScriptedStore()
    mailbox, first, second = two_writers(lost, ScriptedStore(), [])
    turns = [asyncio.create_task(each.run_once()) for each in (first, second)]
    await asyncio.sleep(0)
    lost.is_connected = False
    asked = mailbox.ask(write(1))
    async with asyncio.timeout(5):
        assert [0, 1] == await asyncio.gather(*turns)
    assert Led() == asked.result()
    assert [] == lost.calls


async def test_where_no_writer_has_a_connection_requests_fail_at_once() -> None:
    """Each writer tries with those that it takes: no request waits for a connection."""
    first, second = (ClosedStore(lambda _: Unreachable("away")) for _ in range(2))
    mailbox, *writers = two_writers(first, second, [])
    for number, each in enumerate(writers):
        asked = mailbox.ask(write(number))
        async with asyncio.timeout(5):
            await each.run_once()
        assert isinstance(asked.exception(), Unreachable)


def _bug_of(*numbers: int, step: str = "lead") -> Callable[[Call], Exception | None]:
    """Return what has a bug met where a step has one of these writes."""
    return lambda call: ZeroDivisionError() if call[0] == step and {*numbers} & {*call[1]} else None


async def test_a_bug_that_one_request_meets_costs_no_neighbour() -> None:
    """Each is led alone, with the same token and on a fresh connection after each bug."""
    store, events = ScriptedStore(_bug_of(2)), list[Observation]()
    one, bad, three = await answers(store, *map(write, (1, 2, 3)), events=events)
    assert (Led(), Led()) == (one, three)
    assert isinstance(bad, OutcomeUnknown)
    assert [
        ("lead", [1, 2, 3]),
        ("close", []),
        ("lead", [1]),
        ("lead", [2]),
        ("close", []),
        ("lead", [3]),
    ] == store.calls[1:]
    assert [ActorCrashed, ActorCrashed, BatchWritten] == [type(event) for event in events]


async def test_after_a_bug_in_a_claim_the_fence_shows_which_were_ours() -> None:
    """As after a connection that was lost."""
    store = ScriptedStore(_bug_of(1, step="claim"))
    store.fenced = {2}
    assert [Led(), NotLed()] == await answers(store, write(1), write(2))
    assert [("claim", [1, 2]), ("close", []), ("lead", [1, 2])] == store.calls


async def test_a_bug_that_every_request_meets_is_a_crash() -> None:
    """The runner then waits before the next turn, and readiness says so in the end."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    store = ScriptedStore(_bug_of(1, 2))
    writer = writer_of(mailbox, store, batch_max=100)
    asked = [mailbox.ask(write(number)) for number in (1, 2)]
    with pytest.raises(ZeroDivisionError):
        await writer.run_once()
    failures = await asyncio.gather(*asked, return_exceptions=True)
    assert [OutcomeUnknown] * 2 == [type(failure) for failure in failures]
    assert ("close", []) == store.calls[-1]


async def test_only_a_batch_with_new_events_wakes_those_who_read_them() -> None:
    """A writer whose claims are all lost has written nothing."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    woken: list[str] = []
    store = ScriptedStore()
    writer = writer_of(
        mailbox,
        store,
        batch_max=10,
        wakes=[partial(woken.append, "relay"), partial(woken.append, "webhook")],
    )
    for lost, expected in ({1}, []), (set(), ["relay", "webhook"]):
        store.lost = lost
        asked = mailbox.ask(write(1))
        await writer.run_once()
        assert isinstance(await asked, NotLed if lost else Led)
        assert expected == woken
