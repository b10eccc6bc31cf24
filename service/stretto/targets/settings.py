"""How a relay publishes, and what a deployment's names on the bus begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stretto.setting import setting

# The prefix of a deployment's names on the bus: one token of a subject.
BUS_PREFIX_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
BUS_PREFIX: Final = "stretto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How much a relay publishes at once, and how often."""

    relay_lease_seconds: float = setting(
        5.0, "after this long another relay takes over from one that has died", ge=1, le=3600
    )
    """A part of a batch that takes the bus longer is published again."""
    batch_max: int = 256
    """Events per statement: a few milliseconds of work."""
    publish_bytes_max: int = 1024 * 1024
    """The bus gets a batch in parts of so many bytes, and at least of one event: after each, the place
    moves. An event may have half a megabyte, and the link to the bus may be slow."""
    gather_seconds: float = 0.005
    """How long a wake-up waits for more events: ten cost the two statements of one."""
    poll_seconds: float = 1.0
    """How often to look without a wake-up: for refused events, and for a lease that has ended."""
