"""Scan: where the next page of the log begins, for all sessions that wait for one.

It is the part of `history_reader.py` that decides, and reads nothing. A page goes on with the scan,
or begins at the place of one session that the scan has not reached.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.events.place import lowest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.domain import UserId
    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.place import Place
    from stretto.runtime.rounds import Envelope
    from stretto.runtime.turns import Turns

# One page in so many is for a session that the scan has not reached. So sessions at any places
# cost at most a third more pages than one that reads the whole log.
OWN_PAGE_EVERY: Final = 4
# The scan waits for so long at most while sessions send: a page costs some 5 ms.
GATHER_SECONDS_MAX: Final = 0.2


@dataclass(frozen=True, slots=True)
class Ask:
    """A session asks for the next stretch of its history."""

    user: UserId
    place: Place


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a session has missed, up to `place`."""

    events: Sequence[OutgoingEvent]
    place: Place
    is_end: bool
    """Whether nothing more was visible."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A session that waits for an answer."""

    request: Envelope[Ask, Stretch]
    place: Place
    """Its place, moved on by pages that had no event for it."""
    since_page: int
    """The number of the page from which its wait counts: the first one after it came, or a later
    one that moved it on, or was read for its user."""
    answer_at: float
    """On the loop's clock."""
    is_known: bool
    """Whether its place was one of the log when that was last read."""
    is_new: bool = True
    """Whether no page was read from its own place."""

    @property
    def user(self) -> UserId:
        """Whose events it waits for."""
        return self.request.message.user


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a page begins."""

    place: Place
    is_scan: bool = False
    """Whether the scan goes on with it; else it is for a session ahead."""


class Scan:
    """One way through the log after another, at the pace at which sessions send."""

    def __init__(self, turns: Turns) -> None:
        """Take the turns in which sessions send what they have missed."""
        self._turns = turns
        self._scanned: Place | None = None
        """Where the scan is; None before it begins."""
        self._due_at = 0.0
        """On the loop's clock: when it goes on, if sessions still send what it has brought."""

    def begin(self) -> None:
        """Begin a new scan, unless sessions still send what the last one has brought."""
        if not self._turns.is_behind:
            self._scanned = None

    def move(self, place: Place) -> None:
        """Note that a page of the scan was read, up to this place."""
        self._scanned = place
        self._due_at = asyncio.get_running_loop().time() + GATHER_SECONDS_MAX

    def next(self, number: int, waiting: Sequence[Waiting]) -> Begin | None:
        """Return where the page of this number begins; None while sessions that send are waited for."""
        if self._turns.is_behind and asyncio.get_running_loop().time() < self._due_at:
            return self._ahead(waiting)
        # Any client may send positions that are none of this log, again and again. A page that begins
        # at one is of no use to others, so it begins at a place that is known, if there is any.
        known = [each for each in waiting if each.is_known] or waiting
        if number % OWN_PAGE_EVERY != OWN_PAGE_EVERY - 1:
            return Begin(self._on(known), is_scan=True)
        return Begin(_own(number, known))

    def _ahead(self, waiting: Sequence[Waiting]) -> Begin | None:
        """Return the place nearest to the present of the sessions that came ahead of the scan."""
        ahead: list[Waiting] = []
        for each in waiting:
            if each.is_new and each.is_known and self._is_ahead(each.place):
                ahead.append(each)
            else:
                each.is_new = False
        if not ahead:
            return None
        first = max(ahead, key=_nearness)
        for each in ahead:
            # One page for each session at most, and one of a user's sessions for all of them.
            each.is_new = each.user != first.user
        return Begin(first.place)

    def _is_ahead(self, place: Place) -> bool:
        scanned = self._scanned
        return scanned is not None and place != scanned and covers(place, scanned)

    def _on(self, waiting: Sequence[Waiting]) -> Place:
        """Return where the scan goes on; a new one begins if it has passed all that wait."""
        scanned, places = self._scanned, {each.place for each in waiting}
        if scanned is not None and (ahead := {each for each in places if covers(each, scanned)}):
            begin = lowest(ahead)
            # What the scan has passed is not read again where too many transactions run to be named.
            return scanned if covers(scanned, begin) else begin
        return lowest(places)


def _own(number: int, waiting: Sequence[Waiting]) -> Place:
    """Return the place of the session that has waited longest, or is nearest to the present."""
    if number // OWN_PAGE_EVERY % 2:
        first = min(waiting, key=lambda each: each.since_page)
    else:
        first = max(waiting, key=_nearness)
    for each in waiting:
        if each.user == first.user:
            # A user's many sessions take turns, so that they do not delay other users.
            each.since_page = number
    return first.place


def _nearness(waiting: Waiting) -> tuple[int, int]:
    """What is greatest for the session that is nearest to the present."""
    return waiting.place.history.number, waiting.place.xmax


def covers(place: Place, other: Place) -> bool:
    """Whether a reader at `place` has had all that one at the other place has had."""
    return place & other == other
