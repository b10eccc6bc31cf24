"""GroupWriter: the only actor that writes groups.

It owns one database connection (inside its store) and shares a mailbox with its siblings, of which
one at a time takes requests (`baton.py`). What arrives during one batch is the next: an idle
service adds no delay, and a busy one adds few round trips. A batch costs one (`batch.py`). A writer
that has lost its connection takes no request while a sibling has one.

A batch is bounded by rows. Keys that held up a batch before come after the others. So do requests of
suspects (`suspects.py`), each alone. Those of paused owners (`breakers.py`) are answered, or come last.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.batch import BatchWriter
from stretto.creation.blame import is_away
from stretto.creation.leads import BACKOFF, WRITER
from stretto.creation.ports import Led, NotLed
from stretto.creation.requests import age_order, has_several_owners, lead_order, result_of
from stretto.observations import BatchWritten, WriteFailed
from stretto.runtime.actor import Actor, TryAgain
from stretto.store_errors import Locked, OutcomeUnknown, StoreError
from stretto.telemetry.request_context import traces_of
from stretto.telemetry.tracing import batch_span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stretto.creation.baton import Baton
    from stretto.creation.breakers import OwnerBreakers
    from stretto.creation.ports import Write, WriteRequest, WriteStore
    from stretto.domain import UserId
    from stretto.observations import Observer

# Four of the largest groups: 0.2 s on two busy cores, a twenty-fifth of what a write may take. 128
# of the largest take longer than that, and small ones would wait behind them.
ROWS_MAX: Final = 4096
# Attempt, conversation, group, owner and event; each other member is one more.
ROWS_OF_GROUP: Final = 5
# In a turn of an owner. The largest group takes 32 turns and 6 places in the mailbox: by default at
# most 171 of them wait. That is 2 s of work, or 9 s where four take 0.2 s; a client waits 10 s. The
# largest group has 140 times as many rows as the smallest, and takes 50 times as long.
ROWS_OF_TURN: Final = 32


class GroupWriter(Actor):
    """Takes batches of writes from a mailbox and answers each with what is known of it."""

    backoff = BACKOFF

    def __init__(
        self,
        baton: Baton,
        store: WriteStore,
        observe: Observer,
        *,
        breakers: OwnerBreakers,
        batch_max: int,
        wakes: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Take the breakers and the baton that all writers share, and what new events wake."""
        super().__init__(WRITER)
        self._baton = baton
        baton.join(self)
        self._store = store
        baton.stores.append(store)
        self._observe = observe
        self._breakers = breakers
        self._batch_max = batch_max
        self._wakes = wakes
        self._batches = BatchWriter(store, baton.mailbox, breakers, observe)

    def stop(self) -> None:
        """Break off a write that is under way. Idempotent."""
        super().stop()
        self._store.cut_off()

    async def close(self) -> None:
        """Give the baton and the connection back. Idempotent."""
        self._baton.leave(self)
        await self._store.close()

    async def run_once(self) -> int:
        """Wait for work, write one batch, answer it; return how many writes it had."""
        batch: list[WriteRequest] = []
        try:
            await self._connect()
            batch = await self._baton.take(self, self._batch_max, _rows_of, ROWS_MAX)
            if self._is_left_out():
                # It has lost the connection while it waited. Nothing is claimed yet.
                self._baton.mailbox.put_back(batch)
                self._baton.pass_on(self)
                return 0
            traces = traces_of(request.message.request for request in batch)
            with batch_span(traces, len(batch)):
                await self._write_and_answer(batch)
        except BaseException:
            # The pause that follows is this writer's alone: another one may go on.
            self._baton.pass_on(self)
            if batch:
                # Whatever was raised, a host's errors of any kind too: a flight without an answer would
                # never end.
                for request in batch:
                    request.fail(OutcomeUnknown("the writer has failed"))
                # A bug or a cancellation leaves the connection in an unknown state.
                await self._store.close()
            raise
        self._baton.rest(self)
        return len(batch)

    def _is_left_out(self) -> bool:
        """Whether another writer has a connection, and this one has none.

        If no writer has one, each takes requests and connects for them, or fails them at once.
        """
        return not self._store.is_connected and any(
            store.is_connected for store in self._baton.stores
        )

    async def _connect(self) -> None:
        """Connect before taking requests that another writer can write; raises `TryAgain`.

        The server may have no connection left for this writer, such as by the limit of its role.
        """
        if self._is_left_out():
            self._baton.pass_on(self)
            try:
                await self._store.open()
            except StoreError as error:
                self._observe(WriteFailed(error, 0))
                raise TryAgain from error

    async def _write_and_answer(self, batch: list[WriteRequest]) -> None:
        """Write a batch; each of its requests is answered or put back, whatever has happened."""
        batch.sort(key=lead_order)
        unanswered: Exception = OutcomeUnknown("the writer was stopped, or has failed")
        started = time.perf_counter()
        led = 0
        untried: list[WriteRequest] = []
        try:
            led = await self._write(batch)
            untried = self._batches.take_untried()
        except StoreError as error:
            unanswered = error
            # What was led before it: its events are in the log.
            led = sum(isinstance(result_of(request), Led) for request in batch)
            # The connection of another writer may live. If none does, readiness learns it from all.
            self._baton.pass_on(self)
        finally:
            # After an error none is put back: all that have no answer yet get the error.
            self._batches.take_untried()
            untried_tokens = {request.message.claim_token for request in untried}
            for request in batch:
                if request.message.claim_token not in untried_tokens:
                    request.fail(unanswered)
        if led:
            for wake in self._wakes:
                wake()
        self._observe(BatchWritten(len(batch), led, time.perf_counter() - started))
        # The last steps: what is put back must not be failed.
        rest: list[WriteRequest] = []
        for request in untried:
            (self._baton.held if self._awaits_probe(request) else rest).append(request)
        self._baton.mailbox.put_back(rest)

    async def _write(self, batch: Sequence[WriteRequest]) -> int:
        """Write most together, then what is led apart, and probes; return how many led."""
        suspects, proofs = self._breakers.suspects, self._breakers.proofs
        if not self._breakers and not suspects and not self._batches.contended:
            return await self._batches.write(batch)
        self._breakers.drop_stale()
        self._batches.contended.drop_stale()
        since = self._breakers.clock_seconds()
        parts: tuple[list[WriteRequest], ...] = ([], [], [], [])
        shared, contended, newcomers, suspected = parts
        paused: dict[UserId, list[WriteRequest]] = {}
        for request in batch:
            owner = request.message.new_group.owner
            if owner not in self._breakers:
                if owner in suspects:
                    suspected.append(request)
                elif request.message.group_id in self._batches.contended:
                    contended.append(request)
                else:
                    is_shared = not suspects.are_newcomers_apart or proofs.is_known(owner)
                    (shared if is_shared else newcomers).append(request)
            elif owner in paused:
                paused[owner].append(request)
            elif self._breakers.may_probe(owner):
                paused[owner] = [request]
            elif self._awaits_probe(request):
                self._batches.put_back([request])
            else:
                # Before the others have their turn. One that is new is not claimed yet.
                request.fail(self._breakers.error_of(owner))
        has_others = shared or contended or paused or len(self._baton.mailbox)
        if not has_others and not has_several_owners(newcomers + suspected):
            # This owner keeps no other waiting: its hook may take long.
            shared, newcomers, suspected = newcomers + suspected, [], []
        led = await self._batches.write(shared)
        if contended:
            led += await self._batches.write_contended(contended)
        for apart in filter(None, (newcomers, suspected)):
            led += await self._batches.write_apart(apart, since)
        if paused:
            led += await self._write_probes(paused)
        return led

    async def _write_probes(self, paused: Mapping[UserId, Sequence[WriteRequest]]) -> int:
        """Probe paused owners for a bounded time; return how many led.

        A probe that is refused, or goes through slowly, keeps no other from its turn.
        """
        began, led = self._breakers.clock_seconds(), 0
        # Those first that stand best, then the oldest. The order of a batch is that of the groups'
        # ids: a high one would never have its turn.
        ages = {owner: min(map(age_order, requests)) for owner, requests in paused.items()}
        try:
            for owner in sorted(paused, key=lambda each: (*self._breakers.turn(each), ages[each])):
                is_over = self._breakers.clock_seconds() - began >= APART_SECONDS_MAX
                if is_over and self._baton.mailbox.has_besides(self._breakers):
                    self._batches.put_back(paused[owner])
                    continue
                if self._breakers.is_culprit(owner):
                    # None waits for its probe, which may take long.
                    self._baton.release()
                led += await self._probe(owner, paused[owner])
        finally:
            self._baton.release()
        return led

    def _awaits_probe(self, request: WriteRequest) -> bool:
        """Whether a request waits for the end of another writer's probe, which is short.

        It is not answered before: it may have claimed, and its lease would keep its client out.
        """
        return self._breakers.awaits_probe(request.message.new_group.owner)

    async def _probe(self, owner: UserId, requests: Sequence[WriteRequest]) -> int:
        """Try one request of a paused owner; after a success write the others, else fail them.

        After a refusal they wait for a later batch if others wait: each may be refused alone.
        """
        led = 0
        # Another writer may have paused, resumed or probed the owner meanwhile.
        if owner in self._breakers and self._breakers.begin_probe(owner):
            try:
                led = await self._try_alone(requests[0])
            finally:
                self._breakers.end_probe(owner)
        if owner not in self._breakers:
            rest = [request for request in requests if not request.answered.done()]
            if led or not len(self._baton.mailbox):
                return led + await self._write(rest)
            self._batches.put_back(rest)
            return 0
        if self._breakers.awaits_probe(owner):
            self._batches.put_back(requests)
            return 0
        for request in requests:
            request.fail(self._breakers.error_of(owner))
        return led

    async def _try_alone(self, request: WriteRequest) -> int:
        """Write a probe; its outcome ends the pause of its owner, or prolongs it."""
        started, led = self._breakers.clock_seconds(), 0
        owner = request.message.new_group.owner
        try:
            # A culprit's hook may take long while no other waits for it. A victim needs no time: the
            # next probe finds a lock free as well.
            is_culprit = self._breakers.is_culprit(owner)
            is_hasty = not is_culprit or self._breakers.others_wait(self._baton.mailbox)
            led = await self._batches.write_probe(request, is_hasty=is_hasty)
        except StoreError as error:
            # A locked table says nothing about the owner.
            if not is_away(error) and type(error) is not Locked:
                seconds = self._breakers.clock_seconds() - started
                self._breakers.keep(request.message, seconds, error)
                error.retry_after_seconds = self._breakers.retry_after_seconds(owner)
            request.fail(error)
            if is_away(error):
                raise
            return 0
        # `NotLed` says nothing about the owner: the attempt is another's. A refusal, by hook or
        # database, ends the pause as a success does: the write has come as far.
        if not isinstance(result_of(request), NotLed | None):
            self._breakers.close(owner)
        return led


def turns_of(write: Write) -> int:
    """Return how many turns of its owner a write takes in the mailbox."""
    return 1 + (ROWS_OF_GROUP + len(write.new_group.members)) // ROWS_OF_TURN


def _rows_of(write: Write) -> int:
    return ROWS_OF_GROUP + len(write.new_group.members)
