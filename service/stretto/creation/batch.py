"""BatchWriter: writes a batch in two statements, claim and lead, and answers each of its requests.

What is certain is answered. What is not stays pending: it raises a `StoreError`, or its request is
answered with one. Nothing here follows, or decides what a request means.

No request harms its neighbours. What another transaction holds is answered `NotLed`: its request
follows. A batch that fails is taken apart, whatever the error (`apart.py`).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stretto.creation.apart import Halves, OneByOne, _RowLocked, is_away
from stretto.creation.contention import ContendedKeys
from stretto.creation.ports import Led, NotLed, SettledAsFailed
from stretto.errors import (
    HookError,
    HookInterrupted,
    InDoubt,
    Locked,
    OutcomeUnknown,
    Refused,
    StoreError,
    Transient,
)
from stretto.observations import ActorCrashed, WriteTrouble
from stretto.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from uuid import UUID

    from stretto.creation.breakers import OwnerBreakers
    from stretto.creation.ports import Write, WriteRequest, WriteResult, WriteStore
    from stretto.observations import Observer
    from stretto.runtime.mailbox import Mailbox

# The actor that writes batches, as logs and metrics name it.
WRITER: Final = "writer"
# A write that keeps meeting deadlocks, full disks or broken connections is left pending after this
# many tries; its client comes back and finishes it.
TRIES_MAX: Final = 4
BACKOFF: Final = Backoff(0.02, 0.5)
# Keys that held up a batch before are claimed alone, after the others, for so long in each batch.
CONTENDED_SECONDS_MAX: Final = 0.1


class BatchWriter:
    """Claims and leads; one statement for all where that goes through."""

    def __init__(
        self,
        store: WriteStore,
        mailbox: Mailbox[Write, WriteResult],
        breakers: OwnerBreakers,
        observe: Observer,
    ) -> None:
        """Take the mailbox only to see whether others wait."""
        self._store = store
        self._mailbox = mailbox
        self._breakers = breakers
        self._observe = observe
        self.contended = ContendedKeys()

    async def write(
        self,
        batch: Sequence[WriteRequest],
        claim: Callable[[Sequence[WriteRequest]], Awaitable[set[UUID]]] | None = None,
    ) -> int:
        """Claim a batch together, then lead what was won; return how many led."""
        claims = [request for request in batch if not request.message.is_claimed]
        won = await (claim or self._claim)(claims) if claims else set()
        leads = []
        for request in batch:
            if request.message.is_claimed or request.message.claim_token in won:
                leads.append(request)
            else:
                request.answer(NotLed())
        return await self._lead(leads) if leads else 0

    async def write_contended(self, batch: list[WriteRequest]) -> int:
        """Claim each alone, as long as the batches of others hardly notice; lead the won together."""
        # In random order: a key that gets no time now gets it in another batch.
        random.shuffle(batch)
        return await self.write(batch, self._claim_contended)

    async def write_probe(self, request: WriteRequest) -> int:
        """Claim and lead one request alone, once and in haste."""
        if request.message.is_claimed or await self._claim([request]):
            return await self._lead_persistently([request], (Locked,), is_hasty=True)
        return 0

    async def _claim(self, batch: Sequence[WriteRequest]) -> set[UUID]:
        """Return the tokens that may lead."""
        try:
            return await self._claim_once(batch)
        except Locked:
            if len(batch) == 1:
                # The attempt is its leader's, or another request claims it at this moment: follow.
                self.contended.add(batch[0].message.group_id)
                batch[0].answer(NotLed())
                return set()
        except StoreError as error:
            if isinstance(error, OutcomeUnknown) and not isinstance(error, InDoubt):
                # The connection was lost. Lead them all: the fence lets through what carries our token.
                return {request.message.claim_token for request in batch}
            if len(batch) == 1 or is_away(error):
                raise
        except Exception as error:
            if len(batch) == 1:
                raise
            await self._forget_bug(error)
            # As after a lost connection: what was claimed before the bug is ours to lead.
            return {request.message.claim_token for request in batch}
        apart = self._one_by_one(batch)
        return set().union(*await apart.write(lambda each: self._claim([each]), self._claim_once))

    async def _claim_once(self, batch: Sequence[WriteRequest]) -> set[UUID]:
        """Claim a batch in one statement, whatever comes of it; return the tokens that won."""
        with self._reporting(batch):
            return await self._store.claim([request.message for request in batch])

    async def _claim_contended(self, batch: Sequence[WriteRequest]) -> set[UUID]:
        """Claim each alone until the time for contended keys is over."""
        won: set[UUID] = set()
        started = self._breakers.clock_seconds()
        for request in batch:
            if self._breakers.clock_seconds() - started >= CONTENDED_SECONDS_MAX:
                break
            tokens = await self._claim([request])
            if tokens:
                self.contended.discard(request.message.group_id)
            won |= tokens
        return won

    async def _lead(self, batch: Sequence[WriteRequest]) -> int:
        """Lead a batch together; where that fails, each request alone. Return how many led."""
        is_alone = len(batch) == 1
        started = self._breakers.clock_seconds()
        try:
            retried = (OutcomeUnknown, Transient if is_alone else Locked)
            return await self._lead_persistently(batch, retried)
        except Refused:
            return await self._lead_halves(batch, started)
        except StoreError as error:
            if is_alone:
                if isinstance(error, HookError | _RowLocked) and len(self._mailbox):
                    seconds = self._breakers.clock_seconds() - started
                    self._breakers.charge(batch[0].message, seconds, error)
                raise
            # A table that all need is locked, or the database is away: alone they would fail as well.
            may_be_table = isinstance(error, Locked) and not isinstance(error, _RowLocked)
            if is_away(error) or (may_be_table and await self._are_tables_locked()):
                raise
        except Exception as error:
            if is_alone:
                raise
            # A bug in judging one request: what it has left open is rolled back, or settled already.
            await self._forget_bug(error)
        return await self._lead_apart(batch)

    async def _lead_halves(self, batch: Sequence[WriteRequest], started: float) -> int:
        """Lead a batch of which the server, or a host's hook, has refused some: it does not say which.

        A half without a refused one goes through together, so that a veto costs its neighbours a few
        statements, and not one for each of them.
        """
        halves = Halves(batch, started, self._breakers)
        led = 0
        for part in halves:
            try:
                if len(part) == 1:
                    led += await self._lead_apart(part)
                else:
                    led += await self._lead_persistently(part, (), is_hasty=True)
            except Refused:
                halves.split(part)
            except StoreError as error:
                if is_away(error):
                    raise
                led += await self._lead_apart(part)
            except Exception as error:  # noqa: BLE001 raised again where it lasts
                await self._forget_bug(error)
                led += await self._lead_apart(part)
        halves.charge()
        return led

    async def _lead_apart(self, batch: Sequence[WriteRequest]) -> int:
        apart = self._one_by_one(batch)
        return sum(await apart.write(self._lead_hastily, self._lead_rest))

    async def _lead_hastily(self, request: WriteRequest) -> int:
        """Lead one request of a batch that was taken apart: its neighbours wait."""
        return await self._lead_persistently([request], (Transient,), is_hasty=True)

    async def _lead_rest(self, batch: Sequence[WriteRequest]) -> int:
        """Lead the rest of a batch that was taken apart for too long, once."""
        return await self._lead_persistently(batch, (), is_hasty=True)

    async def _lead_persistently(
        self,
        batch: Sequence[WriteRequest],
        retried: tuple[type[StoreError], ...],
        *,
        is_hasty: bool = False,
    ) -> int:
        """Lead, and lead again with the same tokens after one of the `retried` errors.

        If the first statement may still be running, the second waits for its row locks. What the
        first committed is no longer pending, so the fence skips it; those requests get `NotLed`,
        follow, and find their own group. An attempt that stays locked is left out, and its request
        follows. Another row that stays locked is waited for only while no other request waits.
        """
        for failures in range(TRIES_MAX):
            is_first_of_many = len(batch) > 1 and not failures
            try:
                with self._reporting(batch):
                    led = await self._store.lead(
                        [request.message for request in batch],
                        is_hasty=is_hasty or is_first_of_many,
                    )
                break
            except Refused as refused:
                if len(batch) > 1:
                    raise
                await self._settle_as_failed(batch[0], refused)
                return 0
            except retried as error:
                is_locked = isinstance(error, Locked)
                is_of_hook = isinstance(error, HookInterrupted)
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

    async def _settle_as_failed(self, request: WriteRequest, refused: Refused) -> None:
        """Settle an attempt that the server has refused to lead.

        The statement is over and rolled back, and none that carries this token can commit once the
        attempt is failed: certain (G4).
        """
        with self._reporting([request]):
            is_failed = await self._store.fail(request.message, refused.failure)
        request.answer(SettledAsFailed(refused.failure) if is_failed else NotLed())

    async def _leave_out_locked(self, batch: Sequence[WriteRequest]) -> list[WriteRequest]:
        """Have the requests follow whose attempts another transaction holds; return the others."""
        with self._reporting(batch):
            free = await self._store.unlocked([request.message for request in batch])
        for request in batch:
            if request.message.claim_token not in free:
                request.answer(NotLed())
        return [request for request in batch if request.message.claim_token in free]

    async def _require_patience(self, batch: Sequence[WriteRequest], *, is_hasty: bool) -> None:
        """Raise `_RowLocked` where a row of one request, such as a host's, would keep others waiting."""
        keeps_waiting = is_hasty or len(batch) > 1 or len(self._mailbox) > 0
        if keeps_waiting and not await self._are_tables_locked():
            message = "a row that the group refers to is held by another transaction"
            raise _RowLocked(message)

    async def _are_tables_locked(self) -> bool:
        with self._reporting(()):
            return await self._store.are_tables_locked()

    def _one_by_one(self, batch: Sequence[WriteRequest]) -> OneByOne:
        return OneByOne(batch, self._mailbox, self._breakers, self._forget_bug)

    async def _forget_bug(self, error: Exception) -> None:
        """Report a bug that did not end the turn, and take another connection."""
        self._observe(ActorCrashed(WRITER, error))
        await self._store.close()

    @contextmanager
    def _reporting(self, batch: Sequence[WriteRequest]) -> Iterator[None]:
        """Report every statement that fails."""
        try:
            yield
        except StoreError as error:
            self._observe(WriteTrouble(error, len(batch)))
            raise
