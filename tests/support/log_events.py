"""Events of the log, and places in it, for tests without a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.events.log import CommittedEvent, LoggedEvent
from stretto.events.place import History, Place, Present

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stretto.events.hub import SessionHub
    from stretto.events.outgoing import OutgoingEvent

HISTORY: Final = History(1, "0a1b2c3d")


def logged(
    number: int, *recipients: str, history: History = HISTORY, trace_context: str | None = None
) -> LoggedEvent:
    """Return an event at a position of the same number; alice's, if no user is named."""
    event = CommittedEvent(UUID(int=number), recipients or ("alice",), b"{}", trace_context)
    return LoggedEvent(event, history, number)


def place(xmax: int, *running: int, history: History = HISTORY) -> Place:
    """Return a place."""
    return Place(history, xmax, running)


def present(end: int, *running: int, start: int = 0) -> Present:
    """Return the present of a log with one history."""
    return Present(HISTORY, end, running, {1: HISTORY.id}, (1, start))


def deliver(hub: SessionHub, event: LoggedEvent) -> None:
    """Have the hub deliver an event, with the place behind it."""
    hub.deliver(event, str(place(event.position + 1)))


def numbers(events: Iterable[OutgoingEvent]) -> list[int]:
    """Return the numbers of events."""
    return [each.event.event_id.int for each in events]
