"""GroupCreator: answers every request for a group, so that a key never makes two.

It owns the memory of outcomes and one flight per key: the first request of a key takes off, later
ones with the same meaning wait for its outcome and hold no connection. A flight goes on when all
who waited have left, because its write may already be under way. Nothing here writes domain rows;
that is the writers' work.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, assert_never

from uuid_utils.compat import uuid4, uuid7

from stretto.domain import CreatedGroup, IdempotencyKey, NewGroup, group_id
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    DatabaseUnavailable,
    Failure,
    InternalError,
    KeyReused,
    Overloaded,
    StrettoError,
)
from stretto.protocol.attempt import (
    AnswerStatus,
    ClaimAgain,
    Heal,
    Reclaim,
    Refuse,
    Replay,
    ReuseOfKey,
    Wait,
    decide,
)
from stretto.protocol.flight import RETRY_AFTER_SECONDS, Flight, Waiter
from stretto.protocol.limiter import OwnerLimiter
from stretto.protocol.memory import Outcome, OutcomeMemory
from stretto.protocol.ports import (
    AttemptAnswered,
    AttemptStore,
    GuaranteeBroken,
    Led,
    NotLed,
    Observer,
    SettledAsFailed,
    StoreError,
    Write,
    Writers,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from uuid import UUID

WAIT_SECONDS_DEFAULT: Final = 10.0
WAIT_SECONDS_MAX: Final = 30.0
# Whoever takes off is given this long even with `wait=0`: its own write is under way, and an answer
# "pending" would only cost the client another request.
OWN_WRITE_SECONDS: Final = 1.0
# Turns a flight may take: each ends in an outcome or in an attempt that vanished or was taken away.
TURNS_MAX: Final = 8
# A pending attempt usually settles within a write's few milliseconds: look soon, then less often.
POLL_SECONDS_FIRST: Final = 0.005
POLL_SECONDS_MAX: Final = 0.25


@dataclass(frozen=True, slots=True)
class CreatorSettings:
    """How a creator behaves; times in seconds."""

    lease_seconds: float = 5.0
    """After this long a pending attempt may be taken over."""
    outcomes_max: int = 50_000
    """Settled attempts remembered, some 500 bytes each."""
    rate_per_owner: float = 0.0
    """New attempts per owner and second; 0 is no limit."""
    stop_seconds: float = 4.0
    """How long flights may take to land when the creator stops; the rest of stopping comes after."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: the group, and how it came about for this request."""

    group: CreatedGroup
    status: AnswerStatus


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
        self._attempts = attempts
        self._settings = settings
        self._observe = observe
        self._pause = pause
        self._memory = OutcomeMemory(settings.outcomes_max)
        self._flights: dict[UUID, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

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
        if self._tasks:
            # Flights that land, with an error too, need no care; late ones are cut off.
            _, late = await asyncio.wait(self._tasks, timeout=self._settings.stop_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

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
        `KeyReused`, `AttemptFailed`, `AttemptPending`, `RateLimited`, `Overloaded` or
        `DatabaseUnavailable`.
        """
        try:
            answer = await self._answer(key, new_group, wait_seconds)
        except StrettoError as error:
            self._observe(AttemptAnswered(error.code))
            raise
        self._observe(AttemptAnswered(answer.status))
        return answer

    async def _answer(
        self, key: IdempotencyKey, new_group: NewGroup, wait_seconds: float
    ) -> Answer:
        id_ = group_id(new_group.owner, key)
        fingerprint = new_group.fingerprint()
        deadline = self._loop.time() + wait_seconds
        while True:
            known = self._memory.recall(id_)
            if known is not None:
                return Answer(known.group_for(fingerprint), AnswerStatus.REPLAYED)
            flight = self._flights.get(id_)
            if flight is None:
                return await self._take_off(Flight(id_, new_group, fingerprint), deadline)
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
        # Register before the task can run, so that no second flight of this key takes off.
        self._flights[flight.group_id] = flight
        task = self._loop.create_task(self._fly(flight), name=f"flight {flight.group_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        own_deadline = max(deadline, self._loop.time() + OWN_WRITE_SECONDS)
        return Answer(await self._landing(flight, deadline, own_deadline), flight.status)

    async def _landing(
        self, flight: Flight, deadline: float, patience_until: float | None = None
    ) -> CreatedGroup:
        waiter = Waiter(self._loop.create_future(), deadline)
        flight.waiters.append(waiter)
        patience = self._loop.call_at(patience_until or deadline, waiter.give_up)
        try:
            return await waiter.landed
        finally:
            patience.cancel()

    async def _fly(self, flight: Flight) -> None:
        """Bring the flight down: every waiter gets the outcome or an error, whatever happens."""
        landed: CreatedGroup | StrettoError | None = None
        try:
            result = await self._settle(flight)
            self._memory.remember(flight.group_id, Outcome(flight.fingerprint, result))
            landed = AttemptFailed(result) if isinstance(result, Failure) else result
        except StrettoError as error:
            landed = error
        except StoreError as error:
            landed = DatabaseUnavailable(retry_after_seconds=RETRY_AFTER_SECONDS)
            landed.__cause__ = error
        except asyncio.CancelledError:
            landed = Overloaded.while_stopping()
            raise
        finally:
            del self._flights[flight.group_id]
            # Nothing is known after a bug: it ends this task, and whoever waits is told.
            flight.land(landed or InternalError())

    async def _settle(self, flight: Flight) -> CreatedGroup | Failure:
        """Lead or follow until the attempt is settled: the protocol, in one place."""
        write = self._new_write(flight)
        for _ in range(TURNS_MAX):
            match await self._writers.ask(write):
                case Led():
                    flight.status = _status_of_own(write)
                    return CreatedGroup(write.group_id, write.conversation_id)
                case SettledAsFailed(failure):
                    return failure
                case NotLed():
                    pass
            followed = await self._follow(flight, write)
            if not isinstance(followed, Write):
                return followed
            write = followed
        raise AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS)

    async def _follow(self, flight: Flight, own: Write) -> CreatedGroup | Failure | Write:
        """Return the outcome of an attempt that is not ours, or the write by which it becomes so.

        `own` is the write we may have lost sight of: its token tells whether we led after all.
        """
        poll_seconds = POLL_SECONDS_FIRST
        while True:
            sighting = await self._attempts.look(flight.group_id, self._settings.lease_seconds)
            match decide(sighting, flight.fingerprint):
                case Replay(conversation_id, claim_token):
                    if claim_token == own.claim_token:
                        flight.status = _status_of_own(own)
                    return CreatedGroup(flight.group_id, conversation_id)
                case Heal(group, contradicts_failed):
                    if contradicts_failed:
                        self._observe(GuaranteeBroken(flight.group_id))
                    else:
                        await self._attempts.heal(flight.group_id)
                    flight.status = AnswerStatus.HEALED
                    return group
                case Reclaim(seen):
                    write = self._new_write(flight, is_claimed=True)
                    if await self._attempts.reclaim(
                        flight.group_id, seen, write.claim_token, self._settings.lease_seconds
                    ):
                        return write
                case Refuse(failure):
                    return failure
                case ReuseOfKey():
                    raise KeyReused
                case ClaimAgain():
                    return self._new_write(flight)
                case Wait():
                    pass
                case decision:
                    assert_never(decision)
            flight.release_impatient(self._loop.time())
            if self._stopping or flight.is_abandoned:
                # A flight that only watches another's attempt may end at any time.
                raise AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS)
            await self._pause(poll_seconds * random.uniform(0.5, 1.0))
            poll_seconds = min(2 * poll_seconds, POLL_SECONDS_MAX)

    def _new_write(self, flight: Flight, *, is_claimed: bool = False) -> Write:
        return Write(
            group_id=flight.group_id,
            claim_token=uuid4(),
            conversation_id=uuid7(),
            new_group=flight.new_group,
            fingerprint=flight.fingerprint,
            is_claimed=is_claimed,
        )


def _status_of_own(write: Write) -> AnswerStatus:
    return AnswerStatus.RECOVERED if write.is_claimed else AnswerStatus.CREATED
