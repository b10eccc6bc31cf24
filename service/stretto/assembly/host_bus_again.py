"""RefusedAgain: events that a host's bus has not taken in the log's turn are published again, beside the log.

Each owner's are published by themselves, or a few owners' together where the bus takes long for each call and that
has not failed: an owner has one call under way. Where the bus takes others' calls meanwhile, more owners are tried
at once; where it does few things at once, one.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stretto.assembly.host_bus_blame import owner_of
from stretto.assembly.host_bus_calls import NoAnswer, reason_of
from stretto.runtime.backoff import Backoff
from stretto.targets.delivery import PutOff
from stretto.targets.refused import PAUSE, put_off

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from stretto.assembly.host_bus_blame import BlamedOwners
    from stretto.assembly.host_bus_calls import HostsBusCalls
    from stretto.assembly.host_bus_patience import Patience
    from stretto.targets.delivery import Delivery

Known = TypeVar("Known")

# Calls at once: at first, and where the bus takes others' while such calls hang.
PLACES: Final = 2
PLACES_MAX: Final = 64
# Of slow owners: more of these would wait in the bus, and the log's calls behind them.
SLOW_PLACES_MAX: Final = 8
# After an event that has failed slowly, its owner's wait, also new ones: each may keep others out.
BEHIND_PAUSE: Final = Backoff(4.0, 30.0)
# A slow one that has kept out others is followed by a rest, so many times as long, before the next one.
REST_TIMES: Final = 4.0
# Owners known to be slow, or published by themselves: 7 MB. To pass over so many, a statement takes 0.2 s. Beyond
# them the first one is forgotten.
SLOW_OWNERS_MAX: Final = 32_768
# So many slow ones are looked for at a time: a statement's time grows with their square.
SLOW_TURN_OWNERS: Final = 128


class _Slow(NamedTuple):
    """Of an owner whose events fail slowly."""

    times: int
    """How often, since one has not."""
    until: float
    """Till when its events wait."""


_NOT_SLOW: Final = _Slow(0, float("-inf"))


class _Places:
    """How many calls may be under way: more where the bus takes others while such calls hang."""

    def __init__(self, count: int, most: int = PLACES_MAX) -> None:
        self._count, self._most = count, most
        self._taken = 0
        self._freed = asyncio.Event()

    async def __aenter__(self) -> None:
        while self._taken >= self._count:
            self._freed.clear()
            await self._freed.wait()
        self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1
        self._freed.set()

    def note_hung(self, *, kept_out: bool) -> None:
        """Note that a call has hung, and whether it has kept out others meanwhile."""
        self._count = 1 if kept_out else min(self._count * 2, self._most)
        self._freed.set()


class RefusedAgain:
    """Publishes deliveries over a host's bus, of which a failure is counted where it is the event's own."""

    def __init__(
        self,
        calls: HostsBusCalls,
        blamed: BlamedOwners,
        patience: Patience,
        good: dict[str, None],
        clock_seconds: Callable[[], float],
    ) -> None:
        """Take the owners for whom the bus has answered lately: they wait for no others."""
        self._calls = calls
        self._good = good
        self._blamed = blamed
        self._patience = patience
        self._clock_seconds = clock_seconds
        self._good_places = _Places(PLACES_MAX)
        self._places, self._slow_places = _Places(PLACES), _Places(PLACES, SLOW_PLACES_MAX)
        self._under_way: set[str] = set()
        """Owners of whom a call is under way."""
        self._apart: dict[str, None] = {}
        """Owners whose events are published by themselves: together with others they have failed."""
        self._slow: dict[str, _Slow] = {}
        """The next turn is that of the first ones."""
        self._rests_until = float("-inf")
        """Till when no events of slow owners are tried: the last has kept out others."""

    @property
    def slow_owners(self) -> Collection[str]:
        """Owners whose events fail slowly."""
        return self._slow.keys()

    def slow_turn(self) -> Sequence[str]:
        """Return slow owners that wait no more, in turn, those first for whom it has failed least."""
        if (now := self._clock_seconds()) < self._rests_until:
            return ()
        free = (owner for owner, slow in self._slow.items() if slow.until <= now)
        turn = [*islice((each for each in free if each not in self._under_way), SLOW_TURN_OWNERS)]
        for owner in turn:
            _know(self._slow, owner, self._slow[owner])
        return sorted(turn, key=lambda owner: self._slow[owner].times)

    @property
    def busy_owners(self) -> Collection[str]:
        """Owners of whom a call is under way."""
        return self._under_way

    def go_on(self, call: asyncio.Task[Any], owners: Sequence[str]) -> None:
        """Take over a call of the log's turn, which others do not wait for: these owners get no other one meanwhile."""
        self._under_way.update(owners)
        began_at, newest = self._clock_seconds(), self._calls.newest

        def end(_: object) -> None:
            self._under_way.difference_update(owners)
            error = None if call.cancelled() else call.exception()
            if error is not None:
                self._note_hung(error, owners)
                if len(owners) == 1:
                    # It has lasted for longer than the log's turn.
                    self.note_slow(owners[0], error)
                    self._rest_after(error, began_at, newest)

        call.add_done_callback(end)

    def parts(self, deliveries: Sequence[Delivery]) -> Sequence[Sequence[Delivery]]:
        """Return what is to be published and settled together: each owner's, or a few owners' of a slow bus."""
        owners = _by_owner(deliveries)
        fresh = [owner for owner in owners if owner not in self._apart]
        count = self._patience.part_of(len(fresh))
        parts = [fresh[first : first + count] for first in range(0, len(fresh), count)]
        parts += [[owner] for owner in owners if owner in self._apart]
        return [[each for owner in part for each in owners[owner]] for part in parts]

    async def publish(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish a part; return those to put off. A failure counts as a try if the bus has answered since the last.

        Of an owner whose event fails slowly, the others are put off untried.
        """
        put_offs: list[PutOff] = []
        waiting = _by_owner(deliveries)
        for owner in [*waiting]:
            seconds = self._waits_for_seconds(owner)
            if owner in self._under_way:
                seconds = PAUSE.seconds(0)
            if seconds > 0:
                put_offs += [PutOff(each.event.event_id, seconds) for each in waiting.pop(owner)]
        self._under_way.update(waiting)
        try:
            return put_offs + await self._publish_part(waiting)
        finally:
            self._under_way.difference_update(waiting)

    async def _publish_part(self, waiting: Mapping[str, Sequence[Delivery]]) -> list[PutOff]:
        """Publish the events of some owners together, or if that fails, each owner's by themselves."""
        if len(waiting) > 1:
            deliveries = [each for owner in waiting for each in waiting[owner]]
            try:
                async with self._places_of(waiting):
                    return await self._send(deliveries)
            except Exception as error:  # noqa: BLE001 each owner's show what it is
                self._note_hung(error, waiting)
        calls = (self._publish_owner(owner, waiting[owner]) for owner in waiting)
        return [each for put_offs in await asyncio.gather(*calls) for each in put_offs]

    async def _publish_owner(self, owner: str, deliveries: Sequence[Delivery]) -> list[PutOff]:
        """Publish an owner's events together, or if the bus raises for that, each alone."""
        put_offs: list[PutOff] = []
        parts = [[each] for each in deliveries]
        if len(parts) > 1 and owner not in self._slow:
            parts.insert(0, [*deliveries])
        for number, part in enumerate(parts):
            async with self._places_of([owner]):
                if (seconds := self._waits_for_seconds(owner)) > 0:
                    # Another one has kept out others meanwhile.
                    return put_offs + _untried(parts[number:], seconds)
                began_at, newest = self._clock_seconds(), self._calls.newest
                try:
                    put_offs += await self._send(part)
                except Exception as error:  # noqa: BLE001 whether it is the event's is decided below
                    self._note_hung(error, [owner])
                    is_slow = self._clock_seconds() - began_at >= self._patience.quick_seconds
                    left = parts[number:]
                    if len(part) == 1:
                        put_offs.append(self._put_off(part[0], error, began_at))
                        left = left[1:]
                    if is_slow:
                        seconds = self.note_slow(owner, error)
                        self._rest_after(error, began_at, newest)
                        return put_offs + _untried(left, seconds)
                else:
                    self._slow.pop(owner, None)
                    if len(part) == len(deliveries):
                        break
        return put_offs

    async def _send(self, deliveries: Sequence[Delivery]) -> list[PutOff]:
        """Publish events together; return those to put off because the bus has refused them."""
        reasons = await self._calls.publish([each.event for each in deliveries])
        put_offs = []
        for delivery in deliveries:
            self._apart.pop(owner_of(delivery.event), None)
            if (reason := reasons.get(delivery.event.event_id)) is not None:
                put_offs.append(put_off(delivery, reason))
            else:
                self._blamed.take_back(delivery.event)
        return put_offs

    def _put_off(self, delivery: Delivery, error: Exception, began_at: float) -> PutOff:
        """Return when an event for which the bus has failed is tried again; blame its owner, if that is sure."""
        if isinstance(error, NoAnswer):
            is_try = error.is_own
        else:
            is_try = self._calls.answered_at >= began_at - PAUSE.longest(delivery.tries)
        each = put_off(delivery, reason_of(error), is_try=is_try)
        if is_try and each.dead_reason is None:
            self._blamed.add(delivery.event, error)
        elif is_try:
            # It is tried no more, and cannot show that the cause is mended.
            self._blamed.take_back(delivery.event)
        return each

    def _places_of(self, owners: Collection[str]) -> _Places:
        if all(owner in self._good for owner in owners):
            return self._good_places
        return self._slow_places if self._slow.keys() & owners else self._places

    def _note_hung(self, error: BaseException, owners: Collection[str]) -> None:
        """Note that a call for these owners has failed."""
        if isinstance(error, NoAnswer):
            for places in (self._places, self._slow_places):
                places.note_hung(kept_out=error.kept_out)
        for owner in owners:
            _know(self._apart, owner, None)
        if len(owners) == 1 and (not isinstance(error, NoAnswer) or error.is_own):
            for owner in owners:
                self._good.pop(owner, None)

    def note_slow(self, owner: str, error: BaseException) -> float:
        """Have an owner's events wait, longer each time it is sure to be to blame; return for how many seconds."""
        if isinstance(error, NoAnswer) and not error.is_own:
            return PAUSE.seconds(0)
        times = self._slow.get(owner, _NOT_SLOW).times
        seconds = BEHIND_PAUSE.seconds(times)
        _know(self._slow, owner, _Slow(times + 1, self._clock_seconds() + seconds))
        return seconds

    def _rest_after(self, error: BaseException, began_at: float, newest: int) -> None:
        """Have all slow owners wait where a call has kept out others, or none that began after `newest` was answered."""
        kept_out = isinstance(error, NoAnswer) and error.kept_out
        if kept_out or not self._calls.was_passed(newest):
            now = self._clock_seconds()
            took_seconds = min(now - began_at, self._patience.stall_seconds)
            self._rests_until = now + REST_TIMES * took_seconds

    def _waits_for_seconds(self, owner: str) -> float:
        """Return how long an owner's events are not tried."""
        slow = self._slow.get(owner)
        return 0.0 if slow is None else max(slow.until, self._rests_until) - self._clock_seconds()


def _know(owners: dict[str, Known], owner: str, known: Known) -> None:
    """Note what is known of an owner, as the last one; beyond `SLOW_OWNERS_MAX` forget the first."""
    owners.pop(owner, None)
    owners[owner] = known
    if len(owners) > SLOW_OWNERS_MAX:
        del owners[next(iter(owners))]


def _untried(parts: Iterable[Sequence[Delivery]], seconds: float) -> list[PutOff]:
    ids = dict.fromkeys(each.event.event_id for part in parts for each in part)
    return [PutOff(event_id, seconds) for event_id in ids]


def _by_owner(deliveries: Iterable[Delivery]) -> dict[str, list[Delivery]]:
    owners: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        owners.setdefault(owner_of(delivery.event), []).append(delivery)
    return owners
