"""Trial: for which owners a host's bus answers, and for which it fails.

It has one call for each owner under way: the bus may do few things at once, and one that hangs keeps
others from it. Where a round of calls shows nothing, the next one is of a single owner, after all others
were cancelled. If that hangs too, it is not because of others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

import orjson

from stretto.assembly.host_bus_blame import owner_of
from stretto.targets.bus import BusUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from stretto.assembly.host_bus_calls import HostsBusCalls
    from stretto.events.log import CommittedEvent

# A bus that is known to take long gets so many times what it took.
PATIENCE_TIMES: Final = 3.0
# Once the bus has answered for others, a round that shows nothing more may last so much of the time before.
QUICK_SHARE: Final = 1 / 3


class Trial:
    """Calls of the bus, and what came of them, until the end of `async with`."""

    def __init__(self, calls: HostsBusCalls, *, is_there: bool) -> None:
        """Take whether the bus has answered already."""
        self._calls = calls
        self.is_there = is_there
        """Whether the bus has answered for an event."""
        self.answered: dict[UUID, str | None] = {}
        """The events for which it has; with a reason it has refused them."""
        self.errors: dict[UUID, Exception] = {}
        """What it has raised for an event; those behind it in their group were not tried."""
        self.hung: dict[str, float] = {}
        """Owners for whom it has hung, and for how many seconds."""
        self.shortest_seconds = float("inf")
        """Of the calls that it has answered."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Each error refers by its traceback to frames that refer to this.
        self.errors.clear()

    async def run(
        self,
        events: Iterable[CommittedEvent],
        seconds: float,
        patience_seconds: float,
        alone_seconds: float,
    ) -> None:
        """Publish the events, in rounds of `patience_seconds` at most; within `seconds`, or little more.

        While the bus answers for more and more of them, they have as long again. While it has not answered
        at all, a round of one owner may last for `alone_seconds`.
        """
        waiting = by_owner(events)
        owners = [*waiting]
        has_news = True
        now = asyncio.get_running_loop().time
        until = now() + seconds
        while owners:
            known = len(self.answered)
            lasts = patience_seconds
            if self.is_there:
                if self.answered:
                    slow_seconds = PATIENCE_TIMES * self.shortest_seconds
                    lasts = max(lasts, min(slow_seconds, seconds))
                lasts *= 1.0 if has_news else QUICK_SHARE
            elif len(owners) == 1:
                lasts = alone_seconds
            late = await self._round([waiting[owner] for owner in owners], lasts)
            for owner in owners:
                waiting[owner] = [each for each in waiting[owner] if not self._is_known(each)]
                if not waiting[owner]:
                    del waiting[owner]
            has_news = len(self.answered) > known
            if has_news:
                until = now() + seconds
            if len(owners) == 1 and late:
                self.hung |= dict.fromkeys(late, lasts)
                waiting.pop(owners[0], None)
            elif now() >= until:
                if self.is_there:
                    self.hung |= dict.fromkeys(late, lasts)
                return
            is_stuck = not has_news and len(owners) > 1
            owners = [*waiting][:1] if is_stuck else [*waiting]

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
                    if is_away and not self.is_there:
                        self.errors |= {each.event_id: error for each in events}
                        return
            if group in failed:
                self.errors[event.event_id] = failed[group]

    async def _call(self, events: Sequence[CommittedEvent]) -> None:
        now = asyncio.get_running_loop().time
        began_at = now()
        reasons = await self._calls.publish(events)
        self.is_there = True
        self.answered |= {event.event_id: reasons.get(event.event_id) for event in events}
        self.shortest_seconds = min(self.shortest_seconds, now() - began_at)


def by_owner(events: Iterable[CommittedEvent]) -> dict[str, list[CommittedEvent]]:
    """Return the events of each owner."""
    owners: dict[str, list[CommittedEvent]] = {}
    for event in events:
        owners.setdefault(owner_of(event), []).append(event)
    return owners
