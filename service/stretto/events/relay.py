"""OutboxRelay: moves committed events from the outbox to the bus, at least once each (G8).

It takes a batch on lease, publishes, and marks what was handed over: three steps, and no transaction
is open while the bus works. Whatever goes wrong in between, the lease ends and the events come
again, here or at any other relay. An event's tries count refusals alone: a bus that is away is not
the event's fault, and the relay waits for it without end.

The relay does not know who listens, and decides nothing about an event's content.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.errors import StoreError
from stretto.events.event import BusUnavailable
from stretto.events.lag import Lag
from stretto.events.outbox import RefusalLimits
from stretto.observations import EventBuried, EventsRelayed, Observer
from stretto.runtime.actor import Actor, Pace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.events.event import CommittedEvent, EventBus
    from stretto.events.outbox import OutboxStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works."""

    lease_seconds: float = 30.0
    """Longer than a bus takes; what takes longer is sent twice."""
    batch_max: int = 256
    """Events per statement: a few milliseconds of work."""
    gather_seconds: float = 0.005
    """How long a wake-up waits for others: two statements for one event cost as much as for ten."""
    poll_seconds: float = 1.0
    """How often to look without being woken: for refused events, and for those of dead replicas."""
    refusal: RefusalLimits = field(default_factory=RefusalLimits)


class OutboxRelay(Actor):
    """One of any number of relays that share an outbox."""

    failures = (BusUnavailable, StoreError)

    def __init__(
        self,
        store: OutboxStore,
        bus: EventBus,
        observe: Observer,
        settings: RelaySettings,
    ) -> None:
        super().__init__("relay")
        self.pace = Pace(
            seconds=settings.poll_seconds,
            gather_seconds=settings.gather_seconds,
            full=settings.batch_max,
        )
        self._store = store
        self._bus = bus
        self._observe = observe
        self._settings = settings
        self.lag = Lag(store.oldest_seconds)

    async def run_once(self) -> int:
        """Relay one batch; return how many events it had.

        Raises `BusUnavailable` or a `StoreError`; the events then come again.
        """
        started = time.perf_counter()
        await self.lag.look()
        events = await self._store.take(self._settings.batch_max, self._settings.lease_seconds)
        if not events:
            return 0
        reasons = await self._publish(events)
        delivered = [event.event_id for event in events if event.event_id not in reasons]
        if delivered:
            await self._store.mark(delivered)
        if reasons:
            for event_id in await self._store.refuse(reasons, self._settings.refusal):
                self._observe(EventBuried(event_id, reasons[event_id]))
        seconds = time.perf_counter() - started
        self._observe(EventsRelayed(len(delivered), len(reasons), seconds))
        return len(events)

    async def _publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish on our lease; give it back where that did not work."""
        try:
            async with asyncio.timeout(self._settings.lease_seconds):
                reasons: object = await self._bus.publish(events)
        except (BusUnavailable, TimeoutError, asyncio.CancelledError) as error:
            with suppress(StoreError):
                await self._store.release([event.event_id for event in events])
            if isinstance(error, TimeoutError):
                raise BusUnavailable("no answer within the lease") from error
            raise
        if isinstance(reasons, Mapping):
            return reasons
        # Whether any event was handed over is not known: they come again.
        message = (
            "the bus must return the reasons of refused events by their ids from `publish`, and {} where"
            f" none was refused, not {type(reasons)!r}"
        )
        raise TypeError(message)
