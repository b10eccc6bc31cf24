"""OutboxRelay: moves committed events from the outbox to the bus, at least once each (G8).

It leases a batch, publishes it, and marks what was published: three steps, and no transaction is
open while the bus works. If anything fails in between, the lease ends and this or another relay
publishes the events again. An event's tries count only refusals: while the bus is unavailable, the
relay waits without end and counts nothing against the events.

The relay does not know who receives events, and decides nothing about their content.
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
from stretto.setting import setting

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from stretto.events.event import CommittedEvent, EventBus
    from stretto.events.outbox import OutboxStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How much a relay publishes at once, and how often."""

    relay_lease_seconds: float = setting(
        30.0, "after this long another relay may send an event", ge=1, le=3600
    )
    """Longer than a bus takes; a batch that takes longer is published twice."""
    batch_max: int = 256
    """Events per statement: a few milliseconds of work."""
    gather_seconds: float = 0.005
    """How long a wake-up waits for more events: ten cost the two statements of one."""
    poll_seconds: float = 1.0
    """How often to look without a wake-up: for refused events, and those of dead replicas."""
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

        Raises `BusUnavailable` or a `StoreError`; a later batch then has the events again.
        """
        started = time.perf_counter()
        await self.lag.look()
        events = await self._store.take(
            self._settings.batch_max, self._settings.relay_lease_seconds
        )
        if not events:
            return 0
        reasons = await self._publish(events)
        published = [event.event_id for event in events if event.event_id not in reasons]
        if published:
            await self._store.mark(published)
        if reasons:
            for event_id in await self._store.refuse(reasons, self._settings.refusal):
                self._observe(EventBuried(event_id, reasons[event_id]))
        seconds = time.perf_counter() - started
        self._observe(EventsRelayed(len(published), len(reasons), seconds))
        return len(events)

    async def _publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish within the lease; end the lease if that fails."""
        try:
            async with asyncio.timeout(self._settings.relay_lease_seconds):
                reasons: object = await self._bus.publish(events)
        except (BusUnavailable, TimeoutError, asyncio.CancelledError) as error:
            with suppress(StoreError):
                await self._store.release([event.event_id for event in events])
            if isinstance(error, TimeoutError):
                raise BusUnavailable("no answer within the lease") from error
            raise
        return _checked(reasons, {event.event_id for event in events})


def _checked(reasons: object, event_ids: Collection[UUID]) -> dict[UUID, str]:
    """Return the reasons of refused events; raises `TypeError` for an answer that breaks the contract.

    Whether any event was published is then unknown: the lease ends, and they are published again.
    An id that is none of theirs, such as a text, would leave a refused event marked as published.
    """
    if isinstance(reasons, Mapping):
        refused = dict(reasons)
        odd = [
            each
            for each in refused.items()
            if each[0] not in event_ids or not isinstance(each[1], str)
        ]
        if not odd:
            return {event_id: str.__str__(reason) for event_id, reason in refused.items()}
        kinds = " and ".join(repr(type(each)) for each in odd[0])
        found = f"a mapping with {kinds}, or with the id of another event"
    else:
        found = repr(type(reasons))
    message = (
        "the bus must return the reasons of refused events by their ids from `publish`,"
        f" and {{}} where none was refused, not {found}"
    )
    raise TypeError(message)
