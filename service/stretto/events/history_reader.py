"""HistoryReader: reads what sessions have missed, one scan of the log for many of them.

All sessions that wait for history at one moment share a scan: thousands of clients that reconnect
after a restart cost a few statements. A session asks page by page, at its client's pace: a slow
client delays only itself, and holds nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from stretto.errors import InternalError, Overloaded, StoreError
from stretto.events.log import PAGE_EVENTS
from stretto.events.outgoing import OutgoingEvent
from stretto.events.place import PositionLost
from stretto.observations import UpkeepTrouble
from stretto.runtime.actor import Actor
from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Envelope, Mailbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.domain import UserId
    from stretto.events.log import LogPage, LogStore
    from stretto.events.place import Place
    from stretto.observations import Observer

# Sessions that share a scan; more of them wait for the next one.
ASKS_MAX: Final = 1000
# A batch whose read fails is read again for so long: clients wait for an answer about as long. If
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


_Request = Envelope[Ask, Stretch]


class HistoryReader(Actor):
    """Answers asks from a mailbox, batch by batch."""

    backoff = BACKOFF

    def __init__(self, mailbox: Mailbox[Ask, Stretch], log: LogStore, observe: Observer) -> None:
        super().__init__("history reader")
        self._mailbox = mailbox
        self._log = log
        self._observe = observe
        self._retry_until = 0.0
        """On the loop's clock, for the batch that is being read."""

    def stop(self) -> None:
        """Accept nothing more; answer what waits with an error. Idempotent."""
        super().stop()
        self._mailbox.close()

    async def close(self) -> None:
        """Leave no request without an answer after the last turn, also where nobody has stopped it."""
        self._mailbox.close()

    async def run_once(self) -> int:
        """Wait for asks, answer all of them; return how many there were."""
        batch = await self._mailbox.take(ASKS_MAX)
        self._retry_until = asyncio.get_running_loop().time() + RETRY_SECONDS_MAX
        unanswered: Exception = Overloaded.while_stopping()
        try:
            waiting = batch
            while waiting:
                waiting = await self._read_page(waiting)
        except StoreError as error:
            unanswered = error
        except Exception:
            unanswered = InternalError()
            raise
        finally:
            for request in batch:
                request.fail(unanswered)
        return len(batch)

    async def _read_page(self, waiting: list[_Request]) -> list[_Request]:
        """Read a page from the lowest place on; return the requests that begin beyond it."""
        begin = reduce(operator.and_, (request.message.place for request in waiting))
        page = await self._page(begin, sorted({request.message.user for request in waiting}))
        served: list[_Request] = []
        beyond: list[_Request] = []
        for request in waiting:
            place = request.message.place
            try:
                page.present.require(place)
            except PositionLost as error:
                request.fail(error)
                continue
            is_beyond = page.is_full and place | page.place == place
            (beyond if is_beyond else served).append(request)
        if page.present.histories.get(begin.history.number) != begin.history.id:
            # The lowest place was none of this log, and may lie behind where the others begin.
            return served + beyond
        events = _events_of(page, served)
        for request in served:
            place = request.message.place | page.place
            request.answer(Stretch(events[id(request)], place, not page.is_full))
        return beyond

    async def _page(self, begin: Place, users: Sequence[UserId]) -> LogPage:
        """Read a page, and after a failure read again, until `_retry_until`."""
        for failures in itertools.count():
            try:
                return await self._log.page(begin, PAGE_EVENTS, users)
            except StoreError as error:
                self._observe(UpkeepTrouble(self.name, error))
                if asyncio.get_running_loop().time() >= self._retry_until:
                    raise
            await asyncio.sleep(BACKOFF.seconds(failures))
        raise AssertionError  # the loop ends only by a return or a raise


def _events_of(page: LogPage, served: Sequence[_Request]) -> dict[int, list[OutgoingEvent]]:
    """Return each request's events, by the request's `id`; an event is encoded once for all."""
    events: dict[int, list[OutgoingEvent]] = {id(request): [] for request in served}
    requests_of: dict[str, list[_Request]] = {}
    for request in served:
        requests_of.setdefault(request.message.user, []).append(request)
    for logged, position in page.numbered():
        outgoing = OutgoingEvent(logged, position)
        for user in requests_of.keys() & logged.event.recipients:
            for request in requests_of[user]:
                if not outgoing.is_covered_by(request.message.place):
                    events[id(request)].append(outgoing)
    return events
