"""LeadWriter: leads claimed requests, retries, and says which attempts fail.

What is settled is answered. What is not settled stays pending: it raises a `StoreError`, or its
request is answered with one.

No request harms its neighbours. What another transaction holds is answered `NotLed`: its request
follows. A batch that fails is taken apart, whatever the error (`apart.py`, `halves.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stretto.creation.apart import SLOW_RATIO, OneByOne
from stretto.creation.blame import RowLocked, is_away, is_ended, is_own, note_hang, slow
from stretto.creation.breakers import OWNER_SECONDS_MAX
from stretto.creation.halves import Halves
from stretto.creation.ports import Led, NotLed, SettledAsFailed
from stretto.creation.requests import as_claimed, kept
from stretto.observations import ActorCrashed, AttemptStrayed, WriteFailed
from stretto.runtime.backoff import Backoff
from stretto.store_errors import (
    HookCutOff,
    HookInterrupted,
    InDoubt,
    Locked,
    OutcomeUnknown,
    Refused,
    StoreError,
    Transient,
)
from stretto.telemetry.request_context import request_ids
from stretto.telemetry.tracing import step_of_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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


class LeadWriter:
    """Leads; one statement for all where that goes through."""

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
        self.untried: list[WriteRequest] = []
        """Requests for which no time was left, to be put back into the mailbox."""

    async def lead(
        self,
        batch: Sequence[WriteRequest],
        started: float | None = None,
        failed: list[StoreError] | None = None,
    ) -> int:
        """Lead a batch together; where that fails, each request alone. Return how many led.

        `failed` holds one error if this batch was led before, at `started`: the first try takes it out,
        and raises it instead of sending. It is a list so that no frame keeps the error: a cycle.
        """
        is_alone, hang_seconds = len(batch) == 1, 0.0
        started = self._breakers.clock_seconds() if started is None else started
        try:
            retried = (
                (OutcomeUnknown, Transient, HookCutOff) if is_alone else (OutcomeUnknown, Locked)
            )
            led = await self._lead_persistently(batch, retried, failed=failed)
        except Refused:
            return await self.lead_parts(batch, started)
        except StoreError as error:
            # A table that all need is locked, or the database is away: each would fail alone too.
            may_be_table = isinstance(error, Locked) and not isinstance(error, RowLocked)
            if is_alone:
                self.charge_alone(batch[0].message, started, error)
                if is_away(error) or may_be_table:
                    raise
                # Suspects and probes, which come after it, must not get its error.
                batch[0].fail(error)
                return 0
            if is_away(error) or (may_be_table and await self._are_tables_locked()):
                raise
            if is_ended(error):
                hang_seconds = self._breakers.clock_seconds() - started
                self._breakers.suspects.note_batch_hang()
        except Exception as error:
            if is_alone:
                raise
            # A bug in judging one request: what it left open is rolled back, or settled already.
            await self.forget_bug(error)
        else:
            if is_alone and led:
                self._charge_slow(batch[0].message, started)
            return led
        return await self._lead_apart(batch, hang_seconds)

    async def lead_probe(self, request: WriteRequest, *, is_hasty: bool) -> int:
        """Lead one request alone; only a lock is waited for again."""
        return await self._lead_persistently([request], (Locked,), is_hasty=is_hasty)

    async def unlocked(self, batch: Sequence[WriteRequest]) -> set[UUID]:
        """Return the tokens of the attempts that are ours to lead, and that no other holds."""
        with self.reporting(batch, "unlocked"):
            return await self._store.unlocked([request.message for request in batch])

    def charge_alone(self, write: Write, started: float, error: StoreError) -> None:
        """Charge the owner of a request that has failed alone, if others waited in the mailbox."""
        seconds = self._breakers.clock_seconds() - started
        note_hang(self._breakers, write, error, seconds)
        if len(self._mailbox) and is_own(error, started, self._breakers):
            self._breakers.charge(write, seconds, error)
            self._breakers.proofs.forget(write.new_group.owner)

    def _charge_slow(self, write: Write, started: float) -> None:
        """Charge the owner of a request that was led alone, if it took long and others waited.

        Not where the server, or the host's hook, may be slow for all: where no other write has gone
        through meanwhile, in much less time.
        """
        seconds, owner = self._breakers.clock_seconds() - started, write.new_group.owner
        if seconds < OWNER_SECONDS_MAX or not len(self._mailbox):
            return
        if seconds >= SLOW_RATIO * self._breakers.proofs.quickest_since_besides(started, owner):
            self._breakers.charge(write, seconds, slow())

    def answered(self, batch: Sequence[WriteRequest], led: set[UUID], started: float) -> int:
        """Answer every request of a batch, of which these tokens have led; return how many led."""
        if led:
            seconds = self._breakers.clock_seconds() - started
            writes = (each.message for each in batch if each.message.claim_token in led)
            self._breakers.note_led([write.new_group.owner for write in writes], seconds)
        for request in batch:
            request.answer(Led() if request.message.claim_token in led else NotLed())
        return len(led)

    def one_by_one(self, batch: Sequence[WriteRequest], since: float | None = None) -> OneByOne:
        """Return what tries each request of a batch alone."""
        return OneByOne(batch, self._mailbox, self._breakers, self.forget_bug, since)

    async def forget_bug(self, error: Exception) -> None:
        """Report a bug that did not end the turn; the next statement gets another connection."""
        self._observe(ActorCrashed(WRITER, error))
        await self._store.close()

    @contextmanager
    def reporting(self, batch: Sequence[WriteRequest], step: str) -> Iterator[None]:
        """Report every statement that fails, and trace it as a step of its batch."""
        try:
            with step_of_batch(f"stretto.{step}"):
                yield
        except StoreError as error:
            failure = WriteFailed(error, len(batch), request_ids(r.message.request for r in batch))
            self._observe(failure)
            if isinstance(error, OutcomeUnknown):
                self._observe_unknown(batch, failure.kind)
            raise

    def _observe_unknown(self, batch: Sequence[WriteRequest], kind: str) -> None:
        """Report each attempt of which it is not known what a statement has done."""
        for write in (request.message for request in batch):
            ids = write.group_id, write.new_group.owner, write.claim_token
            self._observe(AttemptStrayed("unknown", *ids, kind, write.trace_id))

    async def lead_parts(self, batch: Sequence[WriteRequest], started: float | None = None) -> int:
        """Lead a batch in halves: the server or a host's hook refuses some, not saying which.

        A half without a refused one goes through together, so that a veto costs its neighbours a
        few statements, and not one for each of them. What it has no time for stays claimed.
        """
        halves = Halves(batch, started, self._breakers, self._mailbox)
        led = 0
        for part in halves:
            try:
                if len(part) == 1:
                    led += await self._lead_apart(part)
                else:
                    led += await self._lead_persistently(part, (), is_hasty=True)
            except Refused:
                halves.split()
            except StoreError as error:
                if is_away(error):
                    raise
                led += await self._lead_apart(part)
            except Exception as error:  # noqa: BLE001 raised again where it lasts
                await self.forget_bug(error)
                led += await self._lead_apart(part)
        halves.charge()
        self.untried += as_claimed(halves.rest())
        return led

    async def _lead_apart(self, batch: Sequence[WriteRequest], hang_seconds: float = 0.0) -> int:
        """Lead each alone, in haste: its neighbours wait. The rest stays claimed (`untried`)."""
        led, untried = await self.one_by_one(batch).write(
            lambda each: self._lead_persistently([each], (Transient,), is_hasty=True),
            hang_seconds=hang_seconds,
        )
        self.untried += as_claimed(untried)
        return sum(led)

    async def _lead_persistently(
        self,
        batch: Sequence[WriteRequest],
        retried: tuple[type[StoreError], ...],
        *,
        is_hasty: bool = False,
        failed: list[StoreError] | None = None,
    ) -> int:
        """Lead, and lead again with the same tokens after one of the `retried` errors.

        If the first statement may still be running, the second waits for its row locks. What the
        first committed is no longer pending, so the fence skips it; those requests get `NotLed`,
        follow, and find their own group. An attempt that stays locked is left out, and its request
        follows. Another row that stays locked is waited for only while no other request waits.
        """
        started = self._breakers.clock_seconds()
        for failures in range(TRIES_MAX):
            is_first_of_many = len(batch) > 1 and not failures
            try:
                led = await self._lead_once(batch, failed, is_hasty=is_hasty or is_first_of_many)
                break
            except Refused as refused:
                if len(batch) > 1:
                    raise
                await self._settle_as_failed(batch[0], refused)
                return 0
            except retried as error:
                is_locked = isinstance(error, Locked)
                # Once, a session may be lost to a failover. What is done in haste is a second try.
                is_cut_off = isinstance(error, HookCutOff) and (failures or is_hasty)
                is_of_hook = isinstance(error, HookInterrupted) or is_cut_off
                # `InDoubt` is the server's own answer to this write: it would give it again.
                if failures == TRIES_MAX - 1 or isinstance(error, InDoubt):
                    raise
                if is_of_hook and (is_hasty or len(self._mailbox)):
                    raise
            if is_locked:
                free = kept(batch, await self.unlocked(batch))
                if not free:
                    return 0
                if len(free) == len(batch):
                    await self._require_patience(batch, is_hasty=is_hasty)
                batch = free
            await asyncio.sleep(BACKOFF.seconds(failures))
        return self.answered(batch, led, started)

    async def _lead_once(
        self, batch: Sequence[WriteRequest], failed: list[StoreError] | None, *, is_hasty: bool
    ) -> set[UUID]:
        """Lead in one statement, or raise the error of an earlier try (`lead`). Handles no error."""
        if failed:
            raise failed.pop()
        with self.reporting(batch, "lead"):
            return await self._store.lead([request.message for request in batch], is_hasty=is_hasty)

    async def _settle_as_failed(self, request: WriteRequest, refused: Refused) -> None:
        """Settle an attempt that the server, or the host's hook, has refused to lead.

        The statement is over and rolled back, and none that carries this token can commit once the
        attempt is failed: certain (G4).
        """
        with self.reporting([request], "fail"):
            is_failed = await self._store.fail(request.message, refused.failure)
        owner = request.message.new_group.owner
        # The write has come as far as one that goes through.
        self._breakers.suspects.clear(owner)
        self._breakers.note_refused(owner)
        request.answer(SettledAsFailed(refused.failure, refused.is_veto) if is_failed else NotLed())

    async def _require_patience(self, batch: Sequence[WriteRequest], *, is_hasty: bool) -> None:
        """Raise `RowLocked` if a locked row of one request, such as a host's, delays others."""
        keeps_waiting = is_hasty or len(batch) > 1 or len(self._mailbox) > 0
        if keeps_waiting and not await self._are_tables_locked():
            message = "a row that the group refers to is held by another transaction"
            raise RowLocked(message)

    async def _are_tables_locked(self) -> bool:
        with self.reporting((), "are_tables_locked"):
            return await self._store.are_tables_locked()
