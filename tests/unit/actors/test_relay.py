from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.actors.relay import (
    PAUSE_SECONDS_FIRST,
    PAUSE_SECONDS_MAX,
    OutboxRelay,
    RelaySettings,
    _pause_seconds,
)
from stretto.bus.local import LocalBus
from stretto.protocol.events import CommittedEvent, Position
from stretto.protocol.outbox import TakenEvents
from stretto.protocol.ports import ActorCrashed, EventsRelayed, Unreachable, UpkeepTrouble

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stretto.protocol.outbox import RefusalLimits
    from stretto.protocol.ports import Event

ONE = CommittedEvent(UUID(int=1), ("alice",), b"{}", Position(1))
TWO = CommittedEvent(UUID(int=2), ("alice",), b"{}", Position(2))
# Never in a test's time: what happens is due to a poke.
NO_POLL = RelaySettings(poll_seconds=3600)
DEADLINE_SECONDS = 10


class ScriptedStore:
    """An outbox whose first takings fail as the test says."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waiting: list[CommittedEvent] = []
        self.marked: list[UUID] = []
        self.looked = asyncio.Event()

    async def take(self, events_max: int, lease_seconds: float) -> TakenEvents:
        if self.errors:
            raise self.errors.pop(0)
        taken, self.waiting = self.waiting, []
        self.looked.set()
        return TakenEvents(taken, 0.0)

    async def mark(self, event_ids: Collection[UUID]) -> None:
        self.marked += event_ids

    async def release(self, event_ids: Collection[UUID]) -> None:
        raise AssertionError

    async def refuse(self, reasons: Mapping[UUID, str], limits: RefusalLimits) -> set[UUID]:
        raise AssertionError


async def test_a_poke_wakes_the_relay_and_stop_ends_it() -> None:
    """Without waiting for the next poll."""
    store, delivered = ScriptedStore(), asyncio.Event()
    relay = OutboxRelay(store, LocalBus(lambda _: delivered.set()), lambda _: None, NO_POLL)
    task = asyncio.create_task(relay.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.looked.wait()
        store.waiting.append(ONE)
        assert not delivered.is_set()
        relay.poke()
        await delivered.wait()
        relay.stop()
        await task
    assert [ONE.event_id] == store.marked


async def test_events_that_follow_a_poke_closely_are_taken_with_it() -> None:
    """Whoever creates one group after the other pays two statements for many events."""
    store, delivered, gathered = ScriptedStore(), asyncio.Event(), asyncio.Event()
    batches: list[int] = []
    pauses: list[float] = []

    def deliver(event: CommittedEvent) -> None:
        if event is TWO:
            delivered.set()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        store.looked.set()
        await gathered.wait()

    def observe(event: Event) -> None:
        assert isinstance(event, EventsRelayed)
        batches.append(event.delivered)

    relay = OutboxRelay(store, LocalBus(deliver), observe, NO_POLL, pause)
    task = asyncio.create_task(relay.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.looked.wait()
        store.looked.clear()
        store.waiting.append(ONE)
        relay.poke()
        await store.looked.wait()
        store.waiting.append(TWO)
        relay.poke()
        gathered.set()
        await delivered.wait()
        relay.stop()
        await task
    assert NO_POLL.gather_seconds == pauses[0]
    assert [2] == batches


@pytest.mark.parametrize(
    ("expected", "error"), [(UpkeepTrouble, Unreachable()), (ActorCrashed, ZeroDivisionError())]
)
async def test_no_error_ends_the_relay(expected: type[Event], error: Exception) -> None:
    """It is told, and the next turn comes."""
    store = ScriptedStore(error)
    told: list[Event] = []
    relay = OutboxRelay(store, LocalBus(lambda _: None), told.append, NO_POLL)
    task = asyncio.create_task(relay.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.looked.wait()
        relay.stop()
        await task
    assert [expected] == [type(event) for event in told]


def test_pauses_double_at_random_up_to_a_bound() -> None:
    """However long the bus is away."""
    for failures in range(100):
        longest = min(PAUSE_SECONDS_FIRST * 2**failures, PAUSE_SECONDS_MAX)
        assert longest / 2 <= _pause_seconds(failures) <= longest
