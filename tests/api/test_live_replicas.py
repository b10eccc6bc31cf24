"""Two processes on PostgreSQL alone: what is created at one reaches the sessions of the other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from stretto.assembly.application import create_app
from stretto.events import tail
from stretto.http.front.serving import serving
from stretto.http.tokens.settings import TokenSettings
from stretto.postgres.tail import PostgresTail
from support.api_client import SECRET, connected_api
from support.live_service import LiveService
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

# Longer than any wait of these tests.
NEVER_SECONDS = 3600.0


@asynccontextmanager
async def replica(database_url: str) -> AsyncIterator[LiveService]:
    """A process's service, which runs by itself."""
    app = create_app(dsn=database_url, tokens=TokenSettings(jwt_secret=SECRET))
    async with (
        serving(app, host="127.0.0.1", port=0) as port,
        connected_api(f"http://127.0.0.1:{port}") as api,
    ):
        yield LiveService(api, app)


async def _unannounced(_: PostgresTail) -> None:
    """Lose an announcement."""


@pytest.mark.parametrize(("is_announced", "looks"), [(True, False), (False, True), (False, False)])
async def test_an_event_reaches_the_sessions_of_another_process(
    database_url: str,
    server_url: str,
    monkeypatch: pytest.MonkeyPatch,
    is_announced: bool,
    looks: bool,
) -> None:
    """By its announcement, or by looking where that is lost or cannot be heard; by nothing else."""
    is_heard = is_announced and database_url == server_url
    if not looks:
        monkeypatch.setattr(tail, "LOOK_SECONDS", NEVER_SECONDS)
        monkeypatch.setattr(tail, "LOOK_SECONDS_UNHEARD", NEVER_SECONDS)
    if not is_announced:
        monkeypatch.setattr(PostgresTail, "announce", _unannounced)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(replica(database_url))
        other = await stack.enter_async_context(replica(database_url))
        clients = [await stack.enter_async_context(each.websocket("bob")) for each in (one, other)]
        for client in clients:
            assert (await client.next()).keys() == {"position"}
        # The tail may rest at any time after its first read; a wake-up of its own ends the rest.
        for number in range(3):
            group = await one.create(f"k{number}")
            assert group == (await clients[0].next())["event"]["subject"]
            if not (is_heard or looks):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await clients[1].socket.receive()
                return
            assert group == (await clients[1].next())["event"]["subject"]


async def test_behind_a_pooler_a_process_looks_more_often(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot listen there; where it can, it learns it at once."""
    monkeypatch.setattr(tail, "LOOK_SECONDS", NEVER_SECONDS)
    async with (
        replica(database_url) as one,
        replica(database_url) as other,
        other.websocket("bob") as client,
    ):
        await client.next()
        for number in range(3):
            assert await one.create(f"k{number}") == (await client.next())["event"]["subject"]


async def test_a_tail_whose_connection_is_cut_goes_on_where_it_was(
    database_url: str, connection: Connection
) -> None:
    """Its sessions stay, and miss nothing."""
    async with replica(database_url) as live, live.websocket("bob") as client:
        await client.next()
        groups = []
        for number in range(3):
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND query ~ 'outbox_present|LISTEN' AND query !~ 'deleted_groups'"
            )
            groups.append(
                (await live.api.create(f"k{number}", {"name": "T", "members": ["bob"]})).json
            )
        subjects = [(await client.next())["event"]["subject"] for _ in groups]
        assert [group["group_id"] for group in groups] == subjects


async def test_without_sessions_a_process_does_not_look(
    database_url: str, connection: Connection
) -> None:
    """It holds no connection for it either; the first session opens one."""
    listening = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND query ~ 'outbox_present|LISTEN'"
        " AND query !~ 'pg_stat|deleted_groups'"
    )
    async with replica(database_url) as live:
        assert 0 == await connection.fetchval(listening)
        async with live.websocket("bob") as client:
            await client.next()
            assert 1 <= await connection.fetchval(listening)
        if "pgbouncer" not in database_url:
            # PgBouncer keeps its connections to the server.
            await until(lambda: connection.fetchval(f"SELECT ({listening}) = 0"))
