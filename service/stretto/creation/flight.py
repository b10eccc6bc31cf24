"""A flight: one key on its way to an outcome in this process, and the requests that wait for it.

It is registered in the step that hands in its write, so a key has one flight at most.
It finishes once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from stretto.codec import read_created
from stretto.creation.attempt import AnswerStatus
from stretto.creation.ports import Led, NotLed, SettledAsFailed, Write
from stretto.domain import CreatedGroup
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    DatabaseUnavailable,
    Failure,
    HookFailed,
    InternalError,
    Overloaded,
    StrettoError,
)
from stretto.observations import AttemptStrayed
from stretto.store_errors import HookError, StoreError
from stretto.telemetry.request_context import trace_id_of
from stretto.uuids import uuid4, uuid7

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from stretto.creation.ports import WriteResult
    from stretto.domain import NewGroup
    from stretto.telemetry.request_context import RequestContext
    from stretto.telemetry.tracing import Trace

# What a client is asked to wait: long enough for a write, short against its user's patience.
RETRY_AFTER_SECONDS: Final = 1
# Classes of ages. A write takes milliseconds: past a second something holds it up. Past the lease
# (5 s by default) it may be taken over. Past 30 s no request waits for it.
AGES_SECONDS: Final = (1.0, 5.0, 30.0)
# No epoch of the memory.
NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: what was created, and how that came about for this request."""

    document: bytes
    """JSON with the created ids: the same bytes for every request of the key."""
    status: AnswerStatus

    @property
    def group(self) -> CreatedGroup:
        """The group that the document names."""
        return read_created(self.document)

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of the answer; `Location` is the route's own."""
        headers = {"Idempotency-Status": self.status.value}
        if self.status.is_replay:
            headers["Idempotent-Replayed"] = "true"
        headers["Content-Type"] = "application/json"
        return headers


@dataclass(slots=True)
class Flight:
    """A key's attempt as this process pursues it.

    Its outcome answers requests with its fingerprint; one with another body only waits for its end.
    """

    group_id: UUID
    new_group: NewGroup
    fingerprint: bytes
    body_digest: bytes
    """Of the request that started the flight."""
    memory_epoch: int = 0
    """Of the memory, when the flight started; `NEVER` once the group is known to be deleted."""
    started_at: float = 0.0
    """On the loop's clock."""
    request: RequestContext | None = None
    """The request that started the flight."""
    waiters: dict[asyncio.Future[bytes], float] = field(default_factory=dict)
    """The requests that still wait, in the order of their arrival, each with its deadline."""
    status: AnswerStatus = AnswerStatus.REPLAYED
    """How the outcome came about, for the request that started the flight."""

    @property
    def trace(self) -> Trace | None:
        """The span of the request that started the flight, if that is sampled."""
        return None if self.request is None else self.request.trace

    @property
    def may_be_joined(self) -> bool:
        """Whether a request that comes now may get the outcome: it may be a group deleted by now."""
        return self.memory_epoch != NEVER

    @property
    def is_abandoned(self) -> bool:
        """Whether no request waits any more."""
        return all(waiter.done() for waiter in self.waiters)

    def new_write(self, *, is_claimed: bool = False) -> Write:
        """Return a write of the flight's group under a fresh token, to be handed in at once."""
        if self.trace is not None:
            self.trace.queued()
        return Write(
            group_id=self.group_id,
            claim_token=uuid4(),
            conversation_id=uuid7(),
            new_group=self.new_group,
            fingerprint=self.fingerprint,
            is_claimed=is_claimed,
            request=self.request,
            is_abandoned=lambda: self.is_abandoned,
        )

    def strayed(self, what: str, claim_token: UUID | None = None) -> AttemptStrayed:
        """Return the observation that the flight's attempt has left the normal way."""
        owner, trace_id = self.new_group.owner, trace_id_of(self.request)
        return AttemptStrayed(what, self.group_id, owner, claim_token, trace_id=trace_id)

    def outcome_of(self, write: Write, result: WriteResult) -> CreatedGroup | Failure | None:
        """Return what the write has settled; None where the attempt is another's: follow."""
        match result:
            case Led():
                self.status = write.status
                return CreatedGroup(write.group_id, write.conversation_id)
            case SettledAsFailed(failure):
                return failure
            case NotLed():
                return None
            case _:
                assert_never(result)

    def join(self, deadline: float, own_deadline: float | None = None) -> asyncio.Future[bytes]:
        """Return a future of the document for one more request, which cancels it if it leaves.

        The future raises what the flight finishes with, and `AttemptPending` at the deadline, on
        the loop's clock. The request that started the flight may pass a later `own_deadline`, which
        holds while its own write is under way.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bytes] = loop.create_future()
        self.waiters[waiter] = deadline
        timer = loop.call_at(own_deadline or deadline, _give_up, waiter)
        waiter.add_done_callback(partial(self._leave, timer))
        return waiter

    def _leave(self, timer: asyncio.TimerHandle, waiter: asyncio.Future[bytes]) -> None:
        """Forget a request that was answered or has left.

        An error must not stay here: its traceback may refer to this flight, which would be a cycle.
        """
        timer.cancel()
        del self.waiters[waiter]

    async def wait(self, deadline: float, own_deadline: float | None = None) -> bytes:
        """Return the document; raises as the future of `join` does."""
        waiter = self.join(deadline, own_deadline)
        try:
            return await waiter
        finally:
            # The traceback of an error refers to this frame: a reference back would be a cycle.
            del waiter

    def release_impatient(self, now: float) -> None:
        """Answer `AttemptPending` to requests whose deadline has passed.

        The later deadline of the request that started the flight holds only for its own write. Here
        another's is awaited.
        """
        for waiter, deadline in self.waiters.items():
            if deadline <= now:
                _give_up(waiter)

    def finish(self, result: bytes | StrettoError) -> None:
        """Answer every request that still waits.

        One that has left is among the waiters for one more turn of the loop, and is skipped.
        """
        for waiter in self.waiters:
            if waiter.done():
                continue
            if isinstance(result, StrettoError):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)


def by_age(flights: Iterable[Flight], now: float) -> Mapping[str, int]:
    """Return how many flights are in each class; its name is its least age, such as `5s`."""
    ages = Counter(bisect_right(AGES_SECONDS, now - flight.started_at) for flight in flights)
    names = ("0s", *(f"{age:.0f}s" for age in AGES_SECONDS))
    return {name: ages[number] for number, name in enumerate(names)}


def _give_up(waiter: asyncio.Future[bytes]) -> None:
    """Answer `AttemptPending` to a request whose time is over, if it has no answer yet."""
    if not waiter.done():
        waiter.set_exception(AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS))


def answer_of(waiter: asyncio.Future[bytes], status: AnswerStatus) -> Answer | StrettoError:
    """Return the answer or the error for a request that waited; `status` is that of a success."""
    # The error is taken, not raised: its traceback would refer to this frame.
    error = waiter.exception()
    assert error is None or isinstance(error, StrettoError)
    return Answer(waiter.result(), status) if error is None else error


def rejection_of(write: Write) -> StrettoError:
    """Return the error for a write that has no place among those that wait for a writer.

    A claimed one was put back by a writer, or reclaimed: its attempt stays pending.
    """
    kind = AttemptPending if write.is_claimed else Overloaded
    return kind(retry_after_seconds=RETRY_AFTER_SECONDS)


def public_error(cause: Failure | BaseException) -> StrettoError:
    """Return the error that requests get for a failure, or for an error of a writer or a store."""
    if isinstance(cause, Failure):
        return AttemptFailed(cause)
    if isinstance(cause, StrettoError):
        return cause
    error: StrettoError = InternalError()
    if isinstance(cause, StoreError):
        kind = HookFailed if isinstance(cause, HookError) else DatabaseUnavailable
        error = kind(
            cause.detail, retry_after_seconds=cause.retry_after_seconds or RETRY_AFTER_SECONDS
        )
    error.__cause__ = cause
    return error
