"""A log and the relays that share the bus's place in it, in a world where nothing happens by itself.

The relays are the real ones; their statements and publications wait for the explorer's step:

- commit: of a transaction that runs;
- turn: a relay begins a turn, if it could find something to do;
- see: a statement is done in the database, or the bus stores what was published;
- hear: the answer arrives;
- expire: the clock passes every lease, which is how a relay falls behind that was stopped;
- kill: a relay is gone; what it has sent may still be done;
- crash: the database forgets what was committed asynchronously since the last event; statements that
  were not answered fail.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from races.log_world import Pending
from races.stepped_loop import SteppedLoop
from stretto.store_errors import StoreError, Unreachable
from stretto.targets.bus import BusUnavailable
from stretto.targets.relay import OutboxRelay
from stretto.targets.settings import RelaySettings
from support.memory_log import MemoryLog, page_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.events.place import Place

RELAYS: Final = 2
EVENTS: Final = 2
# A page of one event, so that a relay moves on twice.
SETTINGS: Final = RelaySettings(batch_max=1)
LEASE_SECONDS: Final = SETTINGS.relay_lease_seconds

Step = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """The bus's row of `outbox_reader`."""

    place: Place
    token: UUID | None = None
    leased_until: float = 0.0


class RelayWorld:
    """Everything in one state: two events, of which some are to come, and so many of each fault."""

    def __init__(
        self, *, to_come: int = 0, expiries: int = 0, kills: int = 0, crashes: int = 0
    ) -> None:
        self.loop = SteppedLoop()
        self.log = MemoryLog()
        self.now = 0.0
        self.epoch = 0
        """Grows with whatever a relay could notice."""
        self.row = self.durable = Row(self.log.look().place)
        self.published: set[UUID] = set()
        self.pending: list[Pending] = []
        self.left = {"expire": expiries, "kill": kills, "crash": crashes}
        self.is_free = False
        """Whether every statement is answered at once."""
        self.relays = [self._relay(number) for number in range(RELAYS)]
        self._turns: list[asyncio.Task[None] | None] = [None] * RELAYS
        self._looked = [-1] * RELAYS
        """The epoch at which each began its last turn; it may have left work."""
        self._dead: set[int] = set()
        for number in range(EVENTS):
            position = self.log.begin()
            self.log.write(position, "alice")
            if number >= to_come:
                self.log.commit(position)

    def _relay(self, number: int) -> OutboxRelay:
        store = cast("Any", _BusStore(self, number))
        return OutboxRelay(store, store, lambda _: None, SETTINGS, lambda: self.now)

    def steps(self) -> list[Step]:
        """Return all that may happen next."""
        steps: list[Step] = [("commit", position) for position in sorted(self.log.running)]
        for number, pending in enumerate(self.pending):
            if pending.seen is None:
                steps.append(("see", number))
            elif int(pending.owner) not in self._dead:
                steps.append(("hear", number))
        for number, turn in enumerate(self._turns):
            is_at_rest = turn is None or turn.done()
            if is_at_rest and number not in self._dead and self._looked[number] != self.epoch:
                steps.append(("turn", number))
        steps += [(fault, 0) for fault, left in self.left.items() if left]
        return steps

    def take(self, step: Step) -> None:
        """Let one thing happen, and every party react to it."""
        match step:
            case ("commit", position):
                self.log.commit(position)
                self.durable = self.row
                self.epoch += 1
            case ("see", number):
                pending = self.pending[number]
                pending.seen = (pending.read(),)
            case ("hear", number):
                pending = self.pending.pop(number)
                pending.answered.set_result(pending.seen[0])
            case ("turn", number):
                self._looked[number] = self.epoch
                self._turns[number] = self.loop.create_task(self._turn(number))
            case (fault, _):
                self.left[fault] -= 1
                self.epoch += 1
                self._strike(fault)
        self.loop.run_until_idle()
        assert not self.loop.faults, self.loop.faults[0]

    def _strike(self, fault: str) -> None:
        match fault:
            case "expire":
                self.now += LEASE_SECONDS + 1
            case "kill":
                self._dead.add(0)
            case "crash":
                self.log.crash(0)
                self.row = self.durable
                failed = [each for each in self.pending if each.arguments[0] != "publish"]
                self.pending = [each for each in self.pending if each not in failed]
                for pending in failed:
                    if int(pending.owner) not in self._dead:
                        pending.answered.set_exception(Unreachable("the server has crashed"))

    async def _turn(self, number: int) -> None:
        with suppress(StoreError, BusUnavailable):
            if await self.relays[number].run_once():
                # There may be more.
                self._looked[number] = -1

    def judge(self) -> None:
        """Whatever has happened: once a relay works undisturbed, every event is published."""
        self.is_free = True
        self.now += 2 * (LEASE_SECONDS + 1)
        last = self._relay(RELAYS)

        async def drain() -> None:
            while await last.run_once():
                pass

        self.loop.run(drain())
        missed = [
            event.event.event_id.int
            for event in self.log.events
            if event.event.event_id not in self.published
        ]
        assert not missed, f"{missed} were never published"

    def key(self) -> object:
        """Return all that distinguishes this state from another one."""
        tokens = {relay._token: number for number, relay in enumerate(self.relays)}
        rows = [
            (row.place, tokens.get(row.token) if row.token else None, row.leased_until > self.now)
            for row in (self.row, self.durable)
        ]
        relays = [
            (relay._place, relay._lease_due_at - self.now, turn is None or turn.done())
            for relay, turn in zip(self.relays, self._turns, strict=True)
        ]
        looked = [each == self.epoch for each in self._looked]
        pending = [
            (each.owner, each.arguments[:2], each.seen and repr(each.seen)) for each in self.pending
        ]
        commits = [commit.position for commit in self.log.commits]
        published = sorted(id_.int for id_ in self.published)
        log = commits, sorted(self.log.running), published, sorted(self._dead), self.left
        return repr((rows, relays, looked, pending, log))

    def end(self) -> None:
        """Stop everything."""
        self.loop.is_dead = True

    async def ask(self, owner: int, what: str, argument: object, do: Callable[[], Any]) -> Any:
        """Send a statement, and wait for its answer."""
        if self.is_free:
            return do()
        pending = Pending(str(owner), (what, argument), do, self.loop.create_future())
        self.pending.append(pending)
        return await pending.answered


class _BusStore:
    """The bus's place in the database, and the bus itself, as one relay uses them."""

    def __init__(self, world: RelayWorld, number: int) -> None:
        self._world = world
        self._ask = partial(world.ask, number)

    async def open(self) -> None:
        """The row is there."""

    async def oldest_seconds(self) -> None:
        """The store is not asked: nothing was ever refused."""

    async def lease(self, token: UUID, seconds: float) -> Place | None:
        """Take or renew the lease."""
        world = self._world

        def lease() -> Place | None:
            if world.row.token not in (None, token) and world.row.leased_until > world.now:
                return None
            world.row = replace(world.row, token=token, leased_until=world.now + seconds)
            return world.row.place

        place: Place | None = await self._ask("lease", None, lease)
        return place

    async def advance(self, token: UUID, place: Place) -> bool:
        """Move on."""
        world = self._world

        def advance() -> bool:
            is_ours = world.row.token == token
            if is_ours:
                world.row = replace(world.row, place=place)
            return is_ours

        is_ours: bool = await self._ask("advance", place, advance)
        return is_ours

    async def give_back(self, token: UUID) -> None:
        """End the lease."""
        world = self._world

        def give_back() -> None:
            if world.row.token == token:
                world.row = replace(world.row, token=None)

        await self._ask("give back", None, give_back)

    async def page(self, begin: Place, events_max: int) -> Any:
        """Read a page."""
        return await self._ask("page", begin, lambda: page_of(self._world.log, begin, events_max))

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish; the bus refuses nothing."""
        ids = [event.event_id for event in events]
        await self._ask("publish", tuple(ids), lambda: self._world.published.update(ids))
        return {}
