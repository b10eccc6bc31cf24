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
    from stretto.assembly.opening import open_component as open_component
    from stretto.assembly.settings import ComponentSettings as ComponentSettings
    from stretto.client import ClientAnswer as ClientAnswer
    from stretto.client import ClientError as ClientError
    from stretto.client import StrettoClient as StrettoClient
    from stretto.creation.authorization import Authorize as Authorize
    from stretto.creation.creator import GroupCreator as GroupCreator
    from stretto.creation.flight import Answer as Answer
    from stretto.creation.settings import CreatorSettings as CreatorSettings
    from stretto.domain import CreatedGroup as CreatedGroup
    from stretto.domain import IdempotencyKey as IdempotencyKey
    from stretto.domain import NewGroup as NewGroup
    from stretto.domain import UserId as UserId
    from stretto.domain import event_id as event_id
    from stretto.domain import group_id as group_id
    from stretto.errors import AttemptFailed as AttemptFailed
    from stretto.errors import AttemptPending as AttemptPending
    from stretto.errors import AuthorizeFailed as AuthorizeFailed
    from stretto.errors import CreationRefused as CreationRefused
    from stretto.errors import DatabaseUnavailable as DatabaseUnavailable
    from stretto.errors import GroupRejected as GroupRejected
    from stretto.errors import HookFailed as HookFailed
    from stretto.errors import KeyReused as KeyReused
    from stretto.errors import Overloaded as Overloaded
    from stretto.errors import RateLimited as RateLimited
    from stretto.errors import StrettoError as StrettoError
    from stretto.events.hub import HubSettings as HubSettings
    from stretto.events.log import CommittedEvent as CommittedEvent
    from stretto.http.event_streams import StreamSettings as StreamSettings
    from stretto.http.tokens.authenticator import TokenSettings as TokenSettings
    from stretto.metadata import Metadata as Metadata
    from stretto.postgres.hook import OnCreate as OnCreate
    from stretto.postgres.inbox import Inbox as Inbox
    from stretto.postgres.migrate import migrate as migrate
    from stretto.start_errors import ConfigurationError as ConfigurationError
    from stretto.store_errors import Unreachable as Unreachable
    from stretto.targets.bus import BusUnavailable as BusUnavailable
    from stretto.targets.bus import EventBus as EventBus
    from stretto.webhook.rules import WebhookSettings as WebhookSettings

_MODULES: Final = {
    "stretto.events.hub": "HubSettings",
    "stretto.assembly.application": "AppOptions create_app setup",
    "stretto.assembly.component": "Component",
    "stretto.assembly.opening": "open_component",
    "stretto.assembly.settings": "ComponentSettings",
    "stretto.client": "ClientAnswer ClientError StrettoClient",
    "stretto.domain": "CreatedGroup IdempotencyKey NewGroup UserId event_id group_id",
    "stretto.creation.authorization": "Authorize",
    "stretto.errors": "AttemptFailed AttemptPending AuthorizeFailed CreationRefused"
    " DatabaseUnavailable GroupRejected HookFailed KeyReused Overloaded RateLimited StrettoError",
    "stretto.http.tokens.authenticator": "TokenSettings",
    "stretto.http.event_streams": "StreamSettings",
    "stretto.creation.creator": "GroupCreator",
    "stretto.creation.settings": "CreatorSettings",
    "stretto.creation.flight": "Answer",
    "stretto.events.log": "CommittedEvent",
    "stretto.metadata": "Metadata",
    "stretto.start_errors": "ConfigurationError",
    "stretto.store_errors": "Unreachable",
    "stretto.targets.bus": "BusUnavailable EventBus",
    "stretto.webhook.rules": "WebhookSettings",
    "stretto.postgres.hook": "OnCreate",
    "stretto.postgres.inbox": "Inbox",
    "stretto.postgres.migrate": "migrate",
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
