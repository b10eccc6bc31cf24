"""How many live sessions there may be."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """How many sessions there may be, and how many events may wait for each."""

    sessions_max: int = setting(
        20_000,
        "live sessions of a process; never more than nine tenths of its connections",
        ge=1,
        le=1_000_000,
    )
    """At some 30 KiB each, they must fit into the process's memory."""
    sessions_per_user: int = setting(16, "live sessions of one user", ge=1, le=10_000)
    """One user's devices and tabs; a client in a loop must not crowd out the others."""
    session_events_max: int = setting(
        256, "events that may wait for a session until it reads the log", ge=1, le=100_000
    )
    """Enough for a burst, not for a client that stops reading."""
