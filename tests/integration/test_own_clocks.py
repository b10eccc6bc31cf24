"""What wakes relay and sweeper of a running component: writers, and clocks of their own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId, event_id
from stretto.observations import RowsSwept
from stretto.runtime.runner import Run
from stretto.targets.relay import OutboxRelay
from stretto.targets.settings import RelaySettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from uuid import UUID

    from stretto.assembly.component import Component
    from stretto.events.log import CommittedEvent
    from stretto.observations import Observation
    from stretto.runtime.actor import Pace
    from support.database import Connection

TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})
DEADLINE_SECONDS = 60


class WaitingBus:
    """Says when something was published."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []
        self.published = asyncio.Event()

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        self.ids += [event.event_id for event in events]
        self.published.set()
        return {}


@asynccontextmanager
async def resting_component(
    database_url: str, bus: WaitingBus, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Component]:
    """Run a component whose relay has looked, found nothing, and looks in an hour again."""
    resting = asyncio.Event()
    real = Run._rest

    async def rest(self: Run, pace: Pace) -> None:
        if self.actor.name == "relay":
            resting.set()
        await real(self, pace)

    monkeypatch.setattr(Run, "_rest", rest)
    settings = ComponentSettings(relay=RelaySettings(poll_seconds=3600))
    async with open_component(database_url, settings=settings, bus=bus) as component:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await resting.wait()
        yield component


@pytest.mark.parametrize("is_woken", [True, False])
async def test_a_writer_wakes_the_relay(
    is_woken: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that the event lies there until the next look."""
    if not is_woken:
        monkeypatch.setattr(OutboxRelay, "wake", lambda _: None)
    bus = WaitingBus()
    async with resting_component(database_url, bus, monkeypatch) as component:
        answer = await component.creator.create(IdempotencyKey("k"), TEAM)
        if is_woken:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await bus.published.wait()
        else:
            assert [] == bus.ids
            assert component.relay is not None
            assert 1 == await component.relay.run_once()
        assert [event_id(answer.group.conversation_id)] == bus.ids


async def test_what_a_dead_replica_has_left_is_found_by_looking(database_url: str) -> None:
    """The others are not woken for it; their own clock does."""
    bus = WaitingBus()
    with pytest.MonkeyPatch.context() as patch:
        # This one dies with its event: its relay has never run.
        patch.setattr(OutboxRelay, "run_once", asyncio.Event().wait)
        async with open_component(database_url, bus=WaitingBus()) as dying:
            answer = await dying.creator.create(IdempotencyKey("k"), TEAM)
    settings = ComponentSettings(relay=RelaySettings(poll_seconds=0.01))
    async with open_component(database_url, settings=settings, bus=bus):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await bus.published.wait()
        assert [event_id(answer.group.conversation_id)] == bus.ids


async def test_replicas_sweep_by_themselves_and_every_row_once(
    database_url: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not asked for; what one of them has deleted the other does not count again."""
    monkeypatch.setattr("stretto.postgres.retention.SWEEP_SECONDS", 0.01)
    monkeypatch.setattr("stretto.postgres.retention.RANGE_BLOCKS", 1)
    await connection.execute(
        """INSERT INTO inbox (consumer, message_id, received_at)
           SELECT 'counter', gen_random_uuid(), '2020-01-01' FROM generate_series(1, 1000)"""
    )
    swept: list[RowsSwept] = []
    is_over = asyncio.Event()

    def observe(event: Observation) -> None:
        if isinstance(event, RowsSwept):
            swept.append(event)
            if sum(each.rows for each in swept) >= 1000:
                is_over.set()

    async with (
        open_component(database_url, observe=observe),
        open_component(database_url, observe=observe),
    ):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await is_over.wait()
    assert 1000 == sum(each.rows for each in swept)
    assert {"inbox"} == {each.table for each in swept}
    assert 0 == await connection.fetchval("SELECT count(*) FROM inbox")
    assert not [task for task in asyncio.all_tasks() if "stretto" in task.get_name()]
