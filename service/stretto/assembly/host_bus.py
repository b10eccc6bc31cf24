"""HostsBus: a host's bus, which may fail for one event, such as one owner's, and must not hold up others.

Events are published together. If that fails or takes too long, each is published alone, all at once.
What fails alone is to blame only if the bus takes another event in that time, if need be one of another
owner further back in the log. It is then refused: it is tried again beside the log. New events of its
owner follow it there without a try, so that the others are published together again. If the bus takes
nothing, or nothing else waits, the fault may be the bus's: the relay keeps its place.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from stretto.assembly.host_bus_blame import BlamedOwners, owner_of
from stretto.assembly.host_bus_calls import HostsBusCalls, Trial
from stretto.observations import ActorCrashed
from stretto.targets.bus import BusUnavailable, DoubtedBus, nothing_behind, raised
from stretto.targets.refused import PAUSE, put_off

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import Behind, EventBus
    from stretto.targets.delivery import Delivery, PutOff

# Of a lease, for all events together and for each alone: of 5 s, others wait 1.5 s two or three times. A bus
# that is known to take longer gets three times what it took, a lease at most.
PATIENCE_SHARE: Final = 0.3
PATIENCE_TIMES: Final = 3.0
# Events of other owners that show whether the bus takes any: each is published once more later.
PROBES_MAX: Final = 16
# While no event of another owner waits, the log is looked at again so often.
LOOK_AGAIN_SECONDS: Final = 1.0


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
        self._observe = observe
        self._lease_seconds = lease_seconds
        self._clock_seconds = clock_seconds
        self._blamed = BlamedOwners(clock_seconds)
        self._patience_seconds = PATIENCE_SHARE * lease_seconds
        self._answered_at = float("-inf")
        self.was_slow = False
        """Whether the last events took too long together: the next ones should be fewer."""

    async def publish(
        self, events: Sequence[CommittedEvent], behind: Behind = nothing_behind
    ) -> Mapping[UUID, str]:
        """Publish the events; return the reasons of those that were refused.

        `behind` reads on in the log. Raises what the bus raises, or `BusUnavailable` where it does not
        answer, if it takes no event. Whether any was published is then unknown.
        """
        self.was_slow = False
        return await self._publish(events, behind)

    async def _publish(
        self, events: Sequence[CommittedEvent], behind: Behind
    ) -> Mapping[UUID, str]:
        reasons = self._blamed.reasons(events)
        tried = [event for event in events if event.event_id not in reasons]
        is_there = False
        while tried:
            alone = tried
            if len(tried) > 1:
                try:
                    return reasons | await self._publish_together(tried)
                except BusUnavailable:
                    # If it is away, it is not asked for each event.
                    alone = tried if is_there else first_of_each_owner(tried)
                except TimeoutError:
                    self.was_slow = True
                except Exception:  # noqa: BLE001, S110 each alone shows what it is
                    pass
            reasons |= await self._publish_apart(alone, behind)
            is_there = True
            done = {event.event_id for event in alone}
            rest = [event for event in tried if event.event_id not in done]
            reasons |= self._blamed.reasons(rest)
            tried = [event for event in rest if event.event_id not in reasons]
        return reasons

    async def _publish_together(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        began_at = self._clock_seconds()
        reasons = await self._calls.publish_within(self._patience_seconds, events)
        self._note_answer(self._clock_seconds() - began_at)
        return dict(reasons)

    def _note_answer(self, seconds: float) -> None:
        self._answered_at = self._clock_seconds()
        patience_seconds = max(PATIENCE_SHARE * self._lease_seconds, PATIENCE_TIMES * seconds)
        self._patience_seconds = min(patience_seconds, self._lease_seconds)

    async def _publish_apart(
        self, events: Sequence[CommittedEvent], behind: Behind
    ) -> dict[UUID, str]:
        """Publish each alone; return the reasons of what was refused, or is to blame."""
        async with Trial(self._calls) as trial:
            trial.begin(events)
            await trial.ended(self._patience_seconds)
            if not trial.answered:
                await self._look_further(trial, events, behind)
            if not trial.answered:
                raise next(iter(trial.errors.values()), BusUnavailable("no answer in time"))
            # What has failed before the first answer may have met a bus that was still away.
            again = [event for event in events if event.event_id in trial.errors]
            if again:
                trial.errors.clear()
                trial.begin(again)
                await trial.ended(self._patience_seconds)
            reasons = self._refused(trial, events)
            self._note_answer(trial.shortest_seconds)
            return reasons

    async def _look_further(
        self, trial: Trial, events: Sequence[CommittedEvent], behind: Behind
    ) -> None:
        """Publish events of other owners until the bus has answered for one, or a lease has passed."""
        until = self._clock_seconds() + self._lease_seconds
        owners = {owner_of(event) for event in events}
        others: list[CommittedEvent] = []
        while not trial.answered and (left := until - self._clock_seconds()) > 0:
            if not others:
                others = [event async for event in self._others(owners, behind)]
                trial.begin(others)
            if not trial.is_running:
                return
            await trial.first_answer(min(left, LOOK_AGAIN_SECONDS))
        if trial.answered:
            await trial.ended(self._patience_seconds)

    async def _others(self, owners: set[str], behind: Behind) -> AsyncIterator[CommittedEvent]:
        """Yield the first event of each other owner; add these owners."""
        count = 0
        async for event in behind():
            owner = owner_of(event)
            if owner in owners or self._blamed.reasons([event]):
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
            reason = self._failure(trial, event, self._patience_seconds)
            if reason is not None:
                self._blame(trial, event, reason)
            else:
                reason = trial.answered[event.event_id]
            if reason is not None:
                reasons[event.event_id] = reason
        return reasons

    def _blame(self, trial: Trial, event: CommittedEvent, reason: str) -> None:
        """Blame the event's owner. Of each owner one bug is reported: it comes with every try."""
        error = trial.errors.get(event.event_id)
        if self._blamed.add(event, reason) and error is not None:
            self._observe(ActorCrashed("relay", error))

    def _failure(self, trial: Trial, event: CommittedEvent, seconds: float) -> str | None:
        """Return why the bus has not answered for this event; None if it has."""
        if event.event_id in trial.answered:
            return None
        error = trial.errors.get(event.event_id)
        return f"publish took longer than {seconds:g} s" if error is None else raised(error)

    async def publish_again(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish events that were refused before, each alone; put off what does not go through.

        A failure counts as a try if the bus has answered for another event since the last one.
        """
        began_at = self._clock_seconds()
        put_offs: list[PutOff] = []
        async with Trial(self._calls) as trial:
            trial.begin(delivery.event for delivery in deliveries)
            await trial.ended(self._lease_seconds)
            if trial.answered:
                self._answered_at = self._clock_seconds()
            for delivery in deliveries:
                event = delivery.event
                failure = self._failure(trial, event, self._lease_seconds)
                if failure is not None:
                    since = began_at - PAUSE.longest(delivery.tries)
                    is_try = self._answered_at >= since
                    if is_try:
                        self._blame(trial, event, failure)
                    put_offs.append(put_off(delivery, failure, is_try=is_try))
                elif (reason := trial.answered[event.event_id]) is not None:
                    put_offs.append(put_off(delivery, reason))
                else:
                    self._blamed.take_back(event)
        return put_offs


def first_of_each_owner(events: Iterable[CommittedEvent]) -> list[CommittedEvent]:
    """Return the first event of each of the first `PROBES_MAX` owners."""
    firsts: dict[str, CommittedEvent] = {}
    for event in events:
        firsts.setdefault(owner_of(event), event)
    return [*firsts.values()][:PROBES_MAX]
