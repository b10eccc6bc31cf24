"""Resuming: what a session needs from the history of events, and the place at which it left.

A place is told as `<transaction>.<origin>`, where the origin names the database: a place from
another one, or from before a restore into another one, is recognised rather than taken for ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType, Protocol

from stretto.protocol.events import Position

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.protocol.events import CommittedEvent

Origin = NewType("Origin", str)
"""Which database a position belongs to: eight hexadecimal digits."""

_POSITION = re.compile(r"([0-9]{1,20})\.([0-9a-f]{8})", re.ASCII)
# An xid8 has 64 bits.
_POSITION_MAX: Final = 2**64 - 1


class PositionLost(Exception):
    """Nothing can be resumed there: it is older than what is kept, or of another database."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A position as clients carry it around."""

    position: Position
    origin: Origin

    def __str__(self) -> str:
        return f"{self.position}.{self.origin}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """Raise `ValueError` for what we have never told anybody."""
        found = _POSITION.fullmatch(text)
        if found is None or int(found[1]) > _POSITION_MAX:
            raise ValueError(text)
        return cls(Position(int(found[1])), Origin(found[2]))


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """How far a scan has come: behind this event. Events are in the order of these two."""

    position: Position
    event_id: UUID


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
