"""HistoryReader: reads what sessions have missed, one scan of the log for many of them.

A *scan* moves up the log page by page from the lowest place. It takes along every session whose
place it reaches; a session behind it waits for the next scan. A session of whose user a page has
no event moves along without an answer: thousands of clients that reconnect after a restart cost one
scan together. A session that has events asks again at its client's pace: a slow client delays only
itself, and holds nothing meanwhile.

Every few pages, one session gets a page from its own place: in turns the one that has waited
longest and the one nearest to the present. So a client that has missed little does not wait for a
scan of the whole log, whichever session begins one.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.errors import InternalError, Overloaded
from stretto.events.log import PAGE_EVENTS
from stretto.events.outgoing import OutgoingEvent
from stretto.events.place import PositionLost, lowest
from stretto.observations import UpkeepFailed
from stretto.runtime.actor import Actor
from stretto.runtime.backoff import Backoff
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.domain import UserId
    from stretto.events.log import LogPage, LogStore
    from stretto.events.place import Place, Present
    from stretto.observations import Observer
    from stretto.runtime.mailbox import Mailbox
    from stretto.runtime.rounds import Envelope

# Sessions that share a scan; more of them wait until one of these has its answer.
ASKS_MAX: Final = 1000
# One page in so many is for a session that the scan has not reached. So sessions at any places
# cost at most a third more pages than one that reads the whole log.
OWN_PAGE_EVERY: Final = 4
# A session that moves along without an event gets an empty answer after so long, so that its client
# sees the stream begin.
ANSWER_SECONDS_MAX: Final = 1.0
# A page whose read fails is read again for so long: clients wait for an answer about as long. If
# sessions were closed for a passing failure, all would reconnect and read more than before.
RETRY_SECONDS_MAX: Final = 10.0
BACKOFF: Final = Backoff(0.05, 1.0)


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
class _Waiting:
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

    @property
    def user(self) -> UserId:
        """Whose events it waits for."""
        return self.request.message.user


class HistoryReader(Actor):
    """Answers asks from a mailbox, batch by batch."""

    backoff = BACKOFF

    def __init__(self, mailbox: Mailbox[Ask, Stretch], log: LogStore, observe: Observer) -> None:
        super().__init__("history reader")
        self._mailbox = mailbox
        self._log = log
        self._observe = observe
        self._retry_until = 0.0
        """On the loop's clock, for the page that is being read."""
        self._scanned: Place | None = None
        """Where the scan is; None before it begins."""
        self._present: Present | None = None
        """What the last page has seen of the log."""

    def stop(self) -> None:
        """Accept nothing more; answer what waits with an error. Idempotent."""
        super().stop()
        self._mailbox.close()

    async def close(self) -> None:
        """Leave no request without an answer after the last turn, also if it was never stopped."""
        self._mailbox.close()

    async def run_once(self) -> int:
        """Wait for asks; answer all of them, and those that come meanwhile; return how many."""
        asks = await self._mailbox.take(ASKS_MAX)
        taken = 0
        waiting: list[_Waiting] = []
        self._scanned = None
        unanswered: Exception = Overloaded.while_stopping()
        try:
            for number in itertools.count():
                answer_at = asyncio.get_running_loop().time() + ANSWER_SECONDS_MAX
                waiting += (self._waiting(ask, number, answer_at) for ask in asks)
                taken += len(asks)
                if not waiting:
                    break
                waiting = await self._read_page(number, waiting)
                # Clients that keep pace ask again now, and stay with the scan.
                await asyncio.sleep(0)
                waiting = [each for each in waiting if not each.request.answered.done()]
                has_room = len(self._mailbox) and len(waiting) < ASKS_MAX
                asks = await self._mailbox.take(ASKS_MAX - len(waiting)) if has_room else []
        except StoreError as error:
            unanswered = error
        except Exception:
            unanswered = InternalError()
            raise
        finally:
            for request in (*asks, *(each.request for each in waiting)):
                request.fail(unanswered)
        return taken

    def _waiting(self, ask: Envelope[Ask, Stretch], number: int, answer_at: float) -> _Waiting:
        """Return a session that begins to wait."""
        place, is_known = ask.message.place, True
        if self._present is not None:
            try:
                self._present.require(place)
            except PositionLost:
                is_known = False
        return _Waiting(ask, place, number, answer_at, is_known)

    async def _read_page(self, number: int, waiting: list[_Waiting]) -> list[_Waiting]:
        """Read one page and answer sessions by it; return all whose place is not lost.

        Any client may send positions that are none of this log, again and again. A page that begins
        at one is of no use to others, so it begins at a place that is known, if there is any.
        """
        known = [each for each in waiting if each.is_known] or waiting
        is_scan = number % OWN_PAGE_EVERY != OWN_PAGE_EVERY - 1
        begin = self._scan(known) if is_scan else _own(number, known)
        page = await self._page(begin, sorted({each.user for each in waiting}))
        self._present = page.present
        kept: list[_Waiting] = []
        for each in waiting:
            try:
                page.present.require(each.place)
            except PositionLost as error:
                each.request.fail(error)
                continue
            each.is_known = True
            kept.append(each)
        if page.present.histories.get(begin.history.number) != begin.history.id:
            # `begin` is no place of this log: its page may leave out events that others lack.
            return kept
        if is_scan:
            self._scanned = page.place
        _serve(page, number, [each for each in kept if _covers(each.place, begin)])
        return kept

    def _scan(self, waiting: list[_Waiting]) -> Place:
        """Return where the scan goes on; a new one begins if it has passed all that wait."""
        scanned = self._scanned
        ahead = {each.place for each in waiting if scanned is None or _covers(each.place, scanned)}
        return lowest(ahead or {each.place for each in waiting})

    async def _page(self, begin: Place, users: Sequence[UserId]) -> LogPage:
        """Read a page, and after a failure read again, for `RETRY_SECONDS_MAX`."""
        self._retry_until = asyncio.get_running_loop().time() + RETRY_SECONDS_MAX
        for failures in itertools.count():
            try:
                return await self._log.page(begin, PAGE_EVENTS, users)
            except StoreError as error:
                self._observe(UpkeepFailed(self.name, error))
                if asyncio.get_running_loop().time() >= self._retry_until:
                    raise
            await asyncio.sleep(BACKOFF.seconds(failures))
        raise AssertionError  # the loop ends only by a return or a raise


def _own(number: int, waiting: Sequence[_Waiting]) -> Place:
    """Return the place of the session that has waited longest, or is nearest to the present."""
    if number // OWN_PAGE_EVERY % 2:
        first = min(waiting, key=lambda each: each.since_page)
    else:
        first = max(waiting, key=lambda each: (each.place.history.number, each.place.xmax))
    for each in waiting:
        if each.user == first.user:
            # A user's many sessions take turns, so that they do not delay other users.
            each.since_page = number
    return first.place


def _serve(page: LogPage, number: int, served: Sequence[_Waiting]) -> None:
    """Move each on to the page's end; answer those with events, and all at the log's end.

    One that has moved without an answer for `ANSWER_SECONDS_MAX` gets an empty one.
    """
    events = _events_of(page, served)
    now = asyncio.get_running_loop().time()
    # Most are at one place: they have moved along together.
    places = {place: place | page.place for place in {each.place for each in served}}
    for each in served:
        place = places[each.place]
        is_moved = place != each.place
        if events[id(each)] or not page.is_full or (is_moved and now >= each.answer_at):
            each.request.answer(Stretch(events[id(each)], place, not page.is_full))
        elif is_moved:
            each.place, each.since_page = place, number


def _events_of(page: LogPage, served: Sequence[_Waiting]) -> dict[int, list[OutgoingEvent]]:
    """Return the events of each by its `id`; an event is encoded once for all."""
    events: dict[int, list[OutgoingEvent]] = {id(each): [] for each in served}
    waiting_of: dict[str, list[_Waiting]] = {}
    for each in served:
        waiting_of.setdefault(each.user, []).append(each)
    for logged, position in page.numbered():
        outgoing = OutgoingEvent(logged, position)
        for user in waiting_of.keys() & logged.event.recipients:
            for each in waiting_of[user]:
                if not outgoing.is_covered_by(each.place):
                    events[id(each)].append(outgoing)
    return events


def _covers(place: Place, other: Place) -> bool:
    """Whether a reader at `place` has had all that one at the other place has had."""
    return place & other == other
