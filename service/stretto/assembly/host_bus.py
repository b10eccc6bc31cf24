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

from stretto.assembly.host_bus_blame import BlamedOwners, owner_of
from stretto.assembly.host_bus_calls import HostsBusCalls
from stretto.assembly.host_bus_trial import PATIENCE_TIMES, Trial, by_owner
from stretto.observations import ActorCrashed
from stretto.runtime.backoff import DOUBLINGS_MAX
from stretto.targets.bus import BusUnavailable, DoubtedBus, nothing_behind, raised
from stretto.targets.delivery import PutOff
from stretto.targets.refused import PAUSE, put_off

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import Behind, EventBus
    from stretto.targets.delivery import Delivery

# Of a lease, for all events together and for each owner's: of 5 s, others wait 1.5 s some three times. A bus
# that is known to take longer gets three times what it took, a lease at most.
PATIENCE_SHARE: Final = 0.3
# Events of other owners that show whether the bus takes any: each is published once more later.
PROBES_MAX: Final = 16
# Of refused events, so many owners' at once: the bus may do few things at a time, and is busy with new events.
AGAIN_OWNERS_MAX: Final = 4
# Where a refused event hangs, its owner's others wait so long at most.
BEHIND_HUNG_SECONDS_MAX: Final = 30.0
# As many as are blamed.
SUSPECTS_MAX: Final = 1024


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
        self._suspects: set[str] = set()
        """Owners for whom the bus has hung while it answered for no other: others come before them."""
        self._hung_in_row: dict[str, int] = {}
        """How often refused events of an owner have hung since one has not."""
        self._patience_seconds = PATIENCE_SHARE * lease_seconds
        self._silent = 0
        """How often in a row the bus has not answered in time, and raised nothing."""
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
        reasons = self._blamed.reasons(events)
        left = [event for event in events if event.event_id not in reasons]
        firsts = left
        if self._suspects:
            firsts = [event for event in left if owner_of(event) not in self._suspects]
        is_away = is_there = False
        if len(firsts) > 1:
            try:
                reasons |= await self._publish_together(firsts)
            except BusUnavailable:
                is_away = True
            except TimeoutError:
                self.was_slow = True
            except Exception:  # noqa: BLE001, S110 each owner's show what it is
                pass
            else:
                is_there = True
                left = [event for event in left if owner_of(event) in self._suspects]
        if left:
            reasons |= await self._find_out(left, behind, is_away=is_away, is_there=is_there)
        return reasons

    async def _publish_together(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        began_at = self._clock_seconds()
        reasons = await self._calls.publish_within(self._patience_seconds, events)
        self._note_answer(self._clock_seconds() - began_at)
        return dict(reasons)

    def _note_answer(self, seconds: float) -> None:
        self._answered_at = self._clock_seconds()
        self._silent = 0
        patience_seconds = max(PATIENCE_SHARE * self._lease_seconds, PATIENCE_TIMES * seconds)
        self._patience_seconds = min(patience_seconds, self._lease_seconds)

    async def _find_out(
        self, events: Sequence[CommittedEvent], behind: Behind, *, is_away: bool, is_there: bool
    ) -> dict[UUID, str]:
        """Publish each owner's by themselves; return the reasons of what was refused, or is to blame."""
        async with Trial(self._calls, is_there=is_there) as trial:
            owners = by_owner(events)
            first = [owner for owner in owners if owner not in self._suspects] or [*owners]
            # If the bus is away, it is not asked for every owner.
            first = first[:PROBES_MAX] if is_away else first
            await self._run(trial, [event for owner in first for event in owners[owner]])
            if not trial.is_there:
                await self._run(trial, [event async for event in self._others({*owners}, behind)])
            if not trial.is_there:
                self._suspect(trial)
                raise next(iter(trial.errors.values()), BusUnavailable("no answer in time"))
            # What has failed before the first answer may have met a bus that was still away.
            trial.errors.clear()
            again = [event for event in events if event.event_id not in trial.answered]
            await self._run(trial, [event for event in again if owner_of(event) not in trial.hung])
            self._suspects.difference_update(owners)
            reasons = self._refused(trial, events)
            self._note_answer(trial.shortest_seconds if trial.answered else 0.0)
            return reasons

    async def _run(self, trial: Trial, events: Sequence[CommittedEvent]) -> None:
        alone_seconds = min(self._patience_seconds * 2.0**self._silent, self._lease_seconds)
        await trial.run(events, self._lease_seconds, self._patience_seconds, alone_seconds)

    def _suspect(self, trial: Trial) -> None:
        """Take down for whom the bus has hung; or it is slow, and gets twice the time for one next."""
        self._silent = 0 if trial.errors else min(self._silent + 1, DOUBLINGS_MAX)
        if len(self._suspects) > SUSPECTS_MAX:
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
                error = trial.errors.get(event.event_id)
                seconds = trial.hung.get(owner_of(event), self._patience_seconds)
                reason = _too_long(seconds) if error is None else raised(error)
                self._blame(event, reason, error)
            if reason is not None:
                reasons[event.event_id] = reason
        return reasons

    def _blame(self, event: CommittedEvent, reason: str, error: Exception | None) -> None:
        """Blame the event's owner. Of each owner one bug is reported: it comes with every try."""
        if self._blamed.add(event, reason) and error is not None:
            self._observe(ActorCrashed("relay", error))

    async def publish_again(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish events that were refused before, each alone; put off what does not go through.

        A failure counts as a try if the bus has answered for another event since the last one. Of an owner
        for whom the bus hangs, the others are put off untried: each would keep it busy.
        """
        owners: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            owners.setdefault(owner_of(delivery.event), []).append(delivery)
        began_at = self._clock_seconds()
        places = asyncio.Semaphore(AGAIN_OWNERS_MAX)
        put_offs: list[PutOff] = []
        failed: list[tuple[Delivery, str, Exception | None]] = []

        async def publish(owner: str) -> None:
            async with places:
                await self._publish_owners(owner, owners[owner], put_offs, failed)

        await self._calls.run({owner: publish(owner) for owner in owners})
        for delivery, reason, error in failed:
            is_try = self._answered_at >= began_at - PAUSE.longest(delivery.tries)
            put_offs.append(each := put_off(delivery, reason, is_try=is_try))
            if is_try and each.dead_reason is None:
                self._blame(delivery.event, reason, error)
            elif is_try:
                # It is tried no more, and cannot show that the cause is mended.
                self._blamed.take_back(delivery.event)
        # Each error refers by its traceback to frames that refer to this list.
        failed.clear()
        return put_offs

    async def _publish_owners(
        self,
        owner: str,
        deliveries: Sequence[Delivery],
        put_offs: list[PutOff],
        failed: list[tuple[Delivery, str, Exception | None]],
    ) -> None:
        for number, delivery in enumerate(deliveries, 1):
            event = delivery.event
            try:
                reasons = await self._calls.publish_within(self._patience_seconds, [event])
            except TimeoutError:
                failed.append((delivery, _too_long(self._patience_seconds), None))
                hung = self._hung_in_row.get(owner, 0)
                if len(self._hung_in_row) > SUSPECTS_MAX:
                    self._hung_in_row.clear()
                self._hung_in_row[owner] = hung + 1
                seconds = min(PAUSE.seconds(hung), BEHIND_HUNG_SECONDS_MAX)
                put_offs += [PutOff(each.event.event_id, seconds) for each in deliveries[number:]]
                return
            except Exception as error:  # noqa: BLE001 whether it is the event's is decided later
                failed.append((delivery, raised(error), error))
            else:
                self._answered_at = self._clock_seconds()
                self._hung_in_row.pop(owner, None)
                if (reason := reasons.get(event.event_id)) is not None:
                    put_offs.append(put_off(delivery, reason))
                else:
                    self._blamed.take_back(event)


def _too_long(seconds: float) -> str:
    return f"publish took longer than {seconds:g} s"
