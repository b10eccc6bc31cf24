"""What the parts tell about themselves: a dataclass for each observation, and their union.

Every part knows this module, so it knows none of them. Telemetry turns observations into metrics
and lines of the log; nothing that the service does may depend on who listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.errors import StoreError


@dataclass(frozen=True, slots=True)
class UpkeepTrouble:
    """Bus or database did not answer an actor: it tries again."""

    actor: str
    error: Exception


@dataclass(frozen=True, slots=True)
class ActorCrashed:
    """A fault in the program has ended an actor's turn; the runner starts the actor again."""

    actor: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ActorRestarted:
    """An actor that has crashed runs again, after its back-off."""

    actor: str


def kind_of(error: Exception) -> str:
    """Return the name of the error's documented class: the writer's own are hidden below it."""
    return next(each.__name__ for each in type(error).__mro__ if not each.__name__.startswith("_"))


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


Observation = (
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


Observer: TypeAlias = Callable[[Observation], object]
"""Is told what happens; must neither block nor raise."""
