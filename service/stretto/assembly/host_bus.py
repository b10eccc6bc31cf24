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
from stretto.assembly.host_bus_blame import BlamedOwners, owner_of
from stretto.assembly.host_bus_calls import HostsBusCalls, NoAnswer, reason_of
from stretto.assembly.host_bus_patience import Patience
from stretto.assembly.host_bus_trial import Trial, by_owner
from stretto.domain import EVENT_TYPE
from stretto.targets.bus import BusUnavailable, DoubtedBus, nothing_behind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import Behind, EventBus
    from stretto.targets.delivery import Delivery, PutOff

# Events of other owners that show whether the bus takes any: each is published once more later. Four times
# as many each time that shows nothing: behind hundreds for whom it fails, others are still found.
PROBES_MAX: Final = 16
PROBES_GROWTHS_MAX: Final = 2
# Owners who were asked for in vain. Beyond them all are asked for anew.
SUSPECTS_MAX: Final = 20_000
# Owners for whom the bus has answered, the newest ones: where it does few things at once, they come first.
GOOD_OWNERS_MAX: Final = 4096
NO_TURN: Final = "publish had no turn beside calls that hang"


class HostsBus(DoubtedBus):
    """A `DoubtedBus` over what a host has handed in."""

    def __init__(
        self,
        bus: EventBus,
        observe: Observer,
        lease_seconds: float,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = HostsBusCalls(bus, clock_seconds)
        self._clock_seconds = clock_seconds
        self._patience = Patience(lease_seconds, clock_seconds)
        self._blamed = BlamedOwners(observe, clock_seconds)
        self._to_itself = asyncio.Lock()
        """Is held while the log, or one refused event, has the bus without others, but for calls that can be cut."""
        self._again = RefusedAgain(
            self._calls, self._blamed, self._patience, self._to_itself, clock_seconds
        )
        self._suspects: set[str] = set()
        """Owners for whom it has hung or raised while it answered for none: others come before them."""
        self._asked: set[str] = set()
        """Owners who were asked for since it has answered for any."""
        self._fruitless = 0
        """How often in a row it has answered for none."""
        self._good: dict[str, None] = {}
        """Owners for whom it has answered, the newest last."""
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
        is_away = False
        last: CommittedEvent | None = None
        is_busy = self._again.is_busy
        # Where a cancelled call may have kept the only place since the last time, one for all events might keep
        # it next: those of each owner are queued by themselves.
        is_held = self._fruitless > 0 and not self._calls.is_free
        for part in () if is_held else self._by_suspicion(left):
            try:
                reasons |= await self._publish_together(part, is_busy=is_busy)
            except BusUnavailable:
                is_away = True
                break
            except NoAnswer:
                self.was_slow = not is_busy
                break
            except Exception:  # noqa: BLE001 each owner's show what it is
                break
            last = part[-1]
            published = {event.event_id for event in part}
            left = [event for event in left if event.event_id not in published]
        if left:
            reasons |= await self._find_out(left, behind, last, is_away=is_away)
        return reasons

    def _by_suspicion(self, events: Sequence[CommittedEvent]) -> Sequence[Sequence[CommittedEvent]]:
        """Return the events of others, and those of suspects, as far as there are any."""
        if not self._suspects:
            return [events] if events else []
        parts: tuple[list[CommittedEvent], list[CommittedEvent]] = ([], [])
        for event in events:
            parts[owner_of(event) in self._suspects].append(event)
        return [part for part in parts if part]

    async def _publish_together(
        self, events: Sequence[CommittedEvent], *, is_busy: bool
    ) -> Mapping[UUID, str]:
        began_at = self._clock_seconds()
        reasons = await self._calls.publish_within(
            self._patience.together_seconds, events, self._calls.begin()
        )
        self._patience.note_answer(self._clock_seconds() - began_at, is_busy=is_busy)
        # Documents are read where there are suspects alone. The first recipient of a creation is its owner.
        creations = [event for event in events if event.event_type == EVENT_TYPE]
        self._note_good(owner for event in creations for owner in event.recipients[:1])
        if self._suspects:
            self._suspects.difference_update(map(owner_of, events))
        return reasons

    def _note_good(self, owners: Iterable[str]) -> None:
        self._fruitless = 0
        self._asked.clear()
        for owner in owners:
            self._good.pop(owner, None)
            self._good[owner] = None
        while len(self._good) > GOOD_OWNERS_MAX:
            del self._good[next(iter(self._good))]

    async def _find_out(
        self,
        events: Sequence[CommittedEvent],
        behind: Behind,
        last: CommittedEvent | None,
        *,
        is_away: bool,
    ) -> dict[UUID, str]:
        """Publish each owner's by themselves; return the reasons of what was refused, or is to blame.

        `last` is the last event that was published before.
        """
        # Refused events may keep a bus busy that does few things at once.
        await self._calls.cut_short()
        async with Trial(self._calls, self._patience, last) as trial:
            owners = by_owner(events)
            first = [owner for owner in owners if owner not in self._suspects] or [*owners]
            # If the bus is away, it is not asked for every owner.
            first = first[: self._probes_max] if is_away else first
            await self._ask(trial, owners, first, behind)
            if not trial.is_there:
                self._suspect(trial)
                raise next(iter(trial.errors.values()), BusUnavailable("no answer in time"))
            # What has failed before the first answer may have met a bus that was still away.
            trial.errors.clear()
            again = [
                event
                for event in events
                if event.event_id not in trial.answered and owner_of(event) not in trial.hung
            ]
            again.sort(key=lambda event: self._rank(owner_of(event), trial))
            await trial.run(again, is_again=True)
            self._suspects.difference_update(owners)
            self._suspects.update(trial.unsure)
            good = [owner_of(each) for each in events if each.event_id in trial.answered]
            self._suspects.difference_update(good)
            self._note_good(good)
            reasons = self._refused(trial, events)
            self._patience.note_answer(trial.shortest_seconds if trial.answered else 0.0)
            return reasons

    async def _ask(
        self,
        trial: Trial,
        owners: Mapping[str, Sequence[CommittedEvent]],
        first: Sequence[str],
        behind: Behind,
    ) -> None:
        """Publish until the bus answers for an owner: for the first of these, or others from further back."""
        # One owner's events have just been published together.
        if len(owners) > 1:
            good = [owner for owner in first if owner in self._good]
            await trial.run(event for owner in good for event in owners[owner])
            if trial.is_there or not good:
                rest = (owner for owner in first if owner not in self._good)
                await trial.run(event for owner in rest for event in owners[owner])
        if not trial.is_there:
            others = [event async for event in self._others({*owners}, behind)]
            others.sort(key=lambda event: owner_of(event) not in self._good)
            await trial.run(others)
        if not trial.is_there:
            # Of a bus that does one thing at a time, the first may have kept out the others.
            hung = [owner for owner in reversed(first) if owner not in trial.raised]
            each_alone = (event for owner in hung for event in owners[owner])
            await trial.run(each_alone, is_again=True)

    def _rank(self, owner: str, trial: Trial) -> tuple[bool, bool, int]:
        """Return what an owner is sorted by: first who has probably waited for others."""
        is_suspect = owner in self._suspects or owner in trial.unsure
        return is_suspect, owner not in self._good, trial.ranks.get(owner, -1)

    def _suspect(self, trial: Trial) -> None:
        """Take down who was asked for; or the bus is slow, and gets twice the time for one next."""
        self._patience.note_silence(has_raised=bool(trial.errors))
        self._fruitless = min(self._fruitless + 1, PROBES_GROWTHS_MAX)
        if len(self._asked) > SUSPECTS_MAX:
            self._suspects.clear()
            self._asked.clear()
        self._suspects.update(trial.hung, trial.unsure, trial.raised)
        self._asked.update(trial.asked)

    @property
    def _probes_max(self) -> int:
        return PROBES_MAX << 2 * self._fruitless

    async def _others(self, owners: set[str], behind: Behind) -> AsyncIterator[CommittedEvent]:
        """Yield the first event of each other owner; add these owners."""
        count = 0
        async for event in behind():
            owner = owner_of(event)
            if owner in owners or owner in self._blamed or owner in self._asked:
                continue
            owners.add(owner)
            yield event
            count += 1
            if count == self._probes_max:
                return
        if not count:
            # All were asked for: the bus may be there for them by now.
            self._asked.clear()

    def _refused(self, trial: Trial, events: Collection[CommittedEvent]) -> dict[UUID, str]:
        """Return the reasons of what was refused or has failed; blame the owners of what has failed."""
        reasons: dict[UUID, str] = {}
        no_turn: set[str] = set()
        for owner in trial.hung:
            self._again.note_slow(owner)
        for event in events:
            if event.event_id in trial.answered:
                reason = trial.answered[event.event_id]
            elif event.event_id not in trial.errors and owner_of(event) not in trial.hung:
                # Nothing says that it is the owner's: it is published beside the log.
                no_turn.add(owner_of(event))
                reason = NO_TURN
            else:
                error = trial.errors.get(event.event_id)
                if error is None:
                    error = NoAnswer(trial.hung[owner_of(event)])
                self._blamed.add(event, error)
                self._patience.note_failure()
                # It was not for their number that they took too long together.
                self.was_slow = False
                reason = reason_of(error)
            if reason is not None:
                reasons[event.event_id] = reason
        for owner in no_turn & trial.unsure:
            self._again.note_unsure(owner)
        return reasons
