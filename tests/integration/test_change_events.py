"""The events of changes on their ways out: bus, webhook, dead letters, and a hook's transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import orjson
import pytest

import stretto
from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey
from stretto.events import tail
from stretto.events.subscriptions import Subscriber
from stretto.postgres.bus import PostgresBusStore
from stretto.targets.settings import RelaySettings
from stretto.webhook.store import PostgresWebhookStore
from support.changed_groups import TEAM, changed, events, seen
from support.command_process import stretto as command
from support.database import sound
from support.waiting import until
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from stretto.assembly.component import Component
    from stretto.events.log import CommittedEvent
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection as HostsConnection
    from support.database import Connection

LEASE_SECONDS: Final = 60.0
# Longer than any test takes.
NEVER_SECONDS: Final = 3600.0


class RecordingBus:
    """Takes every event."""

    def __init__(self) -> None:
        self.types: list[str] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Note what has come."""
        self.types += [orjson.loads(event.envelope)["type"] for event in events]
        return {}


@pytest.fixture
async def group(component: Component) -> UUID:
    """A group of alice's, with bob, and carol as an admin."""
    return (await component.creator.create(IdempotencyKey("k"), TEAM)).group.group_id


async def test_a_change_that_the_bus_refuses_is_delivered_apart_with_the_same_content(
    group: UUID, database: Database, connection: Connection, database_url: str
) -> None:
    """Also once the log has lost it; a dead letter says what has happened."""
    store = PostgresBusStore(database, lambda: datetime.now(UTC) + timedelta(minutes=1))
    await store.open()
    place = await store.present()
    await changed(connection, stretto.add_members, group, {"dave": "admin"})
    page = await store.page(place, 10)
    await PostgresBusStore(database).refuse(dict.fromkeys(page.events, "too large"))
    await connection.execute("TRUNCATE outbox")
    (delivery,) = await store.take(10, LEASE_SECONDS)
    assert page.events[0].event == delivery.event
    await connection.execute("UPDATE outbox_delivery SET dead_reason = 'too large'")
    code, output, _ = await command("events", DATABASE_URL=database_url)
    assert code == 0
    assert f"{delivery.event.event_id} group.members_added of " in output


async def test_the_webhook_gets_changes_with_the_content_that_sessions_get(
    group: UUID, database: Database, connection: Connection
) -> None:
    """Each event becomes one delivery."""
    store = PostgresWebhookStore(database, URL_DIGEST)
    await store.open()
    place = await store.present()
    await changed(connection, stretto.rename_group, group, name="Crew")
    await changed(connection, stretto.remove_members, group, ["bob"])
    page = await store.page(place, 10)
    assert [2, 0] == [await store.enrol(10), await store.enrol(10)]
    deliveries = await store.take(10, LEASE_SECONDS)
    sent = {delivery.event.event_id: delivery.event for delivery in deliveries}
    assert sent == {logged.event.event_id: logged.event for logged in page.events}
    assert 2 == len(sent)


async def test_the_time_of_a_change_is_its_own(group: UUID, connection: Connection) -> None:
    """That of its id: equal ids mean equal content, whatever its row says."""
    made = await changed(connection, stretto.rename_group, group, name="Crew")
    await connection.execute("UPDATE outbox SET created_at = created_at + interval '1 hour'")
    (_, event) = await events(connection)
    assert made.event_id.int >> 80 == await connection.fetchval(
        "SELECT (extract(epoch FROM $1::text::timestamptz) * 1000)::bigint", event.document["time"]
    )


async def test_a_hook_may_change_the_group_that_is_created(
    database_url: str, connection: Connection
) -> None:
    """In the same commit: the creation comes first in the log, and the answer stays its own."""

    async def add_auditor(
        connection: HostsConnection,
        created: Sequence[tuple[stretto.CreatedGroup, stretto.NewGroup]],
    ) -> None:
        for group, new_group in created:
            await stretto.add_members(connection, group.group_id, {"zoe": "admin"})
            await stretto.rename_group(connection, group.group_id, name=f"{new_group.name}!")

    async with open_component(database_url, on_create=add_auditor) as component:
        answers = [await component.creator.create(IdempotencyKey("k"), TEAM) for _ in range(2)]
    assert answers[0].document == answers[1].document
    assert ["group.created", "group.members_added", "group.renamed"] == [
        event.type for event in await events(connection)
    ]
    group = await seen(connection, answers[0].group.group_id)
    assert ("Team!", 2, "admin") == (group.name, group.revision, group.roles["zoe"])
    assert await sound(connection)


async def test_on_event_hears_of_an_announced_change(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process, too: here none looks by itself."""
    monkeypatch.setattr(Subscriber, "pace", replace(Subscriber.pace, seconds=NEVER_SECONDS))
    monkeypatch.setattr(tail, "LOOK_SECONDS", NEVER_SECONDS)
    heard: list[str] = []

    async def hear(event: stretto.CommittedEvent) -> None:
        heard.append(event.event_type)

    async with open_component(database_url) as one, open_component(database_url) as other:
        answer = await one.creator.create(IdempotencyKey("k"), TEAM)
        for component in (one, other):
            await component.on_event(hear)
        await changed(connection, stretto.rename_group, answer.group.group_id, name="Crew")
        assert [] == heard
        one.announce()
        await until(lambda: heard == ["group.renamed"] * 2)


async def test_what_a_host_announces_is_published_at_once(
    database_url: str, connection: Connection
) -> None:
    """Without a word it is found by looking, which here comes never."""
    bus = RecordingBus()
    settings = ComponentSettings(relay=RelaySettings(poll_seconds=NEVER_SECONDS))
    async with open_component(database_url, settings=settings, bus=bus) as component:
        answer = await component.creator.create(IdempotencyKey("k"), TEAM)
        await until(lambda: bus.types == ["group.created"])
        await changed(connection, stretto.rename_group, answer.group.group_id, name="Crew")
        assert ["group.created"] == bus.types
        component.announce()
        await until(lambda: bus.types == ["group.created", "group.renamed"])
