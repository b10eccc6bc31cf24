"""Subscriptions: a host's callbacks, each of which gets every event from now on.

Each subscription reads the log by itself, at the pace of its callback: one call at a time, and the
next page only after the last event of this one. So the log is the queue: a callback that is slow,
fails or hangs delays no other reader, and the events in memory are those of one page. A place is
kept in memory alone: a subscription begins at the present and ends with its component. What must
not be missed goes through a bus or a webhook.

A call that fails is reported and not repeated. One that takes too long is cancelled; while it goes
on nevertheless, its subscription waits: two calls at once would break the order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from stretto.errors import Overloaded
from stretto.events.log import PAGE_EVENTS, CommittedEvent, report_unreadable
from stretto.events.place import PositionLost
from stretto.events.tail import GATHER_SECONDS, LOOK_SECONDS
from stretto.kinds import name_of
from stretto.misuse import WrongEventLoop
from stretto.observations import PlaceLost, SubscriberFailed
from stretto.runtime.actor import Actor, Pace
from stretto.runtime.cancelling import retrieve
from stretto.runtime.exits import ExitAsError
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from types import CodeType

    from stretto.events.log import LogPage, LogStore
    from stretto.events.place import Place
    from stretto.events.tail import LogTail
    from stretto.observations import Observer
    from stretto.runtime.runner import Runner

# A host subscribes its parts, not its users: those have sessions. Each subscription reads the log
# once more.
SUBSCRIPTIONS_MAX: Final = 16
# For a call of a slow service. A call without a bound would stop its subscription without a word.
CALL_SECONDS: Final = 30.0
# A cancelled call may clean up for so long at the stop; then it is left alone.
CALL_CANCEL_SECONDS: Final = 0.5

# The call whose context this is; tasks inherit it. An object of its own: contexts live long, and
# would keep a task's frames.
_CALL: Final[ContextVar[object]] = ContextVar("stretto on_event")

OnEvent: TypeAlias = Callable[[CommittedEvent], Awaitable[None]]
"""A host's callback: gets the events of the log one by one, in its order."""
Reportable: TypeAlias = "Callable[[BaseException, CodeType], BaseException | None]"
"""Returns an error that came out of this code as a log may show it."""


class Subscriptions:
    """The subscriptions of a component: woken together, started and stopped one by one."""

    def __init__(
        self,
        log: LogStore,
        tail: LogTail,
        runner: Runner,
        observe: Observer,
        reportable: Reportable,
    ) -> None:
        """Take the tail, which hears what other processes announce."""
        self._log = log
        self._tail = tail
        self._runner = runner
        self._observe = observe
        self._reportable = reportable
        self._is_stopping = False
        self._subscribers: list[Subscriber] = []
        self._endings: dict[Subscriber, asyncio.Task[None]] = {}
        """Of subscriptions that are ending: a second call waits for the same end."""

    def wake(self) -> None:
        """Have all of them read now."""
        for subscriber in self._subscribers:
            subscriber.wake()

    async def begin(self, on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        """Call back for what commits from now on; return a function that ends this.

        Raises a `StoreError`, and `Overloaded` where there are too many, or once it stops.
        """
        # The log of a component that has stopped cannot be read.
        self._require_running()
        place = await self._log.present()
        # No `await` from here on: the stop finds each subscriber, and their number holds.
        self._require_running()
        if len(self._subscribers) >= SUBSCRIPTIONS_MAX:
            message = f"A component has at most {SUBSCRIPTIONS_MAX} subscriptions."
            raise Overloaded(message)
        subscriber = Subscriber(on_event, self._log, place, self._observe, self._reportable)
        if not self._subscribers:
            self._tail.hear_for(self.wake)
        self._subscribers.append(subscriber)
        # In a context of its own: what it logs is no part of the request that has subscribed.
        Context().run(self._runner.start, subscriber)
        return partial(self._end, subscriber)

    def _require_running(self) -> None:
        if self._is_stopping:
            raise Overloaded.while_stopping()

    async def _end(self, subscriber: Subscriber) -> None:
        """Make no more calls, and wait for the one under way, for a bounded time. Idempotent.

        Within that very call it does not wait: the call would wait for itself. A caller that is
        cancelled does not break the end off. Raises `WrongEventLoop` in another loop than the
        subscription's.
        """
        if asyncio.get_running_loop() is not subscriber.loop:
            raise WrongEventLoop
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
            if not self._subscribers:
                self._tail.hear_less(self.wake)
            subscriber.stop()
            ending = asyncio.create_task(
                self._runner.stop(subscriber), name="end of a subscription"
            )
            self._endings[subscriber] = ending
            ending.add_done_callback(lambda _: self._endings.pop(subscriber))
        if subscriber in self._endings and not subscriber.is_called_from_here:
            await asyncio.wait((self._endings[subscriber],))

    async def stop(self) -> None:
        """End all of them, and accept no more. Idempotent."""
        self._is_stopping = True
        await self._runner.stop(*self._subscribers)


class Subscriber(Actor):
    """One subscription; a turn is a page of events, each of which is one call."""

    failures = (StoreError,)
    # Where announcements are not heard, behind PgBouncer, the look finds what other processes wrote.
    pace = Pace(seconds=LOOK_SECONDS, gather_seconds=GATHER_SECONDS, full=PAGE_EVENTS)

    def __init__(
        self,
        on_event: OnEvent,
        log: LogStore,
        place: Place,
        observe: Observer,
        reportable: Reportable,
    ) -> None:
        super().__init__("subscriber")
        self._on_event = on_event
        self._log = log
        self._place = place
        self._earlier: Place | None = None
        """Where it was in the history before: a failover may lose the newest one, without its events."""
        self._observe = observe
        self._reportable = reportable
        self._uncalled: deque[CommittedEvent] = deque()
        self._call_under_way: object | None = None
        self._unended: asyncio.Task[None] | None = None
        """A call that went on when its turn was cancelled."""
        self.loop = asyncio.get_running_loop()

    @property
    def is_called_from_here(self) -> bool:
        """Whether this runs within the call under way, or in a task that this call has started."""
        return self._call_under_way is not None and self._call_under_way is _CALL.get(None)

    async def run_once(self) -> int:
        """Read a page and call back for each event; return `PAGE_EVENTS` if there may be more.

        Raises a `StoreError`; the next turn then reads the same page.
        """
        # What a turn that was cancelled has left.
        if self._unended is not None:
            await asyncio.wait({self._unended})
            self._unended = None
        await self._call_back()
        page = await self._log.page(self._place, PAGE_EVENTS)
        try:
            page.present.require(self._place)
        except PositionLost:
            if self._earlier is not None:
                # What has come of the history that was lost is lost: nothing comes again.
                self._place, self._earlier = self._earlier, None
                return PAGE_EVENTS
            # It was swept while the callback took its time, or lost in a failover.
            self._observe(PlaceLost(self.name))
            self._place = page.present.place
            return 0
        report_unreadable(page, self.name, self._observe)
        self._uncalled.extend(logged.event for logged in page.events if logged.is_readable)
        if page.place.history != self._place.history:
            self._earlier = self._end_of_earlier(page)
        self._place = page.place
        await self._call_back()
        return PAGE_EVENTS if page.is_full else 0

    def _end_of_earlier(self, page: LogPage) -> Place:
        """Return where this was before it came to the newest history of a page."""
        place = self._place
        for logged in page.events:
            if logged.history != page.place.history:
                place = page.present.after(place, logged.history, logged.position)
        return place

    async def _call_back(self) -> None:
        while self._uncalled and not self.is_stopping:
            await self._call_for(self._uncalled.popleft())

    async def _call_for(self, event: CommittedEvent) -> None:
        """Make one call in a task of its own: what it cancels from within does not end this turn."""
        call = asyncio.create_task(self._call(event), name="stretto on_event")
        call.add_done_callback(retrieve)
        try:
            await asyncio.wait({call}, timeout=CALL_SECONDS)
            if not call.done():
                self._report(f"on_event took longer than {CALL_SECONDS:g} s")
                call.cancel()
                await asyncio.wait({call})
                return
        except asyncio.CancelledError:
            call.cancel()
            self._unended = call
            await asyncio.wait({call}, timeout=CALL_CANCEL_SECONDS)
            raise
        if call.cancelled():
            self._report("on_event was cancelled by something that it waited for")
        elif (error := call.exception()) is not None:
            bug = self._reportable(error, Subscriber._call.__code__)
            self._report(f"on_event raised {name_of(error)}", bug)

    async def _call(self, event: CommittedEvent) -> None:
        self._call_under_way = call = object()
        _CALL.set(call)
        try:
            with ExitAsError("on_event"):
                await self._on_event(event)
        finally:
            self._call_under_way = None

    def _report(self, cause: str, bug: BaseException | None = None) -> None:
        self._observe(SubscriberFailed(cause, bug))
