"""OutboxRelay: publishes the log of events to the bus, each event at least once (G8).

It follows the log from a place that the database keeps, page by page: read, publish, move on. A page
is published in parts, and the place moves behind each: what a bus has accepted is not sent again
because of what it did not take in time. After a failure the parts are half as large, down to single
events, so that a slow link gets as much as it can carry within a lease; each success doubles them. One
process at a time has the lease to do so. A relay that is killed loses it after a while; one that
was stopped for longer finds that it cannot move the place any more: events are then published
twice, and none is passed over. No transaction is open while the bus works.

What the bus refuses becomes a delivery of its own, which is tried again and does not hold up the
others. While the bus is unavailable, the relay waits without end and counts nothing against the
events. For a host's bus there is a `DoubtedRelay`. The relay does not know who receives events, and decides nothing about their content.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from stretto.events.place import PositionLost
from stretto.observations import (
    ActorCrashed,
    EventsRelayed,
    Observer,
    PlaceLost,
)
from stretto.runtime.actor import Actor, Pace
from stretto.store_errors import StoreError
from stretto.targets.bus import BusUnavailable, raised
from stretto.targets.delivery import UNREADABLE
from stretto.targets.health import TargetHealth
from stretto.targets.lag import Lag
from stretto.targets.refused import RefusedEvents, put_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent, LogPage
    from stretto.events.place import Place, Present
    from stretto.targets.bus import BusStore, EventBus
    from stretto.targets.delivery import Delivery, PutOff
    from stretto.targets.settings import RelaySettings
    from stretto.telemetry.tracing import Trace, Tracing

# The lease is renewed so many times before it would end: a process that lags keeps it.
RENEWALS: Final = 3


class OutboxRelay(Actor):
    """One of any number of relays, of which one publishes."""

    failures = (BusUnavailable, StoreError)
    yield_seconds = 0.0
    """How long others may take the lease first after a failure."""

    def __init__(
        self,
        store: BusStore,
        bus: EventBus,
        observe: Observer,
        settings: RelaySettings,
        clock_seconds: Callable[[], float] = time.monotonic,
        tracing: Tracing | None = None,
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
        self._clock_seconds = clock_seconds
        self._tracing = tracing
        self._token = uuid4()
        self._is_open = False
        self._place: Place | None = None
        """None without the lease."""
        self._part_end: tuple[LogPage, int] | None = None
        """Of the part that was published last: its page, and how many events it has up to there."""
        self._lease_due_at = clock_seconds()
        self._publish_bytes = settings.publish_bytes_max
        """Of a part: as many as the bus is trusted to take within a lease."""
        self.lag = Lag(store.oldest_seconds, clock_seconds)
        self._health = TargetHealth(self.name, observe)
        self._refused = RefusedEvents(store, self._publish_again, observe)

    async def open(self) -> None:
        """Begin at the present, unless a process has begun before. Raises a `StoreError`."""
        if not self._is_open:
            await self._store.open()
            self._is_open = True

    async def run_once(self) -> int:
        """Publish one page; return how many events it had, or a full batch if there is more.

        Raises `BusUnavailable` or a `StoreError`; a later turn then has the events again.
        """
        await self.open()
        has_waiting = await self.lag.look()
        if self._clock_seconds() >= self._lease_due_at:
            await self._lease()
        if self._place is None:
            return 0
        # Known once a second at most: an event waits. It may be a refused one that is due.
        if has_waiting:
            await self._publish_refused()
        page = await self._store.page(self._place, self._settings.batch_max)
        try:
            page.present.require(self._place)
        except PositionLost:
            await self._find_place(page.present)
            return self._settings.batch_max
        if not page.events:
            self._place = page.place
        is_whole = await self._publish_page(page)
        return self._settings.batch_max if page.is_full or not is_whole else len(page.events)

    async def close(self) -> None:
        """Give the lease back: another relay goes on at once."""
        await self._give_back()

    async def _give_back(self) -> None:
        if self._place is not None:
            self._place = None
            with suppress(StoreError):
                await self._store.give_back(self._token)

    async def _lease(self) -> None:
        """Take the lease or renew it; another relay may have it."""
        if self._place is not None:
            await self._store.advance(self._token, self._place)
        seconds = self._settings.relay_lease_seconds
        try:
            self._place = await self._store.lease(self._token, seconds)
        except PositionLost:
            # A failover has lost the reader's row. The next turn leases it.
            self._observe(PlaceLost(self.name))
            self._place = None
            return
        is_ours = self._place is not None
        pause = seconds / RENEWALS if is_ours else self._settings.poll_seconds
        self._lease_due_at = self._clock_seconds() + pause

    async def _find_place(self, present: Present) -> None:
        """Go on where the database's own place is, or at the log's beginning if that is lost as well."""
        lost = self._place
        # After a failover ours may be of a history that the new primary has never had.
        await self._lease()
        if self._place is not None and self._place == lost:
            # It was swept, since no relay had run for as long as events are kept.
            self._observe(PlaceLost(self.name))
            self._place = present.first

    async def _publish_page(self, page: LogPage) -> bool:
        """Publish part by part, and move on behind each; return whether that was the whole page."""
        first = 0
        while first < len(page.events):
            expected = self._place
            if self._clock_seconds() >= self._lease_due_at:
                await self._lease()
            if self._place is None or self._place != expected:
                # Another relay has the lease, or had it meanwhile and has moved on.
                return False
            started = time.perf_counter()
            fitting = self._fitting(logged.event for logged in page.events[first:])
            events = page.events[first : first + fitting]
            first += fitting
            self._part_end = page, first
            reasons = {each.event.event_id: UNREADABLE for each in events if not each.is_readable}
            readable = [logged.event for logged in events if logged.is_readable]
            if readable:
                reasons |= await self._publish(readable)
            if self._place != expected:
                # It was lost meanwhile, as above.
                return False
            refused = {
                logged: reasons[logged.event.event_id]
                for logged in events
                if logged.event.event_id in reasons
            }
            if refused:
                await self._store.refuse(refused)
            place = page.place_behind(first)
            is_ours = await self._store.advance(self._token, place)
            # If it is not, the relay that has it publishes these events again; or we, if a promoted
            # server has not got this history.
            self._place = place if is_ours else None
            if not is_ours:
                self._lease_due_at = self._clock_seconds()
            seconds = time.perf_counter() - started
            self._observe(EventsRelayed(len(events) - len(refused), len(refused), seconds))
        return True

    async def _publish_refused(self) -> None:
        """Publish events that were refused before and are due."""
        deliveries = await self._store.take(
            self._settings.batch_max, self._settings.relay_lease_seconds
        )
        while deliveries:
            fitting = self._fitting(delivery.event for delivery in deliveries)
            await self._refused.publish(deliveries[:fitting])
            deliveries = deliveries[fitting:]

    def _fitting(self, events: Iterable[CommittedEvent]) -> int:
        """Return how many of these events are the next part: one at least."""
        count = size = 0
        for event in events:
            size += bytes_of(event)
            if count and size > self._publish_bytes:
                break
            count += 1
        return count

    async def _call(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        async with asyncio.timeout(self._settings.relay_lease_seconds):
            return await self._bus.publish(events)

    async def _publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish within the time of a lease; give the lease back if that fails."""
        spans = self._spans_of(events)
        try:
            reasons = await self._call(events)
        except (BusUnavailable, TimeoutError, asyncio.CancelledError) as error:
            for span in spans.values():
                span.end(error=error)
            await self._yield()
            if not isinstance(error, asyncio.CancelledError):
                # The runner reports it.
                self._health.is_failing = True
                # It may have been too much for the link to the bus.
                self._publish_bytes = max(1, self._publish_bytes // 2)
            if isinstance(error, TimeoutError):
                raise BusUnavailable("no answer in time") from error
            raise
        except Exception:
            # It was not too much for the link. Beside others an event shows whether it is to blame.
            self._publish_bytes = self._settings.publish_bytes_max
            raise
        self._publish_bytes = min(self._settings.publish_bytes_max, self._publish_bytes * 2)
        for event_id, span in spans.items():
            span.end(error="refused" if event_id in reasons else None)
        if reasons:
            self._health.fail(next(iter(reasons.values())))
        else:
            self._health.succeed()
        return reasons

    async def _publish_again(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish events that were refused before; return those that were again.

        A bug that all of them meet refuses them once more: it must not end every turn from now on.
        """
        events = [delivery.event for delivery in deliveries]
        try:
            reasons = await self._publish(events)
        except self.failures:
            raise
        except Exception as error:  # noqa: BLE001 reported
            self._observe(ActorCrashed(self.name, error))
            reasons = dict.fromkeys((event.event_id for event in events), raised(error))
        return [
            put_off(delivery, reasons[delivery.event.event_id])
            for delivery in deliveries
            if delivery.event.event_id in reasons
        ]

    async def _yield(self) -> None:
        """Give the lease back after a failure: the bus of another process may work."""
        await self._give_back()
        self._lease_due_at = self._clock_seconds() + self.yield_seconds

    def _spans_of(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, Trace]:
        """Begin a span for each event whose request was sampled."""
        if self._tracing is None:
            return {}
        resume = self._tracing.resume
        return {
            event.event_id: span
            for event in events
            if event.trace_context is not None
            and (span := resume("stretto.publish", event.trace_context)) is not None
        }


def bytes_of(event: CommittedEvent) -> int:
    """Return how much of a part an event takes up."""
    return len(event.envelope) + sum(map(len, event.recipients))
