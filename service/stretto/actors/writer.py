"""GroupWriter: the only actor that writes groups.

It owns one database connection (inside its store) and shares a mailbox with its siblings. Whatever
has arrived during one batch is the next: an idle service adds no delay, a busy one few round trips.
A batch costs two: claim all, lead the won ones together.

What is certain is answered; what is not stays pending and is answered with the store's error. The
writer never follows and never decides what a request means.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import stamina

from stretto.actors.mailbox import Envelope, Mailbox
from stretto.protocol.ports import (
    BatchWritten,
    Led,
    NotLed,
    Observer,
    OutcomeUnknown,
    Refused,
    SettledAsFailed,
    StoreError,
    Transient,
    Write,
    WriterCrashed,
    WriteResult,
    WriteStore,
    WriteTrouble,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

# A write that keeps meeting deadlocks, full disks or broken connections is left pending after this
# many tries; its client comes back and finishes it.
TRIES_MAX: Final = 4
BACKOFF_SECONDS_FIRST: Final = 0.02
BACKOFF_SECONDS_MAX: Final = 0.5

_Request = Envelope[Write, WriteResult]


class GroupWriter:
    """Takes batches of writes from a mailbox and answers each with what is known of it."""

    def __init__(
        self,
        mailbox: Mailbox[Write, WriteResult],
        store: WriteStore,
        observe: Observer,
        *,
        batch_max: int,
    ) -> None:
        self._mailbox = mailbox
        self._store = store
        self._observe = observe
        self._batch_max = batch_max

    async def run(self) -> None:
        """Write batch after batch, until cancelled; then give the connection back."""
        try:
            while True:
                try:
                    await self.run_once()
                except Exception as error:  # noqa: BLE001 no bug may leave a service without writers
                    self._observe(WriterCrashed(error))
                    await self._store.close()
        finally:
            await self._store.close()

    def cut_off(self) -> None:
        """Break off a write that is under way; to be followed by cancelling `run`."""
        self._store.cut_off()

    async def run_once(self) -> int:
        """Wait for work, write one batch, answer it; return how many writes it had."""
        batch = await self._mailbox.take(self._batch_max)
        # Every replica writes in the same order, so that they cannot deadlock each other.
        batch.sort(key=lambda envelope: envelope.message.group_id.bytes)
        unanswered: Exception = OutcomeUnknown("the writer was stopped")
        started = time.perf_counter()
        led = 0
        try:
            led = await self._write(batch)
        except StoreError as error:
            unanswered = error
        finally:
            for envelope in batch:
                envelope.fail(unanswered)
        self._observe(BatchWritten(len(batch), led, time.perf_counter() - started))
        return len(batch)

    async def _write(self, batch: Sequence[_Request]) -> int:
        claims = [request for request in batch if not request.message.is_claimed]
        won = await self._claim(claims) if claims else set()
        leads = []
        for request in batch:
            if request.message.is_claimed or request.message.claim_token in won:
                leads.append(request)
            else:
                request.answer(NotLed())
        return await self._lead(leads) if leads else 0

    async def _claim(self, batch: Sequence[_Request]) -> set[UUID]:
        """Return the tokens that may lead. A key that another backend holds up delays no other."""
        try:
            with self._telling(batch):
                return await self._store.claim([request.message for request in batch])
        except OutcomeUnknown:
            # Try to lead them all: the fence lets through those that carry our token.
            return {request.message.claim_token for request in batch}
        except (Transient, Refused) as error:
            if len(batch) == 1:
                batch[0].fail(error)
                return set()
        return {token for request in batch for token in await self._claim([request])}

    async def _lead(self, batch: Sequence[_Request]) -> int:
        """Lead a batch together; where that does not go through, each request alone.

        One poisonous request so never fails its neighbours. Returns how many led.
        """
        if len(batch) > 1:
            try:
                led = await self._lead_persistently(batch, (OutcomeUnknown,))
            except (Refused, Transient):
                return sum([await self._lead([request]) for request in batch])
        else:
            (request,) = batch
            try:
                led = await self._lead_persistently(batch, (OutcomeUnknown, Transient))
            except Refused as refused:
                # The statement is over and rolled back, and none that carries this token can
                # commit once the attempt is failed: certain (G4).
                with self._telling(batch):
                    is_failed = await self._store.fail(request.message, refused.failure)
                request.answer(SettledAsFailed(refused.failure) if is_failed else NotLed())
                return 0
            except Transient as error:
                request.fail(error)
                return 0
        for request in batch:
            request.answer(Led() if request.message.claim_token in led else NotLed())
        return len(led)

    async def _lead_persistently(
        self, batch: Sequence[_Request], retried: tuple[type[StoreError], ...]
    ) -> set[UUID]:
        """Lead, and lead again with the same tokens after one of the `retried` errors.

        Where the outcome of the first statement is unknown, the second waits on its row locks,
        should it still run, and the fence drops what it has committed: those are not led, follow,
        and find their own group.
        """
        writes = [request.message for request in batch]
        async for attempt in stamina.retry_context(
            on=retried,
            attempts=TRIES_MAX,
            timeout=None,
            wait_initial=BACKOFF_SECONDS_FIRST,
            wait_max=BACKOFF_SECONDS_MAX,
            wait_jitter=BACKOFF_SECONDS_FIRST,
        ):
            with attempt, self._telling(batch):
                return await self._store.lead(writes)
        raise AssertionError  # the last try has returned or raised

    @contextmanager
    def _telling(self, batch: Sequence[_Request]) -> Iterator[None]:
        """Tell the observer of every statement that did not go through."""
        try:
            yield
        except StoreError as error:
            self._observe(WriteTrouble(error, len(batch)))
            raise
