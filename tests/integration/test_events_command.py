"""Dead letters as an operator meets them: told by `stretto events`, replayed, and heard at last."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from stretto.events.outbox import RefusalLimits
from stretto.events.relay import OutboxRelay, RelaySettings
from stretto.postgres.connections import Database
from stretto.postgres.outbox import PostgresOutboxStore
from support.api_client import Api, connected_api, token_of
from support.command_process import stretto
from support.database import commit_group_event
from support.service_process import ServiceProcess
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    import aiohttp

    from stretto.events.event import CommittedEvent
    from support.database import Connection

DEADLINE_SECONDS = 20


class RefusingBus:
    """Refuses everything, for a reason."""

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        return {event.event_id: "larger than 7 bytes" for event in events}


async def bury(database_url: str, connection: Connection, keys: Sequence[str]) -> list[UUID]:
    """Have the events of alice's groups die; return their ids in the order of their making."""
    ids = [await commit_group_event(connection, key) for key in keys]
    settings = RelaySettings(refusal=RefusalLimits(tries_max=1))
    async with Database(database_url) as database:
        relay = OutboxRelay(PostgresOutboxStore(database), RefusingBus(), lambda _: None, settings)
        assert len(keys) == await relay.run_once()
        assert 0 == await relay.run_once()
    return ids


async def dead(connection: Connection) -> set[UUID]:
    """Return the dead letters."""
    rows = await connection.fetch("SELECT event_id FROM outbox WHERE dead_reason IS NOT NULL")
    return {row["event_id"] for row in rows}


async def test_dead_letters_are_listed_with_their_reasons(
    database_url: str, connection: Connection
) -> None:
    """The oldest first; nothing is changed by looking."""
    assert (0, "no dead letters\n", "") == await stretto("events", DATABASE_URL=database_url)
    ids = await bury(database_url, connection, ("a", "b"))
    code, output, _ = await stretto("events", DATABASE_URL=database_url)
    *letters, total = output.splitlines()
    assert (0, "2 dead letters") == (code, total)
    for id_, letter in zip(ids, letters, strict=True):
        assert letter.startswith(f"{id_} group.created of ")
        assert letter.endswith(", 1 tries: larger than 7 bytes")
    assert set(ids) == await dead(connection)


async def test_those_that_are_named_are_replayed_and_no_others(
    database_url: str, connection: Connection
) -> None:
    """What is unknown, or not dead, is not counted, and is said."""
    first, second, third = await bury(database_url, connection, ("a", "b", "c"))
    named = [f"--retry={id_}" for id_ in (first, second, uuid.uuid4())]
    code, output, errors = await stretto("events", *named, DATABASE_URL=database_url)
    assert (1, "2 events will be tried again\n") == (code, output)
    assert "stretto: 1 of these ids are no dead letters" in errors
    assert {third} == await dead(connection)
    code, output, _ = await stretto("events", named[0], DATABASE_URL=database_url)
    assert (1, "0 events will be tried again\n") == (code, output)
    code, output, _ = await stretto("events", f"--retry={third}", DATABASE_URL=database_url)
    assert (0, "1 events will be tried again\n") == (code, output)


async def test_what_is_no_id_is_told(database_url: str) -> None:
    """And nothing is replayed instead."""
    code, _, errors = await stretto("events", "--retry", "x", DATABASE_URL=database_url)
    assert 2 == code
    assert "valid UUID" in errors


async def test_a_replayed_event_is_heard_under_its_id(
    database_url: str, connection: Connection
) -> None:
    """By a member who is connected, and by one who resumes from behind the event's old place."""
    ids = {str(id_) for id_ in await bury(database_url, connection, ("a", "b"))}
    async with (
        ServiceProcess({"DATABASE_URL": database_url}) as service,
        connected_api(service.url) as api,
    ):
        async with session(api) as away:
            since = (await away.receive_json())["position"]
        async with session(api) as socket:
            await socket.receive_json()
            code, output, _ = await stretto("events", "--retry-all", DATABASE_URL=database_url)
            assert (0, "2 events will be tried again\n") == (code, output)
            assert ids == await heard(socket, len(ids))
        async with session(api, since) as back:
            assert ids == await heard(back, len(ids))
    assert set() == await dead(connection)


def session(
    api: Api, since: str = ""
) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
    """Connect as bob."""
    return api.session.ws_connect(
        api.url + "/v1/events",
        params={"since": since},
        headers={"Authorization": f"Bearer {token_of('bob')}"},
    )


async def heard(socket: aiohttp.ClientWebSocketResponse, count: int) -> set[str]:
    """Return the ids of the next events."""
    ids: set[str] = set()
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(ids) < count:
            if event := (await socket.receive_json()).get("event"):
                ids.add(event["id"])
    return ids


async def test_a_pause_of_the_webhook_is_shown_and_ended(
    database_url: str, connection: Connection
) -> None:
    """With what was put off meanwhile; a second time there is nothing to end."""
    await connection.execute(
        "INSERT INTO webhook (url_digest, paused_until) VALUES ($1, '2999-01-02 03:04:05Z')",
        URL_DIGEST,
    )
    await connection.execute(
        """INSERT INTO webhook_delivery (event_id, due_at)
           VALUES (gen_random_uuid(), clock_timestamp() + interval '1 day')"""
    )
    _, output, _ = await stretto("events", DATABASE_URL=database_url)
    assert "the webhook is paused until 2999-01-02 03:04:05" in output
    _, output, _ = await stretto("events", "--enable-webhook", DATABASE_URL=database_url)
    assert "the webhook is enabled\nno dead letters\n" == output
    assert await connection.fetchval("SELECT due_at <= clock_timestamp() FROM webhook_delivery")
    _, output, _ = await stretto("events", "--enable-webhook", DATABASE_URL=database_url)
    assert output.startswith("the webhook was not disabled or paused\n")
