"""An event on its way to live sessions, encoded once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.events.log import CommittedEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.events.log import LoggedEvent
    from stretto.events.place import Place


class OutgoingEvent:
    """An event for any number of sessions, encoded once per transport (WebSocket, SSE)."""

    __slots__ = ("_encoded", "_history", "_position", "event", "position")

    def __init__(self, logged: LoggedEvent, position: str) -> None:
        # Without its recipients, which may be thousands: it waits for as long as a client reads.
        self.event = CommittedEvent(logged.event.event_id, (), logged.event.envelope)
        self._history = logged.history.number
        self._position = logged.position
        self.position = position
        """What the client sends to resume behind this event."""
        self._encoded: dict[Callable[[OutgoingEvent], bytes], bytes] = {}

    def is_covered_by(self, place: Place) -> bool:
        """Whether a reader at this place has had the event."""
        return place.covers(self._history, self._position)

    def encoded(self, encode: Callable[[OutgoingEvent], bytes]) -> bytes:
        """Return the event as `encode` returns it, encoded on first use."""
        if encode not in self._encoded:
            self._encoded[encode] = encode(self)
        return self._encoded[encode]
