"""HostsBus: a host's bus, which may fail for one event, such as one owner's, and must not hold up others.

Events are published together. If that fails or takes too long, those of each owner are published by
themselves (`host_bus_trial.py`). An owner for whom the bus fails is to blame only if the bus takes events of another
one, if need be from further back in the log. Its events are then refused: they are tried again beside the log
(`host_bus_again.py`), and new ones follow there without a try, so that the others are published together again.
If the bus takes nothing, the fault may be the bus's: the relay keeps its place.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from stretto.assembly.host_bus_again import RefusedAgain
from stretto.assembly.host_bus_blame import UNSURE, BlamedOwners, owner_of
from stretto.assembly.host_bus_calls import HostsBusCalls, NoAnswer, reason_of
from stretto.assembly.host_bus_patience import Patience
from stretto.assembly.host_bus_trial import Trial
from stretto.domain import EVENT_TYPE
from stretto.targets.bus import BusUnavailable, DoubtedBus, nothing_behind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import Behind, EventBus
    from stretto.targets.delivery import Delivery, PutOff

    Task = asyncio.Task[Mapping[UUID, str]]

# While the bus takes nothing, so many owners of a part are asked for, and as many from further back in the log, of
# whom an event is published once more later. Four times as many each time that shows nothing: behind hundreds for whom
# it fails, others are still found.
ASKED_AT_ONCE_MAX: Final = 16
ASKED_GROWTHS_MAX: Final = 2
# So many owners further back in the log are looked for together: as many as are asked for at most.
OTHERS_MAX: Final = ASKED_AT_ONCE_MAX << 2 * ASKED_GROWTHS_MAX
# Owners who were asked for in vain. Beyond them all are asked for anew.
ASKED_MAX: Final = 20_000
# Owners for whom the bus has answered, the newest ones: they are asked for first.
GOOD_OWNERS_MAX: Final = 4096
# It is not for their number that so few events take too long together.
FEW_EVENTS_MAX: Final = 16


class HostsBus(DoubtedBus):
    """A `DoubtedBus` over what a host has handed in."""

    def __init__(
        self,
        bus: EventBus,
        observe: Observer,
        lease_seconds: float,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_seconds = clock_seconds
        self._patience = Patience(lease_seconds, clock_seconds)
        self._calls = HostsBusCalls(bus, self._patience, clock_seconds)
        self._blamed = BlamedOwners(observe, clock_seconds)
        self._asked: dict[str, None] = {}
        """Owners who were asked for since it has answered for any."""
        self._fruitless = 0
        """How often in a row it has answered for none."""
        self._good: dict[str, None] = {}
        """Owners for whom it has answered, the newest last."""
        self._again = RefusedAgain(
            self._calls, self._blamed, self._patience, self._good, clock_seconds
        )
        self.was_slow = False
        """Whether the last events took too long together: the next ones should be fewer."""

    @property
    def slow_owners(self) -> Collection[str]:
        """Owners for whom it has hung: their refused events take turns of their own."""
        return self._again.slow_owners

    def slow_turn(self) -> Sequence[str]:
        """Return those of the slow owners of whom refused events are taken next."""
        return self._again.slow_turn()

    @property
    def busy_owners(self) -> Collection[str]:
        """Owners of whom a refused event is under way."""
        return self._again.busy_owners

    @property
    def has_blamed(self) -> bool:
        """Whether it fails for some owners: the bus of another process may not."""
        return self._blamed.are_any_sure

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
        if not left:
            return reasons
        together = asyncio.create_task(self._calls.publish(left), name="stretto publish together")
        try:
            await asyncio.wait({together}, timeout=self._patience.seconds)
            if not together.done() or together.exception() is not None:
                reasons |= await self._find_out(left, together, behind)
            if together.done() and together.exception() is None:
                reasons |= together.result()
        finally:
            # Also if it has ended: asyncio would print an error at which nothing looks any more.
            together.cancel()
        # Documents are read where there is an owner to blame alone. The first recipient of a creation is its owner.
        creations = [
            each for each in left if each.event_type == EVENT_TYPE and each.event_id not in reasons
        ]
        self._note_good(owner for event in creations for owner in event.recipients[:1])
        return reasons

    def parts_again(self, deliveries: Sequence[Delivery]) -> Sequence[Sequence[Delivery]]:
        """Return which of these are to be published, and settled, together."""
        return self._again.parts(deliveries)

    async def publish_again(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish events that were refused before; return those to put off."""
        return await self._again.publish(deliveries)

    async def close(self) -> None:
        """Cancel the calls that go on."""
        await self._calls.close()

    async def _find_out(
        self, events: Sequence[CommittedEvent], together: Task, behind: Behind
    ) -> dict[UUID, str]:
        """Publish each owner's by themselves; return the reasons of what was refused, or has failed."""
        trial = Trial(self._calls, self._patience, events, self._clock_seconds)
        firsts = {owner_of(event): None for event in events}
        ordered = sorted(firsts, key=lambda owner: (owner in self._asked, owner not in self._good))
        most = ASKED_AT_ONCE_MAX << 2 * self._fruitless
        self._asked.update(dict.fromkeys(ordered[:most]))
        await trial.run(ordered, together, self._others(firsts, behind), most)
        if trial.is_together:
            trial.errors.clear()
            return {}
        if not trial.is_there:
            self._fruitless = min(self._fruitless + 1, ASKED_GROWTHS_MAX)
            raised = [each for each in trial.errors.values() if not isinstance(each, NoAnswer)]
            trial.errors.clear()
            if not raised:
                self._patience.note_silence()
            try:
                raise raised[0] if raised else BusUnavailable("no answer in time")
            finally:
                # The traceback of its error refers to this frame, which must not refer back.
                del raised
        for task, owners in trial.left.items():
            self._again.go_on(task, owners)
        # For their number, if the bus answers for each. A call that hangs is left once later ones were answered.
        is_all = len(trial.answered) == len(events)
        has_hung = not together.done() or isinstance(together.exception(), NoAnswer)
        self.was_slow = is_all and has_hung and len(events) > FEW_EVENTS_MAX
        return self._refused(trial, events)

    def _refused(self, trial: Trial, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        """Return the reasons of what was refused or has failed; blame the owners of what has failed."""
        reasons: dict[UUID, str] = {}
        for event in events:
            error = trial.errors.get(event.event_id)
            reason: str | None = UNSURE
            if event.event_id in trial.answered:
                reason = trial.answered[event.event_id]
            elif error is None or (isinstance(error, NoAnswer) and not error.is_own):
                # Nothing says that it is the owner's: it is published beside the log.
                self._blamed.have_follow(event)
            else:
                self._blamed.add(event, error)
                if owner_of(event) in trial.slow:
                    trial.slow.discard(owner_of(event))
                    self._again.note_slow(owner_of(event), error)
                reason = reason_of(error)
            if reason is not None:
                reasons[event.event_id] = reason
        # Each error refers by its traceback to frames that refer to this.
        trial.errors.clear()
        return reasons

    def _note_good(self, owners: Iterable[str]) -> None:
        self._fruitless = 0
        self._asked.clear()
        for owner in owners:
            self._good.pop(owner, None)
            self._good[owner] = None
        while len(self._good) > GOOD_OWNERS_MAX:
            del self._good[next(iter(self._good))]

    async def _others(
        self, firsts: Collection[str], behind: Behind
    ) -> AsyncIterator[CommittedEvent]:
        """Yield the first event of each other owner who was not asked for yet."""
        if len(self._asked) > ASKED_MAX:
            self._asked.clear()
        found: dict[str, CommittedEvent] = {}
        async for event in behind():
            owner = owner_of(event)
            if owner in firsts or owner in self._blamed or owner in self._asked:
                continue
            found.setdefault(owner, event)
            if len(found) == OTHERS_MAX:
                break
        # Those for whom it has answered before first: the others may be more for whom it fails.
        for owner in sorted(found, key=lambda owner: owner not in self._good):
            self._asked[owner] = None
            yield found[owner]
        if not found:
            # All were asked for: the bus may be there for them by now. Those of this page still come last.
            self._asked = {owner: None for owner in firsts if owner in self._asked}
