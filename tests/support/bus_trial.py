"""Host's buses that fail for some events, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
    from typing import Any
    from uuid import UUID

    from stretto.events.log import CommittedEvent


class FailsFor:
    """Raises, or without an error hangs, for calls with one of these events; refuses some where each is alone."""

    def __init__(self, error: type[BaseException] | None, *events: CommittedEvent) -> None:
        self.error = error
        self.events: Collection[CommittedEvent] = events
        self.refuses: CommittedEvent | None = None
        self.calls: list[list[int]] = []
        """The ids of each call's events."""
        self.published: list[CommittedEvent] = []
        self.under_way = 0

    async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        self.calls.append([event.event_id.int for event in events])
        self.under_way += 1
        try:
            await self.work(events)
        finally:
            self.under_way -= 1
        self.published += events
        return {events[0].event_id: "no"} if [*events] == [self.refuses] else {}

    async def work(self, events: Sequence[CommittedEvent]) -> None:
        if any(event in self.events for event in events):
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()


class HangsTogether(FailsFor):
    """Hangs, or raises, for calls with more than so many events as well."""

    def __init__(
        self, count: int, error: type[BaseException] | None = None, *events: CommittedEvent
    ) -> None:
        super().__init__(error, *events)
        self.count = count

    async def work(self, events: Sequence[CommittedEvent]) -> None:
        if len(events) > self.count:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        await super().work(events)


class Takes(FailsFor):
    """Needs so many seconds for a call."""

    def __init__(self, seconds: float, *events: CommittedEvent) -> None:
        super().__init__(None, *events)
        self.seconds = seconds

    async def work(self, events: Sequence[CommittedEvent]) -> None:
        await asyncio.sleep(self.seconds)
        await super().work(events)


class DoesFew(FailsFor):
    """Does so many things at once, in the order in which they come."""

    def __init__(self, places: int, *events: CommittedEvent) -> None:
        super().__init__(None, *events)
        self.places = asyncio.Semaphore(places)

    async def work(self, events: Sequence[CommittedEvent]) -> None:
        async with self.places:
            await super().work(events)


class Behind:
    """What lies behind in the log; counts how often it was read, and how many events of it."""

    def __init__(self, *events: CommittedEvent) -> None:
        self.events = events
        self.reads = self.read = 0

    async def __call__(self) -> AsyncIterator[CommittedEvent]:
        self.reads += 1
        for event in self.events:
            self.read += 1
            yield event


class FailsLater(FailsFor):
    """Raises once the test says so."""

    def __init__(self) -> None:
        super().__init__(None)
        self.may_fail = asyncio.Event()

    async def work(self, _: object) -> None:
        await self.may_fail.wait()
        raise ValueError


async def printed_of_late_errors(
    use: Callable[[FailsFor], Coroutine[Any, Any, object]],
) -> list[dict[str, Any]]:
    """Return what asyncio logs where a use of a bus is cancelled about when its call fails."""
    printed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    for turns in range(12):
        bus = FailsLater()
        using = asyncio.create_task(use(bus))
        await asyncio.sleep(1.0)
        bus.may_fail.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        using.cancel()
        await asyncio.wait({using})
        del using
    gc.collect()
    return printed
