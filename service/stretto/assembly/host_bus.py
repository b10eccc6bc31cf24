"""HostsBus: a host's bus, which may fail for one event, such as one owner's, and must not hold up others.

Events are published together. If that fails or takes too long, those of each owner are published by
themselves. An owner for whom the bus fails is to blame only if the bus takes events of another one, if
need be from further back in the log. Its events are then refused: they are tried again beside the log,
and new ones follow there without a try, so that the others are published together again. If the bus
takes nothing, or nothing else waits, the fault may be the bus's: the relay keeps its place.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from stretto.assembly.host_bus_again import RefusedAgain
from stretto.assembly.host_bus_blame import OWNERS_MAX, BlamedOwners, owner_of
from stretto.assembly.host_bus_calls import HostsBusCalls, NoAnswer, reason_of
from stretto.assembly.host_bus_patience import Patience
from stretto.assembly.host_bus_trial import Trial, by_owner
from stretto.targets.bus import BusUnavailable, DoubtedBus, nothing_behind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import Behind, EventBus
    from stretto.targets.delivery import Delivery, PutOff

# Events of other owners that show whether the bus takes any: each is published once more later.
PROBES_MAX: Final = 16


class HostsBus(DoubtedBus):
    """A `DoubtedBus` over what a host has handed in."""

    def __init__(
        self,
        bus: EventBus,
        observe: Observer,
        lease_seconds: float,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = HostsBusCalls(bus)
        self._clock_seconds = clock_seconds
        self._patience = Patience(lease_seconds, clock_seconds)
        self._blamed = BlamedOwners(observe, clock_seconds)
        self._to_itself = asyncio.Lock()
        """Of whoever has the bus to itself, but for calls that can be cut short."""
        self._again = RefusedAgain(
            self._calls, self._blamed, self._patience, self._to_itself, clock_seconds
        )
        self._suspects: set[str] = set()
        """Owners for whom the bus has hung while it answered for no other: others come before them."""
        self.was_slow = False
        """Whether the last events took too long together: the next ones should be fewer."""

    async def publish(
        self, events: Sequence[CommittedEvent], behind: Behind = nothing_behind
    ) -> Mapping[UUID, str]:
        """Publish the events; return the reasons of those that were refused.

        `behind` reads on in the log. Raises what the bus raises, or `BusUnavailable` where it does not
        answer, if it takes no event. Whether any was published is then unknown.
        """
        async with self._to_itself:
            return await self._publish(events, behind)

    async def publish_again(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish events that were refused before; return those to put off."""
        return await self._again.publish(deliveries)

    async def _publish(
        self, events: Sequence[CommittedEvent], behind: Behind
    ) -> Mapping[UUID, str]:
        self.was_slow = False
        reasons = self._blamed.reasons(events)
        left = [event for event in events if event.event_id not in reasons]
        firsts = left
        if self._suspects:
            firsts = [event for event in left if owner_of(event) not in self._suspects]
        is_away = is_there = False
        is_busy = self._again.is_busy
        if len(firsts) > 1:
            try:
                reasons |= await self._publish_together(firsts, is_busy=is_busy)
            except BusUnavailable:
                is_away = True
            except NoAnswer:
                self.was_slow = not is_busy
            except Exception:  # noqa: BLE001, S110 each owner's show what it is
                pass
            else:
                is_there = True
                left = [event for event in left if owner_of(event) in self._suspects]
        if left:
            reasons |= await self._find_out(left, behind, is_away=is_away, is_there=is_there)
        return reasons

    async def _publish_together(
        self, events: Sequence[CommittedEvent], *, is_busy: bool
    ) -> Mapping[UUID, str]:
        began_at = self._clock_seconds()
        reasons = await self._calls.publish_within(
            self._patience.together_seconds, events, self._calls.begin()
        )
        self._patience.note_answer(self._clock_seconds() - began_at, is_busy=is_busy)
        return reasons

    async def _find_out(
        self, events: Sequence[CommittedEvent], behind: Behind, *, is_away: bool, is_there: bool
    ) -> dict[UUID, str]:
        """Publish each owner's by themselves; return the reasons of what was refused, or is to blame."""
        # Refused events may keep a bus busy that does few things at once.
        await self._calls.cut_short()
        async with Trial(self._calls, self._patience, is_there=is_there) as trial:
            owners = by_owner(events)
            first = [owner for owner in owners if owner not in self._suspects] or [*owners]
            # If the bus is away, it is not asked for every owner.
            first = first[:PROBES_MAX] if is_away else first
            await trial.run(event for owner in first for event in owners[owner])
            if not trial.is_there:
                await trial.run([event async for event in self._others({*owners}, behind)])
            if not trial.is_there:
                self._suspect(trial)
                raise next(iter(trial.errors.values()), BusUnavailable("no answer in time"))
            # What has failed before the first answer may have met a bus that was still away.
            trial.errors.clear()
            again = [event for event in events if event.event_id not in trial.answered]
            await trial.run(event for event in again if owner_of(event) not in trial.hung)
            self._suspects.difference_update(owners)
            reasons = self._refused(trial, events)
            self._patience.note_answer(trial.shortest_seconds if trial.answered else 0.0)
            return reasons

    def _suspect(self, trial: Trial) -> None:
        """Take down for whom the bus has hung; or it is slow, and gets twice the time for one next."""
        self._patience.note_silence(has_raised=bool(trial.errors))
        if len(self._suspects) > OWNERS_MAX:
            self._suspects.clear()
        self._suspects.update(trial.hung)

    async def _others(self, owners: set[str], behind: Behind) -> AsyncIterator[CommittedEvent]:
        """Yield the first event of each other owner; add these owners."""
        count = 0
        async for event in behind():
            owner = owner_of(event)
            if owner in owners or owner in self._blamed:
                continue
            owners.add(owner)
            yield event
            count += 1
            if count == PROBES_MAX:
                return

    def _refused(self, trial: Trial, events: Collection[CommittedEvent]) -> dict[UUID, str]:
        """Return the reasons of what was refused or has failed; blame the owners of what has failed."""
        reasons: dict[UUID, str] = {}
        for event in events:
            if event.event_id in trial.answered:
                reason = trial.answered[event.event_id]
            else:
                seconds = trial.hung.get(owner_of(event), self._patience.seconds)
                error = trial.errors.get(event.event_id, NoAnswer(seconds))
                self._blamed.add(event, error)
                self._patience.note_failure()
                # It was not for their number that they took too long together.
                self.was_slow = False
                reason = reason_of(error)
            if reason is not None:
                reasons[event.event_id] = reason
        return reasons
