"""HostsBusCalls: calls of a host's `publish`, whose answers are checked, and which of them hang.

Calls have numbers, in the order in which they begin. A bus that does few things at once lets calls wait, and
the first that waits is the first to go on. So a call that has no answer while a later one was answered does not
wait for others: it hangs by itself. Where nothing is answered, the first call may keep out all others. It is
cancelled once that has lasted for longer than the client's own time-out, which is to come first: a call that was
cancelled may go on, in a thread or as it cleans up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stretto.identifiers import plain
from stretto.runtime.cancelling import cancellations, in_own_task, is_cancelled
from stretto.runtime.exits import ExitAsError
from stretto.targets.bus import raised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from stretto.assembly.host_bus_patience import Patience
    from stretto.events.log import CommittedEvent
    from stretto.targets.bus import EventBus


# As of a veto's detail: the reason is in the log, and in the dead letter.
REASON_CHARACTERS_MAX: Final = 1024
# In a row, calls are cancelled because none is answered: one, then twice as many each time, so many doublings at most.
STALLS_MAX: Final = 6
# At the end of all calls, those that were cancelled are waited for: they may have to clean up.
CANCELLED_CALL_SECONDS: Final = 1.0


class NoAnswer(Exception):
    """A call has taken too long."""

    def __init__(self, seconds: float, *, is_own: bool, kept_out: bool = False) -> None:
        super().__init__(f"publish took longer than {seconds:g} s")
        self.is_own = is_own
        """Whether a later call was answered: it did not wait for others."""
        self.kept_out = kept_out
        """Whether nothing was answered until it was cancelled."""


def reason_of(error: Exception) -> str:
    """Return the reason of an event for which a call has failed."""
    return str(error) if isinstance(error, NoAnswer) else raised(error)


class _Call:
    """A call that has not ended, or of which it is not known yet why it was cancelled."""

    __slots__ = ("began_at", "cancelled_at", "is_behind", "kept_out", "number", "over", "task")

    def __init__(self, number: int, began_at: float) -> None:
        self.number = number
        self.began_at = began_at
        self.cancelled_at: float | None = None
        self.kept_out = False
        self.is_behind = False
        """Whether it was cancelled together with an older one, for which it may have waited."""
        self.task: asyncio.Task[Mapping[UUID, str]]
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Is waited for: whether it hangs by itself, if it has no answer."""

    @property
    def has_ended(self) -> bool:
        """Whether it was answered, or has raised by itself: not because it was cancelled."""
        if not self.task.done() or self.task.cancelled():
            return False
        # asyncio would log an error that nothing looks at.
        return self.task.exception() is None or self.cancelled_at is None

    def leave(self, *, is_own: bool) -> None:
        """Wait for it no longer."""
        if not self.over.done():
            self.over.set_result(is_own)


class HostsBusCalls:
    """An `EventBus` that keeps the contract, over one that may break it."""

    def __init__(
        self, bus: EventBus, patience: Patience, clock_seconds: Callable[[], float]
    ) -> None:
        self._bus = bus
        self._patience = patience
        self._clock_seconds = clock_seconds
        self._calls: dict[int, _Call] = {}
        """The oldest first."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """Also those of calls that were cancelled, until they end: the event loop itself keeps no task."""
        self._begun = self._answered = 0
        """The newest call of all, and of those that were answered."""
        self._moved_at = float("-inf")
        """When a call has last ended, or was cancelled."""
        self.answered_at = float("-inf")
        self._stalls = 0
        """How often calls were cancelled since one was answered, because nothing is."""
        self._next_look: asyncio.TimerHandle | None = None

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish together; return the reasons of those that were refused.

        Raises what the bus raises: `TypeError` for an answer that breaks the contract, and
        `RuntimeError` for what is no `Exception`, such as a cancellation of its own; `NoAnswer` where it
        hangs. Whether any event was published is then unknown, and the call may go on for a while.
        """
        self._begun += 1
        if not self._calls:
            self._stalls = 0
        call = _Call(self._begun, self._clock_seconds())
        call.task = asyncio.create_task(self._publish(events), name="stretto publish to a bus")
        call.task.add_done_callback(partial(self._end, call))
        self._tasks.add(call.task)
        self._calls[call.number] = call
        self._look_later()
        try:
            is_own = await call.over
            if call.has_ended:
                return call.task.result()
            seconds = round(self._clock_seconds() - call.began_at, 1)
            raise NoAnswer(seconds, is_own=is_own, kept_out=call.kept_out)
        except asyncio.CancelledError:
            self._cancel(call)
            # Nothing waits to know why, and the next call may be the first of a new turn.
            self._forget(call, is_own=False)
            raise
        finally:
            # The traceback of its error refers to this frame, which must not refer back.
            del call

    @property
    def newest(self) -> int:
        """The number of the newest call."""
        return self._begun

    def was_passed(self, number: int) -> bool:
        """Whether a call that began later was answered."""
        return self._answered > number

    async def close(self) -> None:
        """Cancel all calls, and wait for their end, a second at most."""
        for call in [*self._calls.values()]:
            self._cancel(call)
            call.leave(is_own=False)
        self._calls.clear()
        if self._tasks:
            await asyncio.wait({*self._tasks}, timeout=CANCELLED_CALL_SECONDS)

    def _end(self, call: _Call, task: asyncio.Task[Mapping[UUID, str]]) -> None:
        """Note that a call has ended by itself, or after it was cancelled."""
        self._tasks.discard(task)
        if not call.has_ended:
            if call.cancelled_at is None:
                # A host may have cancelled all tasks.
                self._forget(call, is_own=False)
            return
        now = self._clock_seconds()
        # What it has waited for others is no reason to wait for longer for those.
        took_seconds = now - max(call.began_at, self._moved_at)
        self._moved_at = now
        if task.exception() is None:
            self.answered_at, self._stalls = now, 0
            self._answered = max(self._answered, call.number)
            if not call.over.done():
                self._patience.note_answer(took_seconds)
        self._forget(call, is_own=False)

    def _forget(self, call: _Call, *, is_own: bool) -> None:
        self._calls.pop(call.number, None)
        call.leave(is_own=is_own)

    def _cancel(self, call: _Call) -> None:
        """Cancel a call, once: a second time would cut short what it cleans up."""
        if call.cancelled_at is None:
            now = self._clock_seconds()
            if not self._may_wait(call):
                self._moved_at = now
            call.cancelled_at = now
            call.task.cancel()

    def _may_wait(self, call: _Call) -> bool:
        """Whether an older call may keep it out: its end leaves that one as it was."""
        return any(
            number < call.number and each.cancelled_at is None
            for number, each in self._calls.items()
        )

    def _look_later(self) -> None:
        if self._next_look is None:
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(self._patience.look_seconds, self._look)

    def _look(self) -> None:
        """Leave the calls that hang by themselves; where nothing is answered, cancel the first one."""
        self._next_look = None
        now, stall_seconds = self._clock_seconds(), self._patience.stall_seconds
        waiting: list[_Call] = []
        for call in [*self._calls.values()]:
            if call.number < self._answered:
                was_cancelled = call.cancelled_at is not None
                if was_cancelled or now - call.began_at >= self._patience.seconds:
                    self._cancel(call)
                    self._forget(call, is_own=not call.is_behind)
            elif call.cancelled_at is None:
                waiting.append(call)
            elif now - call.cancelled_at >= stall_seconds:
                self._forget(call, is_own=False)
        if not waiting:
            # None is left that could show whether those that were cancelled hang by themselves.
            for call in [*self._calls.values()]:
                if call.cancelled_at is not None:
                    self._forget(call, is_own=False)
        else:
            self._relieve(waiting, now)
        if self._calls:
            self._look_later()

    def _relieve(self, waiting: Sequence[_Call], now: float) -> None:
        """Where nothing is answered, cancel the first call, and if that does not help, more and more of them."""
        seconds = self._patience.seconds if self._stalls else self._patience.stall_seconds
        if now - max(self._moved_at, waiting[0].began_at) >= seconds:
            for call in waiting[: 1 << min(self._stalls, STALLS_MAX)]:
                call.kept_out = True
                call.is_behind = call is not waiting[0]
                self._cancel(call)
            self._stalls += 1

    async def _publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
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
        return _checked(reasons, event_ids)

    async def _published(self, events: Sequence[CommittedEvent]) -> object:
        with ExitAsError("publish"):
            return await self._bus.publish(events)


def _checked(reasons: object, event_ids: set[UUID]) -> Mapping[UUID, str]:
    """Return the answer of a bus, with reasons cut to `REASON_CHARACTERS_MAX`.

    Raises `TypeError` where it breaks the contract. An id that is none of theirs, such as a text, would let the
    relay pass over a refused event.
    """
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
