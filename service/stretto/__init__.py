"""stretto creates chat groups exactly once per idempotency key.

Hosts use the names of this module; everything else may change between versions. A name is loaded
when it is first used: a program that only calls a service, or only uses `Inbox`, does not load the
server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

# For type checkers, which do not run `__getattr__`; a test compares them with the table.
if TYPE_CHECKING:
    from stretto.assembly.application import AppOptions as AppOptions
    from stretto.assembly.application import create_app as create_app
    from stretto.assembly.application import setup as setup
    from stretto.assembly.component import Component as Component
    from stretto.assembly.handle import Handle as Handle
    from stretto.assembly.opening import open_component as open_component
    from stretto.assembly.settings import ComponentSettings as ComponentSettings
    from stretto.client import ClientAnswer as ClientAnswer
    from stretto.client import ClientError as ClientError
    from stretto.client import Intention as Intention
    from stretto.client import Intentions as Intentions
    from stretto.client import Received as Received
    from stretto.client import StrettoClient as StrettoClient
    from stretto.creation.attempt import AnswerStatus as AnswerStatus
    from stretto.creation.attempt import AttemptStatus as AttemptStatus
    from stretto.creation.authorization import Authorize as Authorize
    from stretto.creation.creator import GroupCreator as GroupCreator
    from stretto.creation.flight import Answer as Answer
    from stretto.creation.lookup import AttemptReport as AttemptReport
    from stretto.creation.settings import CreatorSettings as CreatorSettings
    from stretto.domain import CreatedGroup as CreatedGroup
    from stretto.domain import Group as Group
    from stretto.domain import IdempotencyKey as IdempotencyKey
    from stretto.domain import Member as Member
    from stretto.domain import NewGroup as NewGroup
    from stretto.domain import UserId as UserId
    from stretto.domain import event_id as event_id
    from stretto.domain import group_id as group_id
    from stretto.errors import AttemptFailed as AttemptFailed
    from stretto.errors import AttemptPending as AttemptPending
    from stretto.errors import AuthorizeFailed as AuthorizeFailed
    from stretto.errors import BodyTooLarge as BodyTooLarge
    from stretto.errors import ChangeRefused as ChangeRefused
    from stretto.errors import CreationRefused as CreationRefused
    from stretto.errors import DatabaseUnavailable as DatabaseUnavailable
    from stretto.errors import Failure as Failure
    from stretto.errors import FieldError as FieldError
    from stretto.errors import FirstSentOutOfRange as FirstSentOutOfRange
    from stretto.errors import GroupDeleted as GroupDeleted
    from stretto.errors import GroupRejected as GroupRejected
    from stretto.errors import HeadTooLarge as HeadTooLarge
    from stretto.errors import HookFailed as HookFailed
    from stretto.errors import InsufficientScope as InsufficientScope
    from stretto.errors import InternalError as InternalError
    from stretto.errors import KeyInvalid as KeyInvalid
    from stretto.errors import KeyMissing as KeyMissing
    from stretto.errors import KeyReused as KeyReused
    from stretto.errors import MethodNotAllowed as MethodNotAllowed
    from stretto.errors import NotFound as NotFound
    from stretto.errors import OriginRefused as OriginRefused
    from stretto.errors import Overloaded as Overloaded
    from stretto.errors import ParameterError as ParameterError
    from stretto.errors import RateLimited as RateLimited
    from stretto.errors import RequestInvalid as RequestInvalid
    from stretto.errors import RequestTooSlow as RequestTooSlow
    from stretto.errors import Retry as Retry
    from stretto.errors import StrettoError as StrettoError
    from stretto.errors import Unauthenticated as Unauthenticated
    from stretto.errors import UnsupportedMediaType as UnsupportedMediaType
    from stretto.errors import UpgradeRequired as UpgradeRequired
    from stretto.events.log import CommittedEvent as CommittedEvent
    from stretto.events.settings import HubSettings as HubSettings
    from stretto.events.subscriptions import OnEvent as OnEvent
    from stretto.http.problems import Problem as Problem
    from stretto.http.problems import problem_of as problem_of
    from stretto.http.settings import StreamSettings as StreamSettings
    from stretto.http.tokens.settings import TokenSettings as TokenSettings
    from stretto.metadata import Metadata as Metadata
    from stretto.metadata import MetadataInvalid as MetadataInvalid
    from stretto.misuse import CreatedInHook as CreatedInHook
    from stretto.misuse import NotStarted as NotStarted
    from stretto.misuse import WrongEventLoop as WrongEventLoop
    from stretto.nats.access import NatsSettings as NatsSettings
    from stretto.observations import ActorCrashed as ActorCrashed
    from stretto.observations import ActorRestarted as ActorRestarted
    from stretto.observations import AttemptAnswered as AttemptAnswered
    from stretto.observations import AttemptStrayed as AttemptStrayed
    from stretto.observations import AuthorizationFailed as AuthorizationFailed
    from stretto.observations import BatchWritten as BatchWritten
    from stretto.observations import BusConnected as BusConnected
    from stretto.observations import BusFailed as BusFailed
    from stretto.observations import CommandHandled as CommandHandled
    from stretto.observations import ConnectionLost as ConnectionLost
    from stretto.observations import EventDeadLettered as EventDeadLettered
    from stretto.observations import EventDelivered as EventDelivered
    from stretto.observations import EventsRelayed as EventsRelayed
    from stretto.observations import EventsUnreadable as EventsUnreadable
    from stretto.observations import FirstSentAhead as FirstSentAhead
    from stretto.observations import GuaranteeBroken as GuaranteeBroken
    from stretto.observations import Observation as Observation
    from stretto.observations import Observer as Observer
    from stretto.observations import OwnerPaused as OwnerPaused
    from stretto.observations import OwnerResumed as OwnerResumed
    from stretto.observations import PlaceLost as PlaceLost
    from stretto.observations import ReclaimTried as ReclaimTried
    from stretto.observations import RowsSwept as RowsSwept
    from stretto.observations import SessionEnded as SessionEnded
    from stretto.observations import SessionFellBehind as SessionFellBehind
    from stretto.observations import StandbyAwaited as StandbyAwaited
    from stretto.observations import StandbyReached as StandbyReached
    from stretto.observations import StreamDiffers as StreamDiffers
    from stretto.observations import SubscriberFailed as SubscriberFailed
    from stretto.observations import TargetFailed as TargetFailed
    from stretto.observations import TargetRecovered as TargetRecovered
    from stretto.observations import UpkeepFailed as UpkeepFailed
    from stretto.observations import WebhookBlocked as WebhookBlocked
    from stretto.observations import WebhookDisabled as WebhookDisabled
    from stretto.observations import WebhookTried as WebhookTried
    from stretto.observations import WebhookUnserved as WebhookUnserved
    from stretto.observations import WriteFailed as WriteFailed
    from stretto.postgres.changes import KEEP as KEEP
    from stretto.postgres.changes import GroupChange as GroupChange
    from stretto.postgres.changes import add_members as add_members
    from stretto.postgres.changes import delete_group as delete_group
    from stretto.postgres.changes import remove_members as remove_members
    from stretto.postgres.changes import rename_group as rename_group
    from stretto.postgres.changes import set_role as set_role
    from stretto.postgres.driver_connection import Connection as Connection
    from stretto.postgres.driver_connection import Pool as Pool
    from stretto.postgres.hook import OnCreate as OnCreate
    from stretto.postgres.hook_handle import HandleMisused as HandleMisused
    from stretto.postgres.inbox import Inbox as Inbox
    from stretto.postgres.migrate import migrate as migrate
    from stretto.postgres.settings import Retention as Retention
    from stretto.start_errors import ConfigurationError as ConfigurationError
    from stretto.store_errors import Unreachable as Unreachable
    from stretto.targets.bus import BusUnavailable as BusUnavailable
    from stretto.targets.bus import EventBus as EventBus
    from stretto.targets.settings import RelaySettings as RelaySettings
    from stretto.telemetry.logs import log_observation as log_observation
    from stretto.webhook.rules import WebhookSettings as WebhookSettings

_MODULES: Final = {
    "stretto.assembly.application": "AppOptions create_app setup",
    "stretto.assembly.component": "Component",
    "stretto.assembly.handle": "Handle",
    "stretto.assembly.opening": "open_component",
    "stretto.assembly.settings": "ComponentSettings",
    "stretto.client": "ClientAnswer ClientError Intention Intentions Received StrettoClient",
    "stretto.creation.attempt": "AnswerStatus AttemptStatus",
    "stretto.creation.authorization": "Authorize",
    "stretto.creation.creator": "GroupCreator",
    "stretto.creation.flight": "Answer",
    "stretto.creation.lookup": "AttemptReport",
    "stretto.creation.settings": "CreatorSettings",
    "stretto.domain": "CreatedGroup Group IdempotencyKey Member NewGroup UserId event_id group_id",
    "stretto.errors": "AttemptFailed AttemptPending AuthorizeFailed BodyTooLarge ChangeRefused"
    " CreationRefused DatabaseUnavailable Failure FieldError FirstSentOutOfRange GroupDeleted GroupRejected"
    " HeadTooLarge HookFailed InsufficientScope InternalError KeyInvalid KeyMissing KeyReused"
    " MethodNotAllowed NotFound OriginRefused Overloaded ParameterError RateLimited"
    " RequestInvalid RequestTooSlow Retry StrettoError Unauthenticated UnsupportedMediaType"
    " UpgradeRequired",
    "stretto.events.log": "CommittedEvent",
    "stretto.events.settings": "HubSettings",
    "stretto.events.subscriptions": "OnEvent",
    "stretto.http.problems": "Problem problem_of",
    "stretto.http.settings": "StreamSettings",
    "stretto.http.tokens.settings": "TokenSettings",
    "stretto.metadata": "Metadata MetadataInvalid",
    "stretto.misuse": "CreatedInHook NotStarted WrongEventLoop",
    "stretto.nats.access": "NatsSettings",
    "stretto.observations": "ActorCrashed ActorRestarted AttemptAnswered AttemptStrayed AuthorizationFailed"
    " BatchWritten BusConnected BusFailed CommandHandled ConnectionLost EventDeadLettered"
    " EventDelivered EventsRelayed EventsUnreadable FirstSentAhead GuaranteeBroken Observation Observer"
    " OwnerPaused OwnerResumed PlaceLost ReclaimTried RowsSwept SessionEnded SessionFellBehind"
    " StandbyAwaited StandbyReached StreamDiffers SubscriberFailed TargetFailed TargetRecovered UpkeepFailed"
    " WebhookBlocked WebhookDisabled WebhookTried WebhookUnserved WriteFailed",
    "stretto.postgres.driver_connection": "Connection Pool",
    "stretto.postgres.hook": "OnCreate",
    "stretto.postgres.hook_handle": "HandleMisused",
    "stretto.postgres.inbox": "Inbox",
    "stretto.postgres.migrate": "migrate",
    "stretto.postgres.settings": "Retention",
    "stretto.start_errors": "ConfigurationError",
    "stretto.store_errors": "Unreachable",
    "stretto.targets.bus": "BusUnavailable EventBus",
    "stretto.targets.settings": "RelaySettings",
    "stretto.telemetry.logs": "log_observation",
    "stretto.webhook.rules": "WebhookSettings",
    "stretto.postgres.changes": "KEEP GroupChange add_members delete_group"
    " remove_members rename_group set_role",
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = list(_MODULE_OF)

# Not for type checkers: they would take every name for one of ours.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the name, once."""
        if name not in _MODULE_OF:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=None)
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
