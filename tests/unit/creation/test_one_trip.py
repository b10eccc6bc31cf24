"""A batch that is claimed and led in one round trip: what follows where one of its halves fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.leads import TRIES_MAX
from stretto.creation.ports import Led, NotLed, SettledAsFailed, Write, WriteResult
from stretto.creation.writer import GroupWriter
from stretto.domain import NewGroup, UserId
from stretto.errors import Failure
from stretto.observations import ActorCrashed, Observation, WriteFailed
from stretto.runtime.mailbox import Mailbox
from stretto.store_errors import (
    InDoubt,
    Locked,
    Misconfigured,
    OutcomeUnknown,
    Refused,
    StoreError,
    Transient,
    Unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FAILURE = Failure("full", "No more groups.")
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team"})
Call = tuple[str, list[int]]


def write(number: int, *, is_claimed: bool = False) -> Write:
    """Return a write whose group id is that number; a higher one is newer."""
    group_id = conversation_id = UUID(int=number)
    return Write(group_id, uuid4(), conversation_id, TEAM, b"f" * 16, is_claimed)


class Attempts:
    """A store that remembers which attempts are claimed; both of its halves can fail."""

    writes_at_once = True
    is_connected = True

    def __init__(
        self,
        claim: Callable[[list[int]], Exception | None] = lambda _: None,
        lead: Callable[[list[int]], Exception | None] = lambda _: None,
    ) -> None:
        """Take what errors a claim and a lead of these numbers have."""
        self.claim_error, self.lead_error = claim, lead
        self.calls: list[Call] = []
        self.taken: set[int] = set()
        """Attempts of others."""
        self.held: set[int] = set()
        self.claimed: set[UUID] = set()

    async def open(self) -> None:
        raise AssertionError

    async def claim_and_lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        self._note(f"at once{' in haste' if is_hasty else ''}", writes)
        self._claim(writes)
        return self._lead(writes)

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        self._note("claim", writes)
        return self._claim(writes)

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        self._note(f"lead{' in haste' if is_hasty else ''}", writes)
        return self._lead(writes)

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        self._note("unlocked", writes)
        free = {each.claim_token for each in writes if each.group_id.int not in self.held}
        return free & self.claimed

    async def are_tables_locked(self) -> bool:
        return False

    async def fail(self, write: Write, failure: Failure) -> bool:
        self._note("fail", [write])
        return True

    async def close(self) -> None:
        self.calls.append(("close", []))

    def cut_off(self) -> None:
        """Nothing is under way."""

    def _note(self, name: str, writes: Sequence[Write]) -> None:
        self.calls.append((name, [each.group_id.int for each in writes]))

    def _claim(self, writes: Sequence[Write]) -> set[UUID]:
        error = self.claim_error([each.group_id.int for each in writes])
        if error is not None:
            raise error
        won = {each.claim_token for each in writes if each.group_id.int not in self.taken}
        self.claimed |= won
        return won

    def _lead(self, writes: Sequence[Write]) -> set[UUID]:
        error = self.lead_error([each.group_id.int for each in writes])
        if error is not None:
            raise error
        return {each.claim_token for each in writes} & self.claimed


async def answers(
    store: Attempts, *writes: Write, events: list[Observation] | None = None
) -> list[WriteResult | BaseException]:
    """Have one batch written; return what each asker got."""
    mailbox: Mailbox[Write, WriteResult] = Mailbox(100)
    seen: list[Observation] = [] if events is None else events
    breakers = OwnerBreakers(seen.append)
    writer = GroupWriter(Baton(mailbox), store, seen.append, breakers=breakers, batch_max=100)
    asked = [mailbox.ask(message) for message in writes]
    assert len(writes) == await writer.run_once()
    return await asyncio.gather(*asked, return_exceptions=True)


def at(number: int, error: Any) -> Callable[[list[int]], Any]:
    """Return what raises the error for each statement that has this number."""
    return lambda numbers: error if number in numbers else None


def once(error: Any) -> Callable[[list[int]], Any]:
    """Return what raises the error for the first statement."""
    left = [error]
    return lambda _: left.pop() if left else None


async def test_a_batch_is_one_round_trip() -> None:
    """What was claimed by another follows; with neighbours, locks are waited for in haste."""
    store = Attempts()
    store.taken = {2}
    assert [Led(), NotLed(), Led()] == await answers(store, write(1), write(2), write(3))
    assert [Led()] == await answers(store, write(4))
    assert [("at once in haste", [1, 2, 3]), ("at once", [4])] == store.calls


async def test_a_batch_with_a_reclaimed_write_takes_two() -> None:
    """Its attempt carries the token already: claiming it would make an attempt that has vanished."""
    store = Attempts()
    reclaimed = write(1, is_claimed=True)
    store.claimed = {reclaimed.claim_token}
    assert [Led(), Led()] == await answers(store, reclaimed, write(2))
    assert [("claim", [2]), ("lead in haste", [1, 2])] == store.calls


async def test_where_the_claim_has_failed_each_is_claimed_alone() -> None:
    """No attempt is ours then; the failed statement is not sent again."""
    store, events = Attempts(claim=at(2, Misconfigured("42501"))), list[Observation]()
    first, second, third = await answers(store, write(1), write(2), write(3), events=events)
    assert (Led(), Led()) == (first, third)
    assert isinstance(second, Misconfigured)
    assert [
        ("at once in haste", [1, 2, 3]),
        ("unlocked", [1, 2, 3]),
        ("claim", [1]),
        ("claim", [2]),
        ("claim", [3]),
        ("lead in haste", [1, 3]),
    ] == store.calls
    # Once for the batch, once for itself.
    assert [3, 1] == [event.writes for event in events if isinstance(event, WriteFailed)]


async def test_where_the_claim_has_met_another_claim_its_request_follows() -> None:
    """Alone or not."""
    store = Attempts(claim=at(2, Locked("claim")))
    assert [Led(), NotLed(), Led()] == await answers(store, write(1), write(2), write(3))
    assert [NotLed()] == await answers(store, write(2))


async def test_where_the_lead_was_refused_halves_are_led() -> None:
    """The claims are committed, and stay ours: nothing is claimed again, only the refused one fails."""
    store = Attempts(lead=at(2, Refused(FAILURE)))
    expected = [Led(), SettledAsFailed(FAILURE), Led()]
    assert expected == await answers(store, write(1), write(2), write(3))
    assert [
        ("at once in haste", [1, 2, 3]),
        ("unlocked", [1, 2, 3]),
        ("lead in haste", [1]),
        ("lead in haste", [2, 3]),
        ("lead in haste", [2]),
        ("fail", [2]),
        ("lead in haste", [3]),
    ] == store.calls


async def test_a_refused_one_fails_without_being_led_again() -> None:
    """As many statements as if its claim had been sent by itself."""
    store = Attempts(lead=at(1, Refused(FAILURE)))
    assert [SettledAsFailed(FAILURE)] == await answers(store, write(1))
    assert ["at once", "unlocked", "fail"] == [name for name, _ in store.calls]


async def test_where_the_lead_has_met_a_held_attempt_the_others_are_led_together() -> None:
    """After one time-out; what is held follows."""
    store = Attempts(lead=at(1, Locked("row")))
    store.held = {1}
    assert [NotLed(), Led(), Led()] == await answers(store, write(1), write(2), write(3))
    assert ("lead in haste", [2, 3]) == store.calls[-1]
    assert 3 == len(store.calls)


async def test_a_passing_failure_of_a_lead_is_tried_again() -> None:
    """The first of all tries was the round trip."""
    store = Attempts(lead=once(Transient("deadlock")))
    assert [Led()] == await answers(store, write(1))
    assert ["at once", "unlocked", "lead"] == [name for name, _ in store.calls]
    store = Attempts(lead=at(1, Transient("disk full")))
    (error,) = await answers(store, write(1))
    assert isinstance(error, Transient)
    assert ["at once", "unlocked", *["lead"] * (TRIES_MAX - 1)] == [name for name, _ in store.calls]


@pytest.mark.parametrize("half", ["claim", "lead"])
async def test_after_a_lost_connection_all_are_led(half: str) -> None:
    """The fence shows which were claimed; what was not follows, and nothing is failed."""
    store = Attempts(**{half: once(OutcomeUnknown("reset"))})
    assert [Led() if half == "lead" else NotLed()] * 2 == await answers(store, write(1), write(2))
    assert ["at once in haste", "lead in haste"] == [name for name, _ in store.calls]


async def test_an_outcome_that_stays_unknown_is_never_failed() -> None:
    """Its key stays pending."""
    store = Attempts(lead=at(1, OutcomeUnknown("reset")))
    (error,) = await answers(store, write(1))
    assert isinstance(error, OutcomeUnknown)
    assert {"at once", "lead"} == {name for name, _ in store.calls}


async def test_doubt_about_one_is_its_own() -> None:
    """The connection lives: what the claims have left is asked, and each is led alone."""
    store = Attempts(lead=at(2, InDoubt("XX000")))
    first, second, third = await answers(store, write(1), write(2), write(3))
    assert (Led(), Led()) == (first, third)
    assert isinstance(second, InDoubt)


async def test_a_database_that_is_away_is_reported_to_all_at_once() -> None:
    """No second statement takes another time-out."""
    away = Unreachable("away")
    store = Attempts(claim=at(1, away))
    assert [away, away] == await answers(store, write(1), write(2))
    assert 1 == len(store.calls)


async def test_a_bug_that_one_request_meets_costs_no_neighbour() -> None:
    """The connection is given up; what was claimed is asked, and led one by one."""
    store, events = Attempts(lead=at(2, ZeroDivisionError())), list[Observation]()
    one, bad, three = await answers(store, *map(write, (1, 2, 3)), events=events)
    assert (Led(), Led()) == (one, three)
    assert isinstance(bad, OutcomeUnknown)
    assert [("close", []), ("unlocked", [1, 2, 3])] == store.calls[1:3]
    assert {ActorCrashed} <= {type(event) for event in events}


async def test_no_error_is_kept_alive_by_the_frames_that_it_refers_to() -> None:
    """An error that was passed on is taken out: its traceback would refer to itself."""
    errors: list[StoreError] = []

    def fail(_: list[int]) -> StoreError:
        errors.append(Transient("deadlock"))
        return errors[-1]

    (error,) = await answers(Attempts(lead=fail), write(1))
    assert error is errors[-1]
    assert [None] == [error.__traceback__ for error in errors[-1:]]
