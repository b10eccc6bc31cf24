"""What one client of live events was sent, as if all of its sessions were one.

It resumes wherever it was cut off, so it must be sent each event of its user's groups since it
began, or learn that its position is lost (G9). Another client may resume at any position that was
ever sent: it must be sent all that the first one had not been sent by then.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import orjson

if TYPE_CHECKING:
    from uuid import UUID


@dataclass(frozen=True, slots=True)
class Received:
    """An event as it arrived; two with equal contents have equal digests."""

    id: str
    subject: str
    """The id of its group."""
    digest: str

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """Take a CloudEvents document."""
        text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
        return cls(document["id"], document["subject"], hashlib.sha256(text).hexdigest()[:16])

    @classmethod
    def of_json(cls, line: dict[str, Any]) -> Self:
        """Take it from a line of the history."""
        return cls(line["id"], line["subject"], line["digest"])

    def as_json(self) -> dict[str, str]:
        """Return it for a line of the history."""
        return {"id": self.id, "subject": self.subject, "digest": self.digest}


@dataclass(slots=True)
class Listening:
    """One client. Numbers of lines are places in the history."""

    number: int
    user: str
    began: int | None = None
    """Since then it must be sent every event; None before its first position."""
    position: str = ""
    """Where it resumes; empty: at the present."""
    events: list[Received] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """Ids of events that it was sent, or that stand before the position where it began."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """When a position was sent, and when it was found to be lost."""
    _positions: dict[str, _Place] = field(default_factory=dict)
    _base: frozenset[str] = frozenset()
    _placed: int = 0

    @property
    def positions(self) -> list[str]:
        """Every position that it was sent."""
        return list(self._positions)

    def follow(self, parent: Listening, position: str) -> None:
        """Begin at a position that another client of this user was sent, knowing what that knew."""
        place = parent._positions[position]
        before = frozenset(event.id for event in parent.events[: place.events])
        self._base = parent._base | before
        self.position, self.began, self._placed = position, place.began, place.line
        self.known = set(self._base)

    def place(self, line: int, position: str) -> None:
        """Take a position that came alone."""
        if self.began is None:
            self.began = line
        self._move(line, position)

    def hear(self, line: int, position: str, event: Received) -> None:
        """Take an event."""
        self.events.append(event)
        self.known.add(event.id)
        self._move(line, position)

    def lose(self, line: int) -> None:
        """Take note that nothing can be resumed: it begins anew, at the present."""
        self.lost.append((self._placed, line))
        self.began, self.position = None, ""

    def misses(self, event_id: UUID) -> bool:
        """Whether it was never sent this event."""
        return str(event_id) not in self.known

    def _move(self, line: int, position: str) -> None:
        self.position, self._placed = position, line
        # The first time counts: the client may have left at once, and knew no more.
        self._positions.setdefault(position, _Place(line, self.began, len(self.events)))


@dataclass(frozen=True, slots=True)
class _Place:
    """When a position was first sent, since when events were due, and how many had come."""

    line: int
    began: int | None
    events: int
