"""DoubtedRelay: the relay over a bus that may fail for one event, which must not hold up the others.

It keeps the lease while the bus finds out what is to blame, and reads on in the log for that. What was
refused is published in tasks of their own, in small groups: one that hangs holds up a few others, and
nothing of the log. Those tasks take no more once the lease is given back, and are cancelled at the end.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stretto.runtime.backoff import Backoff
from stretto.runtime.cancelling import retrieve
from stretto.store_errors import StoreError
from stretto.targets.refused import RefusedEvents
from stretto.targets.relay import RENEWALS, OutboxRelay, bytes_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent, LoggedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import BusStore, DoubtedBus
    from stretto.targets.delivery import Delivery
    from stretto.targets.settings import RelaySettings
    from stretto.telemetry.tracing import Tracing

# Owners take turns, so a refused event of an owner waits for a few groups; a slow bus gets few at once.
AGAIN_MAX: Final = 16
# So many groups are under way at once: one that hangs holds up no others.
AGAIN_TASKS_MAX: Final = 16
SLOW_TASKS_MAX: Final = 4
# While the bus fails for some owners, another process gets the lease for once after a minute, and then less often.
HAND_OVER: Final = Backoff(60.0, 900.0)
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
        self._again_tasks: dict[asyncio.Task[None], bool] = {}
        """Whether each is for slow owners."""
        self._again_error: BaseException | None = None
        """What has ended one of these."""
        self._taking = asyncio.Lock()
        """Held by one that takes what is due: the log's turn needs connections of the same lane."""
        self._handovers = 0
        """How often the lease was given back since the bus fails for some owners."""
        self._hand_over_at: float | None = None

    async def run_once(self) -> int:
        """As every relay; give the lease back now and then while the bus fails for some owners.

        The bus of another process may not: their events go through there before they are dead letters.
        """
        done = await super().run_once()
        if not self._doubted.has_blamed:
            self._handovers, self._hand_over_at = 0, None
        elif self._place is not None:
            now = self._clock_seconds()
            if self._hand_over_at is not None and now >= self._hand_over_at:
                self._handovers += 1
                self._hand_over_at = None
                await self._yield()
            if self._hand_over_at is None:
                self._hand_over_at = now + HAND_OVER.longest(self._handovers)
        return done

    async def close(self) -> None:
        """Give the lease back, and cancel what publishes refused events."""
        tasks = [*self._again_tasks]
        for task in tasks:
            task.cancel()
        try:
            await self._doubted.close()
            if tasks:
                await asyncio.wait(tasks)
        finally:
            await super().close()

    async def _publish_refused(self) -> None:
        """Begin to publish what is due; raise what has ended that before."""
        error, self._again_error = self._again_error, None
        if error is not None:
            raise error
        self._begin_due()

    def _begin_due(self) -> None:
        self._begin_again(is_slow=False)
        if self._doubted.slow_owners:
            self._begin_again(is_slow=True)

    def _begin_again(self, *, is_slow: bool) -> None:
        most = SLOW_TASKS_MAX if is_slow else AGAIN_TASKS_MAX
        if [*self._again_tasks.values()].count(is_slow) < most:
            due = self._publish_due(is_slow=is_slow)
            task = asyncio.create_task(due, name="stretto relay again")
            self._again_tasks[task] = is_slow
            task.add_done_callback(self._end_again)

    async def _publish_due(self, *, is_slow: bool) -> None:
        """Publish what is due, in small groups, as long as the lease is ours."""
        while deliveries := await self._take(is_slow=is_slow):
            if len(deliveries) == AGAIN_MAX:
                # More may wait, and this one may hang.
                self._begin_again(is_slow=is_slow)
            parts = self._doubted.parts_again(deliveries)
            results = await asyncio.gather(*map(self._again.publish, parts), return_exceptions=True)
            for error in results:
                if error is not None:
                    raise error

    async def _take(self, *, is_slow: bool) -> Sequence[Delivery]:
        # Where a group takes longer, as many that hang do, another process may publish it as well.
        seconds = 2 * self._settings.relay_lease_seconds
        async with self._taking:
            if self._place is None:
                return ()
            if is_slow:
                only = self._doubted.slow_turn()
                return await self._store.take(AGAIN_MAX, seconds, None, only) if only else ()
            without = {*self._doubted.slow_owners, *self._doubted.busy_owners}
            return await self._store.take(AGAIN_MAX, seconds, None, None, [*without])

    def _end_again(self, task: asyncio.Task[None]) -> None:
        del self._again_tasks[task]
        if not task.cancelled():
            # Another one may have failed before it, in the same turn.
            self._again_error = task.exception() or self._again_error

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
            seconds = min(
                self._settings.relay_lease_seconds / RENEWALS, self._settings.poll_seconds
            )
            while not (await asyncio.wait({task}, timeout=seconds))[0]:
                if self._clock_seconds() >= self._lease_due_at:
                    await self._lease()
                with suppress(StoreError):
                    if await self.lag.look():
                        self._begin_due()
            return task.result()
        finally:
            await _cancelled(task)
            # The traceback of its error refers to this frame, which must not refer back.
            del task

    async def _behind(self) -> AsyncIterator[CommittedEvent]:
        """Yield what lies behind the part in the log, up to its end: what comes meanwhile would have no end."""
        assert self._part_end is not None
        page, first = self._part_end
        for event in _readable(page.events[first:]):
            yield event
        for _ in range(BEHIND_PAGES_MAX - 1):
            page = await self._store.page(page.place, self._settings.batch_max)
            for event in _readable(page.events):
                yield event
            if not page.is_full:
                return


def _readable(events: Iterable[LoggedEvent]) -> Iterator[CommittedEvent]:
    return (each.event for each in events if each.is_readable)


async def _cancelled(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait for its end: the bus bounds how long that takes."""
    task.cancel()
    await asyncio.wait({task})
    retrieve(task)
