"""What the parts report about themselves: a dataclass for each observation.

Every part imports this module, so it imports none of them. `telemetry/table.py` says which metric an
observation moves and what the log says of it. Nothing that the service does may depend on an observer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from stretto.kinds import Failure
from stretto.store_errors import HookError

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.store_errors import StoreError


class Observation:
    """What a part reports."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AttemptAnswered(Observation):
    """A request was answered: `outcome` is the answer's status or the error's code."""

    outcome: str


@dataclass(frozen=True, slots=True)
class BatchWritten(Observation):
    """A writer has finished a batch."""

    writes: int
    led: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WriteFailed(Failure, Observation):
    """A statement for so many writes failed; `request_ids` are of some of their requests."""

    error: StoreError
    writes: int
    request_ids: tuple[str, ...] = ()

    @property
    def bug(self) -> BaseException | None:
        """What the host's hook raised: its traceback shows where to mend the hook."""
        return self.error.__cause__ if isinstance(self.error, HookError) else None


@dataclass(frozen=True, slots=True)
class AuthorizationFailed(Observation):
    """The host's `authorize` has neither allowed nor rejected a group; `bug` is what it raised."""

    cause: str
    bug: BaseException | None = None


@dataclass(frozen=True, slots=True)
class FirstSentAhead(Observation):
    """A request started no attempt: it was first sent too far ahead of our clock."""

    cause: str
    remedy = "check this machine's NTP: if several clients are ahead, its own clock is behind"


@dataclass(frozen=True, slots=True)
class OwnerPaused(Failure, Observation):
    """Failures of an owner's writes cost others too much: it is paused for so many seconds."""

    error: StoreError
    group_id: UUID
    """Of the write that failed last, as are the requests' ids; the owner is not named."""
    seconds: float
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnerResumed(Observation):
    """An owner is no longer paused: one of its writes succeeded, or it has not come back."""


@dataclass(frozen=True, slots=True)
class ReclaimTried(Observation):
    """The lease of a pending attempt was over: taking it over was `won`, or `lost` to another."""

    result: str


@dataclass(frozen=True, slots=True)
class AttemptStrayed(Observation):
    """An attempt has left the normal way, and no statement of its own records that."""

    what: str
    """`claimed_again`: nothing was left of it; `unknown`: the outcome of a write; `other_body`."""
    group_id: UUID
    owner: UserId
    """Bounds what is recorded; is neither a label nor a field of the log."""
    claim_token: UUID | None = None
    code: str | None = None
    """The kind of the error that left the outcome unknown."""
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectionLost(Observation):
    """A writer lost its connection; the process forgets the outcomes that it remembered."""


@dataclass(frozen=True, slots=True)
class StandbyAwaited(Observation):
    """Commits wait for a synchronous standby; what commits nothing is answered."""

    cause = "commits wait for a synchronous standby; reads are answered"
    remedy = "start the standby, or take it out of synchronous_standby_names"


@dataclass(frozen=True, slots=True)
class StandbyReached(Observation):
    """Commits go through again, which waited for a synchronous standby for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GuaranteeBroken(Observation):
    """A failed attempt has a group: G4 does not hold, and an operator must look."""

    group_id: UUID
    guarantee = "G4"


@dataclass(frozen=True, slots=True)
class BusConnected(Observation):
    """The message bus can be reached, at the start or again."""


@dataclass(frozen=True, slots=True)
class BusFailed(Observation):
    """The message bus cannot be reached, or sent something that cannot be used."""

    cause: str


@dataclass(frozen=True, slots=True)
class StreamDiffers(Observation):
    """A stream is kept by fewer or more servers than the settings say."""

    stream: str
    replicas: int
    wanted: int


@dataclass(frozen=True, slots=True)
class PlaceLost(Observation):
    """The log no longer has what a reader has not had: live sessions are asked to resume."""

    reader: str


@dataclass(frozen=True, slots=True)
class CommandHandled(Observation):
    """A command from the bus was settled, put off, rejected or dead-lettered: `outcome` says which."""

    outcome: str


@dataclass(frozen=True, slots=True)
class EventsRelayed(Observation):
    """The relay has finished a batch of events."""

    published: int
    refused: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EventDeadLettered(Observation):
    """Bus or webhook refused an event too often: it is a dead letter now."""

    event_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class EventsUnreadable(Observation):
    """No event can be made of these rows of the log: this actor passes over them."""

    actor: str
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventDelivered(Observation):
    """The hub handed an event to so many sessions."""

    sessions: int


@dataclass(frozen=True, slots=True)
class SubscriberFailed(Observation):
    """A call of a host's `on_event` failed, and raised `bug`; it gets the next event."""

    cause: str
    bug: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SessionEnded(Observation):
    """A live session has ended with this close code."""

    code: int


@dataclass(frozen=True, slots=True)
class SessionFellBehind(Observation):
    """More events came for a live session than may wait for it: it reads them from the log."""


@dataclass(frozen=True, slots=True)
class TargetFailed(Observation):
    """Bus (`relay`) or endpoint (`webhook`) has refused an event, or was not there to take it."""

    actor: str
    cause: str


@dataclass(frozen=True, slots=True)
class TargetRecovered(Observation):
    """Bus or endpoint takes events again."""

    actor: str


@dataclass(frozen=True, slots=True)
class WebhookTried(Observation):
    """An event was sent to the webhook's endpoint: `result` says how that ended."""

    result: str


@dataclass(frozen=True, slots=True)
class WebhookDisabled(Observation):
    """The webhook's endpoint answered 410: it wants no more events, and an operator must look."""


@dataclass(frozen=True, slots=True)
class WebhookBlocked(Observation):
    """The webhook's endpoint is not called: none of its addresses is public."""

    cause = "its address is not public"
    remedy = "STRETTO_WEBHOOK_ALLOW_PRIVATE=true allows it"


@dataclass(frozen=True, slots=True)
class WebhookUnserved(Observation):
    """The webhook's target is another address than ours, which no instance has served for 2 minutes."""


@dataclass(frozen=True, slots=True)
class RowsSwept(Observation):
    """The sweeper deleted rows of a table."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class UpkeepFailed(Failure, Observation):
    """Bus or database did not answer an actor, which tries again."""

    actor: str
    error: Exception


@dataclass(frozen=True, slots=True)
class ActorCrashed(Observation):
    """A bug ended an actor's turn; the runner starts the actor again."""

    actor: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ActorRestarted(Observation):
    """An actor that crashed runs again, after its back-off."""

    actor: str


Observer: TypeAlias = Callable[[Observation], object]
"""Is called with each observation; must neither block nor raise."""
