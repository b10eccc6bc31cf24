"""No key harms another (G6): neighbours are created while one key is held up, or poisons its batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation import apart
from stretto.creation.attempt import AnswerStatus, AttemptStatus
from stretto.creation.flight import Answer
from stretto.creation.settings import CreatorSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import AttemptFailed, DatabaseUnavailable
from stretto.observations import BatchWritten, ConnectionLost, WriteFailed
from stretto.postgres.check import check_database
from support.database import pend
from support.routines import change_routine
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stretto.assembly.component import Component
    from stretto.observations import Observation
    from support.database import Connection

ALICE: Final = UserId("alice")
TEAM: Final = NewGroup.parse(ALICE, {"name": "Team"})
# One writer, so that all requests of a moment are neighbours in its batch.
ONE_WRITER: Final = ComponentSettings(writers=1, creator=CreatorSettings(lease_seconds=600))
LEAVES_OUT: Final = "AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = claim.group_id)"


def keys(name: str, count: int) -> list[IdempotencyKey]:
    """Return so many keys."""
    return [IdempotencyKey(f"{name}{number}") for number in range(count)]


async def created(component: Component, wanted: Iterable[IdempotencyKey]) -> list[Answer]:
    """Create a group for each key, all at once."""
    return await asyncio.gather(*(component.creator.create(key, TEAM) for key in wanted))


def failures(events: list[Observation]) -> list[str]:
    """Return what did not go through."""
    return [type(event.error).__name__ for event in events if isinstance(event, WriteFailed)]


async def beside_a_held_leader(database_url: str) -> tuple[list[Observation], list[Answer]]:
    """Hold a leader at one replica in the host's hook; repeat its keys, and create others, at another.

    The others are answered while the leader is held. Returns what the other replica has observed by
    then, and the answers to the repeated requests.
    """
    reached, released = asyncio.Event(), asyncio.Event()
    events: list[Observation] = []

    async def hold(*_: object) -> None:
        reached.set()
        await released.wait()

    async with (
        open_component(database_url, settings=ONE_WRITER, on_create=hold) as one,
        open_component(database_url, settings=ONE_WRITER, observe=events.append) as other,
    ):
        held = keys("held", 8)
        leading = asyncio.ensure_future(created(one, held))
        await reached.wait()
        repeated = asyncio.ensure_future(created(other, held))
        answers = await created(other, keys("free", 24))
        assert {AnswerStatus.CREATED} == {answer.status for answer in answers}
        assert not leading.done()
        assert not repeated.done()
        seen = list(events)
        released.set()
        await leading
        return seen, await repeated


async def test_keys_that_are_led_elsewhere_hold_up_no_other(database_url: str) -> None:
    """Their requests follow without waiting for a row; each finds the group in the end."""
    events, repeated = await beside_a_held_leader(database_url)
    assert [] == failures(events)
    assert {AnswerStatus.REPLAYED} == {answer.status for answer in repeated}


async def test_a_claim_that_meets_rows_under_way_waits_for_them(
    database_url: str, connection: Connection
) -> None:
    """The twin: without leaving out what exists, each of them costs the others a lock time-out."""
    await change_routine(connection, "claim_attempts_1", LEAVES_OUT)
    events, repeated = await beside_a_held_leader(database_url)
    assert "Locked" in failures(events)
    # Even then no request is answered 503 by a database that lives.
    assert {AnswerStatus.REPLAYED} == {answer.status for answer in repeated}


async def test_a_claim_that_another_backend_has_not_committed_holds_up_no_other(
    database_url: str, connection: Connection
) -> None:
    """No statement can see it, so the claim waits, briefly; its request follows, the others lead."""
    held = IdempotencyKey("held")
    async with open_component(database_url, settings=ONE_WRITER) as component:
        async with connection.transaction():
            await pend(connection, held, TEAM.fingerprint())
            following = asyncio.ensure_future(component.creator.create(held, TEAM))
            free = await created(component, keys("free", 8))
            assert {AnswerStatus.CREATED} == {answer.status for answer in free}
            assert not following.done()
            await connection.execute("DELETE FROM attempt")
        assert AnswerStatus.CREATED is (await following).status


async def test_claims_that_are_never_committed_hold_up_a_batch_once(
    database_url: str, connection: Connection
) -> None:
    """Their keys are known then, and come after the others, however often they are repeated."""
    held = keys("held", 8)
    events: list[Observation] = []
    async with (
        open_component(database_url, settings=ONE_WRITER, observe=events.append) as component,
        connection.transaction(),
    ):
        for key in held:
            await pend(connection, key, TEAM.fingerprint())
        waiting = asyncio.ensure_future(created(component, held))
        for wave in range(3):
            answers = await created(component, keys(f"free{wave}-", 8))
            assert {AnswerStatus.CREATED} == {answer.status for answer in answers}
        shared = [e for e in events if isinstance(e, WriteFailed) and e.writes > 1]
        assert 1 == len(shared)
        assert not waiting.done()
        waiting.cancel()


async def test_a_row_of_the_hosts_that_is_locked_fails_its_own_key_alone(
    database_url: str, connection: Connection
) -> None:
    """A user who is being deleted, where the host's key refers to users: neighbours are created."""
    await connection.execute(
        """CREATE TABLE app_user (user_id text PRIMARY KEY);
           INSERT INTO app_user VALUES ('alice'), ('mallory');
           ALTER TABLE conversation_member ADD FOREIGN KEY (user_id) REFERENCES app_user"""
    )
    mallory = NewGroup.parse(UserId("mallory"), {"name": "Team"})
    async with open_component(database_url, settings=ONE_WRITER) as component:
        async with connection.transaction():
            await connection.execute("SELECT FROM app_user WHERE user_id = 'mallory' FOR UPDATE")
            create = component.creator.create
            clients = [create(key, mallory) for key in keys("p", 3)]
            clients += [create(key, TEAM) for key in keys("k", 45)]
            results = await asyncio.gather(*clients, return_exceptions=True)
        assert [DatabaseUnavailable] * 3 == [type(result) for result in results[:3]]
        assert [AnswerStatus.CREATED] * 45 == [
            result.status for result in results if isinstance(result, Answer)
        ]


async def poison(connection: Connection, table: str, state: str) -> None:
    """Have the database raise a state for every row of a poisoned group."""
    await connection.execute(
        f"""CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RAISE EXCEPTION 'poison' USING ERRCODE = '{state}'; END$$;
            CREATE TRIGGER poison BEFORE INSERT ON {table} FOR EACH ROW
            WHEN (NEW.owner_id = 'mallory') EXECUTE FUNCTION poison()"""
    )


@pytest.mark.parametrize("table", ["attempt", "chat_group"])
@pytest.mark.parametrize("state", ["XX000", "58030", "08006", "08P01", "40003", "42703", "55000"])
async def test_a_poisoned_key_fails_alone_whatever_its_error(
    state: str,
    table: str,
    database_url: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three among 48: neighbours are created, nothing is forgotten, and no connection is dropped."""
    # A busy machine may take longer for all of them than others are to wait.
    for limit in ("APART_SECONDS_MAX", "OWNER_SECONDS_MAX"):
        monkeypatch.setattr(apart, limit, 60.0)
    await poison(connection, table, state)
    events: list[Observation] = []
    poisoned = NewGroup.parse(UserId("mallory"), {"name": "Team"})
    async with open_component(
        database_url, settings=ONE_WRITER, observe=events.append
    ) as component:
        (before,) = await created(component, keys("before", 1))
        create = component.creator.create
        clients = [create(key, poisoned) for key in keys("p", 3)]
        clients += [create(key, TEAM) for key in keys("k", 45)]
        results = await asyncio.gather(*clients, return_exceptions=True)
        assert [DatabaseUnavailable] * 3 == [type(result) for result in results[:3]]
        assert {AnswerStatus.CREATED} == {
            result.status for result in results[3:] if isinstance(result, Answer)
        }
        assert 46 == component.creator.outcomes
        assert ConnectionLost() not in events
        # One batch for the first, one for all: each neighbour had one more try, and no more.
        assert [1, 48] == [event.writes for event in events if isinstance(event, BatchWritten)]
        assert 1 + 3 == len(failures(events))
        assert before.document == (await created(component, keys("before", 1)))[0].document
        if table == "chat_group":
            # Their outcome stays unknown: neither failed nor forgotten.
            report = await component.lookup.look_up(UserId("mallory"), keys("p", 1)[0], 0)
            assert AttemptStatus.PENDING is report.status


async def test_heals_of_one_owner_that_wait_leave_a_place_to_others(
    database_url: str, connection: Connection
) -> None:
    """Those of its look-ups and of its creations together: they share the connections."""
    bob = NewGroup.parse(UserId("bob"), {"name": "Team"})
    looked_up, key = keys("k", 2)
    async with open_component(database_url) as before:
        await created(before, (looked_up, key))
        await before.creator.create(key, bob)
    await connection.execute("DELETE FROM attempt")
    for pended, group in ((looked_up, TEAM), (key, TEAM), (key, bob)):
        await pend(connection, pended, group.fingerprint(), owner=group.owner)
    await connection.execute(
        """CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END$$;
           CREATE TRIGGER wait BEFORE UPDATE ON attempt FOR EACH ROW
           WHEN (NEW.owner_id = 'alice') EXECUTE FUNCTION wait()"""
    )
    async with (
        open_component(database_url) as component,
        asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool,
        pool.acquire() as host,
        host.transaction(),
    ):
        await host.execute("SELECT pg_advisory_xact_lock(1)")
        waiting = [
            asyncio.ensure_future(component.lookup.look_up(ALICE, looked_up, 0)),
            asyncio.ensure_future(component.creator.create(key, TEAM)),
        ]

        async def begun() -> int:
            waiters = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            return int(await connection.fetchval(waiters))

        async def have_asked() -> bool:
            return bool(component.creator.places._waiting) or await begun() > 1

        await until(have_asked)
        assert await begun() <= 1
        assert AnswerStatus.HEALED is (await component.creator.create(key, bob)).status
        assert [False, False] == [each.done() for each in waiting]
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


async def test_a_failure_lasts_as_long_as_its_attempt(
    database_url: str, connection: Connection
) -> None:
    """Refused at one replica, truncated, created at the other: the first says what the database says."""
    await poison(connection, "chat_group", "P0001")
    key = IdempotencyKey("k")
    mallory = NewGroup.parse(UserId("mallory"), {"name": "Team"})
    async with open_component(database_url) as one, open_component(database_url) as other:
        for _ in range(2):
            with pytest.raises(AttemptFailed):
                await one.creator.create(key, mallory)
        await connection.execute("TRUNCATE attempt; DROP TRIGGER poison ON chat_group")
        there = await other.creator.create(key, mallory)
        assert AnswerStatus.CREATED is there.status
        here = await one.creator.create(key, mallory)
        assert (there.document, AnswerStatus.REPLAYED) == (here.document, here.status)
        report = await one.lookup.look_up(mallory.owner, key, 0)
        assert AttemptStatus.SUCCEEDED is report.status


async def test_a_group_that_is_created_again_has_another_event(
    database_url: str, connection: Connection
) -> None:
    """Equal ids mean equal content: a consumer must not keep the lost group's event."""
    async with open_component(database_url) as component:
        await created(component, keys("k", 1))
        await connection.execute("DELETE FROM conversation; DELETE FROM attempt")
        component.creator.forget()
        (answer,) = await created(component, keys("k", 1))
    assert AnswerStatus.CREATED is answer.status
    events = await connection.fetch("SELECT DISTINCT event_id, subject FROM outbox")
    assert (2, 1) == (len(events), len({event["subject"] for event in events}))
    assert [] == (await check_database(connection, retention_days=30)).violations
