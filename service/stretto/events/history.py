"""The history of events: what is read from it, and the store that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stretto.events.positions import Cursor, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.domain import UserId
    from stretto.events.event import CommittedEvent


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """The positions of a database's history at one moment."""

    settled: Position
    """The oldest running transaction: every event before it is committed, or never will be."""
    live: Position
    """Every event before it is published or a dead letter."""
    next: Position
    """No event has this position yet, nor a higher one."""


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A part of the history, read at one moment."""

    events: Sequence[PastEvent]
    end: Cursor | None
    """Where the next page begins; None where this is the last one."""
    start: Position
    """No event from this position on had been swept when the page was read."""


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event of the history; its `position` is that of its own transaction."""

    event: CommittedEvent
    is_under_way: bool
    """Whether it was not yet marked as published: it may still come live."""

    @property
    def cursor(self) -> Cursor:
        """The event's place in the order of history."""
        return Cursor(self.event.position, self.event.event_id)


class HistoryStore(Protocol):
    """Reads the history; holds a connection only while it reads, and may raise `Unreachable`."""

    async def bounds(self) -> HistoryBounds:
        """Return the bounds of the history now."""

    async def page(self, after: Cursor, users: Sequence[UserId]) -> HistoryPage:
        """Return a page of the events after the cursor; it may leave out those of other users."""
