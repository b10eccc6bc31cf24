"""GroupCreator: answers every request for a group, so that a key never makes two.

It owns the memory of outcomes and one flight per key. The first request of a key starts the flight;
later ones with the same meaning wait for its outcome and hold no connection. A flight goes on when all
its requests have left, because its write may already be under way. Most flights finish with their first
write; one that has to follow gets a task. Nothing here writes domain rows; the writers do.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from stretto.codec import LARGE_BODY_BYTES, created_document, parse_json, read_created
from stretto.creation.attempt import AnswerStatus
from stretto.creation.flight import Flight, by_age, public_error
from stretto.creation.follower import Follower
from stretto.creation.limiter import OwnerLimiter
from stretto.creation.outcomes import NO_BODY, OutcomeMemory, document_for, document_of_repeat
from stretto.domain import CreatedGroup, IdempotencyKey, NewGroup, UserId, digest, group_id_bytes
from stretto.errors import (
    AttemptPending,
    CreatedInHook,
    InternalError,
    Overloaded,
    StoreError,
    StrettoError,
)
from stretto.observations import AttemptAnswered
from stretto.runtime.turns import Turns
from stretto.setting import setting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from stretto.creation.ports import AttemptStore, Write, WriteResult, Writers
    from stretto.errors import Failure
    from stretto.observations import Observer

WAIT_SECONDS_DEFAULT: Final = 10.0
WAIT_SECONDS_MAX: Final = 30.0
# The request that starts a flight waits this long even with `wait=0`: its own write is under way, and
# the answer "pending" would only cost its client another request.
OWN_WRITE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class CreatorSettings:
    """How a creator behaves; times in seconds."""

    lease_seconds: float = setting(
        5.0, "after this long a pending attempt may be taken over", ge=0.1, le=3600
    )
    outcomes_max: int = 50_000
    """Settled attempts remembered, half as many at least; some 350 bytes each."""
    rate_limit: float = setting(
        0.0,
        "new attempts per owner and second in one process; 0: no limit",
        ge=0,
        allow_inf_nan=False,
    )
    stop_seconds: float = 4.0
    """How long flights may take to finish when the creator stops; other parts stop after that."""


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


class GroupCreator:
    """Creates groups, once per owner and key; use as `async with`, in one event loop."""

    def __init__(
        self,
        writers: Writers,
        attempts: AttemptStore,
        settings: CreatorSettings,
        observe: Observer,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        hooks: Collection[asyncio.Task[None]] = (),
    ) -> None:
        """Take the tasks that run the host's hook: none of them may await a creation."""
        self._writers = writers
        self._settings = settings
        self._observe = observe
        self._hooks = hooks
        self._follower = Follower(writers, attempts, settings.lease_seconds, observe, pause)
        self._memory = OutcomeMemory(settings.outcomes_max)
        self._flights: dict[bytes, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns()
        self._stopping = False
        self._all_finished = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._limiter = OwnerLimiter(self._settings.rate_limit, self._loop.time)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Reject new requests and let every flight finish, for a bounded time. Idempotent."""
        self._stopping = True
        self._follower.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_seconds):
                while self._flights:
                    self._all_finished.clear()
                    await self._all_finished.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What is left waits for a writer, which finishes the write if it can.
        for flight in tuple(self._flights.values()):
            self._finish(flight, Overloaded.while_stopping())

    def forget(self) -> None:
        """Drop all outcomes: the database behind the writers may be another one now."""
        self._memory.forget()

    @property
    def is_stopping(self) -> bool:
        """Whether new requests are rejected."""
        return self._stopping

    @property
    def flights(self) -> int:
        """How many keys are in flight."""
        return len(self._flights)

    def flights_by_age(self) -> Mapping[str, int]:
        """Return the same of each class of ages."""
        return by_age(self._flights.values(), self._loop.time())

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

        Cancelling the call does not cancel the attempt; call again with the same key. Raises
        `KeyReused`, `AttemptFailed`, `AttemptPending`, `RateLimited`, `Overloaded`, `HookFailed` or
        `DatabaseUnavailable`, and `KeyInvalid` for a key that could not come over HTTP.
        """
        if not isinstance(key, IdempotencyKey):
            key = IdempotencyKey(key)
        id_ = group_id_bytes(new_group.owner, key)
        return await self._create(id_, self._memory.find(id_), new_group, NO_BODY, wait_seconds)

    async def create_from(
        self,
        owner: UserId,
        key: IdempotencyKey,
        body: bytes,
        *,
        wait_seconds: float = WAIT_SECONDS_DEFAULT,
    ) -> Answer:
        """Create the group that a request's JSON body asks for; as `create` otherwise.

        Most retries repeat their request byte by byte: such a body is not parsed again once it has
        succeeded. Raises `RequestInvalid` as well.
        """
        id_ = group_id_bytes(owner, key)
        known = self._memory.find(id_)
        if known is not None and (document := document_of_repeat(known, body)) is not None:
            return self._observed(document, AnswerStatus.REPLAYED)
        if len(body) > LARGE_BODY_BYTES:
            await self._turns.take(owner)
            known = self._memory.find(id_)
        new_group = NewGroup.parse(owner, parse_json(body))
        return await self._create(id_, known, new_group, digest(body), wait_seconds)

    def replay(self, owner: UserId, key: str, body: bytes) -> Answer | None:
        """Return the answer to a request that is repeated byte by byte, if it is remembered."""
        known = self._memory.find(group_id_bytes(owner, key))
        document = known and document_of_repeat(known, body)
        return None if document is None else self._observed(document, AnswerStatus.REPLAYED)

    async def _create(
        self,
        id_: bytes,
        known: bytes | None,
        new_group: NewGroup,
        body_digest: bytes,
        wait_seconds: float,
    ) -> Answer:
        """Answer from the known outcome, else from the key's flight, else from a flight of its own."""
        if self._hooks and asyncio.current_task() in self._hooks:
            raise CreatedInHook
        fingerprint = new_group.fingerprint()
        deadline = self._loop.time() + wait_seconds
        try:
            while True:
                if known is not None:
                    document = document_for(known, fingerprint)
                    return self._observed(document, AnswerStatus.REPLAYED)
                flight = self._flights.get(id_)
                if flight is None:
                    epoch, now = self._memory.epoch, self._loop.time()
                    flight = Flight(
                        UUID(bytes=id_), new_group, fingerprint, body_digest, epoch, now
                    )
                    self._start(flight)
                    own_deadline = max(deadline, now + OWN_WRITE_SECONDS)
                    document = await flight.wait(deadline, own_deadline)
                    return self._observed(document, flight.status)
                if flight.fingerprint == fingerprint:
                    document = await flight.wait(deadline)
                    return self._observed(document, AnswerStatus.REPLAYED)
                # Two bodies for one key: the outcome of the first decides whose key it is.
                try:
                    await flight.wait(deadline)
                except AttemptPending:
                    raise
                except StrettoError:
                    pass
                known = self._memory.find(id_)
        except StrettoError as error:
            self._observe(AttemptAnswered(error.code))
            raise

    def _observed(self, document: bytes, status: AnswerStatus) -> Answer:
        """Return a successful answer, and report it."""
        self._observe(AttemptAnswered(status))
        return Answer(document, status)

    def _start(self, flight: Flight) -> None:
        """Register a flight and hand its write to the writers.

        Raises `RateLimited` or `Overloaded`; nothing was claimed then.
        """
        if self._stopping:
            raise Overloaded.while_stopping()
        self._limiter.admit(flight.new_group.owner)
        write = flight.new_write()
        written = self._writers.ask(write)
        # No `await` since the flight was looked up: no other task can have registered one.
        self._flights[flight.group_id.bytes] = flight
        written.add_done_callback(partial(self._written, flight, write))

    def _written(self, flight: Flight, write: Write, written: asyncio.Future[WriteResult]) -> None:
        """Finish the flight if its own write has settled the attempt; else have it follow."""
        outcome = written.exception() or flight.outcome_of(write, written.result())
        if outcome is not None:
            self._finish(flight, outcome)
        elif self._flights.get(flight.group_id.bytes) is flight:
            following = self._follow(flight, write)
            task = self._loop.create_task(following, name=f"flight {flight.group_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _follow(self, flight: Flight, write: Write) -> None:
        """Follow the attempt to its outcome; the flight finishes, whatever happens."""
        try:
            self._finish(flight, await self._follower.pursue(flight, write))
        except (StrettoError, StoreError) as error:
            self._finish(flight, error)
        except asyncio.CancelledError:
            self._finish(flight, Overloaded.while_stopping())
            raise
        finally:
            # A bug leaves the outcome unknown: it ends this task, and its requests get an error.
            self._finish(flight, InternalError())

    def _finish(self, flight: Flight, outcome: CreatedGroup | Failure | BaseException) -> None:
        """Answer the flight's requests and remember a success, once: a finished flight is left alone."""
        id_ = flight.group_id.bytes
        if self._flights.get(id_) is not flight:
            return
        del self._flights[id_]
        if isinstance(outcome, CreatedGroup):
            document = created_document(outcome)
            # A flight that began before the last `forget` may have met a server that was replaced since.
            if flight.memory_epoch == self._memory.epoch:
                self._memory.remember(id_, flight.fingerprint, document, flight.body_digest)
            flight.finish(document)
        else:
            flight.finish(public_error(outcome))
        if not self._flights:
            self._all_finished.set()
