"""The primary dies and its standby takes over, behind one address with both hosts."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from chaos.server import OwnServer, dsn_of, standby_of
from chaos.wire_proxy import WireProxy
from stretto.domain import event_id, group_id
from stretto.postgres import primaries
from stretto.postgres.connections import Database
from stretto.postgres.lanes import Lane
from stretto.store_errors import Unreachable
from support.api_client import TEAM, Reply, settled_create
from support.database import first_row, sound
from support.frozen_server import Frozen
from support.service_process import ServiceProcess, apis
from support.topology import Member
from support.waiting import until

if TYPE_CHECKING:
    from stretto.postgres import driver_connection
    from support.database import Connection

STREAMING = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
# A session that waits for the standby only ends with its server.
LEFT = (
    "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'stretto'"
    " AND wait_event IS DISTINCT FROM 'SyncRep')"
)

ALONE = (
    "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'stretto'"
    " AND pid <> pg_backend_pid())"
)


async def test_a_standby_is_never_taken_for_a_primary(
    server: OwnServer, beside: Connection
) -> None:
    """Not for a writer, a reader or the upkeep, although it is named first and answers."""
    async with standby_of(server) as standby:
        await first_row(beside, STREAMING)
        async with Database(dsn_of(standby, server)) as database:
            connection = await database.acquire()
            assert not await connection.fetchval("SELECT pg_is_in_recovery()")
            await database.release(connection)
            for lane in Lane:
                async with database.connection(lane) as connection:
                    assert not await connection.fetchval("SELECT pg_is_in_recovery()")
        async with Database(dsn_of(standby)) as database:
            with pytest.raises(Unreachable):
                await database.acquire()


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
async def test_a_failover_under_load_doubles_nothing(
    mode: str, server: OwnServer, beside: Connection
) -> None:
    """A synchronous standby has all that was acknowledged; every key has one group there."""
    keys = [f"k{number}" for number in range(40)]
    async with AsyncExitStack() as stack:
        standby = await stack.enter_async_context(standby_of(server))
        await first_row(beside, STREAMING)
        await server.set_synchronous(is_synchronous=mode == "synchronous")
        dsn = dsn_of(server, standby)
        services = [
            await stack.enter_async_context(ServiceProcess({"DATABASE_URL": dsn})) for _ in range(2)
        ]
        first, second = await stack.enter_async_context(apis(*services))
        before = {key: await settled_create(first, key) for key in keys[:20]}
        load = asyncio.gather(
            *(settled_create(api, key) for key in keys[10:] for api in (first, second))
        )
        await first_row(beside, "SELECT 1 FROM chat_group OFFSET 20")
        await server.stop("immediate")
        await standby.promote()
        replies = await load
        # From processes that remember nothing.
        fresh = await stack.enter_async_context(ServiceProcess({"DATABASE_URL": dsn}))
        (api,) = await stack.enter_async_context(apis(fresh))
        after = {key: await settled_create(api, key) for key in keys}
        connection = await standby.connect()
        assert await connection.fetchval("SELECT count(*) FROM chat_group") == len(keys)
        assert await sound(connection)
        await connection.close()
    assert {201} == {reply.status for reply in [*replies, *after.values()]}
    assert {str(group_id("alice", key)) for key in keys} == ids(list(after.values()))
    if mode == "synchronous":
        answers = [*before.values(), *replies]
        assert {reply.body for reply in answers} == {reply.body for reply in after.values()}


def ids(replies: list[Reply]) -> set[str]:
    """Return the groups that were answered."""
    return {reply.json["group_id"] for reply in replies}


async def test_a_standby_that_is_away_delays_answers_and_falsifies_none(server: OwnServer) -> None:
    """No 201 before the standby has it; when it is back, the write that waited is answered once."""
    async with AsyncExitStack() as stack:
        standby = await stack.enter_async_context(standby_of(server))
        await server.set_synchronous(is_synchronous=True)
        service = await stack.enter_async_context(
            ServiceProcess({"DATABASE_URL": dsn_of(server, standby)})
        )
        (api,) = await stack.enter_async_context(apis(service))
        assert (await settled_create(api, "before")).status == 201
        await standby.stop()
        unknown = await api.create("k", TEAM, wait=1)
        # Committed here, which no answer may say as long as the standby lacks it.
        assert (409, "attempt_pending") == (unknown.status, unknown.json["code"])
        assert await standby.start()
        reply = await settled_create(api, "k")
        assert 201 == reply.status
        await server.stop("immediate")
        await standby.promote()
        again = await settled_create(api, "k")
        assert reply.body == again.body
        connection = await standby.connect()
        assert await sound(connection)
        await connection.close()


async def test_what_the_standby_lacks_is_not_answered_even_after_a_restart(
    server: OwnServer,
) -> None:
    """A restart makes visible what was still waiting for the standby: reading it waits as well."""
    async with AsyncExitStack() as stack:
        standby = await stack.enter_async_context(standby_of(server))
        await server.set_synchronous(is_synchronous=True)
        service = await stack.enter_async_context(
            ServiceProcess({"DATABASE_URL": dsn_of(server, standby)})
        )
        (api,) = await stack.enter_async_context(apis(service))
        await settled_create(api, "before")
        await standby.stop()
        assert (await api.create("k", wait=1)).status == 409
        await server.restart()
        connection = await server.connect()
        assert await connection.fetchval("SELECT count(*) FROM chat_group") == 2
        await connection.close()
        assert (await api.create("k", wait=1)).status in (409, 503)
        lookup = await api.get("/v1/attempts/k")
        assert (503, "database_unavailable") == (lookup.status, lookup.json["code"])
        assert await standby.start()
        reply = await settled_create(api, "k")
        await server.stop("immediate")
        await standby.promote()
        again = await settled_create(api, "k")
    assert (201, reply.body) == (again.status, again.body)


@pytest.mark.parametrize("way", ["balancer", "hosts"])
async def test_a_replaced_primary_that_still_runs_is_left_by_every_connection(
    way: str, server: OwnServer, beside: Connection
) -> None:
    """Creations, reads and sessions find the new one, also of a process that writes nothing."""
    async with AsyncExitStack() as stack:
        standby = await stack.enter_async_context(standby_of(server))
        await first_row(beside, STREAMING)
        await server.set_synchronous(is_synchronous=True)
        balancer = await stack.enter_async_context(WireProxy(server.dsn))
        url = balancer.dsn if way == "balancer" else dsn_of(server, standby)
        writing, reading = [
            await stack.enter_async_context(ServiceProcess({"DATABASE_URL": url})) for _ in range(2)
        ]
        writer, reader = await stack.enter_async_context(apis(writing, reading))
        before = await settled_create(writer, "before", TEAM)
        member = Member("bob", [reading.url], sse=False)
        staying = asyncio.create_task(member.stay(), name="member")
        stack.push_async_callback(asyncio.wait, (staying,))
        stack.callback(staying.cancel)
        await member.until(lambda: member.position is not None)
        for api in (writer, reader):
            assert 200 == (await api.get(f"/v1/groups/{before.json['group_id']}")).status

        await standby.promote()
        balancer.retarget(standby.dsn)
        after = await settled_create(writer, "after", TEAM)
        assert 201 == after.status

        async def is_read() -> bool:
            return (await reader.get(f"/v1/groups/{after.json['group_id']}")).status == 200

        await until(is_read)
        await member.until(lambda: event_of(after) in member.heard)
        await until(lambda: beside.fetchval(LEFT))
        again = await settled_create(writer, "before", TEAM)
        assert before.body == again.body


def event_of(reply: Reply) -> str:
    """Return the id of the event of a created group."""
    return str(event_id(UUID(reply.json["conversation_id"])))


async def test_while_both_primaries_take_connections_only_the_newer_one_gets_them(
    server: OwnServer, beside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A balancer leads to both. Some time after the last connection to the newer one, the older may serve."""
    async with standby_of(server) as standby, WireProxy(server.dsn) as balancer:
        await first_row(beside, STREAMING)
        async with Database(balancer.dsn) as database:
            old = await database.acquire()
            await standby.promote()
            balancer.retarget(standby.dsn)
            assert not old.is_closed()
            new = await database.acquire()
            assert old.is_closed()
            balancer.retarget(server.dsn)
            with pytest.raises(Unreachable, match="has replaced this server"):
                await database.acquire()
            assert 1 == await new.fetchval("SELECT 1")
            await database.release(new)
            with pytest.raises(Unreachable, match="has replaced this server"):
                await database.acquire()
            monkeypatch.setattr(primaries, "REFUSED_SECONDS", 0.0)
            await database.release(await database.acquire())


async def test_once_a_connection_was_lost_the_newest_of_two_primaries_gets_the_next(
    server: OwnServer, beside: Connection
) -> None:
    """Both are in the URL, the standby was asynchronous, and the old one serves who asks it."""
    async with standby_of(server) as standby, Database(dsn_of(server, standby)) as database:
        await first_row(beside, STREAMING)
        old, idle = [await database.acquire() for _ in range(2)]
        await standby.promote()
        await beside.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1",
            old.get_server_pid(),
        )
        await until(old.is_closed)
        # Of many that are wanted at once, none is the old one's.
        opened = await asyncio.gather(*(database.acquire() for _ in range(4)))
        ports = {await each.fetchval("SELECT inet_server_port()") for each in opened}
        assert {standby.port} == ports
        assert idle.is_closed()
        for each in opened:
            await database.release(each)
    # A process that starts then knows of no loss.
    async with standby_of(server) as other, Database(dsn_of(server, other)) as database:
        await first_row(beside, STREAMING)
        await other.promote()
        new = await database.acquire()
        assert other.port == await new.fetchval("SELECT inet_server_port()")
        await database.release(new)


@pytest.mark.parametrize("way", ["balancer", "hosts"])
async def test_a_newer_primary_that_was_away_gets_back_every_connection(
    way: str, server: OwnServer, beside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one has served meanwhile, and its connections work on: no new one is wanted that would show it."""
    monkeypatch.setattr(primaries, "REFUSED_SECONDS", 0.2)
    async with standby_of(server) as standby, WireProxy(standby.dsn) as balancer:
        await first_row(beside, STREAMING)
        await standby.promote()
        url = balancer.dsn if way == "balancer" else dsn_of(server, standby)
        async with Database(url) as database:
            new = await database.acquire()
            assert standby.port == await new.fetchval("SELECT inet_server_port()")
            await standby.stop()
            balancer.retarget(server.dsn)

            old: list[driver_connection.Connection] = []

            async def serves_again() -> bool:
                with suppress(Unreachable):
                    old.append(await database.acquire())
                return len(old) == 2

            await until(serves_again)
            ports = {await each.fetchval("SELECT inet_server_port()") for each in old}
            assert {server.port} == ports
            assert await standby.start()
            balancer.retarget(standby.dsn)
            await until(lambda: all(each.is_closed() for each in old))
            again = await database.acquire()
            assert standby.port == await again.fetchval("SELECT inet_server_port()")
            # What the search has found is not kept any longer.
            await until(lambda: again.fetchval(ALONE))
            await database.release(again)


async def test_a_newer_primary_that_lets_no_connection_through_is_left_only_when_it_freezes(
    server: OwnServer, beside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall drops new connections there; an idle one shows that the server lives."""
    monkeypatch.setattr(primaries, "REFUSED_SECONDS", 0.2)
    async with standby_of(server) as standby, Frozen(standby.dsn).running() as way:
        await first_row(beside, STREAMING)
        port = urlsplit(way.url).port
        url = server.dsn.replace(f":{server.port}/", f":{server.port},127.0.0.1:{port}/")
        await standby.promote()
        async with Database(url) as database:
            new = await database.acquire()
            assert standby.port == await new.fetchval("SELECT inet_server_port()")
            way.refuse()

            async def serves_old() -> bool:
                try:
                    connection = await database.acquire()
                except Unreachable:
                    return False
                await database.release(connection)
                return True

            begun = time.monotonic()
            while time.monotonic() - begun < 5 * primaries.REFUSED_SECONDS:
                assert not await serves_old()
            assert not new.is_closed()
            way.freeze()
            await until(serves_old)
            assert new.is_closed()


async def test_a_newer_primary_that_is_full_keeps_the_older_one_out(
    server: OwnServer, beside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses each new connection, and no older one is left: it says itself that it lives."""
    async with standby_of(server) as standby:
        await first_row(beside, STREAMING)
        await beside.execute("CREATE ROLE app LOGIN PASSWORD 'x'")
        await beside.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO app")
        lsn = await beside.fetchval("SELECT pg_current_wal_lsn()")
        follower = await standby.connect()
        await until(lambda: follower.fetchval("SELECT pg_last_wal_replay_lsn() >= $1", lsn))
        await standby.promote()
        url = urlsplit(dsn_of(server, standby))
        own = url._replace(netloc=f"app:x@{url.netloc.rpartition('@')[2]}").geturl()
        async with Database(own) as database:
            new = await database.acquire()
            assert standby.port == await new.fetchval("SELECT inet_server_port()")
            await follower.execute("ALTER ROLE app CONNECTION LIMIT 0")
            monkeypatch.setattr(primaries, "REFUSED_SECONDS", 0.5)
            new.terminate()
            begun = time.monotonic()
            while time.monotonic() - begun < 3 * primaries.REFUSED_SECONDS:
                with pytest.raises(Unreachable, match="too many connections for role"):
                    await database.acquire()
            await follower.execute("ALTER ROLE app CONNECTION LIMIT -1")
            again = await database.acquire()
            assert standby.port == await again.fetchval("SELECT inet_server_port()")
            await database.release(again)
            await follower.close()
