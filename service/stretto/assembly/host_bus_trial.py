"""Trial: for which owners a host's bus answers, and for which it fails, after a call for all of them has failed.

Each owner's events are published by themselves, those of owners for whom it has answered before first. A bus that
takes long for each call gets a few owners' together, and fewer where that fails. It begins with one call: where
the bus answers, more are under way at once; where it answers nothing, another one each time that has lasted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import orjson

from stretto.assembly.host_bus_blame import owner_of
from stretto.assembly.host_bus_calls import NoAnswer
from stretto.runtime.cancelling import retrieve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import Any
    from uuid import UUID

    from stretto.assembly.host_bus_calls import HostsBusCalls
    from stretto.assembly.host_bus_patience import Patience
    from stretto.events.log import CommittedEvent

# Calls under way at once.
PLACES_MAX: Final = 64
# A bus that answers nothing for so many times as long as a stall is away: the first two calls may keep out others.
SILENT_STALLS: Final = 2.5


class Trial:
    """Calls of the bus, and what came of them."""

    def __init__(
        self,
        calls: HostsBusCalls,
        patience: Patience,
        events: Iterable[CommittedEvent],
        clock_seconds: Callable[[], float],
    ) -> None:
        self._calls = calls
        self._patience = patience
        self._events = by_owner(events)
        self._clock_seconds = clock_seconds
        self.answered: dict[UUID, str | None] = {}
        """The events for which it has answered; with a reason it has refused them."""
        self.errors: dict[UUID, Exception] = {}
        """What it has raised for an event, or that it has hung; those that it kept from a try have the same: of
        their group, or where it hangs, of their owner."""
        self.slow: set[str] = set()
        """Owners for whom it has failed slowly."""
        self._called_at: dict[str, float] = {}
        """When the newest call of each owner has begun."""
        self.is_there = False
        """Whether the bus has answered for an event."""
        self.is_together = False
        """Whether the call for all of them was answered after all."""
        self._groups: deque[tuple[Sequence[str], int]] = deque()
        """Owners whose events so far have failed together, and of how many they are next published together."""
        self._early: list[str] = []
        """Owners for whom it has raised before it has answered for any: it may have been away."""
        self.left: dict[asyncio.Task[Any], Sequence[str]] = {}
        """Calls that are under way, and whose events they have; at the end those that go on, if the bus is there."""
        self._begun = self._others_begun = 0
        self._is_turn_of_others = False
        self._reading: asyncio.Task[CommittedEvent | None] | None = None
        """The log is read on for others beside the calls, in one of the places: these may end sooner."""
        self._places = 1

    async def run(
        self,
        owners: Sequence[str],
        together: asyncio.Task[Mapping[UUID, str]],
        others: AsyncIterator[CommittedEvent],
        unanswered_max: int,
    ) -> None:
        """Publish the events of these owners, the first ones first, until it is known for whom the bus fails.

        While it answers for none, so many calls begin, and as many for `others`. It ends where no news has come
        for as long as others wait for a call that hangs, or for longer while the bus has answered none.
        """
        self.left[together] = ()
        self._split(owners)
        may_go_on = False
        try:
            await self._try_all(together, others, unanswered_max)
            may_go_on = self.is_there and not self.is_together
        finally:
            if not may_go_on:
                # Also those that have ended: asyncio would print their errors, at which nothing looks any more.
                for task in self.left:
                    task.cancel()

    async def _try_all(
        self,
        together: asyncio.Task[Mapping[UUID, str]],
        others: AsyncIterator[CommittedEvent],
        unanswered_max: int,
    ) -> None:
        """Have calls begin, and note what comes of them, until it is known; end what is read on for others."""
        began_at = news_at = self._clock_seconds()
        try:
            while self._clock_seconds() - news_at < self._silent_seconds and not self.is_together:
                if self._calls.answered_at > began_at:
                    # Also for what is published beside the log.
                    self._note_there()
                if self._is_last_alone(together):
                    break
                self._begin_more(others, unanswered_max)
                if not self._waited_for():
                    break
                if await self._wait(together, unanswered_max):
                    news_at = self._clock_seconds()
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait({self._reading})

    def _is_last_alone(self, together: asyncio.Task[Mapping[UUID, str]]) -> bool:
        """Whether the call for all hangs, and of its owners all but one were answered: it is for this one."""
        is_one = len(self._groups) == 1 and len(self._groups[0][0]) == 1
        return self.is_there and is_one and not together.done() and len(self.left) == 1

    def _begin_more(self, others: AsyncIterator[CommittedEvent], unanswered_max: int) -> None:
        """Begin calls while there are places; while the bus has answered none, one of others follows each."""
        while len(self._waited_for()) <= self._places:
            may_begin = self.is_there or self._begun < unanswered_max
            may_ask_others = not self.is_there and self._others_begun < unanswered_max
            may_ask_others = may_ask_others and self._reading is None
            if self._groups and may_begin and not (self._is_turn_of_others and may_ask_others):
                self._begun += 1
                self._is_turn_of_others = True
                self._begin_next()
            elif may_ask_others:
                self._is_turn_of_others = False
                self._others_begun += 1
                self._reading = asyncio.create_task(
                    _next(others), name="stretto read on for others"
                )
                self._reading.add_done_callback(retrieve)
            else:
                return

    def _waited_for(self) -> set[asyncio.Task[Any]]:
        """Return the calls under way, and what is read while it is of use."""
        reading = None if self.is_there else self._reading
        return {*self.left} if reading is None else {*self.left, reading}

    def _ask_other(self, other: CommittedEvent | None, unanswered_max: int) -> None:
        """Publish the event of another owner that was read, if there is one."""
        self._reading = None
        if other is not None:
            self._begin((), self._calls.publish([other]))
        else:
            self._others_begun = unanswered_max

    @property
    def _silent_seconds(self) -> float:
        """How long is waited for news."""
        if self.is_there:
            return self._patience.seconds
        return SILENT_STALLS * self._patience.stall_seconds

    def _begin_next(self) -> None:
        """Publish some owners' events: of a group that is to be tried in parts, or one owner's alone."""
        owners, count = self._groups.popleft()
        part, rest = owners[:count], owners[count:]
        if rest:
            self._groups.appendleft((rest, count))
        if len(part) > 1:
            self._begin(part, self._publish_part(part))
        else:
            self._begin(part, self._publish_owner(self._events[part[0]]))

    def _split(self, owners: Sequence[str]) -> None:
        self._groups.append((owners, self._patience.part_of(len(owners))))

    def _begin(self, owners: Sequence[str], call: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(call, name="stretto publish of an owner")
        self.left[task] = owners

    async def _wait(self, together: asyncio.Task[Mapping[UUID, str]], unanswered_max: int) -> bool:
        """Wait for calls that end, and note what came of them; return whether one was answered."""
        done, _ = await asyncio.wait(
            self._waited_for(),
            timeout=self._patience.seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not done:
            self._places += 1
        has_news = False
        for task in done & self.left.keys():
            owners = self.left.pop(task)
            error = task.exception()
            if error is None and task is together:
                self.is_together = has_news = True
            elif error is None and not owners:
                has_news = True
            elif error is not None and len(owners) > 1:
                self._split(owners)
            elif owners and self._has_answered(owners):
                has_news = True
            elif owners and not self.is_there:
                self._early += owners
        if has_news:
            self._places = min(2 * self._places, PLACES_MAX)
            self._note_there()
        elif self._reading in done:
            self._ask_other(self._reading.result(), unanswered_max)
        return has_news

    def _note_there(self) -> None:
        """Note that the bus has answered for an event: no others are looked for any more."""
        self.is_there = True
        if self._reading is not None:
            self._reading.cancel()
        # What has failed may have met a bus that was still away: only a second failure counts.
        for owner in self._early:
            self._groups.append(([owner], 1))
            for event in self._events[owner]:
                self.errors.pop(event.event_id, None)
        self._early.clear()

    def _has_answered(self, owners: Sequence[str]) -> bool:
        return any(
            each.event_id in self.answered for owner in owners for each in self._events[owner]
        )

    async def _publish_part(self, owners: Sequence[str]) -> None:
        await self._call([event for owner in owners for event in self._events[owner]])

    async def _publish_owner(self, events: Sequence[CommittedEvent]) -> None:
        """Publish an owner's events together, or if the bus raises for that, each alone, in order."""
        if len(events) > 1:
            try:
                await self._call(events)
            except Exception as error:
                if self._is_slow(error, events):
                    # Each alone may take as long.
                    self._note_error(events, error)
                    raise
            else:
                return
        failed: dict[str | None, UUID] = {}
        for event in events:
            group = orjson.loads(event.envelope).get("subject")
            if group in failed:
                # After the trial, where this goes on, there are no errors any more.
                if (error_before := self.errors.get(failed[group])) is not None:
                    self._note_error([event], error_before)
                continue
            try:
                await self._call([event])
            except Exception as error:
                if self._is_slow(error, events) or not (self.is_there or self.answered):
                    self._note_error(events, error)
                    raise
                failed[group] = event.event_id
                self._note_error([event], error)

    def _note_error(self, events: Sequence[CommittedEvent], error: Exception) -> None:
        if self._is_slow(error, events):
            self.slow.add(owner_of(events[0]))
        left = (each.event_id for each in events if each.event_id not in self.answered)
        self.errors |= dict.fromkeys(left, error)

    def _is_slow(self, error: Exception, events: Sequence[CommittedEvent]) -> bool:
        """Whether the newest call of their owner, which has failed so, may have kept out others for long."""
        took_seconds = self._clock_seconds() - self._called_at[owner_of(events[0])]
        return isinstance(error, NoAnswer) or took_seconds >= self._patience.quick_seconds

    async def _call(self, events: Sequence[CommittedEvent]) -> None:
        self._called_at[owner_of(events[0])] = self._clock_seconds()
        reasons = await self._calls.publish(events)
        for event in events:
            self.answered[event.event_id] = reasons.get(event.event_id)
            self.errors.pop(event.event_id, None)


async def _next(others: AsyncIterator[CommittedEvent]) -> CommittedEvent | None:
    return await anext(others, None)


def by_owner(events: Iterable[CommittedEvent]) -> dict[str, list[CommittedEvent]]:
    """Return the events of each owner."""
    owners: dict[str, list[CommittedEvent]] = {}
    for event in events:
        owners.setdefault(owner_of(event), []).append(event)
    return owners
