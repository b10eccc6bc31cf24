"""Follower: pursues an attempt that a flight's own write has not settled, until something has.

Another request leads the attempt, has led it, or has left it behind. The pure `decide` says what to
do; this carries it out in turns: look, then replay, heal, wait or take over; then write once more.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, assert_never

from stretto.creation.attempt import (
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
from stretto.creation.flight import RETRY_AFTER_SECONDS, public_error
from stretto.creation.places import OwnerPlaces
from stretto.creation.ports import Write
from stretto.domain import CreatedGroup
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    Failure,
    GroupDeleted,
    KeyReused,
)
from stretto.observations import FirstSentAhead, GuaranteeBroken, ReclaimTried
from stretto.runtime.backoff import Backoff
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from stretto.creation.age import OutOfRange
    from stretto.creation.flight import Flight
    from stretto.creation.ports import AttemptStore, Writers
    from stretto.domain import UserId
    from stretto.observations import Observer

# Turns a flight may take: each ends in an outcome or in an attempt that vanished or was taken away.
TURNS_MAX: Final = 8
# A pending attempt usually settles within a write's few milliseconds: look soon, then less often.
POLL: Final = Backoff(0.005, 0.25)


class Follower:
    """Finds, or brings about, the outcome that a flight's first write has not settled."""

    def __init__(
        self,
        writers: Writers,
        attempts: AttemptStore,
        lease_seconds: float,
        observe: Observer,
        pause: Callable[[float], Awaitable[object]],
    ) -> None:
        self._writers = writers
        self._attempts = attempts
        self._lease_seconds = lease_seconds
        self._observe = observe
        self._pause = pause
        self.places = OwnerPlaces()
        """In which owners take turns to heal and reclaim."""
        self._is_stopping = False

    def stop(self) -> None:
        """Stop waiting for attempts of others; a write that was handed to a writer goes on."""
        self._is_stopping = True

    async def pursue(self, flight: Flight, write: Write) -> CreatedGroup | Failure:
        """Return the outcome of an attempt that our write has not settled.

        Raises `KeyReused`, `GroupDeleted`, `AttemptPending`, `Overloaded` or a `StoreError`.
        """
        for turn in range(TURNS_MAX):
            if turn:
                # What took the attempt from us may do so again: a claim that another holds up must
                # not come back with every batch of the writers.
                await self._pause(POLL.seconds(turn))
            followed = await self._follow(flight, write)
            if not isinstance(followed, Write):
                return followed
            write = followed
            outcome = flight.outcome_of(write, await self._writers.ask(write))
            if outcome is not None:
                if not write.is_claimed:
                    self._observe(flight.strayed("claimed_again", write.claim_token))
                return outcome
        raise AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS)

    async def require_attempt(
        self, group_id: UUID, owner: UserId, fingerprint: bytes, out_of_range: OutOfRange
    ) -> None:
        """Raise `FirstSentOutOfRange` unless there is an attempt of this key, or its group.

        A failed attempt raises `AttemptFailed` here: it may be lost before a flight looks again,
        whose claim would then succeed. A deleted group raises `GroupDeleted`. Raises `Overloaded`
        and `DatabaseUnavailable` too.
        """
        try:
            sighting = await self._attempts.look(group_id, self._lease_seconds, owner)
        except StoreError as error:
            raise public_error(error) from error
        match decide(sighting, fingerprint):
            case ClaimAgain():
                if out_of_range.is_ahead:
                    self._observe(FirstSentAhead(out_of_range.cause))
                raise out_of_range.error()
            case Refuse(failure):
                raise AttemptFailed(_why(failure))
            case Replay() | Heal() | Wait() | Reclaim() | ReuseOfKey():
                return
            case decision:
                assert_never(decision)

    async def _follow(self, flight: Flight, own: Write) -> CreatedGroup | Failure | Write:
        """Return the outcome of an attempt that is not ours, or the write by which it becomes so.

        `own` is the write whose acknowledgement may have been lost: its token shows whether it led.
        """
        owner = flight.new_group.owner
        for looks in itertools.count():
            sighting = await self._attempts.look(flight.group_id, self._lease_seconds, owner)
            match decide(sighting, flight.fingerprint):
                case Replay(conversation_id, claim_token):
                    if claim_token == own.claim_token:
                        flight.status = own.status
                    return CreatedGroup(flight.group_id, conversation_id)
                case Heal(group, contradicts_failed):
                    if contradicts_failed:
                        self._observe(GuaranteeBroken(flight.group_id))
                    else:
                        async with self.places.place(owner):
                            await self._attempts.heal(flight.group_id)
                    flight.status = AnswerStatus.HEALED
                    return group
                case Reclaim(seen):
                    write = flight.new_write(is_claimed=True)
                    async with self.places.place(owner):
                        is_ours = await self._attempts.reclaim(
                            flight.group_id, seen, write.claim_token, self._lease_seconds
                        )
                    self._observe(ReclaimTried("won" if is_ours else "lost"))
                    if is_ours:
                        return write
                case Refuse(failure):
                    return _why(failure)
                case ReuseOfKey():
                    self._observe(flight.strayed("other_body"))
                    raise KeyReused
                case ClaimAgain():
                    return flight.new_write()
                case Wait():
                    pass
                case decision:
                    assert_never(decision)
            flight.release_impatient(asyncio.get_running_loop().time())
            if self._is_stopping or flight.is_abandoned:
                # A flight that only watches another's attempt may end at any time.
                raise AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS)
            await self._pause(POLL.seconds(looks))
        raise AssertionError  # the looks have no end


def _why(failure: Failure | None) -> Failure:
    """Return why an attempt failed; raises `GroupDeleted` where its group was deleted instead."""
    if failure is None:
        raise GroupDeleted
    return failure
