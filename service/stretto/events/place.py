"""Places in the log of events: what a reader has had of it.

The log is ordered by history, then by position. A position is the id of the transaction that wrote
an event, so it does not show the order of commits: an event may become visible after others with
higher positions. A place therefore names the transactions below its end that were still running.

A history is a stretch of transaction ids that nothing interrupts. A promotion, or a restore into
another server, begins a new one, since ids go back there. So does a crash: ids of asynchronous
commits that were not flushed are given out again. Every place therefore ends right behind an event
that was visible, whose commit was flushed, and never at the newest id.

A transaction may have any number of events. A reader that has had only some of it has a *part*:
where in its order it stands. A client's position names no part: it gets such a transaction again.

This module does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

# Transactions in a place's text, which must fit into a header and a URL. Where more were running,
# the text ends at the next one: what a client has had of the rest is sent again.
RUNNING_MAX: Final = 32
# An xid8 has 64 bits, the number of a history 31.
_POSITION_MAX: Final = 2**64 - 1
_NUMBER_MAX: Final = 2**31 - 1
_TEXT: Final = re.compile(
    rf"([0-9]{{1,20}})((?:~[0-9]{{1,20}}){{0,{RUNNING_MAX}}})\.([0-9]{{1,10}})-([0-9a-f]{{8}})",
    re.ASCII,
)


class PositionLost(Exception):
    """The place is older than the log that is kept, or of a history that is not this database's."""


@dataclass(frozen=True, slots=True, order=True)
class History:
    """A stretch of transaction ids; the number orders histories."""

    number: int
    id: str
    """Eight hexadecimal digits: copies of a database may number different histories alike."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What a reader has had of one transaction: its events up to this one, in the order of the log.

    They are visible all at once, and never change: whatever follows this one, follows it for ever.
    """

    position: int
    is_change: bool
    """A creation comes before the changes of its transaction."""
    event_id: UUID


@dataclass(frozen=True, slots=True)
class Place:
    """What a reader has had: all of the older histories, and of this one what `covers` says."""

    history: History
    xmax: int
    """Positions from here on are not covered."""
    running: tuple[int, ...] = ()
    """Positions below `xmax` that are not covered, in order: their transactions may commit."""
    parts: tuple[Part, ...] = ()
    """Of transactions that are not covered, what was had of them nevertheless; one each, in order."""

    def covers(self, number: int, position: int) -> bool:
        """Whether a reader that is here has had the events of this history and transaction."""
        if number != self.history.number:
            return number < self.history.number
        return position < self.xmax and position not in self.running

    def has(self, number: int, part: Part) -> bool:
        """Whether a reader that is here has had a transaction of this history up to this event."""
        if self.covers(number, part.position):
            return True
        had = self.part(part.position) if number == self.history.number else None
        return had is not None and part <= had

    def part(self, position: int) -> Part | None:
        """Return what was had of a transaction that is not covered; None if it was nothing."""
        return next((part for part in self.parts if part.position == position), None)

    def __or__(self, other: Place) -> Place:
        """Return the place that covers what either of the two covers."""
        if self.history != other.history:
            return max(self, other, key=lambda each: each.history)
        number = self.history.number
        running = (
            each
            for each in {*self.running, *other.running}
            if not self.covers(number, each) and not other.covers(number, each)
        )
        union = Place(self.history, max(self.xmax, other.xmax), tuple(sorted(running)))
        # The greatest of each position is the last of them here.
        parts = {part.position: part for part in sorted({*self.parts, *other.parts})}
        return union.with_parts(parts.values())

    def with_parts(self, parts: Iterable[Part]) -> Place:
        """Return this place with those of the parts that it does not cover."""
        number = self.history.number
        kept = (part for part in parts if not self.covers(number, part.position))
        return replace(self, parts=tuple(sorted(kept)))

    def __and__(self, other: Place) -> Place:
        """Return the place that covers what both of the two cover."""
        if self.history != other.history:
            return min(self, other, key=lambda each: each.history)
        xmax = min(self.xmax, other.xmax)
        running = _below(xmax, {*self.running, *other.running})
        return Place(self.history, xmax, running, _common_parts((self, other)))

    def __str__(self) -> str:
        """Return the position that a client keeps: it covers no more than this place."""
        xmax, running = _few(self.xmax, self.running)
        parts = [str(xmax), *(str(xmax - position) for position in running)]
        return f"{'~'.join(parts)}.{self.history.number}-{self.history.id}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse a client's position; raise `ValueError` for one that stretto cannot have sent."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(text)
        xmax, number = int(found[1]), int(found[3])
        running = sorted({xmax - int(distance) for distance in found[2].split("~")[1:]})
        is_possible = not running or (running[0] >= 0 and running[-1] < xmax)
        if not is_possible or xmax > _POSITION_MAX or number > _NUMBER_MAX:
            raise ValueError(text)
        return cls(History(number, found[4]), xmax, tuple(running))


@dataclass(frozen=True, slots=True)
class Present:
    """What one statement saw of the log."""

    history: History
    """The newest one."""
    end: int
    """One more than the greatest position of a visible event of it; its own beginning, if none."""
    running: tuple[int, ...]
    """The transactions that were running, in order."""
    histories: Mapping[int, str]
    """The ids of all histories, by their numbers."""
    start: tuple[int, int]
    """History's number and position from which on no event was swept."""
    is_ended: bool = False
    """Whether the server would begin another history with its next event: it was promoted."""
    start_running: frozenset[int] = frozenset()
    """Positions below `start`, of its history, of which nothing was swept: their transactions were
    running at the last sweep. What these commit later comes into the log below its start."""

    @property
    def place(self) -> Place:
        """Where a reader is that has had everything that was visible."""
        return Place(self.history, self.end, _below(self.end, self.running))

    @property
    def first(self) -> Place:
        """Where a reader is that has had nothing of what is kept."""
        # Below 1 there is no transaction, and no snapshot of the database's begins there.
        number, position = max(self.start, (min(self.histories), 1))
        first = Place(History(number, self.histories[number]), position)
        below = _below(position, {*self.running, *self.start_running})
        return replace(first, running=tuple(n for n in below if self._is_whole(first.history, n)))

    def after(self, begin: Place, history: History, position: int) -> Place:
        """Return where a reader is that began at `begin` and has had all up to this transaction."""
        xmax, running = position + 1, set[int]()
        if history == begin.history:
            xmax = max(xmax, begin.xmax)
            running.update(each for each in begin.running if each > position)
        if history == self.history:
            # No transaction of an older history runs any more.
            running.update(_below(xmax, self.running))
        place = Place(history, xmax, tuple(sorted(running)))
        return place.with_parts(begin.parts if history == begin.history else ())

    def within(self, begin: Place, history: History, part: Part) -> Place:
        """Return where a reader is that has had all before this transaction, and this part of it."""
        place = self.after(begin, history, part.position - 1)
        others = (each for each in place.parts if each.position != part.position)
        return place.with_parts((*others, part))

    def require(self, place: Place) -> None:
        """Raise `PositionLost` unless the log has all that the place does not cover.

        A transaction below the start that was running when the log was swept does not make a place
        lost, however old it is: what was swept had committed.

        A place may lie beyond the end of a history that has ended: the events up to it were lost,
        and none is added there. Beyond the end of one that goes on, ids have gone back unnoticed:
        new events may get positions that the place covers.
        Below the end there may be some already, so a reader begins where the log does, and not there.
        """
        history, number = place.history, place.history.number
        is_known = self.histories.get(number) == history.id
        is_swept = (number, place.xmax) < self.start or not all(
            self._is_whole(history, position) for position in place.running
        )
        is_ahead = self._goes_on(history) and place.xmax > self.end
        if not is_known or is_swept or is_ahead:
            raise PositionLost

    def _is_whole(self, history: History, position: int) -> bool:
        """Whether nothing of a transaction was swept.

        One that still runs was running at every sweep: also at one of an instance of an older
        version, which does not keep what was running.
        """
        if (history.number, position) >= self.start:
            return True
        if history.number == self.start[0] and position in self.start_running:
            return True
        return self._goes_on(history) and position in self.running

    def _goes_on(self, history: History) -> bool:
        return history == self.history and not self.is_ended


def lowest(places: Collection[Place]) -> Place:
    """Return a place that covers what all of these cover, and names as few transactions as a text.

    Clients choose what their positions name. A page that begins where a thousand of them name others
    would cost a second of the event loop.
    """
    history = min(place.history for place in places)
    of_it = [place for place in places if place.history == history]
    xmax = min(place.xmax for place in of_it)
    few = _few(xmax, _below(xmax, {n for place in of_it for n in place.running}))
    return Place(history, *few, _common_parts(of_it))


def _common_parts(places: Collection[Place]) -> tuple[Part, ...]:
    """Return what all of these places, of one history, have had of transactions that not all cover."""
    common: list[Part] = []
    for position in sorted({part.position for place in places for part in place.parts}):
        lacking = [each for each in places if not each.covers(each.history.number, position)]
        had = [part for each in lacking if (part := each.part(position)) is not None]
        if len(had) == len(lacking):
            common.append(min(had))
    return tuple(common)


def _few(xmax: int, running: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the end of a place and what it names, so that it names few and covers no more."""
    if len(running) > RUNNING_MAX:
        return running[RUNNING_MAX], running[:RUNNING_MAX]
    return xmax, running


def _below(xmax: int, positions: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(position for position in positions if position < xmax))
