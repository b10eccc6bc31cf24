"""Follower: pursues an attempt that a flight's own write has not settled, until something has.

Another request leads it, has led it, or has left it behind. The decision is the pure `decide`; here
it is carried out, in turns: look, decide, heal or wait or take over, and then write once more.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, assert_never

from uuid_utils.compat import uuid4, uuid7

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
from stretto.creation.flight import RETRY_AFTER_SECONDS
from stretto.creation.ports import Led, NotLed, SettledAsFailed, Write
from stretto.domain import CreatedGroup
from stretto.errors import AttemptPending, Failure, KeyReused
from stretto.observations import GuaranteeBroken
from stretto.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stretto.creation.flight import Flight
    from stretto.creation.ports import AttemptStore, WriteResult, Writers
    from stretto.observations import Observer

# Turns a flight may take: each ends in an outcome or in an attempt that vanished or was taken away.
TURNS_MAX: Final = 8
# A pending attempt usually settles within a write's few milliseconds: look soon, then less often.
POLL: Final = Backoff(0.005, 0.25)


class Follower:
    """Brings to an end what the first write of a flight has not."""

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
        self._is_stopping = False

    def stop(self) -> None:
        """Wait for nobody's attempt any longer; what has been handed to a writer goes on."""
        self._is_stopping = True

    async def pursue(self, flight: Flight, write: Write) -> CreatedGroup | Failure:
        """Return the outcome of an attempt that our write has not settled.

        Raises `KeyReused`, `AttemptPending`, `Overloaded` or a `StoreError`.
        """
        for turn in range(TURNS_MAX):
            if turn:
                # What took the attempt from us may go on doing so: a claim that another holds up
                # must not come back with every batch of the writers.
                await self._pause(POLL.seconds(turn))
            followed = await self._follow(flight, write)
            if not isinstance(followed, Write):
                return followed
            write = followed
            outcome = outcome_of(flight, write, await self._writers.ask(write))
            if outcome is not None:
                return outcome
        raise AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS)

    async def _follow(self, flight: Flight, own: Write) -> CreatedGroup | Failure | Write:
        """Return the outcome of an attempt that is not ours, or the write by which it becomes so.

        `own` is the write we may have lost sight of: its token tells whether we led after all.
        """
        for looks in itertools.count():
            sighting = await self._attempts.look(flight.group_id, self._lease_seconds)
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
                    write = new_write(flight, is_claimed=True)
                    if await self._attempts.reclaim(
                        flight.group_id, seen, write.claim_token, self._lease_seconds
                    ):
                        return write
                case Refuse(failure):
                    return failure
                case ReuseOfKey():
                    raise KeyReused
                case ClaimAgain():
                    return new_write(flight)
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


def new_write(flight: Flight, *, is_claimed: bool = False) -> Write:
    """Return a write of the flight's group under a fresh token."""
    return Write(
        group_id=flight.group_id,
        claim_token=uuid4(),
        conversation_id=uuid7(),
        new_group=flight.new_group,
        fingerprint=flight.fingerprint,
        is_claimed=is_claimed,
    )


def outcome_of(flight: Flight, write: Write, result: WriteResult) -> CreatedGroup | Failure | None:
    """Return what the write has settled; nothing where the attempt is another's: follow."""
    match result:
        case Led():
            flight.status = _status_of_own(write)
            return CreatedGroup(write.group_id, write.conversation_id)
        case SettledAsFailed(failure):
            return failure
        case NotLed():
            return None
        case _:
            assert_never(result)


def _status_of_own(write: Write) -> AnswerStatus:
    return AnswerStatus.RECOVERED if write.is_claimed else AnswerStatus.CREATED
