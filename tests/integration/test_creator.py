"""GroupCreator on a real database: one group per key, whatever happens in between."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import asyncpg
import pytest

from chaos.wire_proxy import WireProxy
from stretto.assembly.opening import open_component
from stretto.creation.attempt import AnswerStatus
from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.creator import GroupCreator
from stretto.creation.settings import CreatorSettings
from stretto.creation.writer import GroupWriter
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    DatabaseUnavailable,
    Failure,
    GroupRejected,
    Overloaded,
)
from stretto.observations import ConnectionLost
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.check import check_database
from stretto.postgres.connections import Database
from stretto.postgres.writes import PostgresWriteStore
from stretto.runtime.mailbox import Mailbox
from stretto.store_errors import Unreachable
from support.both_stores import write
from support.database import END_OURS, groups

if TYPE_CHECKING:
    from stretto.assembly.component import Component
    from stretto.creation.ports import Write, WriteResult
    from stretto.observations import Observation
    from support.database import Connection

ALICE = UserId("alice")
KEY = IdempotencyKey("k")
TEAM = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})


async def test_a_hundred_requests_with_one_key_make_one_group(
    component: Component, connection: Connection
) -> None:
    """All name it, and exactly one has created it."""
    answers = await asyncio.gather(*(component.creator.create(KEY, TEAM) for _ in range(100)))
    assert len({answer.group for answer in answers}) == 1
    assert [AnswerStatus.CREATED] == [a.status for a in answers if not a.status.is_replay]
    assert await groups(connection) == 1
    assert (component.creator.flights, component.creator.outcomes) == (0, 1)


@pytest.mark.parametrize(("is_claimed", "kind"), [(True, AttemptPending), (False, Overloaded)])
async def test_a_claimed_write_without_a_place_stays_pending(
    is_claimed: bool, kind: type[Exception], component: Component
) -> None:
    """Such as one that a follower has reclaimed: it is not answered that nothing was done."""
    component.mailbox.messages_max = 0
    with pytest.raises(kind):
        component.mailbox.ask(replace(write("k"), is_claimed=is_claimed))


async def test_two_replicas_make_one_group(
    component: Component, database_url: str, connection: Connection
) -> None:
    """What is not in this process's memory is decided in the database."""
    async with open_component(database_url) as replica:
        both = (component.creator, replica.creator)
        for number in range(20):
            key = IdempotencyKey(f"k{number}")
            answers = await asyncio.gather(*(c.create(key, TEAM) for c in both * 5))
            assert len({answer.group for answer in answers}) == 1
            assert sum(not answer.status.is_replay for answer in answers) == 1
    assert await groups(connection) == 20
    assert [] == (await check_database(connection, 30)).violations


async def test_without_memory_the_attempt_is_replayed(component: Component) -> None:
    """As after a restart."""
    first = await component.creator.create(KEY, TEAM)
    component.creator.forget()
    again = await component.creator.create(KEY, TEAM)
    assert (first.group, AnswerStatus.REPLAYED) == (again.group, again.status)


async def test_a_rejected_group_fails_for_good(database_url: str, connection: Connection) -> None:
    """The host's reason is stored, answered, and answered again after a restart."""

    async def reject(*_: object) -> None:
        raise GroupRejected("quota", "Ten groups are enough.")

    for _ in range(2):
        async with open_component(database_url, on_create=reject) as component:
            for _ in range(2):
                with pytest.raises(AttemptFailed) as failed:
                    await component.creator.create(KEY, TEAM)
                assert Failure("quota", "Ten groups are enough.") == failed.value.failure
    async with open_component(database_url) as component:
        with pytest.raises(AttemptFailed):
            await component.creator.create(KEY, TEAM)
    assert await groups(connection) == 0


async def test_a_writer_that_loses_its_connection_forgets_and_goes_on(
    component: Component, connection: Connection, events: list[Observation]
) -> None:
    """Behind the new connection may be another server."""
    first = await component.creator.create(KEY, TEAM)
    await connection.execute(END_OURS)
    answers = [
        await component.creator.create(IdempotencyKey(f"k{number}"), TEAM) for number in range(4)
    ]
    assert {AnswerStatus.CREATED} == {answer.status for answer in answers}
    assert ConnectionLost() in events
    again = await component.creator.create(KEY, TEAM)
    assert (first.group, AnswerStatus.REPLAYED) == (again.group, again.status)


async def test_a_backend_that_dies_before_its_commit_is_led_again(
    component: Component, connection: Connection
) -> None:
    """The outcome is unknown, found to be none, and the write is done anew: created."""
    await connection.execute(
        """CREATE SEQUENCE deaths;
           CREATE FUNCTION die_once() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
               IF nextval('stretto.deaths') = 1 THEN
                   PERFORM pg_terminate_backend(pg_backend_pid());
               END IF;
               RETURN NULL;
           END$$;
           CREATE TRIGGER die_once AFTER INSERT ON outbox
               FOR EACH ROW EXECUTE FUNCTION die_once()"""
    )
    answer = await component.creator.create(KEY, TEAM)
    assert answer.status is AnswerStatus.CREATED
    assert await groups(connection) == 1


async def test_a_database_that_is_away_is_reported_and_found_again(
    database_url: str, connection: Connection
) -> None:
    """No restart is needed."""
    name = await connection.fetchval("SELECT current_database()")
    async with open_component(database_url) as component:
        admin = await asyncpg.connect(database_url.replace(name, "postgres"))
        await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
        await connection.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()"""
        )
        with pytest.raises(DatabaseUnavailable):
            await component.creator.create(KEY, TEAM)
        await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
        assert (await component.creator.create(KEY, TEAM)).status is AnswerStatus.CREATED
        await admin.close()


async def test_a_database_that_cannot_be_written_is_as_good_as_none(
    database_url: str, connection: Connection
) -> None:
    """A standby, or a primary that was fenced off: nothing is decided by what it holds."""
    name = await connection.fetchval("SELECT current_database()")
    read_only = f'ALTER DATABASE "{name}" SET default_transaction_read_only'
    await connection.execute(f"{read_only} = on")
    with pytest.raises(Unreachable, match="read-only"):
        async with open_component(database_url):
            raise AssertionError
    await connection.execute(f"{read_only} = off")
    async with open_component(database_url) as component:
        assert (await component.creator.create(KEY, TEAM)).status is AnswerStatus.CREATED


async def test_one_creation_costs_one_round_trip(database_url: str) -> None:
    """Claims and leads, also the first one: counted on the wire, with nothing else at work."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(WireProxy(database_url))
        database = await stack.enter_async_context(Database(proxy.dsn))
        mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
        store = PostgresWriteStore(database, on_lost=lambda: None)
        # Connects, and has its statements planned, before anything is counted.
        await store.open()
        breakers = OwnerBreakers(lambda _: None)
        writer = GroupWriter(Baton(mailbox), store, lambda _: None, breakers=breakers, batch_max=10)
        creator = await stack.enter_async_context(
            GroupCreator(mailbox, PostgresAttemptStore(database), CreatorSettings(), lambda _: None)
        )
        counted = proxy.trips
        creating = asyncio.ensure_future(creator.create(KEY, TEAM))
        assert 1 == await writer.run_once()
        await creating
        assert 1 == proxy.trips - counted
        await store.close()
