"""The wire to the database breaks at each statement in each way: one group, one answer, in the end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import asyncpg
import pytest

from chaos.wire_proxy import COMMIT_BEHIND, FaultKind
from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.settings import CreatorSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.postgres.connecting import LOCK_SECONDS
from support.api_client import TEAM, api_for, settled_create
from support.database import lock_waiters, pend, sound, writes_held_up
from support.service_process import apis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chaos.wire_proxy import WireProxy
    from support.api_client import Api
    from support.database import Connection
    from support.service_process import StartService

# Beyond the deadline of a write, whose connection is cut then.
DEADLINE_SECONDS = 60
# In one round trip, or in two.
LEADERS = ["claim_and_lead", "claim", "lead_before_hook"]
FINGERPRINT = NewGroup.parse(UserId("alice"), TEAM).fingerprint()
VETO = """CREATE OR REPLACE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS $$
          BEGIN RAISE EXCEPTION 'no'; END$$;
          CREATE OR REPLACE TRIGGER veto BEFORE INSERT ON chat_group
              FOR EACH ROW EXECUTE FUNCTION veto()"""


async def until(event: asyncio.Event) -> None:
    """Wait for what a fault reports."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        await event.wait()


async def leave_alone(*_: object) -> None:
    """Do nothing, as a hook: where there is one, claim and lead are statements of their own."""


@asynccontextmanager
async def api_through(
    proxy: WireProxy, start_service: StartService, statement: str, writers: int = 2
) -> AsyncIterator[Api]:
    """Serve the database behind the proxy in the way in which such a statement is sent."""
    if statement == "claim_and_lead":
        service = await start_service(DATABASE_URL=proxy.dsn, WRITERS=f"{writers}")
        async with apis(service) as (api,):
            yield api
    else:
        settings = ComponentSettings(writers=writers, creator=CreatorSettings(lease_seconds=0.5))
        async with api_for(proxy.dsn, settings, leave_alone) as api:
            yield api


@pytest.mark.parametrize("statement", LEADERS)
async def test_a_broken_statement_of_the_leader_is_its_own_again(
    statement: str, proxy: WireProxy, start_service: StartService, connection: Connection
) -> None:
    """Each request is answered 201 "created", whether its statement was done or not."""
    keys = {kind: f"{kind}".replace(" ", "-") for kind in FaultKind if kind is not FaultKind.HOLD}
    whole = await start_service()
    requests = []
    async with (
        api_through(proxy, start_service, statement, writers=len(keys)) as api,
        apis(whole) as (other,),
    ):
        for kind, key in keys.items():
            fault = proxy.plan(kind, statement)
            requests.append(asyncio.ensure_future(api.create(key, wait=30)))
            # The next one goes to another writer: this one is busy.
            await until(fault.happened)
        replies = await asyncio.gather(*requests)
        again = [await other.create(key) for key in keys.values()]
        after = await api.create("after")
    answered = [(reply.status, reply.headers["Idempotency-Status"]) for reply in [*replies, after]]
    assert [(201, "created")] * (len(keys) + 1) == answered
    assert ["replayed"] * len(keys) == [reply.headers["Idempotency-Status"] for reply in again]
    assert [reply.body for reply in replies] == [reply.body for reply in again]
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == len(keys) + 1
    assert await sound(connection)


@pytest.mark.parametrize(
    ("statement", "winner", "loser"),
    [
        ("claim_and_lead", "created", "replayed"),
        ("claim", "created", "replayed"),
        ("lead_before_hook", "recovered", "replayed"),
    ],
)
async def test_a_statement_delayed_past_the_lease_writes_nothing(
    statement: str,
    winner: str,
    loser: str,
    proxy: WireProxy,
    start_service: StartService,
    connection: Connection,
) -> None:
    """Another replica has done the work by then: the late one gets its group."""
    prompt = await start_service()
    async with api_through(proxy, start_service, statement) as slow, apis(prompt) as (fast,):
        fault = proxy.plan(FaultKind.HOLD, statement)
        waiting = asyncio.ensure_future(slow.create("k", wait=30))
        await until(fault.happened)
        first = await settled_create(fast, "k")
        written = await connection.fetchval("SELECT xmin::text FROM chat_group")
        fault.released.set()
        reply = await waiting
    assert (201, winner) == (first.status, first.headers["Idempotency-Status"])
    assert (201, loser) == (reply.status, reply.headers["Idempotency-Status"])
    assert first.body == reply.body
    assert written == await connection.fetchval("SELECT xmin::text FROM chat_group")
    assert await sound(connection)


@pytest.mark.parametrize("statement", LEADERS)
async def test_a_statement_that_arrives_after_its_repetition_writes_nothing(
    statement: str, proxy: WireProxy, start_service: StartService, connection: Connection
) -> None:
    """The service has cut the connection and done the work on another; then the packet comes."""
    rows = "SELECT status, claim_token, xmin::text FROM attempt"
    async with api_through(proxy, start_service, statement) as api:
        fault = proxy.plan(FaultKind.HOLD, statement)
        reply = await api.create("k", wait=30)
        written = await connection.fetch(rows)
        fault.released.set()
        await until(fault.answered)
        again = await api.create("k")
    assert (201, "created") == (reply.status, reply.headers["Idempotency-Status"])
    assert reply.body == again.body
    assert written == await connection.fetch(rows)
    assert await connection.fetchval("SELECT count(*) FROM conversation") == 1
    assert await sound(connection)


@pytest.mark.parametrize("statement", ["look", "reclaim", "lead"])
@pytest.mark.parametrize("kind", [FaultKind.RESET_BEFORE, FaultKind.RESET_AFTER, FaultKind.TEAR])
async def test_a_broken_recovery_is_recovered_from(
    statement: str,
    kind: FaultKind,
    proxy: WireProxy,
    start_service: StartService,
    connection: Connection,
) -> None:
    """A dead leader's attempt, and the request that takes it over loses the connection as well."""
    await pend(connection, "k", FINGERPRINT, seconds_ago=3600)
    service = await start_service(DATABASE_URL=proxy.dsn)
    fault = proxy.plan(kind, statement)
    async with apis(service) as (api,):
        reply = await settled_create(api, "k")
    assert fault.happened.is_set()
    assert (201, "recovered") == (reply.status, reply.headers["Idempotency-Status"])
    assert "succeeded" == await connection.fetchval("SELECT status FROM attempt")
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 1
    assert await sound(connection)


@pytest.mark.parametrize("kind", [FaultKind.RESET_BEFORE, FaultKind.RESET_AFTER])
async def test_failed_is_answered_only_when_it_is_durable(
    kind: FaultKind, proxy: WireProxy, start_service: StartService, connection: Connection
) -> None:
    """Where the commit of the failure has got lost, the client gets no outcome; later it is final."""
    service = await start_service(DATABASE_URL=proxy.dsn)
    await connection.execute(VETO)
    fault = proxy.plan(kind, f"{COMMIT_BEHIND}set_back_session")
    async with apis(service) as (api,):
        unknown = await api.create("k")
        status = await connection.fetchval("SELECT status FROM attempt")
        refused = await settled_create(api, "k")
        await connection.execute("DROP TRIGGER veto ON chat_group")
        final = await api.create("k")
    assert fault.happened.is_set()
    assert (503, "database_unavailable") == (unknown.status, unknown.json["code"])
    assert status == ("failed" if kind is FaultKind.RESET_AFTER else "pending")
    assert [410, 410] == [refused.status, final.status]
    assert "failed" == await connection.fetchval("SELECT status FROM attempt")
    assert await connection.fetchval("SELECT count(*) FROM conversation") == 0
    assert await sound(connection)


async def test_attempts_truncated_between_claim_and_lead_are_claimed_again(
    proxy: WireProxy, start_service: StartService, connection: Connection
) -> None:
    """And truncated after the answer they heal, at a replica that remembers nothing."""
    other = await start_service()
    async with (
        api_through(proxy, start_service, "lead_before_hook", writers=1) as api,
        apis(other) as (fresh,),
    ):
        fault = proxy.plan(FaultKind.HOLD, "lead_before_hook")
        waiting = asyncio.ensure_future(api.create("k"))
        await until(fault.happened)
        await connection.execute("TRUNCATE attempt")
        fault.released.set()
        reply = await waiting
        assert 3 == proxy.runs["claim"]
        await connection.execute("TRUNCATE attempt")
        healed = await fresh.create("k")
    assert (201, "created") == (reply.status, reply.headers["Idempotency-Status"])
    assert (201, "healed") == (healed.status, healed.headers["Idempotency-Status"])
    assert reply.body == healed.body
    assert await connection.fetchval("SELECT count(*) FROM conversation") == 1
    assert await sound(connection)


@pytest.mark.parametrize("is_alive", [True, False])
async def test_a_connection_that_breaks_between_the_two_commits_leaves_a_claim_to_lead(
    is_alive: bool, proxy: WireProxy, start_service: StartService, connection: Connection
) -> None:
    """The same request leads it, or finds what the broken connection's own lead has written."""
    service = await start_service(DATABASE_URL=proxy.dsn)
    async with apis(service) as (api,):
        async with writes_held_up(connection):
            asking = asyncio.ensure_future(api.create("k", wait=30))
            await lock_waiters(connection, 1)
            (attempt,) = await connection.fetch("SELECT status, claim_token FROM attempt")
            assert "pending" == attempt["status"]
            if is_alive:
                proxy.reset()
                await lock_waiters(connection, 2)
            else:
                await connection.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event = 'advisory'
                         AND pid <> pg_backend_pid()"""
                )
        reply = await asking
    assert (201, "created") == (reply.status, reply.headers["Idempotency-Status"])
    settled = await connection.fetch("SELECT status, claim_token FROM attempt")
    assert [("succeeded", attempt["claim_token"])] == [tuple(row) for row in settled]
    assert await connection.fetchval("SELECT count(*) FROM conversation") == 1
    assert await sound(connection)


async def test_a_network_that_falls_silent_is_reported_and_recovered_from(
    proxy: WireProxy, start_service: StartService, connection: Connection
) -> None:
    """The client is asked to retry before its patience ends; then all is as before."""
    service = await start_service(DATABASE_URL=proxy.dsn)
    async with apis(service) as (api,):
        before = await api.create("before")
        proxy.silence()
        unknown = await api.create("k", wait=1)
        assert unknown.status in (409, 503)
        assert "same-key" == unknown.json["retry"]
        assert before.body == (await api.create("before")).body
        proxy.restore()
        assert (await settled_create(api, "k")).status == 201
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 2
    assert await sound(connection)


@pytest.mark.parametrize(("bound_seconds", "is_freed"), [(1.0, True), (0.0, False)])
async def test_a_session_whose_client_fell_silent_lets_go_of_its_locks(
    bound_seconds: float,
    is_freed: bool,
    proxy: WireProxy,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also between two packets of a statement, and where the wire lives on; else it blocks for ever."""
    monkeypatch.setattr("stretto.postgres.connecting.TRANSACTION_SECONDS", bound_seconds)
    # After a refused lead comes a statement that is not prepared yet: in two packets.
    await connection.execute(VETO)
    async with open_component(proxy.dsn) as component:
        fault = proxy.plan(FaultKind.BLACK_HOLE, "unlocked")
        key, new_group = IdempotencyKey("k"), NewGroup.parse(UserId("alice"), TEAM)
        asking = asyncio.ensure_future(component.creator.create(key, new_group))
        await until(fault.happened)
        patience = DEADLINE_SECONDS if is_freed else 2 * LOCK_SECONDS
        await connection.execute(f"SET lock_timeout = '{patience}s'")
        with nullcontext() if is_freed else pytest.raises(asyncpg.LockNotAvailableError):
            await connection.execute("TRUNCATE attempt")
        await connection.execute("RESET lock_timeout")
        await asyncio.gather(asking, return_exceptions=True)
    assert await sound(connection)
