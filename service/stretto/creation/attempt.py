"""The attempt's states, and what a follower does about each: a pure decision without I/O.

    claim ──► pending ──lead, heal──► succeeded
                 │  └──refused──────► failed
                 └──lease over: reclaim──► pending (another token)

A settled attempt (succeeded, failed) never changes again. What was deleted leaves a tombstone, which
decides whatever the attempt says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from stretto.domain import CreatedGroup
    from stretto.errors import Failure


class AttemptStatus(StrEnum):
    """Where an attempt stands."""

    PENDING = "pending"  # claimed; its leader is writing, or is gone
    SUCCEEDED = "succeeded"  # committed together with its group
    FAILED = "failed"  # nothing was committed and nothing can be any more


class AnswerStatus(StrEnum):
    """How a successful answer came about; sent as `Idempotency-Status`."""

    CREATED = "created"  # this request's own claim and write
    REPLAYED = "replayed"  # another request's write, from its settled attempt
    HEALED = "healed"  # found in the domain tables; its attempt did not say so
    RECOVERED = "recovered"  # this request's write, after another's lease had run out

    @property
    def is_replay(self) -> bool:
        """Whether another request's write created the group."""
        return self in (AnswerStatus.REPLAYED, AnswerStatus.HEALED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The keyed record as a follower reads it."""

    status: AttemptStatus
    fingerprint: bytes
    claim_token: UUID
    conversation_id: UUID | None
    failure: Failure | None
    claimed_at: datetime
    settled_at: datetime | None
    lease_over: bool
    """By the database's clock; only a guess that the leader is gone."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """What a follower needs of a committed group."""

    group: CreatedGroup
    fingerprint: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left, for good, of a group that was deleted, or of a failed attempt that was swept."""

    settled_at: datetime
    """When the attempt was settled, or the group was created."""
    failure: Failure | None
    """Why the attempt failed; None: the group was deleted."""
    deleted_at: datetime | None = None
    """When the group was deleted."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """An attempt and the group of the same id, or its tombstone, as one query saw them."""

    attempt: Attempt | None
    group: GroupRow | None
    tombstone: Tombstone | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Answer from the settled attempt."""

    conversation_id: UUID
    claim_token: UUID


@dataclass(frozen=True, slots=True)
class Heal:
    """Answer with the group; first settle the attempt as succeeded, unless it says failed."""

    group: CreatedGroup
    contradicts_failed: bool
    """The attempt says failed: G4 is broken. It is not settled again; an alarm is raised."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The leader may be alive: look again later."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The lease is over: take the attempt over from this token, then lead."""

    claim_token: UUID


@dataclass(frozen=True, slots=True)
class Refuse:
    """The key creates nothing, for good."""

    failure: Failure | None
    """Why the attempt failed; None: its group was deleted."""


@dataclass(frozen=True, slots=True)
class ReuseOfKey:
    """The key belongs to another request."""


@dataclass(frozen=True, slots=True)
class ClaimAgain:
    """Nothing is left of the attempt: start over."""


Decision = Replay | Heal | Wait | Reclaim | Refuse | ReuseOfKey | ClaimAgain


def decide(sighting: Sighting, fingerprint: bytes) -> Decision:
    """Return what a request with this fingerprint does about what it sees.

    A tombstone has no fingerprint: what its request asked for was deleted, too.
    """
    if sighting.tombstone is not None:
        return Refuse(sighting.tombstone.failure)
    return _decide_without_tombstone(sighting, fingerprint)


def _decide_without_tombstone(sighting: Sighting, fingerprint: bytes) -> Decision:
    """Return what is done about an attempt and its group.

    The group's fingerprint counts before the attempt's: after the first attempt was swept, a
    request with another body may have claimed the key again.
    """
    attempt, row = sighting.attempt, sighting.group
    holder_of_key = row or attempt
    if holder_of_key is None:
        return ClaimAgain()
    if holder_of_key.fingerprint != fingerprint:
        return ReuseOfKey()
    if attempt is None:
        assert row is not None
        return Heal(row.group, contradicts_failed=False)
    match attempt.status:
        case AttemptStatus.SUCCEEDED:
            assert attempt.conversation_id is not None
            return Replay(attempt.conversation_id, attempt.claim_token)
        case AttemptStatus.PENDING:
            if row is not None:
                return Heal(row.group, contradicts_failed=False)
            return Reclaim(attempt.claim_token) if attempt.lease_over else Wait()
        case AttemptStatus.FAILED:
            if row is not None:
                return Heal(row.group, contradicts_failed=True)
            assert attempt.failure is not None
            return Refuse(attempt.failure)
        case _:
            assert_never(attempt.status)
