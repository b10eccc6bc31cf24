"""Trial: for which owners a host's bus answers, and for which it fails.

It has one call for each owner under way: the bus may do few things at once, and one that hangs keeps
others from it. Where a round of calls shows nothing, the next ones are of a single owner, after all others
were cancelled, until one is answered. If such a one hangs too, it is not because of others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

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


class Trial:
    """Calls of the bus, and what came of them, until the end of `async with`."""

    def __init__(self, calls: HostsBusCalls, patience: Patience, *, is_there: bool) -> None:
        """Take whether the bus has answered already."""
        self._calls = calls
        self._patience = patience
        self.is_there = is_there
        """Whether the bus has answered for an event."""
        self.asked: set[str] = set()
        """Owners for whom it was asked."""
        self.answered: dict[UUID, str | None] = {}
        """The events for which it has; with a reason it has refused them."""
        self.errors: dict[UUID, Exception] = {}
        """What it has raised for an event; those behind it in their group were not tried."""
        self.raised: set[str] = set()
        """Owners for whom it has raised."""
        self.hung: dict[str, float] = {}
        """Owners for whom it has hung, and for how many seconds."""
        self.shortest_seconds = float("inf")
        """Of the calls that it has answered."""
        self._numbers: dict[str, int] = {}
        """Each owner's newest call."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Each error refers by its traceback to frames that refer to this.
        self.errors.clear()

    async def run(self, events: Iterable[CommittedEvent]) -> None:
        """Publish the events, in rounds, within a lease or little more.

        While the bus answers for more and more of them, they have as long again.
        """
        waiting = by_owner(events)
        self.asked.update(waiting)
        owners = [*waiting]
        is_first = has_news = True
        is_stuck = False
        now = asyncio.get_running_loop().time
        until = now() + self._patience.lease_seconds
        while owners:
            known = len(self.answered)
            is_quick = not is_first and (len(owners) == 1 or not has_news)
            lasts = self._round_seconds(len(owners), is_quick=is_quick)
            was_held = self._calls.is_held
            late = await self._round([waiting[owner] for owner in owners], lasts)
            for owner in owners:
                waiting[owner] = [each for each in waiting[owner] if not self._is_known(each)]
                if not waiting[owner]:
                    del waiting[owner]
            is_first, has_news = False, len(self.answered) > known
            if has_news:
                until = now() + self._patience.lease_seconds
            is_over = now() >= until and len(owners) > 1
            for owner in late:
                # Before others who were answered, or alone: it did not wait for others.
                is_sure = self._calls.was_passed(self._numbers[owner])
                is_last = len(owners) == 1 or (is_over and self.is_there)
                if is_sure or (is_last and not was_held):
                    self.hung[owner] = lasts
                    waiting.pop(owner, None)
            if now() >= until:
                return
            was_stuck = is_stuck and not self.is_there
            is_stuck = not has_news and (was_stuck or len(owners) > 1)
            owners = [*waiting][:1] if is_stuck else [*waiting]

    def _round_seconds(self, owners: int, *, is_quick: bool) -> float:
        """Return how long a round of so many owners may take."""
        if not self.is_there:
            return self._patience.alone_seconds if owners == 1 else self._patience.seconds
        share = QUICK_SHARE if is_quick else 1.0
        usual_seconds = self._patience.quick_seconds if is_quick else self._patience.seconds
        took_seconds = self.shortest_seconds if self.answered else 0.0
        return max(usual_seconds, self._patience.after(took_seconds, share))

    def _is_known(self, event: CommittedEvent) -> bool:
        return event.event_id in self.answered or event.event_id in self.errors

    async def _round(self, chains: Sequence[Sequence[CommittedEvent]], seconds: float) -> list[str]:
        """Publish each owner's events, at most so long; return the owners whose calls had to be cancelled."""
        calls = {owner_of(chain[0]): self._publish(chain) for chain in chains}
        return await self._calls.run(calls, seconds)

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
        self.is_there = True
        self.answered |= {event.event_id: reasons.get(event.event_id) for event in events}
        self.shortest_seconds = min(self.shortest_seconds, now() - began_at)


def by_owner(events: Iterable[CommittedEvent]) -> dict[str, list[CommittedEvent]]:
    """Return the events of each owner."""
    owners: dict[str, list[CommittedEvent]] = {}
    for event in events:
        owners.setdefault(owner_of(event), []).append(event)
    return owners
