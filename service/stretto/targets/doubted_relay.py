"""DoubtedRelay: the relay over a bus that may fail for one event, which must not hold up the others.

It keeps the lease while the bus finds out what is to blame, and reads on in the log for that. What was
refused is published in a task of its own, in small groups: one that hangs holds up a few others, and
nothing of the log. That task is cancelled as the lease is given back.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from stretto.runtime.backoff import Backoff
from stretto.targets.refused import RefusedEvents
from stretto.targets.relay import RENEWALS, OutboxRelay, bytes_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import BusStore, DoubtedBus
    from stretto.targets.settings import RelaySettings
    from stretto.telemetry.tracing import Tracing

# Owners take turns, so a refused event of an owner waits for a few groups; a slow bus gets few at once.
AGAIN_MAX: Final = 16
# Of 256 events each: so many of one owner in a row may fail, and others behind them are still found.
BEHIND_PAGES_MAX: Final = 64


class DoubtedRelay(OutboxRelay):
    """An `OutboxRelay` for a `DoubtedBus`."""

    backoff = Backoff(0.1, 2.0)
    """Shorter than others': an event that comes behind one that fails waits for its end."""
    yield_seconds = 1.5
    """Another process looks for a lease that is free once a second."""

    def __init__(
        self,
        store: BusStore,
        bus: DoubtedBus,
        observe: Observer,
        settings: RelaySettings,
        clock_seconds: Callable[[], float] = time.monotonic,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(store, bus, observe, settings, clock_seconds, tracing)
        self._doubted = bus
        self._again = RefusedEvents(store, bus.publish_again, observe)
        self._again_task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Give the lease back, and cancel what publishes refused events."""
        task, self._again_task = self._again_task, None
        try:
            if task is not None:
                await _cancelled(task)
        finally:
            await super().close()

    async def _publish_refused(self) -> None:
        """Begin to publish what is due, unless that goes on; raise what has ended it before."""
        task = self._again_task
        if task is not None and not task.done():
            return
        seconds = self._settings.relay_lease_seconds
        # Where a group takes longer, as many that hang do, another process may publish it as well.
        due = self._again.publish_due(AGAIN_MAX, 2 * seconds)
        self._again_task = asyncio.create_task(due, name="stretto relay again")
        if task is not None:
            task.result()

    async def _publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        try:
            reasons = await super()._publish(events)
        except self.failures:
            raise
        except Exception:
            # Whatever it raises for all events, the bus of another process may work.
            await self._yield()
            raise
        if self._doubted.was_slow:
            self._publish_bytes = max(1, sum(map(bytes_of, events)) // 2)
        return reasons

    async def _call(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish; the bus bounds the time, and meanwhile the lease is renewed."""
        publishing = self._doubted.publish(events, self._behind)
        task = asyncio.create_task(publishing, name="stretto relay publish")
        try:
            seconds = self._settings.relay_lease_seconds / RENEWALS
            while not (await asyncio.wait({task}, timeout=seconds))[0]:
                await self._lease()
            return task.result()
        finally:
            await _cancelled(task)
            # The traceback of its error refers to this frame, which must not refer back.
            del task

    async def _behind(self) -> AsyncIterator[CommittedEvent]:
        """Yield what lies behind the part in the log."""
        assert self._part_end is not None
        page, first = self._part_end
        for _ in range(BEHIND_PAGES_MAX):
            for logged in page.events[first:]:
                if logged.is_readable:
                    yield logged.event
            begin, first = page.place, 0
            page = await self._store.page(begin, self._settings.batch_max)
            if not page.events:
                return


async def _cancelled(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait for its end: the bus bounds how long that takes."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        # asyncio would log it otherwise.
        task.exception()
