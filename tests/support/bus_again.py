"""A host's bus of many kinds, and the store that relays over it share, in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal

from stretto.assembly.host_bus_blame import owner_of
from stretto.events.log import LogPage
from stretto.runtime.cancelling import retrieve
from stretto.targets.delivery import Delivery
from support.log_events import present
from support.scripted_store import ScriptedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.events.log import CommittedEvent, LoggedEvent
    from stretto.events.place import Place
    from stretto.targets.delivery import PutOff

    Fault = Literal["hangs", "raises"] | None

# Of a statement, to and fro, and how many are under way at once.
STATEMENT_SECONDS: Final = 0.001
CONNECTIONS: Final = 5


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


def no_fault(_owner: str, _seconds: float) -> Fault:
    """Return the fault of a bus that works."""
    return None


@dataclass(frozen=True)
class Kind:
    """What a bus is like."""

    fault: Callable[[str, float], Fault] = no_fault
    """For an owner's event, so many seconds after the start."""
    places: int = 1000
    """Calls at once; the others wait in turn."""
    takes: Callable[[float], float] = lambda _: 0.005
    """The seconds that a call takes, so many after the start."""
    own_seconds: float | None = None
    """The time-out of the client's own; without it, what hangs does so for ever."""
    cleanup_seconds: float = 0.0
    """How long a cancelled call keeps its place."""
    is_in_thread: bool = False
    """Whether a cancelled call goes on, unseen."""


class KindOfBus:
    """A bus of a kind; notes when it got an event first."""

    def __init__(self, kind: Kind, got: dict[UUID, float]) -> None:
        self._kind, self._got = kind, got
        self._places = asyncio.Semaphore(kind.places)
        self._started = now()
        self._threads: set[asyncio.Task[None]] = set()

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        if self._kind.is_in_thread:
            thread = asyncio.create_task(self._publish(events))
            self._threads.add(thread)
            thread.add_done_callback(self._end)
            await asyncio.shield(thread)
        else:
            await self._publish(events)
        return {}

    def _end(self, thread: asyncio.Task[None]) -> None:
        self._threads.discard(thread)
        retrieve(thread)

    async def _publish(self, events: Sequence[CommittedEvent]) -> None:
        async with self._places:
            try:
                await self._take(events)
            except asyncio.CancelledError:
                await asyncio.sleep(self._kind.cleanup_seconds)
                raise

    async def _take(self, events: Sequence[CommittedEvent]) -> None:
        seconds = now() - self._started
        faults = {self._kind.fault(owner_of(event), seconds) for event in events}
        if "hangs" in faults:
            async with asyncio.timeout(self._kind.own_seconds):
                await asyncio.Event().wait()
        if "raises" in faults:
            raise ConnectionError
        await asyncio.sleep(self._kind.takes(seconds))
        for event in events:
            self._got.setdefault(event.event_id, now())


@dataclass
class Waiting:
    """A delivery in the store."""

    event: CommittedEvent
    due_at: float
    tries: int = 1
    dead_reason: str | None = None


class SharedStore(ScriptedStore):
    """A store of the relays of some processes: leases end, and deliveries are due, by the loop's time."""

    def __init__(self, statement_seconds: float = STATEMENT_SECONDS) -> None:
        super().__init__()
        self._statement_seconds = statement_seconds
        self._connections = asyncio.Semaphore(CONNECTIONS)
        self.deliveries: dict[UUID, Waiting] = {}
        self._lease_until = 0.0
        self._turn = 0

    async def _send(self) -> None:
        async with self._connections:
            await asyncio.sleep(self._statement_seconds)

    async def lease(self, token: UUID, seconds: float) -> Place | None:
        await self._send()
        if now() >= self._lease_until:
            self.token = None
        place = await super().lease(token, seconds)
        if place is not None:
            self._lease_until = now() + seconds
        return place

    async def advance(self, token: UUID, place: Place) -> bool:
        await self._send()
        return await super().advance(token, place)

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        await self._send()
        # An event's position is its number in the log.
        found = self.events[begin.xmax - 1 : begin.xmax - 1 + events_max]
        at_end = present(len(self.events) + 1)
        if len(found) < events_max:
            return LogPage(begin, found, at_end.place, at_end, is_full=False)
        after = at_end.after(begin, found[-1].history, found[-1].position)
        return LogPage(begin, found, after, at_end, is_full=True)

    async def oldest_seconds(self) -> float | None:
        is_any = any(each.dead_reason is None for each in self.deliveries.values())
        return 1.0 if is_any else None

    async def refuse(self, reasons: Mapping[LoggedEvent, str]) -> None:
        await self._send()
        due_at = now() + random.uniform(0.5, 1.0)
        for each in reasons:
            self.deliveries.setdefault(each.event.event_id, Waiting(each.event, due_at))

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: object = None,
        only: Collection[str] | None = None,  # type: ignore[override]
        without: Collection[str] = (),  # type: ignore[override]
    ) -> Sequence[Delivery]:
        await self._send()
        owners: dict[str, list[Waiting]] = {}
        for each in sorted(self.deliveries.values(), key=lambda each: each.due_at):
            owner = owner_of(each.event)
            is_due = each.dead_reason is None and each.due_at <= now()
            if is_due and owner not in without and (only is None or owner in only):
                owners.setdefault(owner, []).append(each)
        # Of owners in turn, and of another one first each time.
        first = self._turn % max(1, len(owners))
        ordered = [*owners.values()][first:] + [*owners.values()][:first]
        turns = zip_longest(*ordered)
        taken = [each for turn in turns for each in turn if each is not None][:deliveries_max]
        self._turn += len(taken)
        for each in taken:
            each.due_at = now() + lease_seconds
        return [Delivery(each.event, each.tries, owner_of(each.event)) for each in taken]

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> list[UUID]:
        await self._send()
        for event_id in sent:
            self.deliveries.pop(event_id, None)
        for each in put_off:
            waiting = self.deliveries[each.event_id]
            waiting.due_at = now() + each.seconds
            waiting.tries += each.is_try
            waiting.dead_reason = each.dead_reason
        return [each.event_id for each in put_off if each.dead_reason is not None]
