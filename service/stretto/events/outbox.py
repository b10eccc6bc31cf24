"""The outbox as the relay sees it: the statements on the table in which events wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.events.event import CommittedEvent

# The longest pause after a refusal. An event that is due even later was put off by another clock.
PAUSE_SECONDS_MAX: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalLimits:
    """How a refused event is tried again."""

    tries_max: int = 12
    """With the pauses below, an operator has about 15 minutes to repair the cause."""
    pause_seconds_first: float = 1.0
    pause_seconds_max: float = PAUSE_SECONDS_MAX


class OutboxStore(Protocol):
    """Short statements, each a transaction of its own; each raises `Unreachable`."""

    async def take(self, events_max: int, lease_seconds: float) -> Sequence[CommittedEvent]:
        """Lease due events, in history's order: no other relay takes them during the lease."""

    async def oldest_seconds(self) -> float | None:
        """Return the age of the oldest event that is still to be published, if there is one."""

    async def mark(self, event_ids: Collection[UUID]) -> None:
        """Mark these events as published."""

    async def release(self, event_ids: Collection[UUID]) -> None:
        """End the lease of events that were not published."""

    async def refuse(self, reasons: Mapping[UUID, str], limits: RefusalLimits) -> set[UUID]:
        """Put refused events off; return those that became dead letters."""
