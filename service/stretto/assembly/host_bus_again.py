"""RefusedAgain: what a host's bus has refused, or failed for, is published again, each event alone.

Owners take part side by side, beside the log as well. What fails there may have waited for others, where the
bus does few things at once. So it is tried once more with the bus to itself: an owner for whom it fails no more
would never get through beside those for whom the bus hangs, and would be to blame for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from stretto.assembly.host_bus_blame import OWNERS_MAX, owner_of
from stretto.assembly.host_bus_calls import CutShort, NoAnswer, reason_of
from stretto.runtime.backoff import Backoff
from stretto.targets.delivery import PutOff
from stretto.targets.refused import PAUSE, put_off

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.assembly.host_bus_blame import BlamedOwners
    from stretto.assembly.host_bus_calls import HostsBusCalls
    from stretto.assembly.host_bus_patience import Patience
    from stretto.targets.delivery import Delivery

# So many owners at once: the bus may do few things at a time, and is busy with new events.
AGAIN_OWNERS_MAX: Final = 4
# After an event that has failed slowly, its owner's wait, also new ones: each would keep the bus busy, and a
# call that was cancelled may go on in a thread.
BEHIND_PAUSE: Final = Backoff(4.0, 30.0)


class _Slow(NamedTuple):
    """Of an owner whose events fail slowly."""

    times: int = 0
    """How often, since one has not."""
    seconds: float = 0.0
    """How long its events wait."""
    until: float = float("-inf")
    """Till when they do."""


_NOT_SLOW: Final = _Slow()


class _Outcome:
    """What has come of deliveries so far; those that are in neither list were sent."""

    def __init__(self) -> None:
        self.put_offs: list[PutOff] = []
        self.failed: list[tuple[Delivery, Exception]] = []


class RefusedAgain:
    """Publishes deliveries over a host's bus, of which a failure is counted where it is the event's own."""

    def __init__(
        self,
        calls: HostsBusCalls,
        blamed: BlamedOwners,
        patience: Patience,
        to_itself: asyncio.Lock,
        clock_seconds: Callable[[], float],
    ) -> None:
        """Take the lock that is held while the log, or one event here, has the bus without others."""
        self._calls = calls
        self._blamed = blamed
        self._patience = patience
        self._to_itself = to_itself
        self._clock_seconds = clock_seconds
        self._under_way = 0
        self._slow: dict[str, _Slow] = {}
        self._unsure: set[str] = set()
        """Owners whose calls hang, perhaps because cancelled ones go on: only the bus to itself shows more."""

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return self._under_way > 0

    def note_slow(self, owner: str) -> float:
        """Note that the bus has hung for an owner's events; return for how many seconds they wait."""
        times = self._times_slow(owner)
        seconds = BEHIND_PAUSE.seconds(times)
        self._slow[owner] = _Slow(times + 1, seconds, self._clock_seconds() + seconds)
        return seconds

    def note_unsure(self, owner: str) -> float:
        """The same, where it may have hung because a call that was cancelled goes on: no longer each time."""
        self._unsure.add(owner)
        seconds = BEHIND_PAUSE.seconds(0)
        until = self._clock_seconds() + seconds
        self._slow[owner] = self._slow.get(owner, _NOT_SLOW)._replace(until=until)
        return seconds

    async def publish(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish them; return those to put off. A failure counts as a try if the bus has answered since the last.

        Of an owner whose event fails slowly, the others are put off untried.
        """
        began_at = self._clock_seconds()
        outcome = _Outcome()
        waiting: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            owner = owner_of(delivery.event)
            if (seconds := self._waits_for_seconds(owner)) > 0:
                outcome.put_offs.append(PutOff(delivery.event.event_id, seconds))
            else:
                waiting.setdefault(owner, []).append(delivery)
        # Who may have waited for others alone comes before those who have kept the bus busy.
        owners = sorted(waiting, key=self._times_slow)
        if len(self._slow) > OWNERS_MAX:
            self._slow.clear()
            self._unsure.clear()
        places = asyncio.Semaphore(AGAIN_OWNERS_MAX)

        async def publish(owner: str) -> None:
            async with places:
                await self._publish_beside(owner, waiting[owner], outcome)

        beside = [owner for owner in owners if owner not in self._unsure]
        await self._calls.run({owner: publish(owner) for owner in beside})
        has_hung = False
        for owner in owners:
            left = waiting[owner]
            seconds = 0.0
            if left and owner in beside and not self._calls.is_free:
                # Calls that were cancelled may go on: it has the bus to itself only once they have ended.
                seconds = self.note_unsure(owner)
            # One that hangs with the bus to itself suffices: others may wait behind this group.
            elif left and not has_hung:
                self._unsure.discard(owner)
                async with self._to_itself:
                    await self._publish_first(owner, left, outcome, is_alone=True)
                has_hung = owner in self._slow
            # The log has its turn before the next one.
            outcome.put_offs += [PutOff(each.event.event_id, seconds) for each in left]
        for delivery, error in outcome.failed:
            is_try = self._patience.answered_at >= began_at - PAUSE.longest(delivery.tries)
            each = put_off(delivery, reason_of(error), is_try=is_try)
            outcome.put_offs.append(each)
            if is_try and each.dead_reason is None:
                self._blamed.add(delivery.event, error)
            elif is_try:
                # It is tried no more, and cannot show that the cause is mended.
                self._blamed.take_back(delivery.event)
        # Each error refers by its traceback to frames that refer to this list.
        outcome.failed.clear()
        return outcome.put_offs

    async def _publish_beside(self, owner: str, left: list[Delivery], outcome: _Outcome) -> None:
        """Publish an owner's beside others'; leave those of which the bus has to itself to show more."""
        is_known = True
        while left and is_known:
            # The lock only delays the beginning: the call itself may go on beside the log.
            async with self._to_itself:
                pass
            is_known = await self._publish_first(owner, left, outcome, is_alone=False)

    async def _publish_first(
        self, owner: str, left: list[Delivery], outcome: _Outcome, *, is_alone: bool
    ) -> bool:
        """Publish the first that is left, and take it off; return False if it may have failed because of others."""
        delivery, was_free = left[0], self._calls.is_free
        number, began_at = self._calls.begin(), self._clock_seconds()
        self._under_way += 1
        try:
            reasons = await self._calls.publish_within(
                self._patience.seconds,
                [delivery.event],
                number,
                owner=owner,
                can_be_cut=not is_alone,
            )
        except Exception as error:  # noqa: BLE001 whether it is the event's is decided later
            took_seconds = self._clock_seconds() - began_at
            is_slow = isinstance(error, NoAnswer) or took_seconds > self._patience.quick_seconds
            was_passed = self._calls.was_passed(number) and not isinstance(error, CutShort)
            if is_slow and not is_alone and not was_passed:
                return False
            is_sure = was_passed or was_free or not is_slow
            if is_sure:
                outcome.failed.append((left.pop(0), error))
            if is_slow:
                seconds = self.note_slow(owner) if is_sure else self.note_unsure(owner)
                outcome.put_offs += [PutOff(each.event.event_id, seconds) for each in left]
                left.clear()
                return True
        else:
            left.pop(0)
            self._patience.answered_at = self._clock_seconds()
            if (reason := reasons.get(delivery.event.event_id)) is not None:
                outcome.put_offs.append(put_off(delivery, reason))
            else:
                self._blamed.take_back(delivery.event)
        finally:
            self._under_way -= 1
        self._slow.pop(owner, None)
        return True

    def _waits_for_seconds(self, owner: str) -> float:
        """Return how long an owner's events are not tried."""
        slow = self._slow.get(owner, _NOT_SLOW)
        seconds = slow.until - self._clock_seconds()
        if slow.times and self._calls.is_free:
            # Its last call may have kept all others out until then: they have as long a time without it.
            seconds = max(seconds, slow.seconds - self._calls.free_for_seconds)
        if self._calls.goes_on_for(owner) or (slow.times and self._log_waits):
            seconds = max(seconds, BEHIND_PAUSE.seconds(0))
        return seconds

    @property
    def _log_waits(self) -> bool:
        """Whether the log has events for a bus that a cancelled call may keep."""
        return self._to_itself.locked() and not self._calls.is_free

    def _times_slow(self, owner: str) -> int:
        return self._slow.get(owner, _NOT_SLOW).times
