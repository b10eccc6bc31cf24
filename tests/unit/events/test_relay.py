from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import UUID

import pytest

from stretto.errors import Unreachable
from stretto.events.event import BusUnavailable, CommittedEvent
from stretto.events.local_bus import LocalBus
from stretto.events.positions import Position
from stretto.events.relay import OutboxRelay, RelaySettings
from stretto.observations import ActorCrashed, ActorRestarted, EventsRelayed, UpkeepTrouble
from stretto.runtime.runner import Run, wait_until
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stretto.events.outbox import RefusalLimits
    from stretto.observations import Observation

ONE = CommittedEvent(UUID(int=1), ("alice",), b"{}", Position(1))
TWO = CommittedEvent(UUID(int=2), ("alice",), b"{}", Position(2))
# Never in a test's time: what happens is due to a wake-up.
NO_POLL = RelaySettings(poll_seconds=3600)
DEADLINE_SECONDS = 10


class ScriptedStore:
    """An outbox whose first takings fail as the test says."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waiting: list[CommittedEvent] = []
        self.marked: list[UUID] = []
        self.looked = asyncio.Event()

    async def take(self, events_max: int, lease_seconds: float) -> list[CommittedEvent]:
        if self.errors:
            raise self.errors.pop(0)
        taken, self.waiting = self.waiting, []
        self.looked.set()
        return taken

    async def oldest_seconds(self) -> float | None:
        return None

    async def mark(self, event_ids: Collection[UUID]) -> None:
        self.marked += event_ids

    async def release(self, event_ids: Collection[UUID]) -> None:
        raise AssertionError

    async def refuse(self, reasons: Mapping[UUID, str], limits: RefusalLimits) -> set[UUID]:
        raise AssertionError


async def test_a_wake_up_wakes_the_relay_and_stop_ends_it() -> None:
    """Without waiting for the next poll."""
    store, delivered = ScriptedStore(), asyncio.Event()
    relay = OutboxRelay(store, LocalBus(lambda _: delivered.set()), lambda _: None, NO_POLL)
    task = asyncio.create_task(Run(relay, lambda _: None).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.looked.wait()
        store.waiting.append(ONE)
        assert not delivered.is_set()
        relay.wake()
        await delivered.wait()
        relay.stop()
        await task
    assert [ONE.event_id] == store.marked


async def test_events_that_follow_a_wake_up_closely_are_taken_with_it() -> None:
    """Whoever creates one group after the other pays two statements for many events."""
    store, delivered, gathered = ScriptedStore(), asyncio.Event(), asyncio.Event()
    batches: list[int] = []
    pauses: list[float] = []

    def deliver(event: CommittedEvent) -> None:
        if event is TWO:
            delivered.set()

    async def wait(event: asyncio.Event, seconds: float) -> bool:
        if seconds == NO_POLL.poll_seconds:
            return await wait_until(event, seconds)
        pauses.append(seconds)
        store.looked.set()
        return await gathered.wait()

    def observe(event: Observation) -> None:
        assert isinstance(event, EventsRelayed)
        batches.append(event.delivered)

    relay = OutboxRelay(store, LocalBus(deliver), observe, NO_POLL)
    task = asyncio.create_task(Run(relay, lambda _: None, wait).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.looked.wait()
        store.looked.clear()
        store.waiting.append(ONE)
        relay.wake()
        await store.looked.wait()
        store.waiting.append(TWO)
        relay.wake()
        gathered.set()
        await delivered.wait()
        relay.stop()
        await task
    assert NO_POLL.gather_seconds == pauses[0]
    assert [2] == batches


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ([UpkeepTrouble], Unreachable()),
        ([UpkeepTrouble], BusUnavailable()),
        ([ActorCrashed, ActorRestarted], ZeroDivisionError()),
    ],
)
async def test_no_error_ends_the_relay(expected: list[type[Observation]], error: Exception) -> None:
    """It is told, and the next turn comes."""
    store = ScriptedStore(error)
    told: list[Observation] = []
    relay = OutboxRelay(store, LocalBus(lambda _: None), lambda _: None, NO_POLL)
    task = asyncio.create_task(Run(relay, told.append).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.looked.wait()
        relay.stop()
        await task
    assert expected == [type(event) for event in told]


@pytest.mark.parametrize("moment", ["take", "publish", "mark"])
async def test_a_wake_up_during_a_turn_leads_to_another_turn(moment: str) -> None:
    """At any moment of it: what it is about may be newer than what the turn has taken."""
    store = ScriptedStore()
    bus = LocalBus(lambda _: None)
    relay = OutboxRelay(store, bus, lambda _: None, NO_POLL)
    owner: object = bus if moment == "publish" else store
    waking = getattr(owner, moment)

    async def wake(*arguments: Any) -> Any:
        result = await waking(*arguments)
        if not store.waiting and store.looked.is_set() and TWO.event_id not in store.marked:
            store.waiting.append(TWO)
            relay.wake()
        return result

    store.waiting.append(ONE)
    with patch.object(owner, moment, wake):
        task = asyncio.create_task(Run(relay, lambda _: None).turns())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await until(lambda: TWO.event_id in store.marked)
            relay.stop()
            await task
    assert [ONE.event_id, TWO.event_id] == store.marked[:2]


class RefusingStore(ScriptedStore):
    """Records what was refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[UUID, str] = {}

    async def refuse(self, reasons: Mapping[UUID, str], limits: RefusalLimits) -> set[UUID]:
        self.refused |= reasons
        return set()


async def relayed(reasons: object) -> tuple[list[UUID], dict[UUID, str]]:
    """Relay two events over a bus that answers so; return what was marked and what was refused."""

    class Bus:
        async def publish(self, _: object) -> Any:
            return reasons

    store = RefusingStore()
    store.waiting += [ONE, TWO]
    try:
        await OutboxRelay(store, Bus(), lambda _: None, NO_POLL).run_once()
    except TypeError as error:
        assert "must return the reasons of refused events by their ids" in str(error)  # noqa: PT017
        assert ([], {}) == (store.marked, store.refused)
        raise
    return store.marked, store.refused


@pytest.mark.parametrize(
    "reasons",
    [
        None,
        [],
        {str(ONE.event_id): "too large"},
        {UUID(int=7): "another's"},
        {ONE.event_id: None},
        {ONE.event_id: ValueError("too large")},
        {ONE.event_id: "too large", TWO.event_id: b"too large"},
    ],
)
async def test_a_bus_that_breaks_its_contract_has_published_nothing(reasons: object) -> None:
    """Nothing is marked: a refused event would be lost, and nobody would know."""
    with pytest.raises(TypeError):
        await relayed(reasons)


async def test_a_refusal_by_id_and_reason_is_one() -> None:
    """The twin: the other event is published."""
    assert ([TWO.event_id], {ONE.event_id: "no"}) == await relayed({ONE.event_id: "no"})
    assert ([ONE.event_id, TWO.event_id], {}) == await relayed({})
