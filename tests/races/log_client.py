"""A client of a log's explored world, and what it was sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stretto.events.place import Place

if TYPE_CHECKING:
    import asyncio

    from stretto.events.catch_up import CatchUp
    from stretto.events.outgoing import OutgoingEvent


@dataclass(slots=True)
class Client:
    """What one client was sent: in all, and in its present session."""

    number: int
    position: str | None
    first: Place | None = None
    sent: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    """Each position, with all that had come by then."""
    heard: list[int] = field(default_factory=list)
    heard_in_session: list[int] = field(default_factory=list)
    catch_up: CatchUp | None = None
    session: Any = None
    turn: asyncio.Future[None] | None = None
    """What the task of its session waits for before it takes events."""

    @property
    def has_to_send(self) -> bool:
        """Whether that task waits for its turn, and would find something to do in it."""
        is_waiting = self.turn is not None and not self.turn.done()
        return is_waiting and (len(self.session) > 0 or self.session.is_behind)

    def place(self, position: str) -> None:
        """Take a position."""
        self.position = position
        self.first = self.first or Place.parse(position)
        self.sent.append((position, frozenset(self.heard)))

    def hear(self, outgoing: OutgoingEvent) -> None:
        """Take an event."""
        event = outgoing.event.event_id.int
        assert event not in self.heard_in_session, "an event came twice"
        self.heard.append(event)
        self.heard_in_session.append(event)
        self.place(outgoing.position)
