"""An event on its way to live sessions, encoded once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.events.log import CommittedEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.events.log import LoggedEvent
    from stretto.events.place import Place
    from stretto.telemetry.tracing import Trace


class Push:
    """The span of a traced event that waits for sessions; it ends when the last of them lets go."""

    __slots__ = ("_sessions", "_span", "_waiting")

    def __init__(self, span: Trace) -> None:
        self._span = span
        self._sessions = 0
        # The delivery itself: it ends no span before every session was offered the event.
        self._waiting = 1

    def join(self) -> None:
        """Count a session that has queued the event."""
        self._sessions += 1
        self._waiting += 1

    def leave(self) -> None:
        """Count it no longer: its transport has the event, or will never get it."""
        self._waiting -= 1
        if not self._waiting:
            self._span.end({"stretto.sessions": self._sessions})


class OutgoingEvent:
    """An event for any number of sessions, encoded once per transport (WebSocket, SSE)."""

    __slots__ = ("_encoded", "_history", "_part", "event", "position", "push")

    def __init__(self, logged: LoggedEvent, position: str, push: Push | None = None) -> None:
        # Without its recipients, which may be thousands: it waits for as long as a client reads.
        self.event = CommittedEvent(logged.event.event_id, (), logged.event.envelope)
        self._history = logged.history.number
        self._part = logged.part
        self.position = position
        """What the client sends to resume behind this event."""
        self.push = push
        """If its request was sampled, and sessions get it live."""
        self._encoded: dict[Callable[[OutgoingEvent], bytes], bytes] = {}

    def is_covered_by(self, place: Place) -> bool:
        """Whether a reader at this place has had the event."""
        return place.has(self._history, self._part)

    def encoded(self, encode: Callable[[OutgoingEvent], bytes]) -> bytes:
        """Return the event as `encode` returns it, encoded on first use."""
        if encode not in self._encoded:
            self._encoded[encode] = encode(self)
        return self._encoded[encode]
