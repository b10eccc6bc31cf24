"""What the protocol needs from the world: stores, writers, and somebody who is told.

A store's write ends in one of seven ways, and never in a guess: it returns (committed), or raises
`Refused`, `Transient`, `LeftOver`, `HookError` or `Unreachable` (not committed), or `OutcomeUnknown` (nobody can
know yet).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from stretto.observations import ActorCrashed, ActorRestarted, UpkeepTrouble

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.domain import NewGroup
    from stretto.errors import Failure
    from stretto.protocol.attempt import Sighting


class StoreError(Exception):
    """A store could not do what it was asked."""

    retry_after_seconds: int | None = None
    """How long the owner is paused, where it is."""


class Refused(StoreError):
    """The database refused this write for what it says; nothing was committed."""

    def __init__(self, failure: Failure, cause: str = "") -> None:
        """Take what the client is told, and in words for the log why."""
        super().__init__(cause or failure.code)
        self.failure = failure


class Transient(StoreError):
    """Nothing was committed; the same write may succeed in a moment."""


class Locked(Transient):
    """A row or a table was held by another for longer than a statement waits."""


class LeftOver(StoreError):
    """A row that has outlived its group is in the way; nothing was committed, and nothing is failed."""


class HookError(StoreError):
    """The host's hook did not let the write through, and it was no veto; nothing was committed."""


class HookInterrupted(HookError, Transient):
    """The hook met a lock, a deadlock or a full disk; the same write may succeed in a moment."""


class Unreachable(StoreError):
    """No connection could be had, or the database cannot serve; nothing was committed."""


class ReadCancelled(Unreachable):
    """The server has cancelled a read that took too long; the connection lives."""


class Misconfigured(Unreachable):
    """The server lacks what a statement needs, such as a table or a permission; it lives."""


class OutcomeUnknown(StoreError):
    """The connection was lost after the write was sent: it may be committed, now or later."""


class InDoubt(OutcomeUnknown):
    """The server has answered with an error that settles nothing; the connection lives."""


@dataclass(frozen=True, slots=True)
class Write:
    """All that one request may write."""

    group_id: UUID
    claim_token: UUID
    conversation_id: UUID
    new_group: NewGroup
    fingerprint: bytes
    is_claimed: bool
    """Whether the attempt carries the token already, because it was reclaimed."""


@dataclass(frozen=True, slots=True)
class Led:
    """This write created the group, committed."""


@dataclass(frozen=True, slots=True)
class NotLed:
    """Nothing was written: the attempt is another's, gone, or settled. Follow."""


@dataclass(frozen=True, slots=True)
class SettledAsFailed:
    """The attempt is durably failed."""

    failure: Failure


WriteResult = Led | NotLed | SettledAsFailed


class WriteStore(Protocol):
    """The leader's statements, on a connection of its own; raises `StoreError`s."""

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        """Insert pending attempts; return the tokens of those that won."""

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Write groups and settle their attempts in one commit; return the tokens that did.

        A write whose token is not the attempt's, or whose attempt is not pending, writes nothing. In
        haste, a lock is waited for only as long as other requests can bear.
        """

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        """Return the tokens of those whose attempts carry them, pending, and are held by no other."""

    async def are_tables_locked(self) -> bool:
        """Whether another holds, or waits for, a lock on a table that lets no group be written."""

    async def fail(self, write: Write, failure: Failure) -> bool:
        """Settle as failed if the token is still the attempt's and no group exists."""

    async def close(self) -> None:
        """Give the connection back. Idempotent."""

    def cut_off(self) -> None:
        """Break the connection under a write that must not be waited for any longer."""


class AttemptStore(Protocol):
    """A follower's statements; each holds a connection only while it runs."""

    async def look(self, group_id: UUID, lease_seconds: float) -> Sighting:
        """Read the attempt and the group of that id in one query."""

    async def heal(self, group_id: UUID) -> None:
        """Settle the attempt as succeeded from the domain tables; a no-op where there is no group."""

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        """Put a new token in place of the seen one, if the lease is over and no writer holds it."""


class Writers(Protocol):
    """Where a request hands in its write."""

    def ask(self, message: Write) -> asyncio.Future[WriteResult]:
        """Queue the write; raises `Overloaded` at once where there is no room.

        The future raises a `StoreError` when the attempt could not be settled.
        """


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """A writer has dealt with a batch: told after each one."""

    writes: int
    led: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WriteTrouble:
    """A statement for so many writes did not go through."""

    error: StoreError
    writes: int


@dataclass(frozen=True, slots=True)
class OwnerPaused:
    """Failures of one owner's have cost others too much: it is not tried for so many seconds."""

    error: StoreError
    group_id: UUID
    """Of the write that has failed last; the owner is not named."""
    seconds: float


@dataclass(frozen=True, slots=True)
class OwnerResumed:
    """An owner is paused no longer: a write of it went through, or it has not come back."""


@dataclass(frozen=True, slots=True)
class AttemptAnswered:
    """A request was answered: `outcome` is the answer's status or the error's code."""

    outcome: str


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A writer lost its connection; what was remembered is forgotten."""


@dataclass(frozen=True, slots=True)
class GuaranteeBroken:
    """A failed attempt has a group: G4 does not hold, somebody must look."""

    group_id: UUID


@dataclass(frozen=True, slots=True)
class BusConnected:
    """The message bus can be reached, at the start or again."""


@dataclass(frozen=True, slots=True)
class BusTrouble:
    """The message bus cannot be reached, or has said something that we cannot use."""

    cause: str


@dataclass(frozen=True, slots=True)
class EventsMissed:
    """Some events can no longer be received from the bus: live sessions are told to resume."""


@dataclass(frozen=True, slots=True)
class CommandHandled:
    """A command from the bus was settled, put off or buried: `outcome` says which."""

    outcome: str


@dataclass(frozen=True, slots=True)
class EventDelivered:
    """The hub has handed an event to so many sessions."""

    sessions: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A live session is over, with this close code."""

    code: int


@dataclass(frozen=True, slots=True)
class EventsRelayed:
    """The relay has dealt with a batch of events: told after each one."""

    delivered: int
    refused: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EventBuried:
    """Bus or webhook has refused an event too often: it is a dead letter now."""

    event_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class WebhookTried:
    """An event was sent to the webhook's endpoint: `result` says what came of it."""

    result: str


@dataclass(frozen=True, slots=True)
class WebhookDisabled:
    """The webhook's endpoint wants nothing any more (410): an operator must look."""


@dataclass(frozen=True, slots=True)
class WebhookBlocked:
    """The webhook's endpoint is not called: none of its addresses is public."""


@dataclass(frozen=True, slots=True)
class RowsSwept:
    """The sweeper has deleted rows of a table."""

    table: str
    rows: int


Event = (
    BatchWritten
    | WriteTrouble
    | OwnerPaused
    | OwnerResumed
    | AttemptAnswered
    | ConnectionLost
    | GuaranteeBroken
    | BusConnected
    | BusTrouble
    | EventsMissed
    | CommandHandled
    | EventDelivered
    | SessionEnded
    | EventsRelayed
    | EventBuried
    | WebhookTried
    | WebhookDisabled
    | WebhookBlocked
    | RowsSwept
    | UpkeepTrouble
    | ActorCrashed
    | ActorRestarted
)


Observer: TypeAlias = Callable[[Event], object]
"""Is told what happens; must neither block nor raise."""
