"""HostsBusCalls: calls of a host's `publish`, whose answers are checked; and calls for each event alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from stretto.identifiers import plain
from stretto.runtime.cancelling import cancellations, in_own_task, is_cancelled
from stretto.runtime.exits import ExitAsError
from stretto.targets.bus import raised

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.targets.bus import EventBus


# As of a veto's detail: the reason is in the log, and in the dead letter.
REASON_CHARACTERS_MAX: Final = 1024
# A call that was cancelled is waited for: it may have to clean up. One that goes on holds up nothing.
CANCELLED_CALL_SECONDS: Final = 1.0


class HostsBusCalls:
    """An `EventBus` that keeps the contract, over one that may break it."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._left: set[asyncio.Task[Any]] = set()
        """Cancelled, and not ended: the event loop itself keeps no task."""

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish together; return the reasons of those that were refused.

        Raises what the bus raises: `TypeError` for an answer that breaks the contract, and
        `RuntimeError` for what is no `Exception`, such as a cancellation of its own. Whether any event
        was published is then unknown. An id that is none of theirs, such as a text, would let the
        relay pass over a refused event. Reasons are cut to `REASON_CHARACTERS_MAX`.
        """
        since = cancellations()
        try:
            reasons: object = await in_own_task(self._published(events), "stretto publish")
        except asyncio.CancelledError as error:
            if is_cancelled(since):
                raise
            message = "publish was cancelled by something that it waited for"
            raise RuntimeError(message) from error
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(raised(error)) from error
        event_ids = {event.event_id for event in events}
        if isinstance(reasons, Mapping):
            refused = dict(reasons)
            odd = [
                each
                for each in refused.items()
                if each[0] not in event_ids or not isinstance(each[1], str)
            ]
            if not odd:
                return {
                    event_id: plain(reason)[:REASON_CHARACTERS_MAX]
                    for event_id, reason in refused.items()
                }
            kinds = " and ".join(repr(type(each)) for each in odd[0])
            found = f"a mapping with {kinds}, or with the id of another event"
        else:
            found = repr(type(reasons))
        message = (
            "the bus must return the reasons of refused events by their ids from `publish`,"
            f" and {{}} where none was refused, not {found}"
        )
        raise TypeError(message)

    async def publish_within(
        self, seconds: float, events: Sequence[CommittedEvent]
    ) -> Mapping[UUID, str]:
        """The same, within so many seconds; also raises `TimeoutError`."""
        task = asyncio.create_task(self.publish(events), name="stretto publish together")
        try:
            if not (await asyncio.wait({task}, timeout=seconds))[0]:
                raise TimeoutError
            return task.result()
        finally:
            await self.cancel({task})
            # The traceback of its error refers to this frame, which must not refer back.
            del task

    async def cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel calls, and wait for their end, `CANCELLED_CALL_SECONDS` at most."""
        running = {task for task in tasks if not task.done()}
        for task in running:
            self._left.add(task)
            task.add_done_callback(self._forget)
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCELLED_CALL_SECONDS)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            # asyncio would log it otherwise.
            task.exception()

    async def _published(self, events: Sequence[CommittedEvent]) -> object:
        with ExitAsError("publish"):
            return await self._bus.publish(events)


class Trial:
    """Publishes events alone, all at once; those of one group one after the other.

    The end of `async with` cancels the calls that are still under way.
    """

    def __init__(self, calls: HostsBusCalls) -> None:
        self._calls = calls
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_news = asyncio.Event()
        """The bus has answered for an event, or no call is under way any more."""
        self.answered: dict[UUID, str | None] = {}
        """The events for which the bus has answered; with a reason it has refused them."""
        self.errors: dict[UUID, Exception] = {}
        """What it has raised for an event; those behind it in their group were not tried."""
        self.shortest_seconds = float("inf")
        """Of the calls that it has answered."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.cancel(self._tasks)
        # Each error refers by its traceback to frames that refer to this.
        self.errors.clear()

    @property
    def is_running(self) -> bool:
        """Whether a call is under way."""
        return bool(self._tasks)

    def begin(self, events: Iterable[CommittedEvent]) -> None:
        """Begin the calls."""
        groups: dict[str | None, list[CommittedEvent]] = {}
        for event in events:
            groups.setdefault(orjson.loads(event.envelope).get("subject"), []).append(event)
        if groups and not self.answered:
            self._has_news.clear()
        for group in groups.values():
            task = asyncio.create_task(self._publish(group), name="stretto publish group")
            self._tasks.add(task)
            task.add_done_callback(self._end)

    async def ended(self, seconds: float) -> None:
        """Wait until all calls have ended, at most so long."""
        if self._tasks:
            await asyncio.wait({*self._tasks}, timeout=seconds)

    async def first_answer(self, seconds: float) -> None:
        """Wait until the bus has answered for an event, or all calls have ended, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_news.wait()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._has_news.set()

    async def _publish(self, events: Sequence[CommittedEvent]) -> None:
        now = asyncio.get_running_loop().time
        for number, event in enumerate(events):
            began_at = now()
            try:
                reasons = await self._calls.publish([event])
            except Exception as error:  # noqa: BLE001 the event's or the bus's: who tries decides
                self.errors |= {each.event_id: error for each in events[number:]}
                return
            self.answered[event.event_id] = reasons.get(event.event_id)
            self.shortest_seconds = min(self.shortest_seconds, now() - began_at)
            self._has_news.set()
