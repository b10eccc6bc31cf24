"""An event on its way to live sessions, encoded once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.events.positions import ClientPosition

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from stretto.events.event import CommittedEvent
    from stretto.events.positions import Origin


class OutgoingEvent:
    """An event for any number of sessions, encoded once per transport (WebSocket, SSE)."""

    __slots__ = ("_encoded", "event", "position")

    def __init__(self, event: CommittedEvent, origin: Origin) -> None:
        self.event = event
        self.position = str(ClientPosition(event.position, origin))
        self._encoded: dict[Callable[[OutgoingEvent], bytes], bytes] = {}

    @property
    def event_id(self) -> UUID:
        """The event's id."""
        return self.event.event_id

    def encoded(self, encode: Callable[[OutgoingEvent], bytes]) -> bytes:
        """Return the event as `encode` returns it, encoded on first use."""
        if encode not in self._encoded:
            self._encoded[encode] = encode(self)
        return self._encoded[encode]
