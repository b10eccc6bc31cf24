"""No event is sent before the synchronous standby has it: a failover would lose it (G8, G9)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from chaos.server import standby_of
from stretto.assembly.opening import open_component
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.postgres import log
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES
from support.database import first_row
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from chaos.server import OwnServer
    from stretto.events.log import CommittedEvent

BOB = UserId("bob")
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})
# Longer than tail and relay need to look again.
SILENCE_SECONDS = 3.0


class RecordingBus:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        self.ids += [event.event_id for event in events]
        return {}


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_what_the_standby_lacks_is_neither_delivered_nor_published(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """A restart makes it visible; every reader waits for the standby, and goes on when it is back."""
    if not is_guarded:
        asks = "current_setting('synchronous_standby_names') <> ''"
        assert asks in QUERIES["log_page"]
        unguarded = QUERIES["log_page"].replace(asks, "false")
        monkeypatch.setattr(log, "QUERIES", {**QUERIES, "log_page": unguarded})
    bus = RecordingBus()
    async with AsyncExitStack() as stack:
        standby = await stack.enter_async_context(standby_of(server))
        await server.set_synchronous(is_synchronous=True)
        component = await stack.enter_async_context(open_component(server.dsn, bus=bus))
        session = stack.enter_context(component.hub.session(BOB, 1e12))
        begin = await component.hub.followed()
        assert session.go_live(begin)
        create = component.creator.create
        await create(IdempotencyKey("before"), TEAM)
        (before,) = await session.take()
        await until(lambda: bus.ids)

        await standby.stop()
        creating = asyncio.create_task(create(IdempotencyKey("k"), TEAM))
        connection = await server.connect()
        await first_row(connection, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        await connection.close()
        await server.restart()
        connection = await server.connect()
        assert await connection.fetchval("SELECT count(*) FROM outbox") == 2
        await connection.close()
        acquire = partial(component.database.connection, Lane.HISTORY)
        catching_up = asyncio.create_task(PostgresLogStore(acquire).page(begin, 10))

        def sent() -> list[int]:
            return [len(session), len(bus.ids) - 1, int(catching_up.done())]

        if is_guarded:
            await asyncio.sleep(SILENCE_SECONDS)
            assert [0, 0, 0] == sent()
        else:
            await until(lambda: sent() == [1, 1, 1])

        assert await standby.start()
        (event,) = await session.take()
        await until(lambda: len(bus.ids) == 2)
        assert [before.event.event_id, event.event.event_id] == bus.ids
        await asyncio.wait([catching_up, creating])
        assert catching_up.exception() is None or is_guarded
