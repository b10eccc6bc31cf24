"""Trial: for which owners a host's bus answers, and for which it fails.

It has one call for each owner under way: the bus may do few things at once, and one that hangs keeps
others from it. Where a round of calls shows nothing, the next ones are of a single owner, after all others
were cancelled, until one is answered. If such a one hangs too, it is not because of others, unless a cancelled
call goes on in a thread. So an event that the bus has answered for is published once more before; while that hangs
as well, no owner is to blame.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import orjson

from stretto.assembly.host_bus_blame import owner_of
from stretto.assembly.host_bus_patience import QUICK_SHARE
from stretto.targets.bus import BusUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from stretto.assembly.host_bus_calls import HostsBusCalls
    from stretto.assembly.host_bus_patience import Patience
    from stretto.events.log import CommittedEvent


# For so few owners a call each keeps a bus less busy than all at once, of which each may go on in a thread.
FEW_OWNERS_MAX: Final = 8


class Trial:
    """Calls of the bus, and what came of them, until the end of `async with`."""

    def __init__(
        self, calls: HostsBusCalls, patience: Patience, published: CommittedEvent | None
    ) -> None:
        """Take the last event for which the bus has answered already."""
        self._calls = calls
        self._patience = patience
        self._published = published
        """The last event for which the bus has answered: no later one of its group has been published."""
        self.asked: set[str] = set()
        """Owners for whom it was asked."""
        self.answered: dict[UUID, str | None] = {}
        """The events for which it has; with a reason it has refused them."""
        self.errors: dict[UUID, Exception] = {}
        """What it has raised for an event; those behind it in their group were not tried."""
        self.raised: set[str] = set()
        """Owners for whom it has raised."""
        self.hung: dict[str, float] = {}
        """Owners for whom it has hung, not because of others, and for how many seconds."""
        self.unsure: set[str] = set()
        """Owners for whom it has hung, perhaps because a call that was cancelled goes on."""
        self.ranks: dict[str, int] = {}
        """Of owners for whom it has hung: those who may have waited for others come before these."""
        self.shortest_seconds = float("inf")
        """Of the calls that it has answered."""
        self._is_held = False
        """Whether the bus has taken nothing any more since it has hung for an owner."""
        self._answered_at = float("-inf")
        self._numbers: dict[str, int] = {}
        """Each owner's newest call."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Each error refers by its traceback to frames that refer to this.
        self.errors.clear()

    @property
    def is_there(self) -> bool:
        """Whether the bus has answered for an event."""
        return self._published is not None

    async def run(self, events: Iterable[CommittedEvent], *, is_again: bool = False) -> None:
        """Publish the events, in rounds, within a lease or little more.

        While the bus answers for more and more of them, they have as long again. Only what `is_again` tried is
        tried alone: another owner's shows sooner whether the bus is there.
        """
        waiting = by_owner(events)
        self.asked.update(waiting)
        is_first = has_news = not is_again
        is_stuck = is_again and (not self.is_there or len(waiting) <= FEW_OWNERS_MAX)
        now = asyncio.get_running_loop().time
        until = now() + self._patience.lease_seconds
        while waiting and await self._takes_calls():
            owners = [*waiting][:1] if is_stuck else [*waiting]
            known = len(self.answered)
            is_quick = not is_first and (len(owners) == 1 or not has_news)
            is_quick = is_quick or self._patience.has_just_failed
            await self._round(waiting, owners, is_quick=is_quick)
            is_first, has_news = False, len(self.answered) > known
            if has_news:
                until = now() + self._patience.lease_seconds
            if now() >= until or not (has_news or is_again):
                return
            is_stuck = not has_news and (is_stuck or len(owners) > 1)
        self.unsure.update(waiting)

    def _round_seconds(self, owners: int, *, is_quick: bool) -> float:
        """Return how long a round of so many owners may take."""
        if not self.is_there:
            return self._patience.alone_seconds if owners == 1 else self._patience.seconds
        share = QUICK_SHARE if is_quick else 1.0
        usual_seconds = self._patience.quick_seconds if is_quick else self._patience.seconds
        took_seconds = self.shortest_seconds if self.answered else 0.0
        return max(usual_seconds, self._patience.after(took_seconds, share))

    async def _takes_calls(self) -> bool:
        """Whether the bus takes calls again after one was cancelled; where it has answered none, that is to be seen."""
        if self._published is None or self._calls.is_free:
            return True
        if not self._is_held:
            # While it does not take this one, it takes no other one either: there is nothing to hurry for.
            once_more = {"": self._publish_once_more(self._published)}
            self._is_held = bool(await self._calls.run(once_more, self._patience.lease_seconds))
        return not self._is_held

    async def _publish_once_more(self, event: CommittedEvent) -> None:
        """Publish what the bus has taken: what hangs though that goes through does not wait for others."""
        with suppress(Exception):
            await self._calls.publish([event], self._calls.begin())

    async def _round(
        self, waiting: dict[str, list[CommittedEvent]], owners: Sequence[str], *, is_quick: bool
    ) -> None:
        """Publish the events of each of these owners; take off what is known then."""
        calls = {owner: self._publish(waiting[owner]) for owner in owners}
        # Where no answer is expected, this one shows whether the bus has places left.
        last = self._published
        if is_quick and len(owners) > 1 and last is not None and owner_of(last) not in calls:
            calls[owner_of(last)] = self._publish_once_more(last)
        lasts = self._round_seconds(len(owners), is_quick=is_quick)
        was_free = self._calls.is_free
        late = [owner for owner in await self._calls.run(calls, lasts) if owner in waiting]
        for owner in owners:
            waiting[owner] = [each for each in waiting[owner] if not self._is_known(each)]
            if not waiting[owner]:
                del waiting[owner]
        # One that hangs alone, or has long been the only one that does, does not wait for others.
        since = asyncio.get_running_loop().time() - self._answered_at
        is_alone = was_free and len(late) == 1 and (len(owners) == 1 or since > lasts / 2)
        for owner in late:
            # Nor does one before others who were answered.
            if is_alone or self._calls.was_passed(self._numbers[owner]):
                self.hung[owner] = lasts
                del waiting[owner]
        late = [owner for owner in late if owner in waiting]
        # Of a bus that does few things at once, the first ones may have kept out those behind them.
        self.unsure.update(late[:1])
        for rank, owner in enumerate(reversed(late)):
            self.ranks[owner] = rank
            left = waiting.pop(owner)
            if len(owners) > 1:
                waiting[owner] = left

    def _is_known(self, event: CommittedEvent) -> bool:
        return event.event_id in self.answered or event.event_id in self.errors

    async def _publish(self, events: Sequence[CommittedEvent]) -> None:
        """Publish an owner's events together, or if the bus raises for that, each alone, in order.

        If it says that it is away, one alone shows whether that is so.
        """
        is_away = False
        if len(events) > 1:
            try:
                await self._call(events)
            except BusUnavailable:
                is_away = not self.is_there
            except Exception:  # noqa: BLE001, S110 each alone shows what it is
                pass
            else:
                return
        failed: dict[str | None, Exception] = {}
        for event in events:
            group = orjson.loads(event.envelope).get("subject")
            if group not in failed:
                try:
                    await self._call([event])
                except Exception as error:  # noqa: BLE001 the event's or the bus's: who tries decides
                    failed[group] = error
                    self.raised.add(owner_of(event))
                    if is_away and not self.is_there:
                        self.errors |= {each.event_id: error for each in events}
                        return
            if group in failed:
                self.errors[event.event_id] = failed[group]

    async def _call(self, events: Sequence[CommittedEvent]) -> None:
        now = asyncio.get_running_loop().time
        number = self._numbers[owner_of(events[0])] = self._calls.begin()
        began_at = now()
        reasons = await self._calls.publish(events, number)
        self._published = events[-1]
        self._answered_at = now()
        self.answered |= {event.event_id: reasons.get(event.event_id) for event in events}
        self.shortest_seconds = min(self.shortest_seconds, self._answered_at - began_at)


def by_owner(events: Iterable[CommittedEvent]) -> dict[str, list[CommittedEvent]]:
    """Return the events of each owner."""
    owners: dict[str, list[CommittedEvent]] = {}
    for event in events:
        owners.setdefault(owner_of(event), []).append(event)
    return owners
