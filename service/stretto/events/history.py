"""The history of events: what is read of it, and what reads it."""

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
    """What a database says of its history at one moment."""

    settled: Position
    """Everything before it is committed, or never will be: the oldest running transaction."""
    live: Position
    """Everything before it has been handed to the bus, or is a dead letter."""
    next: Position
    """Nothing has this position yet, nor a later one."""


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A stretch of history, read at one moment."""

    events: Sequence[PastEvent]
    end: Cursor | None
    """Where the next page begins; nothing where this is the last one."""
    start: Position
    """From here on nothing had been swept when the page was read."""


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event of the history; its `resume_from` is its own position."""

    event: CommittedEvent
    is_under_way: bool
    """Whether it was not yet known to have been handed to the bus: it may still come live."""

    @property
    def cursor(self) -> Cursor:
        """Where it stands."""
        return Cursor(self.event.resume_from, self.event.event_id)


class HistoryStore(Protocol):
    """Reads the history; holds a connection only while it does, and may raise `Unreachable`."""

    async def bounds(self) -> HistoryBounds:
        """Return where history stands now."""

    async def page(self, after: Cursor, users: Sequence[UserId]) -> HistoryPage:
        """Return a stretch of what is behind the cursor; others than the users' may be left out."""
