"""HistoryReader: reads what sessions have missed, one scan of the log for many of them.

A *scan* moves up the log page by page from the lowest place. It takes along every session whose
place it reaches; a session behind it waits for the next scan. A session of whose user a page has
no event moves along without an answer: thousands of clients that reconnect after a restart cost one
scan together. A session that has events asks again at its client's pace: a slow client delays only
itself, and holds nothing meanwhile.

Every few pages, one session gets a page from its own place: in turns the one that has waited
longest and the one nearest to the present. So a client that has missed little does not wait for a
scan of the whole log, whichever session begins one.

Many sessions take many turns of the event loop to send what one page has brought them. Meanwhile the
scan waits, so that its next page is for all of them again; but who asks from a place ahead of it, and
so has missed less, gets a page at once.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

from stretto.errors import InternalError, Overloaded
from stretto.events.log import PAGE_EVENTS, report_unreadable
from stretto.events.outgoing import OutgoingEvent
from stretto.events.place import PositionLost
from stretto.events.scan import Ask, Begin, Scan, Stretch, Waiting, covers
from stretto.observations import UpkeepFailed
from stretto.runtime.actor import Actor
from stretto.runtime.backoff import Backoff
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from stretto.domain import UserId
    from stretto.events.log import LogPage, LogStore
    from stretto.events.place import Place, Present
    from stretto.observations import Observer
    from stretto.runtime.mailbox import Mailbox
    from stretto.runtime.rounds import Envelope
    from stretto.runtime.turns import Turns

# Sessions that share a scan; more of them wait until one of these has its answer.
ASKS_MAX: Final = 1000
# A session that moves along without an event gets an empty answer after so long, so that its client
# sees the stream begin.
ANSWER_SECONDS_MAX: Final = 1.0
# A page whose read fails is read again for so long: clients wait for an answer about as long. If
# sessions were closed for a passing failure, all would reconnect and read more than before.
RETRY_SECONDS_MAX: Final = 10.0
BACKOFF: Final = Backoff(0.05, 1.0)
# A session holds so much of a page, or one event: its client may read slowly, and thousands of sessions
# may be at as many places. A page may have 50 MB.
STRETCH_BYTES_MAX: Final = 128 * 1024
# Waits that end in one turn of the event loop: some 2 ms, with the choice of their events.
ANSWERS_PER_TURN: Final = 64


class HistoryReader(Actor):
    """Answers asks from a mailbox, batch by batch."""

    backoff = BACKOFF

    def __init__(
        self, mailbox: Mailbox[Ask, Stretch], log: LogStore, observe: Observer, turns: Turns
    ) -> None:
        """Take the turns in which sessions send what they have missed."""
        super().__init__("history reader")
        self._mailbox = mailbox
        self._log = log
        self._observe = observe
        self._scan = Scan(turns)
        self._retry_until = 0.0
        """On the loop's clock, for the page that is being read."""
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
        taken = number = 0
        waiting: list[Waiting] = []
        self._scan.begin()
        unanswered: Exception = Overloaded.while_stopping()
        try:
            while True:
                answer_at = _now() + ANSWER_SECONDS_MAX
                waiting += (self._waiting(ask, number, answer_at) for ask in asks)
                taken += len(asks)
                if not waiting:
                    break
                if begin := self._scan.next(number, waiting):
                    waiting = await self._read_page(number, begin, waiting)
                    number += 1
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

    def _waiting(self, ask: Envelope[Ask, Stretch], number: int, answer_at: float) -> Waiting:
        """Return a session that begins to wait."""
        place, is_known = ask.message.place, True
        if self._present is not None:
            try:
                self._present.require(place)
            except PositionLost:
                is_known = False
        return Waiting(ask, place, number, answer_at, is_known)

    async def _read_page(self, number: int, begin: Begin, waiting: list[Waiting]) -> list[Waiting]:
        """Read one page and answer sessions by it; return all whose place is not lost."""
        page = await self._page(begin.place, sorted({each.user for each in waiting}))
        self._present = page.present
        kept: list[Waiting] = []
        for each in waiting:
            try:
                page.present.require(each.place)
            except PositionLost as error:
                each.request.fail(error)
                continue
            each.is_known = True
            kept.append(each)
        history = begin.place.history
        if page.present.histories.get(history.number) != history.id:
            # `begin` is no place of this log: its page may leave out events that others lack.
            return kept
        if begin.is_scan:
            self._scan.move(page.place)
        reached = {place for place in {each.place for each in kept} if covers(place, begin.place)}
        report_unreadable(page, self.name, self._observe)
        await _serve(page, number, [each for each in kept if each.place in reached])
        return kept

    async def _page(self, begin: Place, users: Sequence[UserId]) -> LogPage:
        """Read a page, and after a failure read again, for `RETRY_SECONDS_MAX`."""
        self._retry_until = _now() + RETRY_SECONDS_MAX
        for failures in itertools.count():
            try:
                return await self._log.page(begin, PAGE_EVENTS, users)
            except StoreError as error:
                self._observe(UpkeepFailed(self.name, error))
                if _now() >= self._retry_until:
                    raise
            await asyncio.sleep(BACKOFF.seconds(failures))
        raise AssertionError  # the loop ends only by a return or a raise


async def _serve(page: LogPage, number: int, served: Sequence[Waiting]) -> None:
    """Move each on to the page's end; answer those with events, and all at the log's end.

    One that has moved without an answer for `ANSWER_SECONDS_MAX` gets an empty one.
    """
    missed = _missed(page, {each.user for each in served})
    # Most are at one place: they have moved along together.
    places = {place: place | page.place for place in {each.place for each in served}}
    stretches: dict[tuple[str, Place], Stretch] = {}
    for count, each in enumerate(served, 1):
        place, key = places[each.place], (each.user, each.place)
        if (stretch := stretches.get(key)) is None:
            stretch = stretches[key] = _stretch(page, missed[each.user], each.place, place)
        is_moved = place != each.place
        if stretch.events or not page.is_full or (is_moved and _now() >= each.answer_at):
            each.request.answer(stretch)
        elif is_moved:
            each.place, each.since_page = place, number
        if count % ANSWERS_PER_TURN == 0:
            await asyncio.sleep(0)


def _missed(page: LogPage, users: AbstractSet[str]) -> dict[str, list[tuple[int, OutgoingEvent]]]:
    """Return the events of each of these users, and how many of the page come before each.

    An event is encoded once for all.
    """
    missed: dict[str, list[tuple[int, OutgoingEvent]]] = {user: [] for user in users}
    for before, (logged, position) in enumerate(page.numbered()):
        numbered = before, OutgoingEvent(logged, position)
        for user in missed.keys() & logged.event.recipients:
            missed[user].append(numbered)
    return missed


def _stretch(
    page: LogPage, missed: Sequence[tuple[int, OutgoingEvent]], place: Place, behind: Place
) -> Stretch:
    """Return what a session lacks at its place: all up to `behind`, or as much as it may hold."""
    events: list[OutgoingEvent] = []
    held_bytes = 0
    for before, outgoing in missed:
        if outgoing.is_covered_by(place):
            continue
        held_bytes += len(outgoing.event.envelope)
        if events and held_bytes > STRETCH_BYTES_MAX:
            return Stretch(events, place | page.place_behind(before), is_end=False)
        events.append(outgoing)
    return Stretch(events, behind, not page.is_full)


def _now() -> float:
    return asyncio.get_running_loop().time()
