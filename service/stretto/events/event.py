"""Events on their way from the log to their recipients: what relay, bus and hub agree on.

An event is published at least once, always under the same id: a consumer with effects deduplicates
by it (G8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

# Of an event's envelope, on every way out.
CONTENT_TYPE: Final = "application/cloudevents+json"
# The prefix of a deployment's names on the bus: one token of a subject.
BUS_PREFIX_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
BUS_PREFIX: Final = "stretto"


class BusUnavailable(Exception):
    """The bus accepts nothing now; whether the events were published is unknown."""


@dataclass(frozen=True, slots=True)
class CommittedEvent:
    """An event of a committed transaction, encoded once for all recipients."""

    event_id: UUID
    recipients: tuple[str, ...]
    """The users whose sessions get the event."""
    envelope: bytes
    """A CloudEvents 1.0 document as JSON; `id` is the event's id."""


class EventBus(Protocol):
    """Carries events to other consumers; the service itself reads the log and needs no bus."""

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish the events; return the reasons of those that were refused, by event id.

        Raises `BusUnavailable`; each of the events may then be published or not.
        """
