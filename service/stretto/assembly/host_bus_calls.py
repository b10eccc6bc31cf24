"""HostsBusCalls: calls of a host's `publish`, whose answers are checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stretto.identifiers import plain
from stretto.runtime.cancelling import cancellations, in_own_task, is_cancelled
from stretto.runtime.exits import ExitAsError
from stretto.targets.bus import raised

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.targets.bus import EventBus


# As of a veto's detail: the reason is in the log, and in the dead letter.
REASON_CHARACTERS_MAX: Final = 1024
# A call that was cancelled is waited for: it may have to clean up. One that goes on holds up nothing.
CANCELLED_CALL_SECONDS: Final = 1.0
# One that goes on may keep others from a bus that does few things at once: for so long no owner is to blame for
# what hangs before the bus has answered a later call, and its own gets no other call while it is seen to go on.
# asyncio itself waits 30 s for the end of TLS.
HELD_SECONDS: Final = 30.0


class NoAnswer(Exception):
    """A call has taken too long, and was cancelled."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"publish took longer than {seconds:g} s")


class CutShort(NoAnswer):
    """It was cancelled before its time, for other calls."""


def reason_of(error: Exception) -> str:
    """Return the reason of an event for which a call has failed."""
    return str(error) if isinstance(error, NoAnswer) else raised(error)


class _Left(NamedTuple):
    """Of a call that was cancelled, and has not ended."""

    until: float
    """When it is forgotten."""
    owner: str | None
    """Whose events it has, if it has one owner's."""


class HostsBusCalls:
    """An `EventBus` that keeps the contract, over one that may break it.

    Calls have numbers, in the order in which they begin. A bus that does few things at once lets calls wait, and
    the first that waits is the first to go on. So if one has hung while a later one was answered, it did not
    wait for others.
    """

    def __init__(self, bus: EventBus, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock_seconds = clock_seconds
        self._left: dict[asyncio.Task[Any], _Left] = {}
        """Cancelled, and not ended: the event loop itself keeps no task."""
        self._can_be_cut: dict[asyncio.Task[Mapping[UUID, str]], str | None] = {}
        self._begun = self._answered = self._cancelled = 0
        """The newest call of all, the newest of those that were answered, and of all as one was last cancelled."""
        self._free_at = float("-inf")
        """Since when no call that was cancelled can keep all others out, or when that is assumed."""

    def begin(self) -> int:
        """Return the number of a call that begins now."""
        self._begun += 1
        return self._begun

    def was_passed(self, number: int) -> bool:
        """Whether a later call was answered."""
        return self._answered > number

    @property
    def is_free(self) -> bool:
        """Whether no call that was cancelled can keep all others out: one that began later was answered.

        What goes on in a thread cannot be seen.
        """
        return self.free_for_seconds >= 0

    @property
    def free_for_seconds(self) -> float:
        """For how long that has been so; negative while it is not."""
        return self._clock_seconds() - self._free_at

    def goes_on_for(self, owner: str) -> bool:
        """Whether a call of this owner's that was cancelled goes on."""
        now = self._clock_seconds()
        return any(each.owner == owner and each.until > now for each in self._left.values())

    async def publish(self, events: Sequence[CommittedEvent], number: int) -> Mapping[UUID, str]:
        """Publish together; return the reasons of those that were refused.

        Raises what the bus raises: `TypeError` for an answer that breaks the contract, and
        `RuntimeError` for what is no `Exception`, such as a cancellation of its own. Whether any event
        was published is then unknown. An id that is none of theirs, such as a text, would let the
        relay pass over a refused event. Reasons are cut to `REASON_CHARACTERS_MAX`.
        """
        # The bus may change what it gets.
        event_ids = {event.event_id for event in events}
        events = tuple(events)
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
        if isinstance(reasons, Mapping):
            refused = dict(reasons)
            odd = [
                each
                for each in refused.items()
                if each[0] not in event_ids or not isinstance(each[1], str)
            ]
            if not odd:
                self._note_answer(number)
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
        self,
        seconds: float,
        events: Sequence[CommittedEvent],
        number: int,
        *,
        owner: str | None = None,
        can_be_cut: bool = False,
    ) -> Mapping[UUID, str]:
        """The same, within so many seconds; also raises `NoAnswer`, or `CutShort` for `cut_short`.

        The events may be those of one `owner`.
        """
        task = asyncio.create_task(self.publish(events, number), name="stretto publish together")
        if can_be_cut:
            self._can_be_cut[task] = owner
            task.add_done_callback(self._can_be_cut.pop)
        try:
            if not (await asyncio.wait({task}, timeout=seconds))[0]:
                raise NoAnswer(seconds)
            if task.cancelled():
                raise CutShort(seconds)
            return task.result()
        finally:
            await self.cancel({task: owner})
            # The traceback of its error refers to this frame, which must not refer back.
            del task

    async def cut_short(self) -> None:
        """Cancel the calls that can be cut short."""
        await self.cancel(dict(self._can_be_cut))

    async def run(
        self, calls: Mapping[str, Coroutine[Any, Any, None]], seconds: float | None = None
    ) -> list[str]:
        """Run calls side by side, each of an owner; cancel those that take longer, and return their owners."""
        tasks = {
            owner: asyncio.create_task(call, name="stretto publish of an owner")
            for owner, call in calls.items()
        }
        late = [*tasks]
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=seconds)
            late = [owner for owner, task in tasks.items() if not task.done()]
        finally:
            await self.cancel({task: owner for owner, task in tasks.items()})
        for owner in tasks.keys() - {*late}:
            tasks[owner].result()
        return late

    async def cancel(self, tasks: Mapping[asyncio.Task[Any], str | None]) -> None:
        """Cancel calls, each once, and wait for their end, `CANCELLED_CALL_SECONDS` at most.

        Each may have an owner.
        """
        running = {task for task in tasks if not task.done()}
        # If one has ended in the same turn as its caller, its error is looked at nowhere else.
        for task in tasks.keys() - running:
            self._forget(task)
        until = self._clock_seconds() + HELD_SECONDS
        # A second time would cut short what it cleans up.
        for task in running - self._left.keys():
            self._cancelled, self._free_at = self._begun, until
            self._left[task] = _Left(until, tasks[task])
            task.add_done_callback(self._forget)
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCELLED_CALL_SECONDS)

    def _note_answer(self, number: int) -> None:
        if not self.is_free and number > self._cancelled:
            self._free_at = self._clock_seconds()
        self._answered = max(self._answered, number)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left.pop(task, None)
        if not task.cancelled():
            # asyncio would log it otherwise.
            task.exception()

    async def _published(self, events: Sequence[CommittedEvent]) -> object:
        with ExitAsError("publish"):
            return await self._bus.publish(events)
