"""A host's bus that fails for one owner, and one that is away, with a relay and a real log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson
import pytest

import stretto
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from support.database import Connection

DEADLINE_SECONDS: Final = 60
# More than a page of the relay.
EVENTS: Final = 300


class Bus:
    """Raises or hangs for the events of evil; is away while a test says so."""

    def __init__(self, error: type[BaseException] | None) -> None:
        self.error = error
        self.is_away = False
        self.failed = asyncio.Event()
        self.published: list[str] = []

    async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[UUID, str]:
        for event in events:
            data = orjson.loads(event.envelope)["data"]
            if self.is_away:
                self.failed.set()
                raise ConnectionError
            if data["owner_id"] == "evil":
                if self.error is not None:
                    raise self.error
                await asyncio.Event().wait()
            self.published.append(data["name"])
        return {}


async def create(component: stretto.Component, owner: str, *names: str) -> None:
    """Create a group of each name."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        for name in names:
            group = stretto.NewGroup.parse(stretto.UserId(owner), {"name": name})
            await component.create(name.replace(" ", "-"), group)


@pytest.mark.parametrize("error", [ValueError, None])
async def test_a_page_of_events_that_fail_holds_up_no_other_owner(
    error: type[BaseException] | None, database_url: str, connection: Connection
) -> None:
    """They are tried again beside the log, and hold up nothing there either."""
    bus = Bus(error)
    bus.is_away = True
    settings = stretto.ComponentSettings(relay=stretto.RelaySettings(relay_lease_seconds=1))
    async with stretto.open_component(database_url, bus=bus, settings=settings) as component:
        await create(component, "evil", *(f"evil {n}" for n in range(EVENTS)))
        await create(component, "alice", "first")
        bus.is_away = False
        await until(lambda: "first" in bus.published)
        await until(
            lambda: connection.fetchval(
                "SELECT count(*) = $1 FROM outbox_delivery WHERE owner_id = 'evil'", EVENTS
            )
        )
        await create(component, "alice", "second")
        await until(lambda: "second" in bus.published)


async def test_a_bus_that_was_away_has_refused_nothing(
    database_url: str, connection: Connection
) -> None:
    """All are published, and no delivery is left."""
    bus = Bus(ValueError)
    bus.is_away = True
    async with stretto.open_component(database_url, bus=bus) as component:
        await create(component, "alice", *(f"group {n}" for n in range(9)))
        await asyncio.wait_for(bus.failed.wait(), DEADLINE_SECONDS)
        bus.is_away = False
        await until(lambda: len(bus.published) >= 9)
    assert {f"group {n}" for n in range(9)} == {*bus.published}
    assert 0 == await connection.fetchval("SELECT count(*) FROM outbox_delivery")
