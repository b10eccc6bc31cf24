"""HistoryReader: tells sessions what they have missed, many of them with one scan.

Whoever waits for history at the same moment is served by the same scan: thousands of clients that
come back after a restart cost a few statements. A session asks page by page, at its client's own
pace: a slow client delays itself alone, and nothing is held for it meanwhile.

A read that fails is tried again while its clients may be expected to wait: sessions that were closed
for a passing failure would all come back, and read more than before.

No gap between history and live events: the session takes part in the hub *before* it first asks.
What commits after a page's snapshot is handed to the bus later still, so it comes live; what had
committed before is in the page. What is in both, the session drops. Where more comes live meanwhile
than the session can hold, it forgets that and is told it from history, in another round.
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

# Who waits for the same scan; as many as sessions may come back at once.
ASKS_MAX: Final = 1000
# A batch is read again for so long after a failure: clients wait for an answer about as long.
PATIENCE_SECONDS: Final = 10.0
BACKOFF: Final = Backoff(0.05, 1.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """A session wants the next stretch of its history, or only to know where history stands."""

    user: UserId
    after: Cursor | None
    bounds: HistoryBounds | None
    """Those of this round's first page; nothing when it asks for that one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a session has missed, up to `end`."""

    events: Sequence[tuple[OutgoingEvent, PastEvent]]
    """Each as it is told, and as it was read."""
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
        self._patient_until = 0.0
        """On the loop's clock; for the batch that is being read."""

    def stop(self) -> None:
        """Accept nothing more; what waits is answered with an error. Idempotent."""
        super().stop()
        self._mailbox.close()

    async def run_once(self) -> int:
        """Wait for those who ask, answer all of them; return how many there were."""
        batch = await self._mailbox.take(ASKS_MAX)
        self._patient_until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
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
        # Bounds before rows: what stands before them is certain to be among the rows.
        bounds = await self._persistently(self._store.bounds)
        waiting = []
        for request in batch:
            if request.message.after is None:
                request.answer(Stretch((), None, bounds))
            elif request.message.after.position > bounds.next:
                # Told by a database that was ahead of this one.
                request.fail(PositionLost())
            else:
                waiting.append(request)
        while waiting:
            waiting = await self._read_on(waiting, bounds)

    async def _read_on(self, waiting: Sequence[_Request], bounds: HistoryBounds) -> list[_Request]:
        """Read a page for those who are farthest behind; return those who are beyond it."""
        users = sorted({request.message.user for request in waiting})
        start = min(map(_after, waiting))
        page = await self._persistently(lambda: self._store.page(start, users))
        served: list[_Request] = []
        beyond: list[_Request] = []
        for request in waiting:
            is_served = page.end is None or _after(request) < page.end
            (served if is_served else beyond).append(request)
        told = self._told(page, served, bounds)
        for request in served:
            if _after(request).position < page.start:
                request.fail(PositionLost())
            else:
                request.answer(Stretch(told[id(request)], page.end, bounds))
        return beyond

    async def _persistently(self, read: Callable[[], Awaitable[Read]]) -> Read:
        """Read, and read again after a failure, as long as the batch's clients wait."""
        for failures in itertools.count():
            try:
                return await read()
            except StoreError as error:
                self._observe(UpkeepTrouble(self.name, error))
                if asyncio.get_running_loop().time() >= self._patient_until:
                    raise
            await asyncio.sleep(BACKOFF.seconds(failures))
        raise AssertionError  # a read has returned or raised

    def _told(
        self, page: HistoryPage, served: Sequence[_Request], bounds: HistoryBounds
    ) -> dict[int, list[tuple[OutgoingEvent, PastEvent]]]:
        """Return each request's events, by the request's `id`; each event is encoded for all."""
        told: dict[int, list[tuple[OutgoingEvent, PastEvent]]] = {id(each): [] for each in served}
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
                        told[id(request)].append((outgoing, past))
        return told

    def _outgoing(self, past: PastEvent, settled: Position) -> OutgoingEvent:
        """Return the event with a place to resume from that skips nobody.

        A transaction that was still running when the replay began may stand before this event and
        come after it: nobody may resume behind it.
        """
        place = min(past.event.resume_from, settled)
        return OutgoingEvent(replace(past.event, resume_from=place), self._origin)


def _after(request: _Request) -> Cursor:
    assert request.message.after is not None
    return request.message.after
