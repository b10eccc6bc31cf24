"""GroupCreator: answers every request for a group, so that a key never makes two.

It owns the memory of outcomes and one flight per key: the first request of a key takes off, later
ones with the same meaning wait for its outcome and hold no connection. A flight goes on when all
who waited have left, because its write may already be under way. Most flights end with their first
write; one that has to follow gets a task. Nothing here writes domain rows; that is the writers' work.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from stretto.codec import created_document, parse_json, read_created
from stretto.creation.attempt import AnswerStatus
from stretto.creation.flight import RETRY_AFTER_SECONDS, Flight, Waiter
from stretto.creation.follower import Follower, new_write, outcome_of
from stretto.creation.limiter import OwnerLimiter
from stretto.creation.outcomes import NO_BODY, OutcomeMemory
from stretto.domain import CreatedGroup, IdempotencyKey, NewGroup, UserId, digest, group_id_bytes
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    DatabaseUnavailable,
    Failure,
    HookError,
    HookFailed,
    InternalError,
    Overloaded,
    StoreError,
    StrettoError,
)
from stretto.observations import AttemptAnswered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from stretto.creation.ports import AttemptStore, Write, WriteResult, Writers
    from stretto.observations import Observer

WAIT_SECONDS_DEFAULT: Final = 10.0
WAIT_SECONDS_MAX: Final = 30.0
# Whoever takes off is given this long even with `wait=0`: its own write is under way, and an answer
# "pending" would only cost the client another request.
OWN_WRITE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class CreatorSettings:
    """How a creator behaves; times in seconds."""

    lease_seconds: float = 5.0
    """After this long a pending attempt may be taken over."""
    outcomes_max: int = 50_000
    """Settled attempts remembered, half as many at least; some 350 bytes each."""
    rate_per_owner: float = 0.0
    """New attempts per owner and second; 0 is no limit."""
    stop_seconds: float = 4.0
    """How long flights may take to land when the creator stops; the rest of stopping comes after."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: what was created, and how that came about for this request."""

    document: bytes
    """JSON with the created ids: the same bytes for every request of the key."""
    status: AnswerStatus

    @property
    def group(self) -> CreatedGroup:
        """The group that the document tells of."""
        return read_created(self.document)


class GroupCreator:
    """The service's one function, `create`; use as `async with`, in one event loop."""

    def __init__(
        self,
        writers: Writers,
        attempts: AttemptStore,
        settings: CreatorSettings,
        observe: Observer,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._writers = writers
        self._settings = settings
        self._observe = observe
        self._follower = Follower(writers, attempts, settings.lease_seconds, observe, pause)
        self._memory = OutcomeMemory(settings.outcomes_max)
        self._flights: dict[bytes, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._all_landed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._limiter = OwnerLimiter(self._settings.rate_per_owner, self._loop.time)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse new requests and let every flight land, for a bounded time. Idempotent."""
        self._stopping = True
        self._follower.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_seconds):
                while self._flights:
                    self._all_landed.clear()
                    await self._all_landed.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What is left waits for a writer, who finishes the write if he can.
        for flight in tuple(self._flights.values()):
            self._land(flight, Overloaded.while_stopping())

    def forget(self) -> None:
        """Drop what is remembered: the database behind the writers may be another one now."""
        self._memory.forget()

    @property
    def is_stopping(self) -> bool:
        """Whether new requests are refused."""
        return self._stopping

    @property
    def flights(self) -> int:
        """How many keys are in flight."""
        return len(self._flights)

    @property
    def outcomes(self) -> int:
        """How many settled attempts are remembered."""
        return len(self._memory)

    async def create(
        self,
        key: IdempotencyKey,
        new_group: NewGroup,
        *,
        wait_seconds: float = WAIT_SECONDS_DEFAULT,
    ) -> Answer:
        """Create the group, or find the one that this owner and key have created already.

        Cancelling the call leaves the attempt to go on; call again with the same key. Raises
        `KeyReused`, `AttemptFailed`, `AttemptPending`, `RateLimited`, `Overloaded`, `HookFailed` or
        `DatabaseUnavailable`, and `KeyInvalid` for a key that could not come over HTTP.
        """
        if not isinstance(key, IdempotencyKey):
            key = IdempotencyKey(key)
        return await self._told(key, new_group, NO_BODY, wait_seconds)

    async def create_from(
        self,
        owner: UserId,
        key: IdempotencyKey,
        body: bytes,
        *,
        wait_seconds: float = WAIT_SECONDS_DEFAULT,
    ) -> Answer:
        """Create the group that a request's JSON body asks for; as `create` otherwise.

        Most retries repeat their request byte by byte: what has succeeded so is not read again.
        Raises `RequestInvalid` as well.
        """
        known = self.replay(owner, key, body)
        if known is not None:
            return known
        new_group = NewGroup.parse(owner, parse_json(body))
        return await self._told(key, new_group, digest(body), wait_seconds)

    def replay(self, owner: UserId, key: str, body: bytes) -> Answer | None:
        """Return the answer to a request that is repeated byte by byte, if it is remembered."""
        known = self._memory.recall_repeated(group_id_bytes(owner, key), body)
        if known is None:
            return None
        self._observe(AttemptAnswered(AnswerStatus.REPLAYED))
        return Answer(known, AnswerStatus.REPLAYED)

    async def _told(
        self, key: IdempotencyKey, new_group: NewGroup, body_digest: bytes, wait_seconds: float
    ) -> Answer:
        """Answer, and tell the observer how."""
        try:
            answer = await self._answer(key, new_group, body_digest, wait_seconds)
        except StrettoError as error:
            self._observe(AttemptAnswered(error.code))
            raise
        self._observe(AttemptAnswered(answer.status))
        return answer

    async def _answer(
        self, key: IdempotencyKey, new_group: NewGroup, body_digest: bytes, wait_seconds: float
    ) -> Answer:
        id_ = group_id_bytes(new_group.owner, key)
        fingerprint = new_group.fingerprint()
        deadline = self._loop.time() + wait_seconds
        while True:
            known = self._memory.recall(id_, fingerprint)
            if known is not None:
                return Answer(known, AnswerStatus.REPLAYED)
            flight = self._flights.get(id_)
            if flight is None:
                flight = Flight(
                    UUID(bytes=id_), new_group, fingerprint, body_digest, self._memory.epoch
                )
                return await self._take_off(flight, deadline)
            if flight.fingerprint == fingerprint:
                return Answer(await self._landing(flight, deadline), AnswerStatus.REPLAYED)
            # Two bodies for one key: whose key it is shows when the first flight has landed.
            try:
                await self._landing(flight, deadline)
            except AttemptPending:
                raise
            except StrettoError:
                continue

    async def _take_off(self, flight: Flight, deadline: float) -> Answer:
        if self._stopping:
            raise Overloaded.while_stopping()
        self._limiter.admit(flight.new_group.owner)
        write = new_write(flight)
        written = self._writers.ask(write)
        # Nothing has run since the flight was looked for: no second one of this key takes off.
        self._flights[flight.group_id.bytes] = flight
        written.add_done_callback(partial(self._written, flight, write))
        own_deadline = max(deadline, self._loop.time() + OWN_WRITE_SECONDS)
        return Answer(await self._landing(flight, deadline, own_deadline), flight.status)

    async def _landing(
        self, flight: Flight, deadline: float, patience_until: float | None = None
    ) -> bytes:
        waiter = Waiter(self._loop.create_future(), deadline)
        flight.waiters[waiter] = None
        patience = self._loop.call_at(patience_until or deadline, waiter.give_up)
        try:
            return await waiter.landed
        finally:
            patience.cancel()
            # An error would refer to itself by this frame, or by others that know the flight.
            del flight.waiters[waiter], waiter

    def _written(self, flight: Flight, write: Write, written: asyncio.Future[WriteResult]) -> None:
        """Land the flight whose own write has settled the attempt; any other has to follow."""
        error = written.exception()
        if error is not None:
            self._land(flight, _told(error))
            return
        outcome = outcome_of(flight, write, written.result())
        if outcome is not None:
            self._settle(flight, outcome)
        elif self._flights.get(flight.group_id.bytes) is flight:
            task = self._loop.create_task(
                self._fly(flight, write), name=f"flight {flight.group_id}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fly(self, flight: Flight, write: Write) -> None:
        """Bring the flight down: every waiter gets the outcome or an error, whatever happens."""
        try:
            self._settle(flight, await self._follower.pursue(flight, write))
        except (StrettoError, StoreError) as error:
            self._land(flight, _told(error))
        except asyncio.CancelledError:
            self._land(flight, Overloaded.while_stopping())
            raise
        finally:
            # Nothing is known after a bug: it ends this task, and whoever waits is told.
            self._land(flight, InternalError())

    def _settle(self, flight: Flight, outcome: CreatedGroup | Failure) -> None:
        if isinstance(outcome, Failure):
            self._land(flight, AttemptFailed(outcome))
            return
        document = created_document(outcome)
        # What began before the last `forget` may come from a server that has been replaced since.
        if flight.memory_epoch == self._memory.epoch:
            self._memory.remember(
                flight.group_id.bytes, flight.fingerprint, document, flight.body_digest
            )
        self._land(flight, document)

    def _land(self, flight: Flight, result: bytes | StrettoError) -> None:
        """Answer whoever waits, once: a flight that has landed already is left alone."""
        if self._flights.get(flight.group_id.bytes) is flight:
            del self._flights[flight.group_id.bytes]
            flight.land(result)
            if not self._flights:
                self._all_landed.set()


def _told(error: BaseException) -> StrettoError:
    """Return what whoever waits is told of an error."""
    if isinstance(error, StrettoError):
        return error
    told: StrettoError = InternalError()
    if isinstance(error, StoreError):
        seconds = error.retry_after_seconds or RETRY_AFTER_SECONDS
        kind = HookFailed if isinstance(error, HookError) else DatabaseUnavailable
        told = kind(retry_after_seconds=seconds)
    told.__cause__ = error
    return told
