"""An in-memory log: what of PostgreSQL its readers stand on, and nothing else.

- Ids are given to transactions in the order in which they begin; they commit in any order. A commit
  becomes visible at once. It is durable, or asynchronous: then a crash may undo it, the last ones
  first, and gives its id out again. Events are committed durably, which makes all before it durable.
- A crash ends all that is running and begins no history. A promotion may also undo durable commits,
  the last ones first; the first event after it begins a history.
- Slots are truncated whole: what was written first goes, by whichever transaction. One that runs and
  has written to a slot keeps it; one that has not may be older than all that is truncated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.domain import EVENT_TYPE
from stretto.events.log import CommittedEvent, LoggedEvent, LogPage
from stretto.events.place import History, Place, Present

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.domain import UserId

# Some ids are in use before there is any event.
FIRST_ID: Final = 100


@dataclass(frozen=True, slots=True)
class Begun:
    """A history, the first position of it, and the timeline on which it was begun."""

    history: History
    position: int
    timeline: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """What a truncation has left, together with those before it."""

    start: tuple[int, int] = (0, 0)
    """What was truncated lies before it."""
    running: frozenset[int] = frozenset()
    """What was running then, and lies before it as well."""
    gone: frozenset[UUID] = frozenset()
    """The events that were truncated, ever."""


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry of the write-ahead log."""

    position: int
    is_durable: bool
    events: tuple[LoggedEvent, ...] = ()
    begun: Begun | None = None
    truncation: Truncation | None = None


@dataclass(slots=True)
class MemoryLog:
    """Transactions and the commits of those that are over, in the order of the write-ahead log."""

    next_id: int = FIRST_ID
    timeline: int = 1
    running: dict[int, list[CommittedEvent]] = field(default_factory=dict)
    commits: list[Commit] = field(
        default_factory=lambda: [
            # As `schema.sql` leaves it.
            Commit(FIRST_ID - 1, is_durable=True, begun=Begun(_history(0, 0), FIRST_ID - 1, 0))
        ]
    )
    _events_made: int = 0

    @property
    def begun(self) -> list[Begun]:
        """Every history, the newest at the end."""
        return [commit.begun for commit in self.commits if commit.begun is not None]

    @property
    def events(self) -> list[LoggedEvent]:
        """Every event that is visible, in the order of the log; truncated ones among them."""
        events = [event for commit in self.commits for event in commit.events]
        return sorted(events, key=_place_of)

    @property
    def truncation(self) -> Truncation:
        """The last one."""
        found = (each.truncation for each in reversed(self.commits) if each.truncation is not None)
        return next(found, Truncation())

    @property
    def kept(self) -> list[LoggedEvent]:
        """Every event that can be read, in the order of the log."""
        gone = self.truncation.gone
        return [event for event in self.events if event.event.event_id not in gone]

    def begin(self) -> int:
        """Begin a transaction; return its id."""
        self.running[self.next_id] = []
        self.next_id += 1
        return self.next_id - 1

    def write(self, position: int, *recipients: str) -> CommittedEvent:
        """Insert an event in a transaction that runs."""
        self._events_made += 1
        id_ = UUID(int=self._events_made)
        event = CommittedEvent(id_, recipients, b'{"id":"%d"}' % self._events_made)
        self.running[position].append(event)
        return event

    def commit(self, position: int) -> None:
        """Commit a transaction: durably, if it has events."""
        events = self.running.pop(position)
        newest, begun = self.begun[-1], None
        if events and newest.timeline != self.timeline:
            history = _history(newest.history.number + 1, self.timeline)
            newest = begun = Begun(history, position, self.timeline)
        logged = tuple(
            LoggedEvent(event, newest.history, position, is_change=event.event_type != EVENT_TYPE)
            for event in events
        )
        self.commits.append(Commit(position, bool(events), logged, begun))

    def roll_back(self, position: int) -> None:
        """End a transaction without a trace."""
        del self.running[position]

    def crash(self, survivors: int) -> None:
        """Keep so many of the asynchronous commits at the end; end all that runs."""
        durable = max(n for n, commit in enumerate(self.commits) if commit.is_durable)
        self._fall_back(durable + 1 + survivors)

    def promote(self, kept: int) -> None:
        """Go on from the first so many commits, at least one, on a timeline that never was."""
        self._fall_back(max(1, kept))
        self.timeline += 1

    def truncate(self, events: int) -> None:
        """Drop the first so many events that were written, unless what runs has written among them."""
        dropped = sorted(self.kept, key=lambda each: each.event.event_id)[:events]
        unfinished = [event.event_id for written in self.running.values() for event in written]
        if not dropped or any(id_ < dropped[-1].event.event_id for id_ in unfinished):
            return
        last, newest = self.truncation, self.begun[-1]
        number, position = max(_place_of(event) for event in dropped)
        start = max(last.start, (number, position + 1))
        goes_on = start[0] == newest.history.number and newest.timeline == self.timeline
        running = frozenset(each for each in self.running if goes_on and each < start[1])
        gone = last.gone.union(event.event.event_id for event in dropped)
        truncation = Truncation(start, running, gone)
        self.commits.append(Commit(self.next_id, is_durable=True, truncation=truncation))
        self.next_id += 1

    def _fall_back(self, kept: int) -> None:
        self.commits = self.commits[:kept]
        self.running.clear()
        # The worst case: no record of a later transaction has reached the disk.
        self.next_id = max(commit.position for commit in self.commits) + 1

    def look(self) -> Present:
        """Return what a statement sees now."""
        newest = self.begun[-1]
        ends = [event.position + 1 for event in self.events if event.history == newest.history]
        truncation = self.truncation
        if truncation.start[0] == newest.history.number:
            ends.append(truncation.start[1])
        return Present(
            newest.history,
            max(ends, default=newest.position),
            tuple(sorted(self.running)),
            {each.history.number: each.history.id for each in self.begun},
            truncation.start,
            is_ended=newest.timeline != self.timeline,
            start_running=truncation.running,
        )


class MemoryLogStore:
    """A `LogStore` over it; a statement is done at once."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def present(self) -> Place:
        """Return the place that covers every event that is visible now."""
        return self._log.look().place

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        """Return the next events, in order."""
        return page_of(self._log, begin, events_max, users)


def page_of(
    log: MemoryLog, begin: Place, events_max: int, users: Sequence[UserId] | None = None
) -> LogPage:
    """Return the page that a statement reads."""
    present = log.look()
    found = [event for event in log.kept if not begin.has(event.history.number, event.part)]
    found.sort(key=lambda event: (event.history.number, event.part))
    found, behind = found[:events_max], found[events_max:]
    is_full = len(found) >= events_max
    is_cut = bool(is_full and behind and _place_of(behind[0]) == _place_of(found[-1]))
    place = present.place
    if is_cut:
        place = present.within(begin, found[-1].history, found[-1].part)
    elif is_full:
        place = present.after(begin, found[-1].history, found[-1].position)
    events = [
        event for event in found if users is None or not {*users}.isdisjoint(event.event.recipients)
    ]
    return LogPage(begin, events, place, present, is_full, is_cut)


def _place_of(event: LoggedEvent) -> tuple[int, int]:
    return event.history.number, event.position


def _history(number: int, timeline: int) -> History:
    return History(number, f"{timeline:08x}")
