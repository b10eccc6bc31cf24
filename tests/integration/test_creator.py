"""GroupCreator on a real database: one group per key, whatever happens in between."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import asyncpg
import pytest

from stretto.assembly import ComponentSettings, open_component
from stretto.codec import parse_json
from stretto.creation.attempt import AnswerStatus, AttemptStatus
from stretto.creation.creator import CreatorSettings, GroupCreator
from stretto.creation.writer import GroupWriter
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    DatabaseUnavailable,
    Failure,
    GroupRejected,
    KeyReused,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    Unreachable,
)
from stretto.observations import ConnectionLost, GuaranteeBroken
from stretto.postgres.attempts import PostgresAttemptStore, PostgresWriteStore
from stretto.postgres.check import check_database
from stretto.postgres.connections import Database
from stretto.runtime.mailbox import Mailbox
from support.database import groups
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from stretto.assembly import Component
    from stretto.creation.ports import Write, WriteResult
    from stretto.observations import Event
    from support.database import Connection

ALICE = UserId("alice")
KEY = IdempotencyKey("k")
TEAM = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})
OTHER = NewGroup.parse(ALICE, {"name": "Other"})


async def pend(connection: Connection, *, seconds_ago: float = 0) -> None:
    """Leave a pending attempt of TEAM behind, as a leader that died does."""
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, claimed_at)
           VALUES ($1, 'alice', $2, $3, clock_timestamp() - make_interval(secs => $4))""",
        group_id(ALICE, KEY),
        TEAM.fingerprint(),
        uuid4(),
        seconds_ago,
    )


@asynccontextmanager
async def locked(connection: Connection, table: str) -> AsyncIterator[None]:
    """Hold up every write to a table."""
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {table} IN SHARE MODE")
        yield


async def test_a_hundred_requests_with_one_key_make_one_group(
    component: Component, connection: Connection
) -> None:
    """All name it, and exactly one has created it."""
    answers = await asyncio.gather(*(component.creator.create(KEY, TEAM) for _ in range(100)))
    assert len({answer.group for answer in answers}) == 1
    assert [AnswerStatus.CREATED] == [a.status for a in answers if not a.status.is_replay]
    assert await groups(connection) == 1
    assert (component.creator.flights, component.creator.outcomes) == (0, 1)


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
    assert [] == (await check_database(connection, 30)).faults


async def test_a_settled_attempt_is_answered_from_memory(
    component: Component, connection: Connection
) -> None:
    """The database is not asked for what is known."""
    first = await component.creator.create(KEY, TEAM)
    async with connection.transaction():
        await connection.execute("LOCK TABLE attempt, chat_group IN ACCESS EXCLUSIVE MODE")
        again = await component.creator.create(KEY, TEAM)
    assert (first.group, AnswerStatus.REPLAYED) == (again.group, again.status)


async def test_without_memory_the_attempt_is_replayed(component: Component) -> None:
    """As after a restart."""
    first = await component.creator.create(KEY, TEAM)
    component.creator.forget()
    again = await component.creator.create(KEY, TEAM)
    assert (first.group, AnswerStatus.REPLAYED) == (again.group, again.status)


async def test_a_repeated_body_is_answered_without_being_read(
    component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the very bytes of the same owner's request; any other spelling is read for its meaning."""
    creator, body = component.creator, b'{"name":"Team","members":["bob"]}'
    first = await creator.create_from(ALICE, KEY, body)
    assert AnswerStatus.CREATED is first.status
    respelled = await creator.create_from(ALICE, KEY, body.replace(b":", b" : "))
    assert first.document == respelled.document
    read: list[bytes] = []

    def note(body: bytes) -> object:
        read.append(body)
        return parse_json(body)

    monkeypatch.setattr("stretto.creation.creator.parse_json", note)
    again = await creator.create_from(ALICE, KEY, body)
    assert (first.document, AnswerStatus.REPLAYED) == (again.document, again.status)
    assert not read
    with pytest.raises(KeyReused):
        await creator.create_from(ALICE, KEY, b'{"name":"Other"}')
    assert AnswerStatus.CREATED is (await creator.create_from(UserId("bob"), KEY, body)).status
    creator.forget()
    assert first.document == (await creator.create_from(ALICE, KEY, body)).document
    assert 3 == len(read)


@pytest.mark.parametrize("has_attempt", [True, False])
async def test_a_group_whose_attempt_is_open_or_gone_is_healed(
    has_attempt: bool, component: Component, connection: Connection
) -> None:
    """The domain rows are the truth."""
    first = await component.creator.create(KEY, TEAM)
    await connection.execute("TRUNCATE attempt")
    if has_attempt:
        await pend(connection)
    component.creator.forget()
    again = await component.creator.create(KEY, TEAM)
    assert (first.group, AnswerStatus.HEALED) == (again.group, again.status)
    assert await connection.fetchval("SELECT status FROM attempt") == "succeeded"


async def test_another_body_is_refused_even_after_the_attempt_was_deleted(
    component: Component, connection: Connection
) -> None:
    """And leaves nothing behind that would shut out the first body."""
    await component.creator.create(KEY, TEAM)
    with pytest.raises(KeyReused):
        await component.creator.create(KEY, OTHER)
    await connection.execute("TRUNCATE attempt")
    component.creator.forget()
    with pytest.raises(KeyReused):
        await component.creator.create(KEY, OTHER)
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0
    assert (await component.creator.create(KEY, TEAM)).status is AnswerStatus.HEALED


async def test_two_bodies_at_once_make_one_group_and_one_refusal(
    component: Component, connection: Connection
) -> None:
    """Whichever takes off first owns the key."""
    results = await asyncio.gather(
        component.creator.create(KEY, TEAM),
        component.creator.create(KEY, OTHER),
        component.creator.create(KEY, TEAM),
        return_exceptions=True,
    )
    assert [False, True, False] == [isinstance(result, KeyReused) for result in results]
    assert await groups(connection) == 1


async def test_a_dead_leaders_attempt_is_recovered_after_its_lease(
    component: Component, connection: Connection
) -> None:
    """The next request with the key finishes it; nothing else is needed."""
    await pend(connection, seconds_ago=60)
    answer = await component.creator.create(KEY, TEAM)
    assert answer.status is AnswerStatus.RECOVERED
    assert await groups(connection) == 1


async def test_a_request_waits_for_the_lease_and_then_recovers(
    component: Component, connection: Connection
) -> None:
    """Its own wait is longer than the lease, so it is answered, not sent away."""
    await pend(connection)
    assert (await component.creator.create(KEY, TEAM)).status is AnswerStatus.RECOVERED


async def test_a_pending_attempt_is_told_when_the_wait_is_over(
    database_url: str, connection: Connection
) -> None:
    """409, and no write of this request's is left on its way."""
    settings = ComponentSettings(creator=CreatorSettings(lease_seconds=600))
    await pend(connection)
    async with open_component(database_url, settings=settings) as component:
        with pytest.raises(AttemptPending):
            await component.creator.create(KEY, TEAM, wait_seconds=0)
        assert (await component.lookup.look_up(ALICE, KEY, 0)).status is AttemptStatus.PENDING


async def test_a_pending_attempt_delays_only_its_own_key(
    component: Component, connection: Connection
) -> None:
    """G6: others are created meanwhile."""
    await pend(connection)
    waiting = asyncio.ensure_future(component.creator.create(KEY, TEAM))
    answer = await component.creator.create(IdempotencyKey("another"), TEAM)
    assert answer.status is AnswerStatus.CREATED
    assert not waiting.done()
    assert (await waiting).status is AnswerStatus.RECOVERED


async def test_a_request_that_is_given_up_is_finished_all_the_same(
    component: Component, connection: Connection
) -> None:
    """The client has gone, its group comes; the retry finds it."""
    async with locked(connection, "chat_group"):
        request = asyncio.ensure_future(component.creator.create(KEY, TEAM))
        await until(lambda: connection.fetchval("SELECT count(*) FROM attempt"))
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    again = await component.creator.create(KEY, TEAM)
    assert again.status is AnswerStatus.REPLAYED
    assert await groups(connection) == 1


async def test_a_rejected_group_fails_for_good(database_url: str, connection: Connection) -> None:
    """The host's reason is stored, told, and told again after a restart."""

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


async def test_a_failed_attempt_with_a_group_is_loud(
    component: Component, connection: Connection, events: list[Event]
) -> None:
    """G4 is broken: the client gets its group, the operator an alarm."""
    first = await component.creator.create(KEY, TEAM)
    await connection.execute(
        """TRUNCATE attempt;
           INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, failure_code,
                                failure_detail, settled_at)
           SELECT group_id, owner_id, fingerprint, group_id, 'failed', 'x', 'y', clock_timestamp()
           FROM chat_group"""
    )
    component.creator.forget()
    again = await component.creator.create(KEY, TEAM)
    assert first.group == again.group
    assert GuaranteeBroken(first.group.group_id) in events


async def test_a_writer_that_loses_its_connection_forgets_and_goes_on(
    component: Component, connection: Connection, events: list[Event]
) -> None:
    """Behind the new connection may be another server."""
    first = await component.creator.create(KEY, TEAM)
    await connection.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'stretto'"""
    )
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


async def test_a_commit_whose_acknowledgement_is_lost_is_found(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is committed, its answer never comes: created all the same, and once."""
    losses = [1, 2]

    class LossyStore(PostgresWriteStore):
        async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
            led = await super().lead(writes, is_hasty=is_hasty)
            if losses:
                losses.pop()
                raise OutcomeUnknown("the answer was lost")
            return led

    monkeypatch.setattr("stretto.assembly.PostgresWriteStore", LossyStore)
    async with open_component(database_url) as component:
        answer = await component.creator.create(KEY, TEAM)
    assert answer.status is AnswerStatus.CREATED
    assert await groups(connection) == 1


async def test_a_full_mailbox_sheds_before_the_claim(
    database_url: str, connection: Connection
) -> None:
    """503 at once, and no row of the shed requests (G7)."""
    settings = ComponentSettings(writers=1, batch_max=1, mailbox_max=1)
    async with open_component(database_url, settings=settings) as component:
        async with locked(connection, "chat_group"):
            requests = [
                asyncio.ensure_future(component.creator.create(IdempotencyKey(f"k{n}"), TEAM))
                for n in range(5)
            ]
            done, _ = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
            assert all(isinstance(request.exception(), Overloaded) for request in done)
        results = await asyncio.gather(*requests, return_exceptions=True)
    created = sum(not isinstance(result, Overloaded) for result in results)
    assert created < 5
    assert created == await groups(connection)
    assert created == await connection.fetchval("SELECT count(*) FROM attempt")


async def test_a_limited_owner_claims_nothing(database_url: str, connection: Connection) -> None:
    """Replays are not limited: only new attempts are."""
    settings = ComponentSettings(creator=CreatorSettings(rate_per_owner=0.001))
    async with open_component(database_url, settings=settings) as component:
        await component.creator.create(KEY, TEAM)
        with pytest.raises(RateLimited):
            await component.creator.create(IdempotencyKey("another"), TEAM)
        assert (await component.creator.create(KEY, TEAM)).status is AnswerStatus.REPLAYED
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 1


async def test_stopping_lands_what_flies_and_refuses_the_rest(
    database_url: str, connection: Connection
) -> None:
    """A claimed attempt is finished, a new request is not begun."""
    async with open_component(database_url) as component:
        async with locked(connection, "chat_group"):
            request = asyncio.ensure_future(component.creator.create(KEY, TEAM))
            await until(lambda: connection.fetchval("SELECT count(*) FROM attempt"))
            stopping = asyncio.ensure_future(component.creator.stop())
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await component.creator.create(IdempotencyKey("another"), TEAM)
        await stopping
        assert (await request).status is AnswerStatus.CREATED
        await component.creator.stop()
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 1


async def test_a_database_that_is_away_is_told_and_found_again(
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


async def test_looking_up_tells_what_became_of_an_attempt(
    component: Component, connection: Connection
) -> None:
    """It takes nothing over, and puts nothing back: the group alone answers."""
    with pytest.raises(NotFound):
        await component.lookup.look_up(ALICE, KEY, 0)
    await pend(connection, seconds_ago=60)
    pending = await component.lookup.look_up(ALICE, KEY, 0)
    assert (AttemptStatus.PENDING, None) == (pending.status, pending.settled_at)
    created = await component.creator.create(KEY, TEAM)
    await connection.execute("TRUNCATE attempt")
    swept = await component.lookup.look_up(ALICE, KEY, 0)
    assert (AttemptStatus.SUCCEEDED, created.group.conversation_id) == (
        swept.status,
        swept.conversation_id,
    )
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           SELECT group_id, owner_id, fingerprint, group_id FROM chat_group"""
    )
    await component.lookup.look_up(ALICE, KEY, 0)
    assert await connection.fetchval("SELECT status FROM attempt") == "succeeded"


async def test_one_creation_costs_two_round_trips(
    database_url: str, connection: Connection
) -> None:
    """Claim and lead, also for the first one: counted by the server, with nothing else at work."""
    count = """SELECT sum(calls)::int FROM pg_stat_statements
               WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database(database_url))
        mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
        store = PostgresWriteStore(database, on_lost=lambda: None)
        # Connects, and has its statements planned, before anything is counted.
        await store.open()
        writer = GroupWriter(mailbox, store, lambda _: None, batch_max=10)
        creator = await stack.enter_async_context(
            GroupCreator(mailbox, PostgresAttemptStore(database), CreatorSettings(), lambda _: None)
        )
        counted = await connection.fetchval(count)
        price_of_counting = await connection.fetchval(count) - counted
        counted = await connection.fetchval(count)
        creating = asyncio.ensure_future(creator.create(KEY, TEAM))
        assert 1 == await writer.run_once()
        await creating
        assert 2 == await connection.fetchval(count) - counted - price_of_counting
        await store.close()


async def test_a_second_body_does_not_outwait_its_own_patience(
    component: Component, connection: Connection
) -> None:
    """With `wait=0` it is told to come again while the first body's request is still under way."""
    async with locked(connection, "chat_group"):
        first = asyncio.ensure_future(component.creator.create(KEY, TEAM))
        await until(lambda: component.creator.flights)
        with pytest.raises(AttemptPending):
            await component.creator.create(KEY, OTHER, wait_seconds=0)
        assert not first.done()
    assert (await first).status is AnswerStatus.CREATED


async def test_what_was_found_before_the_last_loss_is_not_remembered_after_it(
    component: Component, connection: Connection
) -> None:
    """It may be of a server that has been replaced since; what is found after it is remembered."""
    async with locked(connection, "chat_group"):
        creating = asyncio.ensure_future(component.creator.create(KEY, TEAM))
        await until(lambda: connection.fetchval("SELECT count(*) FROM attempt"))
        component.creator.forget()
    first = await creating
    assert component.creator.outcomes == 0
    assert first.group == (await component.creator.create(KEY, TEAM)).group
    assert component.creator.outcomes == 1
