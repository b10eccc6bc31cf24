"""HistoryReader: reads what sessions have missed, one scan for many of them.

All sessions that wait for history at one moment share a scan: thousands of clients that reconnect
after a restart cost a few statements. A session asks page by page, at its client's pace: a slow
client delays only itself, and holds nothing meanwhile.

A failed read is tried again for as long as clients can be expected to wait. If sessions were closed
for a passing failure, all of them would reconnect and read more than before.

There is no gap between history and live events: the session joins the hub *before* it first asks.
An event that commits after a page's snapshot is published after it, so it comes live; an event that
committed before is in the page. The session sends an event that comes both ways once. If more
events come live meanwhile than its queue holds, it drops them and reads history once more.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from stretto.errors import InternalError, Overloaded, StoreError
from stretto.events.outgoing import OutgoingEvent
from stretto.events.positions import Cursor, PositionLost
from stretto.observations import UpkeepTrouble
from stretto.runtime.actor import Actor
from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Envelope, Mailbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.domain import UserId
    from stretto.events.history import HistoryBounds, HistoryPage, HistoryStore, PastEvent
    from stretto.events.positions import Origin, Position
    from stretto.observations import Observer

# Sessions that share a scan; more of them wait for the next one.
ASKS_MAX: Final = 1000
# A batch whose read fails is read again for so long: clients wait for an answer about as long.
RETRY_SECONDS_MAX: Final = 10.0
BACKOFF: Final = Backoff(0.05, 1.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """A session asks for the next stretch of its history, or for the bounds alone."""

    user: UserId
    after: Cursor | None
    bounds: HistoryBounds | None
    """Those of this round's first page; None when the session asks for that page."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a session has missed, up to `end`."""

    events: Sequence[tuple[OutgoingEvent, PastEvent]]
    """Each as it is sent, and as it was read."""
    end: Cursor | None
    bounds: HistoryBounds


_Request = Envelope[Ask, Stretch]
Read = TypeVar("Read")


class HistoryReader(Actor):
    """Answers asks from a mailbox, batch by batch."""

    backoff = BACKOFF

    def __init__(
        self,
        mailbox: Mailbox[Ask, Stretch],
        store: HistoryStore,
        origin: Origin,
        observe: Observer,
    ) -> None:
        super().__init__("history reader")
        self._mailbox = mailbox
        self._store = store
        self._origin = origin
        self._observe = observe
        self._retry_until = 0.0
        """On the loop's clock, for the batch that is being read."""

    def stop(self) -> None:
        """Accept nothing more; answer what waits with an error. Idempotent."""
        super().stop()
        self._mailbox.close()

    async def run_once(self) -> int:
        """Wait for asks, answer all of them; return how many there were."""
        batch = await self._mailbox.take(ASKS_MAX)
        self._retry_until = asyncio.get_running_loop().time() + RETRY_SECONDS_MAX
        unanswered: Exception = Overloaded.while_stopping()
        try:
            await self._answer(batch)
        except StoreError as error:
            unanswered = error
        except Exception:
            unanswered = InternalError()
            raise
        finally:
            for request in batch:
                request.fail(unanswered)
        return len(batch)

    async def _answer(self, batch: Sequence[_Request]) -> None:
        # Bounds before rows: so the rows are certain to hold every event before the bounds.
        bounds = await self._retried(self._store.bounds)
        waiting = []
        for request in batch:
            if request.message.after is None:
                request.answer(Stretch((), None, bounds))
            elif request.message.after.position > bounds.next:
                # The position is from a database that was ahead of this one.
                request.fail(PositionLost())
            else:
                waiting.append(request)
        while waiting:
            waiting = await self._read_page(waiting, bounds)

    async def _read_page(
        self, waiting: Sequence[_Request], bounds: HistoryBounds
    ) -> list[_Request]:
        """Read a page from the lowest cursor on; return the requests that begin beyond it."""
        users = sorted({request.message.user for request in waiting})
        start = min(map(_after, waiting))
        page = await self._retried(lambda: self._store.page(start, users))
        served: list[_Request] = []
        beyond: list[_Request] = []
        for request in waiting:
            is_served = page.end is None or _after(request) < page.end
            (served if is_served else beyond).append(request)
        events = self._events_of(page, served, bounds)
        for request in served:
            if _after(request).position < page.start:
                request.fail(PositionLost())
            else:
                request.answer(Stretch(events[id(request)], page.end, bounds))
        return beyond

    async def _retried(self, read: Callable[[], Awaitable[Read]]) -> Read:
        """Read, and after a failure read again, until `_retry_until`."""
        for failures in itertools.count():
            try:
                return await read()
            except StoreError as error:
                self._observe(UpkeepTrouble(self.name, error))
                if asyncio.get_running_loop().time() >= self._retry_until:
                    raise
            await asyncio.sleep(BACKOFF.seconds(failures))
        raise AssertionError  # the loop ends only by a return or a raise

    def _events_of(
        self, page: HistoryPage, served: Sequence[_Request], bounds: HistoryBounds
    ) -> dict[int, list[tuple[OutgoingEvent, PastEvent]]]:
        """Return each request's events, by the request's `id`; an event is encoded once for all."""
        events: dict[int, list[tuple[OutgoingEvent, PastEvent]]] = {id(each): [] for each in served}
        requests_of: dict[str, list[_Request]] = {}
        settled = bounds.settled
        for request in served:
            requests_of.setdefault(request.message.user, []).append(request)
            if request.message.bounds is not None:
                settled = min(settled, request.message.bounds.settled)
        for past in page.events:
            outgoing = self._outgoing(past, settled)
            for user in requests_of.keys() & past.event.recipients:
                for request in requests_of[user]:
                    if past.cursor > _after(request):
                        events[id(request)].append((outgoing, past))
        return events

    def _outgoing(self, past: PastEvent, settled: Position) -> OutgoingEvent:
        """Return the event with a position from which a client misses nothing.

        A transaction that was running when the catch-up began may commit later with a lower
        position. Never give a client a position beyond the oldest such transaction.
        """
        position = min(past.event.position, settled)
        return OutgoingEvent(replace(past.event, position=position), self._origin)


def _after(request: _Request) -> Cursor:
    assert request.message.after is not None
    return request.message.after
