"""RefusedEvents: what the bus has refused, published again and settled; a dead letter in the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from stretto.observations import EventDeadLettered, EventsRelayed
from stretto.runtime.backoff import Backoff
from stretto.targets.delivery import PutOff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

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

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Publish deliveries that were taken, and settle them."""
        started = time.perf_counter()
        put_off = await self._publish(deliveries)
        left = {each.event_id for each in put_off}
        sent = [each.event.event_id for each in deliveries if each.event.event_id not in left]
        dead = await self._store.settle(sent, put_off)
        for each in put_off:
            if each.event_id in dead and each.dead_reason is not None:
                self._observe(EventDeadLettered(each.event_id, each.dead_reason))
        self._observe(EventsRelayed(len(sent), len(put_off), time.perf_counter() - started))
