"""Positions in the history of events, as transactions have them and as clients carry them.

A client's position is `<transaction>.<origin>`, where the origin names the database: a position of
another one, or from before a restore into another one, is recognised rather than taken for ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    from uuid import UUID

Position = NewType("Position", int)
"""A place in the history of events: everything before it was handed to the bus.

It is a transaction id (xid8): events of transactions that ended before another began stand before it.
"""


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
