"""GroupWriter: the only actor that writes groups.

It owns one database connection (inside its store) and shares a mailbox with its siblings. Whatever
has arrived during one batch is the next: an idle service adds no delay, a busy one few round trips.
A batch costs two: claim all, lead the won ones together.

What is certain is answered; what is not stays pending and is answered with the store's error. The
writer never follows and never decides what a request means.

No request harms its neighbours: a batch is bounded by rows, what another transaction holds is left to
its request to follow, and a batch that fails is taken apart, whatever the error. An owner whose
requests cost the others too much is paused (`breakers.py`).
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from stretto.creation.breakers import OWNER_SECONDS_MAX, OwnerBreakers
from stretto.creation.contention import ContendedKeys
from stretto.creation.ports import Led, NotLed, SettledAsFailed, Write, WriteResult, WriteStore
from stretto.errors import (
    HookError,
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
from stretto.observations import ActorCrashed, BatchWritten, Observer, WriteTrouble
from stretto.runtime.actor import Actor
from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Envelope, Mailbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from stretto.domain import UserId

# Four of the largest groups: 0.2 s on two busy cores, a twenty-fifth of what a write may take. 128 of
# them take longer than that, and small ones would wait behind them.
ROWS_MAX: Final = 4096
# Attempt, conversation, group, owner and event; each other member is one more.
ROWS_OF_GROUP: Final = 5
# A write that keeps meeting deadlocks, full disks or broken connections is left pending after this
# many tries; its client comes back and finishes it.
TRIES_MAX: Final = 4
BACKOFF: Final = Backoff(0.02, 0.5)

# Requests that are written alone, and one of them still fails after so long, keep those in the mailbox
# waiting: the rest of the batch is tried together once more. As long as a single write may take; a
# request that the server refuses at once costs a few milliseconds.
APART_SECONDS_MAX: Final = 5.0

# Keys that held up a batch before are claimed alone, after the others, for so long in each batch.
CONTENDED_SECONDS_MAX: Final = 0.1

_Request = Envelope[Write, WriteResult]
Result = TypeVar("Result")


class _RowLocked(Locked):
    """A row beside the attempts, such as a host's, was held, and no table: others can be written."""


@dataclass(slots=True)
class _Failing:
    """An owner's failures while a batch was taken apart."""

    write: Write
    error: StoreError
    seconds: float = 0.0


class GroupWriter(Actor):
    """Takes batches of writes from a mailbox and answers each with what is known of it."""

    backoff = BACKOFF

    def __init__(
        self,
        mailbox: Mailbox[Write, WriteResult],
        store: WriteStore,
        observe: Observer,
        *,
        batch_max: int,
        wakes: Sequence[Callable[[], None]] = (),
        breakers: OwnerBreakers | None = None,
    ) -> None:
        """Take what is to be woken by new events, and the breakers that writers share."""
        super().__init__("writer")
        self._mailbox = mailbox
        self._store = store
        self._observe = observe
        self._batch_max = batch_max
        self._wakes = wakes
        self._contended = ContendedKeys()
        self._breakers = OwnerBreakers(observe) if breakers is None else breakers
        self._clock_seconds = self._breakers.clock_seconds

    def stop(self) -> None:
        """Break off a write that is under way. Idempotent."""
        super().stop()
        self._store.cut_off()

    async def close(self) -> None:
        """Give the connection back. Idempotent."""
        await self._store.close()

    async def run_once(self) -> int:
        """Wait for work, write one batch, answer it; return how many writes it had."""
        batch = await self._mailbox.take(self._batch_max, _rows_of, ROWS_MAX)
        # Every replica writes in the same order, so that they cannot deadlock each other.
        batch.sort(key=lambda envelope: envelope.message.group_id.bytes)
        unanswered: Exception = OutcomeUnknown("the writer was stopped")
        started = time.perf_counter()
        led = 0
        try:
            led = await self._write(batch)
        except StoreError as error:
            unanswered = error
        except Exception:
            # A bug: what it has left in the connection is not known. The clients do not wait for its end.
            _fail(batch, unanswered)
            await self._store.close()
            raise
        finally:
            _fail(batch, unanswered)
        if led:
            for wake in self._wakes:
                wake()
        self._observe(BatchWritten(len(batch), led, time.perf_counter() - started))
        return len(batch)

    async def _write(self, batch: Sequence[_Request]) -> int:
        """Write a batch; requests of owners who are paused are answered, or tried after the others."""
        if not self._breakers:
            return await self._write_shared(batch)
        self._breakers.drop_stale()
        free: list[_Request] = []
        probes: dict[UserId, list[_Request]] = {}
        for request in batch:
            owner = request.message.new_group.owner
            if owner not in self._breakers:
                free.append(request)
            elif owner in probes:
                probes[owner].append(request)
            elif self._breakers.may_probe(owner):
                probes[owner] = [request]
            else:
                # Before the others have their turn, and before anything is claimed.
                request.fail(self._breakers.error_of(owner))
        led = await self._write_shared(free) if free else 0
        for owner, requests in probes.items():
            led += await self._probe(owner, requests)
        return led

    async def _probe(self, owner: UserId, requests: Sequence[_Request]) -> int:
        """Try one request of a paused owner; the others follow it through, or get its error."""
        led = 0
        # Another writer may have opened, closed or probed it meanwhile.
        if owner in self._breakers and self._breakers.begin_probe(owner):
            try:
                led = await self._try_alone(requests[0])
            finally:
                self._breakers.end_probe()
        if owner not in self._breakers:
            return led + await self._write_shared(
                [request for request in requests if not request.answered.done()]
            )
        for request in requests:
            request.fail(self._breakers.error_of(owner))
        return led

    async def _try_alone(self, request: _Request) -> int:
        """Write a probe, once and in haste; close or keep the breaker by what it meets."""
        started, led = self._clock_seconds(), 0
        try:
            if request.message.is_claimed or await self._claim([request]):
                led = await self._lead_alone(request, (Locked,), is_hasty=True)
        except StoreError as error:
            request.fail(error)
            if _is_away(error):
                raise
            # A table that is locked says nothing of the owner.
            if type(error) is not Locked:
                seconds = self._clock_seconds() - started
                self._breakers.keep(request.message, seconds, error)
            return 0
        # Neither does an attempt of another's; a veto has got as far as a success.
        if not isinstance(_result_of(request), NotLed | None):
            self._breakers.close(request.message.new_group.owner)
        return led

    async def _write_shared(self, batch: Sequence[_Request]) -> int:
        """Write a batch; keys that held up a batch before come after the others, each alone."""
        if not self._contended:
            return await self._claim_and_lead(batch, self._claim)
        shared: list[_Request] = []
        contended: list[_Request] = []
        for request in batch:
            is_contended = request.message.group_id in self._contended
            (contended if is_contended else shared).append(request)
        led = await self._claim_and_lead(shared, self._claim)
        # In any order: whatever there is no time for has its turn another time.
        random.shuffle(contended)
        return led + await self._claim_and_lead(contended, self._claim_contended)

    async def _claim_and_lead(
        self,
        batch: Sequence[_Request],
        claim: Callable[[Sequence[_Request]], Awaitable[set[UUID]]],
    ) -> int:
        claims = [request for request in batch if not request.message.is_claimed]
        won = await claim(claims) if claims else set()
        leads = []
        for request in batch:
            if request.message.is_claimed or request.message.claim_token in won:
                leads.append(request)
            else:
                request.answer(NotLed())
        return await self._lead(leads) if leads else 0

    async def _claim(self, batch: Sequence[_Request]) -> set[UUID]:
        """Return the tokens that may lead."""
        try:
            return await self._claim_once(batch)
        except Locked:
            if len(batch) == 1:
                # The key is its leader's, or another's that claims it at this moment: follow.
                self._contended.add(batch[0].message.group_id)
                batch[0].answer(NotLed())
                return set()
        except StoreError as error:
            if _is_connection_lost(error):
                # Try to lead them all: the fence lets through those that carry our token.
                return {request.message.claim_token for request in batch}
            if len(batch) == 1 or _is_away(error):
                raise
        except Exception as error:
            if len(batch) == 1:
                raise
            await self._forget_bug(error)
            # As after a lost connection: what was claimed before the bug is ours to lead.
            return {request.message.claim_token for request in batch}
        apart = await self._take_apart(batch, lambda each: self._claim([each]), self._claim_once)
        return set().union(*apart)

    async def _claim_once(self, batch: Sequence[_Request]) -> set[UUID]:
        """Claim a batch in one statement, whatever comes of it; return the tokens that won."""
        with self._telling(batch):
            return await self._store.claim([request.message for request in batch])

    async def _claim_contended(self, batch: Sequence[_Request]) -> set[UUID]:
        """Claim each alone, for so long that the batches of others do not wait noticeably."""
        won: set[UUID] = set()
        started = time.perf_counter()
        for request in batch:
            if time.perf_counter() - started >= CONTENDED_SECONDS_MAX:
                break
            tokens = await self._claim([request])
            if tokens:
                self._contended.discard(request.message.group_id)
            won |= tokens
        return won

    async def _lead(self, batch: Sequence[_Request]) -> int:
        """Lead a batch together; where that does not go through, each request alone.

        Returns how many led.
        """
        if len(batch) == 1:
            started = self._clock_seconds()
            try:
                return await self._lead_alone(batch[0], (OutcomeUnknown, Transient))
            except (HookError, _RowLocked) as error:
                if len(self._mailbox):
                    seconds = self._clock_seconds() - started
                    self._breakers.charge(batch[0].message, seconds, error)
                raise
        try:
            return await self._lead_persistently(batch, (OutcomeUnknown, Locked))
        except StoreError as error:
            # A table that all need is locked, or the database is away: alone they would fail as well.
            may_be_table = isinstance(error, Locked) and not isinstance(error, _RowLocked)
            if _is_away(error) or (may_be_table and await self._are_tables_locked()):
                raise
        except Exception as error:  # noqa: BLE001 raised again where it lasts
            # A bug in judging one request: what it has left open is rolled back, or settled already.
            await self._forget_bug(error)
        return sum(await self._take_apart(batch, self._lead_hastily, self._lead_once))

    async def _lead_once(self, batch: Sequence[_Request]) -> int:
        """Lead the rest of a batch that was taken apart for too long."""
        return await self._lead_persistently(batch, (), is_hasty=True)

    async def _lead_hastily(self, request: _Request) -> int:
        """Lead one of a batch that was taken apart: its neighbours wait."""
        return await self._lead_alone(request, (Transient,), is_hasty=True)

    async def _lead_alone(
        self, request: _Request, retried: tuple[type[StoreError], ...], *, is_hasty: bool = False
    ) -> int:
        try:
            return await self._lead_persistently([request], retried, is_hasty=is_hasty)
        except Refused as refused:
            # The statement is over and rolled back, and none that carries this token can commit
            # once the attempt is failed: certain (G4).
            with self._telling([request]):
                is_failed = await self._store.fail(request.message, refused.failure)
            request.answer(SettledAsFailed(refused.failure) if is_failed else NotLed())
            return 0

    async def _take_apart(
        self,
        batch: Sequence[_Request],
        step: Callable[[_Request], Awaitable[Result]],
        together: Callable[[Sequence[_Request]], Awaitable[Result]],
    ) -> list[Result]:
        """Take a step for each request alone, so that one never fails its neighbours.

        Of an owner whose failures have taken too long, no more is tried. When all has taken too long,
        the rest is tried together once. Raises what ends it before all had their turn: the database is
        away, the rest has failed as well, or all have met a bug.
        """
        results: list[Result] = []
        failing: dict[UserId, _Failing] = {}
        started, bugs, is_late = self._clock_seconds(), 0, False
        left = list(reversed(batch))
        while left and not is_late:
            request, since = left.pop(), self._clock_seconds()
            owner = request.message.new_group.owner
            if owner in failing and failing[owner].seconds >= OWNER_SECONDS_MAX:
                request.fail(failing[owner].error)
                continue
            try:
                results.append(await step(request))
                continue
            except StoreError as error:
                _note_failure(failing, request, error, self._clock_seconds() - since)
                if _is_away(error):
                    raise
            except Exception as error:
                bugs += 1
                if bugs == len(batch):
                    raise
                await self._forget_bug(error)
                unknown = OutcomeUnknown("the writer has met a bug")
                _note_failure(failing, request, unknown, self._clock_seconds() - since)
            is_late = self._clock_seconds() - started >= APART_SECONDS_MAX
        rest = _fail_like(failing, reversed(left))
        try:
            if rest:
                results.append(await together(rest))
        finally:
            self._charge(batch, failing, is_own=bool(results))
            # Each error knows this frame by its traceback.
            failing.clear()
        return results

    async def _forget_bug(self, error: Exception) -> None:
        """Report a bug that did not end the turn, and take another connection."""
        self._observe(ActorCrashed(self.name, error))
        await self._store.close()

    def _charge(
        self, batch: Sequence[_Request], failing: dict[UserId, _Failing], *, is_own: bool
    ) -> None:
        """Charge owners with what their failures have cost, where they had neighbours.

        A lock on a row and a host's hook are their own. So is any other error while others get through.
        """
        has_neighbours = len({request.message.new_group.owner for request in batch}) > 1
        if has_neighbours or len(self._mailbox):
            for each in failing.values():
                if is_own or isinstance(each.error, HookError | _RowLocked):
                    self._breakers.charge(each.write, each.seconds, each.error)

    async def _lead_persistently(
        self,
        batch: Sequence[_Request],
        retried: tuple[type[StoreError], ...],
        *,
        is_hasty: bool = False,
    ) -> int:
        """Lead, and lead again with the same tokens after one of the `retried` errors.

        If the first statement may still be running, the second waits for its row locks. What the
        first committed is no longer pending, so the fence skips it; those requests get `NotLed`,
        follow, and find their own group. An attempt that stays locked is left out, and its request
        follows. Another row that stays locked is waited for only while that keeps no other waiting.
        """
        for failures in range(TRIES_MAX):
            is_first_of_many = len(batch) > 1 and not failures
            try:
                with self._telling(batch):
                    led = await self._store.lead(
                        [request.message for request in batch],
                        is_hasty=is_hasty or is_first_of_many,
                    )
                break
            except retried as error:
                is_locked, is_of_hook = (
                    isinstance(error, Locked),
                    isinstance(error, HookInterrupted),
                )
                # An error that the server itself gives for this write, it will give again.
                if failures == TRIES_MAX - 1 or isinstance(error, InDoubt):
                    raise
                if is_of_hook and (is_hasty or len(self._mailbox)):
                    raise
            if is_locked:
                free = await self._leave_out_locked(batch)
                if not free:
                    return 0
                if len(free) == len(batch):
                    await self._require_patience(batch, is_hasty=is_hasty)
                batch = free
            await asyncio.sleep(BACKOFF.seconds(failures))
        for request in batch:
            request.answer(Led() if request.message.claim_token in led else NotLed())
        return len(led)

    async def _leave_out_locked(self, batch: Sequence[_Request]) -> list[_Request]:
        """Have the requests follow whose attempts are held by another; return the others."""
        with self._telling(batch):
            free = await self._store.unlocked([request.message for request in batch])
        for request in batch:
            if request.message.claim_token not in free:
                request.answer(NotLed())
        return [request for request in batch if request.message.claim_token in free]

    async def _require_patience(self, batch: Sequence[_Request], *, is_hasty: bool) -> None:
        """Raise `_RowLocked` where a row of one request, such as a host's, would keep others waiting."""
        keeps_waiting = is_hasty or len(batch) > 1 or len(self._mailbox) > 0
        if keeps_waiting and not await self._are_tables_locked():
            message = "a row that the group refers to is held by another transaction"
            raise _RowLocked(message)

    async def _are_tables_locked(self) -> bool:
        with self._telling(()):
            return await self._store.are_tables_locked()

    @contextmanager
    def _telling(self, batch: Sequence[_Request]) -> Iterator[None]:
        """Tell the observer of every statement that did not go through."""
        try:
            yield
        except StoreError as error:
            self._observe(WriteTrouble(error, len(batch)))
            raise


def _fail(batch: Sequence[_Request], error: Exception) -> None:
    """Answer those that have no answer yet."""
    for request in batch:
        request.fail(error)


def _result_of(request: _Request) -> WriteResult | None:
    """Return what a request was answered, if its sender has not left."""
    is_answered = request.answered.done() and not request.answered.cancelled()
    return request.answered.result() if is_answered else None


def _note_failure(
    failing: dict[UserId, _Failing], request: _Request, error: StoreError, seconds: float
) -> None:
    """Answer a request that has failed alone, and note what it has cost its neighbours."""
    request.fail(error)
    each = failing.setdefault(request.message.new_group.owner, _Failing(request.message, error))
    each.write, each.error = request.message, error
    each.seconds += seconds


def _fail_like(failing: dict[UserId, _Failing], left: Iterable[_Request]) -> list[_Request]:
    """Answer the requests of owners who are failing as their others; return the rest."""
    rest = []
    for request in left:
        failed = failing.get(request.message.new_group.owner)
        if failed is None:
            rest.append(request)
        else:
            request.fail(failed.error)
    return rest


def _is_connection_lost(error: StoreError) -> bool:
    return isinstance(error, OutcomeUnknown) and not isinstance(error, InDoubt)


def _is_away(error: Exception) -> bool:
    return isinstance(error, Unreachable) and not isinstance(error, Misconfigured)


def _rows_of(write: Write) -> int:
    return ROWS_OF_GROUP + len(write.new_group.members)
