"""ComponentSettings: how a component behaves, in the service and inside a host's program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from stretto.creation.age import AHEAD_SECONDS_MAX
from stretto.creation.settings import CreatorSettings
from stretto.events.settings import HubSettings
from stretto.nats.access import NatsSettings
from stretto.postgres.database_url import SCHEMA, SCHEMA_PATTERN
from stretto.postgres.settings import Retention
from stretto.setting import setting
from stretto.targets.settings import BUS_PREFIX, BUS_PREFIX_PATTERN, RelaySettings
from stretto.webhook.rules import WebhookSettings

_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSettings:
    """The component's own settings, and those of its parts."""

    db_schema: str = setting(SCHEMA, "schema of the tables", pattern=f"^{SCHEMA_PATTERN}$")
    writers: int = setting(2, "database connections that write, at most", ge=1, le=32)
    """Another one writes where the process would idle: the database is far, or its disk slow."""
    batch_max: int = setting(128, "requests per statement", ge=1, le=1000)
    """Beyond this, latency grows faster than throughput."""
    mailbox_max: int = setting(1024, "requests that may queue", ge=1, le=100_000)
    """More are rejected before they claim anything."""
    attempt_age_max: float = setting(
        0.0,
        "seconds since a request was first sent, as it says, after which it starts no attempt;"
        " 0: RETENTION_DAYS, less 5 minutes",
        ge=0,
        le=315_360_000,
    )
    """Only as long as a failed attempt is kept is it known that its key has failed."""
    creator: CreatorSettings = field(default_factory=CreatorSettings)
    nats_url: str = setting(
        "",
        "NATS servers that events are published to and commands taken from, comma-separated;"
        " embedded: one of our own; empty: none; sessions need none",
        is_secret=True,
    )
    nats_prefix: str = setting(
        BUS_PREFIX,
        "what streams and subjects on NATS begin with; its own for each deployment",
        pattern=f"^{BUS_PREFIX_PATTERN}$",
    )
    """No two databases on one NATS account may share it."""
    nats: NatsSettings = field(default_factory=NatsSettings)
    relay: RelaySettings = field(default_factory=RelaySettings)
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    retention: Retention = field(default_factory=Retention)

    @property
    def first_sent_seconds_max(self) -> float:
        """How long ago a request may have been first sent that starts an attempt.

        The default is as long as a failed attempt is kept, less what a client's clock may be ahead.
        """
        kept_seconds = self.retention.retention_days * _DAY_SECONDS
        return self.attempt_age_max or kept_seconds - AHEAD_SECONDS_MAX
