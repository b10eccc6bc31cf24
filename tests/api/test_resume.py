"""Resuming: a client that comes back gets all that it has missed, or learns that it cannot."""

from __future__ import annotations

import re
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from stretto.domain import event_id, group_id
from stretto.events import history_reader, tail
from stretto.events.close_codes import CloseCode
from stretto.events.hub import SessionHub
from stretto.events.place import History, Place
from stretto.events.settings import HubSettings
from stretto.http.routes import events
from support.api_client import TEAM, token_of
from support.database import commit_group_event
from support.live_service import (
    STREAM,
    UPGRADE,
    LiveService,
    MuteClient,
    SseClient,
    WebSocketClient,
    live_service,
)
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

PAGE = 10


@pytest_asyncio.fixture
async def live(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveService]:
    """A running service that reads its history in small pages."""
    monkeypatch.setattr(history_reader, "PAGE_EVENTS", PAGE)
    async with live_service(database_url) as live:
        yield live


async def present_position(live: LiveService) -> str:
    """Return the position at which a session of bob begins now."""
    async with live.websocket() as client:
        position: str = (await client.next())["position"]
        return position


def next_to(position: str) -> str:
    """Return the position after that one."""
    place = Place.parse(position)
    return str(replace(place, xmax=place.xmax + 1))


async def test_what_was_missed_comes_first_and_then_what_happens(
    live: LiveService, connection: Connection
) -> None:
    """Over both ways, in order, each once, and of other users nothing."""
    since = await present_position(live)
    missed = [await live.create(f"k{number}") for number in range(3 * PAGE + 5)]
    await live.api.create("other", {"name": "Not theirs"}, user="mallory")
    await live.tail_once()
    async with live.websocket(since=since) as client, live.sse(Last_Event_ID=since) as reader:
        assert {"position": since} == await client.next()
        assert since == (await reader.next()).id
        for expected in missed:
            assert expected == (await client.next())["event"]["subject"]
            assert expected == (await reader.next()).json["subject"]
        # Caught up: from here on there is nothing to be sent again.
        assert (await client.next()).keys() == {"position"}
        assert (await reader.next()).data == ""
        last = await live.create("last")
        await live.tail_once()
        assert last == (await client.next())["event"]["subject"]
        assert last == (await reader.next()).json["subject"]


async def test_any_position_that_was_sent_leads_on_from_there(
    live: LiveService, connection: Connection
) -> None:
    """Whether it came live, with what was missed, or with neither."""
    positions = [await present_position(live)]
    groups = []
    async with live.websocket() as client:
        await client.next()
        for number in range(PAGE + 3):
            groups.append(await live.create(f"k{number}"))
            await live.tail_once()
            positions.append((await client.next())["position"])
    for number, position in enumerate(positions):
        async with live.sse(Last_Event_ID=position) as reader:
            await reader.next()
            got = []
            while (block := await reader.next()).data:
                got.append(block.json["subject"])
            assert groups[number:] == got


async def test_the_header_is_newer_than_the_url(live: LiveService, connection: Connection) -> None:
    """A browser's client repeats its URL whenever it comes back."""
    old = await present_position(live)
    await live.create("k")
    await live.tail_once()
    new = next_to(old)
    headers = {"Authorization": f"Bearer {token_of('bob')}", "Last-Event-ID": new}
    async with live.websocket(since=old, headers=headers) as client:
        assert {"position": new} == await client.next()


async def test_a_transaction_that_commits_late_is_not_skipped(
    live: LiveService, connection: Connection, server_url: str
) -> None:
    """It stands before an event that was sent already: that one's position names its transaction."""
    since = await present_position(live)
    late = await asyncpg.connect(server_url, server_settings={"search_path": "stretto,public"})
    transaction = late.transaction()
    await transaction.start()
    await commit_group_event(late, "late")
    early = await live.create("early")
    await live.tail_once()
    async with live.websocket(since=since) as client:
        await client.next()
        message = await client.next()
        assert early == message["event"]["subject"]
    await transaction.commit()
    await late.close()
    await live.tail_once()
    async with live.websocket(since=message["position"]) as client:
        await client.next()
        assert str(group_id("alice", "late")) == (await client.next())["event"]["subject"]
        assert "event" not in await client.next()
    # The twin: a place that does not name its transaction leads past it.
    own = await connection.fetchval(
        "SELECT max(position::text::bigint) FROM outbox WHERE subject::text = $1", early
    )
    past = Place(Place.parse(message["position"]).history, own)
    async with live.websocket(since=str(past)) as client:
        await client.next()
        assert early == (await client.next())["event"]["subject"]
        assert "event" not in await client.next()


async def test_what_waited_for_the_relay_during_the_catch_up_is_sent_once(
    live: LiveService, connection: Connection
) -> None:
    """It is in the history already, and comes live afterwards."""
    # The tail stays where this session has joined: it goes on at the present once there is none.
    async with live.websocket("mallory") as other:
        since = (await other.next())["position"]
        missed = await live.create("missed")
        async with live.websocket(since=since) as client:
            await client.next()
            assert missed == (await client.next())["event"]["subject"]
            assert (await client.next()).keys() == {"position"}
            assert 1 == await live.tail_once()
            following = await live.create("following")
            await live.tail_once()
            assert following == (await client.next())["event"]["subject"]


async def insert_events(connection: Connection, count: int, name_bytes: int = 0) -> None:
    """Write events of bob's, each in a transaction of its own."""
    await connection.execute(
        """CREATE OR REPLACE PROCEDURE pg_temp.insert_events(count integer, bytes integer) AS $$
           BEGIN
               FOR number IN 1..count LOOP
                   INSERT INTO outbox (slot, history, event_id, subject, recipients,
                                       conversation_id, group_name)
                   VALUES ((SELECT slot FROM outbox_slot AS s ORDER BY s.number DESC LIMIT 1),
                           (SELECT max(h.number) FROM outbox_history AS h),
                           gen_random_uuid(), gen_random_uuid(), '{bob}',
                           '01a1fc83-fd4c-771a-a6fa-15ce8d4e3372', repeat('x', bytes));
                   COMMIT;
               END LOOP;
           END $$ LANGUAGE plpgsql"""
    )
    await connection.execute(f"CALL pg_temp.insert_events({count}, {name_bytes})")


async def found_too_slow(live: LiveService) -> int:
    """Return how many sessions were closed as too slow, now that all are over."""
    await live.emptied()
    metrics = (await live.api.get("/metrics")).body.decode()
    found = re.search(r'^stretto_sessions_ended_total\{code="4408"\} (\d+)', metrics, re.MULTILINE)
    return int(found[1]) if found else 0


async def ids_of(reader: WebSocketClient | SseClient, count: int) -> list[str]:
    """Return the ids of so many events."""
    found: list[str] = []
    while len(found) < count:
        if isinstance(reader, WebSocketClient):
            event = (await reader.next()).get("event")
        else:
            event = block.json if (block := await reader.next()).data else None
        if event is not None:
            found.append(event["id"])
    return found


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_a_client_that_reads_gets_all_that_was_missed_however_much(
    live: LiveService, connection: Connection, monkeypatch: pytest.MonkeyPatch, is_delivered: bool
) -> None:
    """Also where the tail is far behind as well, and delivers all of it meanwhile."""
    monkeypatch.setattr(history_reader, "PAGE_EVENTS", 500)
    since = await present_position(live)
    await live.emptied()
    async with AsyncExitStack() as stack:
        if not is_delivered:
            # The tail stays where the first session has joined.
            await (await stack.enter_async_context(live.websocket("mallory"))).next()
        await insert_events(connection, 5000)
        rows = await connection.fetch("SELECT event_id FROM outbox ORDER BY position")
        client = await stack.enter_async_context(live.websocket(since=since))
        reader = await stack.enter_async_context(live.sse(Last_Event_ID=since))
        first, second = await ids_of(client, 100), await ids_of(reader, 100)
        assert (0 if is_delivered else 5000) == await live.tail_once()
        missed = [str(row["event_id"]) for row in rows]
        assert missed == first + await ids_of(client, 4900)
        assert missed == second + await ids_of(reader, 4900)
        # And they are still there.
        last = (await live.api.create("last", TEAM)).json
        await live.tail_once()
        ids = [str(event_id(uuid.UUID(last["conversation_id"])))]
        assert ids == await ids_of(client, 1) == await ids_of(reader, 1)


async def test_a_live_session_whose_queue_overflows_gets_everything_in_order(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client reads: it was the service that could not send in time. It goes live again."""
    monkeypatch.setattr(tail, "BURST_EVENTS", 10**9)
    monkeypatch.setattr(SessionHub, "session_events_max", 10**9)
    async with (
        live_service(database_url, hub=HubSettings(session_events_max=8)) as live,
        live.websocket() as client,
        live.sse() as reader,
    ):
        await client.next()
        await reader.next()
        await live.tail_once()
        for _ in range(2):
            # One that is sent live: it does not come again.
            await insert_events(connection, 1)
            await live.tail_once()
            assert await ids_of(client, 1) == await ids_of(reader, 1)
            await insert_events(connection, 300)
            rows = await connection.fetch("SELECT event_id FROM outbox ORDER BY position")
            missed = [str(row["event_id"]) for row in rows][-300:]
            assert 300 == await live.tail_once()
            assert missed == await ids_of(client, 300) == await ids_of(reader, 300)
        assert 2 == len(live.hub)
        metrics = (await live.api.get("/metrics")).body.decode()
    found = re.search(r"^stretto_sessions_fell_behind_total (\d+)", metrics, re.MULTILINE)
    assert found
    assert int(found[1]) >= 4


async def test_a_session_that_does_not_read_its_past_is_closed(
    live: LiveService, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over both ways; nothing of it is left."""
    monkeypatch.setattr(events, "READ_ON_SECONDS", 0.1)
    monkeypatch.setattr(events, "READ_BYTES_PER_SECOND", 10**9)
    since = await present_position(live)
    await insert_events(connection, 200, name_bytes=20_000)
    for headers in (UPGRADE, STREAM):
        async with MuteClient(live, {**headers, "Last-Event-ID": since}):
            await until(lambda: len(live.hub))
            await live.emptied()
    assert 2 == await found_too_slow(live)


async def test_a_position_that_is_too_old_is_reported(
    live: LiveService, connection: Connection
) -> None:
    """Over both ways; a browser's client is made to forget it."""
    since = await present_position(live)
    await live.create("k")
    await live.tail_once()
    # Without what happens to run beside: the server's own work may have begun below.
    place = replace(Place.parse(next_to(since)), running=())
    kept = str(place)
    await connection.execute(
        "UPDATE history_start SET history = $1, position = $2", place.history.number, place.xmax
    )
    async with live.websocket(since=since) as client:
        assert CloseCode.POSITION_LOST == await client.close_code()
    async with live.sse(Last_Event_ID=since) as reader:
        goodbye = await reader.next()
        assert ("close", CloseCode.POSITION_LOST, "") == (
            goodbye.type,
            goodbye.json["code"],
            goodbye.id,
        )
    # The twin: what is kept can be resumed.
    async with live.websocket(since=kept) as client:
        assert {"position": kept} == await client.next()
    await live.emptied()


async def test_a_position_from_elsewhere_is_reported(live: LiveService) -> None:
    """Of another database, or of this one before it was set back."""
    place = Place.parse(await present_position(live))
    elsewhere = replace(place, history=History(place.history.number, "00000000"))
    for foreign in (elsewhere, replace(place, xmax=place.xmax + 1_000_000)):
        async with live.websocket(since=str(foreign)) as client:
            assert CloseCode.POSITION_LOST == await client.close_code()
    await live.emptied()


async def test_a_resume_while_the_database_is_away_is_refused(
    live: LiveService, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the stream begins it is a problem document, and nothing is left behind."""
    # A service tries again for ten seconds.
    monkeypatch.setattr(history_reader, "RETRY_SECONDS_MAX", 0.5)
    since = await present_position(live)
    await connection.execute("ALTER TABLE outbox RENAME TO hidden")
    reply = await live.api.get(
        "/v1/events", headers={"Accept": "text/event-stream", "Last-Event-ID": since}
    )
    assert (503, "database_unavailable") == (reply.status, reply.json["code"])
    await live.emptied()
    await connection.execute("ALTER TABLE hidden RENAME TO outbox")
    assert await present_position(live)
    assert (await live.api.create("k", TEAM)).status == 201
