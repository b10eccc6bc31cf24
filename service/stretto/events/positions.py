"""Positions in the history of events: a transaction's, a client's, and the cursor of a scan.

A client's position is `<transaction>.<origin>`. The origin names the database, so that a position
of another database, or from before a restore into another one, is recognised and refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    from uuid import UUID

Position = NewType("Position", int)
"""A position in the history of events: the id (xid8) of the transaction that wrote an event.

A transaction that ended before another began has the lower position.
"""

Origin = NewType("Origin", str)
"""Which database a position belongs to: eight hexadecimal digits."""

_POSITION = re.compile(r"([0-9]{1,20})\.([0-9a-f]{8})", re.ASCII)
# An xid8 has 64 bits.
_POSITION_MAX: Final = 2**64 - 1


class PositionLost(Exception):
    """The position is older than the history that is kept, or of another database."""


@dataclass(frozen=True, slots=True)
class ClientPosition:
    """A position as a client keeps it and sends it back: every event before it was published."""

    position: Position
    origin: Origin

    def __str__(self) -> str:
        return f"{self.position}.{self.origin}"

    @classmethod
    def parse(cls, text: str) -> ClientPosition:
        """Parse a client's position; raise `ValueError` for one that stretto cannot have sent."""
        found = _POSITION.fullmatch(text)
        if found is None or int(found[1]) > _POSITION_MAX:
            raise ValueError(text)
        return cls(Position(int(found[1])), Origin(found[2]))


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """How far a scan has read: up to this event. History is ordered by these two fields."""

    position: Position
    event_id: UUID
