"""RefusedEvents: what the bus has refused, published again and settled; a dead letter in the end.

One statement at a time settles what has ended meanwhile. Many events may end at once, and the log's turn needs
connections of the same lane.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from stretto.observations import EventDeadLettered, EventsRelayed
from stretto.runtime.backoff import Backoff
from stretto.store_errors import StoreError
from stretto.targets.delivery import PutOff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from uuid import UUID

    from stretto.observations import Observer
    from stretto.targets.delivery import Delivery, DeliveryStore

# Of an event that the bus refuses: an operator has about 15 minutes to repair the cause.
TRIES_MAX: Final = 12
PAUSE: Final = Backoff(1.0, 600.0)


def put_off(delivery: Delivery, reason: str, *, is_try: bool = True) -> PutOff:
    """Return when to try a delivery again, or that it is a dead letter; `is_try`: whether this counts."""
    is_dead = is_try and delivery.tries + 1 >= TRIES_MAX
    seconds = PAUSE.seconds(delivery.tries + is_try)
    return PutOff(delivery.event.event_id, seconds, is_try, reason if is_dead else None)


class _Settlement:
    """What one statement settles, of any number of parts."""

    __slots__ = ("dead", "parts", "put_off", "sent")

    def __init__(self) -> None:
        self.sent: list[UUID] = []
        self.put_off: list[PutOff] = []
        self.parts = 0
        self.dead: Collection[UUID] | None = None
        """The new dead letters, once it is settled."""

    def add(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> None:
        self.sent += sent
        self.put_off += put_off
        self.parts += 1


class RefusedEvents:
    """Publishes deliveries by the way that `publish` is, which returns those to put off."""

    def __init__(
        self,
        store: DeliveryStore,
        publish: Callable[[Sequence[Delivery]], Awaitable[Sequence[PutOff]]],
        observe: Observer,
    ) -> None:
        self._store = store
        self._publish = publish
        self._observe = observe
        self._next = _Settlement()
        """What ends while a statement is under way."""
        self._settling = asyncio.Lock()

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Publish deliveries that were taken, and settle them."""
        started = time.perf_counter()
        put_off = await self._publish(deliveries)
        left = {each.event_id for each in put_off}
        sent = [each.event.event_id for each in deliveries if each.event.event_id not in left]
        dead = await self._settle(sent, put_off)
        for each in put_off:
            if each.event_id in dead and each.dead_reason is not None:
                self._observe(EventDeadLettered(each.event_id, each.dead_reason))
        self._observe(EventsRelayed(len(sent), len(put_off), time.perf_counter() - started))

    async def _settle(
        self, sent: Collection[UUID], put_off: Collection[PutOff]
    ) -> Collection[UUID]:
        """Settle together with what ends meanwhile; return the new dead letters among all of it."""
        ours = self._next
        ours.add(sent, put_off)
        # Parts that end in the same turn of the loop come together.
        await asyncio.sleep(0)
        async with self._settling:
            if ours is self._next:
                self._next = _Settlement()
                try:
                    ours.dead = await self._store.settle(ours.sent, ours.put_off)
                except StoreError:
                    if ours.parts == 1:
                        raise
            if ours.dead is None:
                # It may be for one of the parts: the others are settled all the same.
                return await self._store.settle(sent, put_off)
        return ours.dead
