"""Events on their way from the outbox to those who get them: what relay, bus and hub agree on.

An event is handed on at least once and has one id however often that happens: whoever has effects
deduplicates by it (G8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from stretto.events.positions import Position

# Of an event's envelope, wherever it goes.
CONTENT_TYPE: Final = "application/cloudevents+json"
# What the names of a deployment begin with on the bus: one token of a subject.
BUS_PREFIX_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
BUS_PREFIX: Final = "stretto"
# After so many, whoever hands events to sessions lets them take their share: fewer than a session may
# hold, so that a burst finds none too slow that reads.
TURN_EVENTS: Final = 64


class BusUnavailable(Exception):
    """The bus takes nothing at the moment; nothing is known of what was being handed over."""


@dataclass(frozen=True, slots=True)
class CommittedEvent:
    """An event of a committed transaction, encoded once for all who get it."""

    event_id: UUID
    recipients: tuple[str, ...]
    """The users whose sessions are told."""
    envelope: bytes
    """A CloudEvents 1.0 document as JSON; `id` is the event's id."""
    resume_from: Position
    """Where to resume after this event: nothing before that place can still come."""


class EventBus(Protocol):
    """Carries events to every replica's hub, in process or between machines."""

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Hand the events over; return the reasons of those that were refused, by event id.

        Raises `BusUnavailable`, and then any of them may or may not have been handed over.
        """
