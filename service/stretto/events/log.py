"""The log of events: an event, a page, and what readers need of the database."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

from stretto.domain import EVENT_TYPE
from stretto.events.place import Part
from stretto.observations import EventsUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.events.place import History, Place, Present
    from stretto.observations import Observer

# For sessions: a statement of a few milliseconds, whatever the filter, since rows are counted
# before it. As each event may have a thousand recipients, and a change as many members, a page is
# 50 MB at most.
PAGE_EVENTS: Final = 100


@dataclass(frozen=True, slots=True)
class CommittedEvent:
    """An event of a committed transaction, encoded once for all recipients."""

    event_id: UUID
    recipients: tuple[str, ...]
    """The users whose sessions get the event."""
    envelope: bytes
    """A CloudEvents 1.0 document as JSON; `id` is the event's id."""
    trace_context: str | None = None
    """Of the request that has caused the event, if it was sampled; it is in the document, too.

    A change by a host has none.
    """
    event_type: str = EVENT_TYPE
    """Such as group.renamed; the document's `type`."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event, and where it lies in the log."""

    event: CommittedEvent
    history: History
    position: int
    is_readable: bool = True
    """Whether an event can be made of its row; else `event` is empty, and is not sent."""
    is_change: bool = False
    """Whether its row names a type: it lies behind its transaction's creations, also if that is theirs."""

    @property
    def part(self) -> Part:
        """What a reader has had of its transaction, once it has had this event."""
        return Part(self.position, self.is_change, self.event.event_id)


@dataclass(frozen=True, slots=True)
class LogPage:
    """What one read has returned, in the order of the log."""

    begin: Place
    events: Sequence[LoggedEvent]
    """Events of users that were not asked for may be left out."""
    place: Place
    """Where the reader is after the page: past its last event, or at the present."""
    present: Present
    is_full: bool
    """Whether there may be more: then `place` is right after the last event."""
    is_cut: bool = False
    """Whether the last event's transaction goes on behind the page."""

    def place_behind(self, events: int) -> Place:
        """Return where the reader is after the first so many events of the page, one at least.

        If events were left out, less than it has had may be covered.
        """
        if events == len(self.events):
            return self.place
        last, following = self.events[events - 1 : events + 1]
        if _transaction_of(last) == _transaction_of(following):
            return self.present.within(self.begin, last.history, last.part)
        return self.present.after(self.begin, last.history, last.position)

    def numbered(self) -> Iterator[tuple[LoggedEvent, str]]:
        """Yield each event with the position that its clients get.

        A client that has one event of a transaction may still lack another. So only the last event
        of each transaction carries the place after it; the others carry the place before it. So do
        all of a transaction that goes on behind the page.
        """
        place, position = self.begin, str(self.begin)
        cut = _transaction_of(self.events[-1]) if self.is_cut else None
        for transaction, events in groupby(self.events, _transaction_of):
            *others, last = events
            yield from ((event, position) for event in others)
            if transaction != cut:
                place = self.present.after(place, *transaction)
                position = str(place)
            yield last, position


def report_unreadable(page: LogPage, actor: str, observe: Observer) -> None:
    """Report that this actor passes over rows of the page, if no event can be made of them."""
    unreadable = tuple(str(each.event.event_id) for each in page.events if not each.is_readable)
    if unreadable:
        observe(EventsUnreadable(actor, unreadable))


def _transaction_of(logged: LoggedEvent) -> tuple[History, int]:
    return logged.history, logged.position


class LogStore(Protocol):
    """Reads the log; each call is one statement and raises a `StoreError`."""

    async def present(self) -> Place:
        """Return the place (not a `Present`) that covers every event that is visible now."""

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        """Return the next events, up to so many, once a synchronous standby has them.

        It may leave out events of other users than `users`. It does not check that the log still
        has all after `begin`: the caller does, by `page.present.require(begin)`.
        """


class TailStore(LogStore, Protocol):
    """The same over a connection of its own, on which the log's writers are heard."""

    async def listen(self, on_announced: Callable[[], None]) -> None:
        """Open the connection, unless it is open; call back when another process has written."""

    async def close(self) -> None:
        """Close the connection; raises nothing. Idempotent."""
