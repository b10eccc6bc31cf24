"""stretto creates chat groups exactly once per idempotency key.

Hosts use what is named here; everything else may change between versions.
"""

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
    DatabaseUnavailable,
    GroupRejected,
    KeyReused,
    Overloaded,
    StrettoError,
)
from stretto.http.auth import TokenSettings
from stretto.protocol.creator import Answer, CreatorSettings, GroupCreator

__all__ = [
    "Answer",
    "AppOptions",
    "AttemptFailed",
    "AttemptPending",
    "ClientAnswer",
    "ClientError",
    "Component",
    "ComponentSettings",
    "CreatedGroup",
    "CreatorSettings",
    "DatabaseUnavailable",
    "GroupCreator",
    "GroupRejected",
    "IdempotencyKey",
    "KeyReused",
    "NewGroup",
    "Overloaded",
    "StrettoClient",
    "StrettoError",
    "TokenSettings",
    "UserId",
    "create_app",
    "event_id",
    "group_id",
    "open_component",
    "setup",
]
