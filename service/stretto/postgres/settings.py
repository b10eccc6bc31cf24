"""For how long rows are kept."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.setting import setting


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long rows of each swept table are kept."""

    retention_days: int = setting(
        30, "how long attempts, their trails, the inbox and dead letters are kept", ge=1, le=3650
    )
    """Attempts since they were settled, or claimed; what is in a trail since it has happened;
    messages since a consumer has processed them."""
    event_retention_days: int = setting(7, "how long events are kept", ge=1, le=3650)
    """At least, since they were committed: a session can resume from no older position."""
