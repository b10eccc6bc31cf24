"""A service whose commits wait for a synchronous standby that is away: it says so."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock
from uuid import UUID

import orjson
import pytest

from stretto.creation.deletion import Deletion
from stretto.domain import UserId
from stretto.observations import StandbyAwaited
from stretto.postgres import connections, deletions, driver_connection, tail
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.connections import Database
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES
from stretto.postgres.standby import DETAIL, LATE_SECONDS, WAIT_SECONDS, waits_for_standby
from stretto.postgres.tail import PostgresTail
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Unreachable
from stretto.uuids import uuid4
from support.api_client import TEAM, api_for, settled_create
from support.both_stores import write
from support.command_process import stretto as run
from support.embedded_servers import ask
from support.service_process import ServiceProcess, apis
from support.standby_names import await_none, await_standby
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos.server import OwnServer
    from support.api_client import Reply

LONG = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    " AND query_start < clock_timestamp() - interval '1 second'"
)
TURNS = 4
WAITING_MAX = 4


@pytest.mark.parametrize("is_tracked", [True, False])
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_statement_that_has_run_for_long_and_only_begun_to_wait_names_no_standby(
    server: OwnServer, *, is_awaited: bool, is_tracked: bool
) -> None:
    """Its commit goes on a moment later; the twin is one that does not.

    Where the server does not track since when it has run (`track_activities`), that moment is longer.
    """
    beside, long = await server.connect(), await server.connect()
    await long.execute(f"SET track_activities = {'on' if is_tracked else 'off'}")
    await await_standby(server.dsn)
    statement = "SELECT pg_sleep(1.1), pg_logical_emit_message(true, 'test', '')"
    running = asyncio.create_task(long.fetch(statement))
    await until(lambda: beside.fetch(QUERIES["commits_waiting"]))

    pause_seconds = WAIT_SECONDS if is_tracked else LATE_SECONDS

    async def go_on(seconds: float = pause_seconds) -> None:
        assert pause_seconds == seconds
        await await_none(server.dsn)
        await running

    async def wait(seconds: float) -> None:
        assert pause_seconds == seconds
        assert not running.done()

    assert is_awaited == await waits_for_standby(beside, wait if is_awaited else go_on)
    await go_on()
    for connection in (beside, long):
        await connection.close()


async def test_the_commit_of_another_program_says_nothing(server: OwnServer) -> None:
    """It may wait for more than ours do. The twin has our name."""
    beside, other = await server.connect(), await server.connect()
    await await_standby(server.dsn)
    for is_ours in (False, True):
        await other.execute(f"SET application_name = '{'' if is_ours else 'host'}'")
        running = asyncio.create_task(
            other.execute("SELECT pg_logical_emit_message(true, 'x', '')")
        )
        await until(lambda: beside.fetchval(f"SELECT EXISTS (SELECT FROM ({LONG}) AS waiting)"))
        assert is_ours is bool(await beside.fetch(QUERIES["commits_waiting"]))
        await beside.execute(f"SELECT pg_cancel_backend({other.get_server_pid()})")
        await running
    await await_none(server.dsn)
    for connection in (beside, other):
        await connection.close()


async def test_a_session_whose_statement_was_to_be_cancelled_is_not_used_again(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request may come late, and would end the next one's."""
    sent = asyncio.Event()
    monkeypatch.setattr(driver_connection, "_cancel", lambda _: sent.set())
    async with Database(server.dsn, cut_seconds=1.0) as database:
        sessions = []
        for _ in range(2):
            async with database.connection(Lane.LOOKS) as connection:
                sessions.append(connection.get_server_pid())
                await sent.wait()
    assert 2 == len({*sessions})


async def test_answers_and_log_name_a_standby_that_is_away(server: OwnServer) -> None:
    """A retry reads an outcome, whose commit waits; the log says it once, and for how long."""
    async with AsyncExitStack() as stack:
        settings = {"DATABASE_URL": server.dsn}
        async with ServiceProcess(settings) as first, apis(first) as (api,):
            assert (await settled_create(api, "before")).status == 201
        service = await stack.enter_async_context(ServiceProcess(settings))
        (api,) = await stack.enter_async_context(apis(service))
        await await_standby(server.dsn)
        pending = await api.create("new", TEAM, wait=1)
        assert (409, "attempt_pending") == (pending.status, pending.json["code"])
        for _ in range(2):
            lookup = await api.get("/v1/attempts/before")
            assert (503, "database_unavailable", DETAIL) == (
                *(lookup.status, lookup.json["code"]),
                lookup.json["detail"],
            )
        retry = await api.create("before", TEAM, wait=30)
        assert (503, DETAIL) == (retry.status, retry.json["detail"])
        assert 200 == (await api.get("/readyz")).status
        await await_none(server.dsn)
        for key in ("after", "before", "new"):
            assert (await settled_create(api, key)).status == 201
    lines = [orjson.loads(line) for line in service.log]
    waits = [each for each in lines if each["event"].startswith("standby.")]
    assert ["standby.awaited", "standby.reached"] == [each["event"] for each in waits]
    # Two lookups; the retry is refused at once.
    assert 11 <= waits[1]["seconds"] <= 60
    causes = {each["cause"] for each in lines if each["event"] == "request.database_unavailable"}
    assert {StandbyAwaited.cause} == causes
    # The lead that was cut; the one after it met its lock.
    unknown = [each for each in lines if each.get("kind") == "OutcomeUnknown"]
    assert {StandbyAwaited.cause} == {each["cause"] for each in unknown}


async def test_a_service_keeps_few_of_the_servers_processes_while_a_standby_is_away(
    server: OwnServer,
) -> None:
    """Each write and read that waits is cut off in the end: the server's own would wait on."""
    async with (
        ServiceProcess({"DATABASE_URL": server.dsn}) as service,
        apis(service) as (api,),
    ):
        assert (await settled_create(api, "before")).status == 201
        group = (await settled_create(api, "gone")).json["group_id"]
        await await_standby(server.dsn)

        for number in range(TURNS):
            await api.create(f"new-{number}", TEAM, wait=1)
            await api.request("DELETE", f"/v1/groups/{group}")
            await api.get("/v1/attempts/before")
            assert (await api.get("/readyz")).status == 200
        # A lead and a deletion that were cut; and one of the reads that come again may wait just now.
        waiting = await ask(server.dsn, f"SELECT count(*) FROM ({WAITING}) AS waiting")
        assert isinstance(waiting, int)
        assert waiting <= WAITING_MAX
        await await_none(server.dsn)
        for key in ("before", "new-0"):
            assert (await settled_create(api, key)).status == 201


WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'stretto'"
)
CANCEL = f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting"


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_commit_whose_wait_was_cancelled_is_no_outcome(
    is_guarded: bool, server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reports it as a success, which a failover would lose: it is asked for again."""
    if not is_guarded:
        for module in (driver_connection, deletions):
            monkeypatch.setattr(module, "sure_commits", lambda _: nullcontext())
    assert 0 == (await run("migrate", DATABASE_URL=server.dsn))[0]
    async with api_for(server.dsn) as api:
        group = (await settled_create(api, "before")).json["group_id"]
        await await_standby(server.dsn)

        async def cancelled(request: Awaitable[Reply]) -> int:
            reply = asyncio.ensure_future(request)

            async def is_answered() -> bool:
                await ask(server.dsn, CANCEL)
                return reply.done()

            await until(is_answered)
            return (await reply).status

        asked = {
            "create": api.create("new", TEAM, wait=1 if is_guarded else 30),
            "look": api.get("/v1/attempts/before"),
            "delete": api.request("DELETE", f"/v1/groups/{group}"),
        }
        statuses = {name: await cancelled(request) for name, request in asked.items()}
        if is_guarded:
            assert all(status in (409, 503) for status in statuses.values()), statuses
        else:
            assert all(status < 300 for status in statuses.values()), statuses
        await await_none(server.dsn)
        assert 201 == (await settled_create(api, "new")).status


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_tail_reads_no_event_whose_wait_for_the_standby_was_cancelled(
    is_guarded: bool, server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions would be told of what a failover loses."""
    if not is_guarded:
        monkeypatch.setattr(driver_connection, "sure_commits", lambda _: nullcontext())
    async with Database(server.dsn) as database:
        tail = PostgresTail(database, uuid4())
        await tail.listen(lambda: None)
        begin = await tail.present()
        async with api_for(server.dsn) as api:
            assert 201 == (await settled_create(api, "new")).status
        await await_standby(server.dsn)
        reading = asyncio.ensure_future(tail.page(begin, 10))

        async def is_read() -> bool:
            await ask(server.dsn, CANCEL)
            return reading.done()

        await until(is_read)
        assert isinstance(reading.exception(), Unreachable) is is_guarded
        await tail.close()


@pytest.mark.parametrize("asked", ["attempt", "events"])
async def test_a_read_that_waits_for_a_standby_ends_at_the_server_too(
    asked: str, server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has the same connection: the server's process would wait on, and keep its place."""
    monkeypatch.setattr(connections, "READ_SECONDS", 0.0)
    monkeypatch.setattr(tail, "READ_SECONDS", 0.0)
    async with Database(server.dsn, cut_seconds=1.0) as database:
        attempts, reader = PostgresAttemptStore(database), PostgresTail(database, uuid4())
        await reader.listen(lambda: None)
        begin = await reader.present()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "attempt": lambda: attempts.look(uuid4(), 1.0, UserId("alice")),
            "events": lambda: reader.page(begin, 10),
        }
        async with api_for(server.dsn) as api:
            assert 201 == (await settled_create(api, "new")).status
        await await_standby(server.dsn)
        for _ in range(2):
            await reader.listen(lambda: None)
            with pytest.raises(Unreachable):
                await calls[asked]()
            assert await ask(server.dsn, WAITING) is None
        await await_none(server.dsn)
        await reader.close()


async def test_a_deletion_that_was_given_up_is_not_seen_before_the_standby_has_it(
    server: OwnServer,
) -> None:
    """Its wait is not cancelled: the commit would be visible, and a failover would lose it."""
    async with api_for(server.dsn) as api, Database(server.dsn, cut_seconds=1.0) as database:
        group = UUID((await settled_create(api, "k")).json["group_id"])
        await await_standby(server.dsn)
        with pytest.raises(Unreachable):
            async with PostgresDeletionStore(database).deleting() as delete:
                await delete(Deletion(group, UserId("alice"), None), is_hasty=False)
        assert await ask(server.dsn, WAITING)
        assert (await api.get(f"/v1/groups/{group}")).status == 200
        await await_none(server.dsn)


async def test_nothing_is_written_while_a_commit_is_known_to_wait(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a group nor a deletion: each would keep a process of the server's."""
    async with Database(server.dsn) as database:
        monkeypatch.setattr(database.standby, "require_reached", AsyncMock(side_effect=Unreachable))
        writes = PostgresWriteStore(database, lambda: None)
        with pytest.raises(Unreachable):
            await writes.claim([write("k")])
        assert not writes.is_connected
        with pytest.raises(Unreachable):
            async with PostgresDeletionStore(database).deleting():
                pytest.fail("a connection was opened")


@pytest.mark.parametrize("asked", ["deletions", "attempt", "deletion"])
async def test_that_there_is_nothing_is_said_once_the_standby_has_it(
    asked: str, server: OwnServer
) -> None:
    """A primary that was replaced, and still runs, has nothing of what has come since."""
    alice = UserId("alice")
    async with Database(server.dsn) as database:
        log = PostgresLogStore(database.upkeep)
        attempts, deletions = PostgresAttemptStore(database), PostgresDeletionStore(database)
        begin = await log.present()

        async def delete() -> None:
            async with deletions.deleting() as delete:
                assert await delete(Deletion(uuid4(), alice, None), is_hasty=False) is None

        calls = {
            "deletions": lambda: log.deletions(begin, 9),
            "attempt": lambda: attempts.look(uuid4(), 1.0, alice),
            "deletion": delete,
        }
        await await_standby(server.dsn)
        answer = asyncio.ensure_future(calls[asked]())
        await until(lambda: ask(server.dsn, WAITING))
        assert not answer.done()
        await await_none(server.dsn)
        await answer
