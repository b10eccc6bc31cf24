"""An event on its way to live sessions: encoded once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.events.positions import Bookmark

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from stretto.events.event import CommittedEvent
    from stretto.events.positions import Origin


class OutgoingEvent:
    """An event for any number of sessions, encoded once for each way out of the service."""

    __slots__ = ("_encoded", "bookmark", "event")

    def __init__(self, event: CommittedEvent, origin: Origin) -> None:
        self.event = event
        self.bookmark = str(Bookmark(event.resume_from, origin))
        self._encoded: dict[Callable[[OutgoingEvent], bytes], bytes] = {}

    @property
    def event_id(self) -> UUID:
        """The event's id."""
        return self.event.event_id

    def encoded(self, encode: Callable[[OutgoingEvent], bytes]) -> bytes:
        """Return what `encode` makes of it, made on first use."""
        if encode not in self._encoded:
            self._encoded[encode] = encode(self)
        return self._encoded[encode]
