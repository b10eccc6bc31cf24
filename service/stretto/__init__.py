"""stretto creates chat groups exactly once per idempotency key.

Hosts use what is named here; everything else may change between versions.
"""

from stretto.actors.hub import HubSettings
from stretto.assembly import (
    AppOptions,
    Component,
    ComponentSettings,
    create_app,
    open_component,
    setup,
)
from stretto.client import ClientAnswer, ClientError, StrettoClient
from stretto.domain import CreatedGroup, IdempotencyKey, NewGroup, UserId, event_id, group_id
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    ConfigurationError,
    DatabaseUnavailable,
    GroupRejected,
    HookFailed,
    KeyReused,
    Overloaded,
    RateLimited,
    StrettoError,
)
from stretto.http.auth import TokenSettings
from stretto.http.event_streams import StreamSettings
from stretto.protocol.creator import Answer, CreatorSettings, GroupCreator
from stretto.protocol.events import BusUnavailable, CommittedEvent, EventBus
from stretto.protocol.ports import Unreachable
from stretto.protocol.webhooks import WebhookSettings
from stretto.storage.hook import OnCreate
from stretto.storage.inbox import Inbox
from stretto.storage.migrate import migrate

__all__ = [
    "Answer",
    "AppOptions",
    "AttemptFailed",
    "AttemptPending",
    "BusUnavailable",
    "ClientAnswer",
    "ClientError",
    "CommittedEvent",
    "Component",
    "ComponentSettings",
    "ConfigurationError",
    "CreatedGroup",
    "CreatorSettings",
    "DatabaseUnavailable",
    "EventBus",
    "GroupCreator",
    "GroupRejected",
    "HookFailed",
    "HubSettings",
    "IdempotencyKey",
    "Inbox",
    "KeyReused",
    "NewGroup",
    "OnCreate",
    "Overloaded",
    "RateLimited",
    "StreamSettings",
    "StrettoClient",
    "StrettoError",
    "TokenSettings",
    "Unreachable",
    "UserId",
    "WebhookSettings",
    "create_app",
    "event_id",
    "group_id",
    "migrate",
    "open_component",
    "setup",
]
