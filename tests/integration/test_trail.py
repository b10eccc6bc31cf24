"""Trails on a real database: what is in them, what follows from them, what they never stop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_asyncio

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.attempt import AnswerStatus
from stretto.creation.settings import CreatorSettings
from stretto.creation.trail import TrailEntry
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import AttemptFailed, DatabaseUnavailable, Failure, GroupRejected, KeyReused
from stretto.observations import AttemptStrayed
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.migrate import grant
from stretto.postgres.trail import PostgresTrailStore, instance
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Unreachable
from support.both_stores import write
from support.command_process import stretto
from support.database import pend, sound
from support.traces import TRACE_ID, traced_request
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from stretto.assembly.component import Component
    from stretto.creation.ports import Write
    from stretto.domain import CreatedGroup
    from stretto.postgres.connections import Database
    from support.database import Connection

ALICE = UserId("alice")
KEY = IdempotencyKey("k")
ID = group_id(ALICE, KEY)
TEAM = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})
OTHER = NewGroup.parse(ALICE, {"name": "Other"})
FAILURE = Failure("quota", "Too many groups.")


@dataclass(frozen=True)
class Rebuilt:
    """What of an attempt's row follows from its group and its trail, and who wrote its claim."""

    status: str
    claim_token: UUID
    claimed_at: datetime
    conversation_id: UUID | None
    failure_code: str | None
    instance: str


def rebuilt(conversation_id: UUID | None, trail: Sequence[TrailEntry]) -> Rebuilt | None:
    """Return the row as the last claim in the trail has left it; None if there is no claim in it.

    An entry with `claimed_at` shows a row that carries `token_after`. Of that claim: it has failed
    if an entry says so; else it has succeeded if there is a group, as both are one commit; else it
    is pending.
    """
    claims = [entry for entry in trail if entry.claimed_at is not None]
    if not claims:
        return None
    last = claims[-1]
    own = [entry for entry in claims if entry.token_after == last.token_after]
    code = next((entry.code for entry in own if entry.what == "failed"), None)
    status = "failed" if code else "pending" if conversation_id is None else "succeeded"
    assert last.token_after is not None
    assert last.claimed_at is not None
    return Rebuilt(
        *(status, last.token_after, last.claimed_at, conversation_id, code, own[0].instance)
    )


async def row(connection: Connection, id_: UUID = ID) -> Rebuilt:
    """Return the row itself, with the instance of this test."""
    found = await connection.fetchrow(
        """SELECT status, claim_token, claimed_at, conversation_id, failure_code
           FROM attempt WHERE group_id = $1""",
        id_,
    )
    assert found is not None
    return Rebuilt(**found, instance=instance())


async def group_of(connection: Connection, id_: UUID = ID) -> UUID | None:
    """Return the conversation of a group, if there is one."""
    found: UUID | None = await connection.fetchval(
        "SELECT conversation_id FROM chat_group WHERE group_id = $1", id_
    )
    return found


class Steps:
    """The statements of a writer and of a follower, and the trail that they leave."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.writes = PostgresWriteStore(database, on_lost=lambda: None)
        self.attempts = PostgresAttemptStore(database, now=lambda: self.now)
        self.trail = PostgresTrailStore(database)
        self.connection = connection
        self.now: datetime | None = None

    async def whats(self) -> list[str]:
        """Return what is in the trail."""
        return [entry.what for entry in await self.trail.read(ID)]

    async def reclaim(self, claimed: Write) -> Write:
        """Take an attempt over; return the write that may lead it now."""
        ours = replace(write("k"), is_claimed=True, request=traced_request())
        with traced_request():
            assert await self.attempts.reclaim(ID, claimed.claim_token, ours.claim_token, 0)
        return ours

    async def heal(self) -> None:
        """Settle an attempt whose group exists."""
        with traced_request():
            await self.attempts.heal(ID)

    async def is_rebuilt(self) -> bool:
        """Whether the row follows from the group and the trail."""
        conversation_id = await group_of(self.connection)
        actual = await row(self.connection)
        return actual == rebuilt(conversation_id, await self.trail.read(ID))


@pytest_asyncio.fixture
async def steps(database: Database, connection: Connection) -> AsyncIterator[Steps]:
    """On connections that end with the test."""
    steps = Steps(database, connection)
    yield steps
    await steps.writes.close()


async def test_the_normal_way_leaves_no_trail(component: Component, connection: Connection) -> None:
    """A claim, its lead, a replay from memory, and one from the attempt."""
    for _ in range(2):
        await component.creator.create(KEY, TEAM)
    component.creator.forget()
    await component.creator.create(KEY, TEAM)
    await component.trail.run_once()
    assert 0 == await connection.fetchval("SELECT count(*) FROM attempt_trail")


async def test_the_row_is_rebuilt_after_every_step(steps: Steps, connection: Connection) -> None:
    """Taken over, taken over again, led; healed without the row, and with an old one."""
    first = write("k")
    await steps.writes.claim([first])
    # The clock of a primary that is replaced then: the order is that of rows, not of times.
    steps.now = datetime.now(UTC) + timedelta(hours=1)
    second = await steps.reclaim(first)
    assert await steps.is_rebuilt()
    steps.now = None
    third = await steps.reclaim(second)
    assert await steps.is_rebuilt()
    assert {third.claim_token} == await steps.writes.lead([third])
    assert await steps.is_rebuilt()
    assert ["reclaimed", "reclaimed"] == await steps.whats()
    # The row is lost, and comes back.
    await connection.execute("TRUNCATE attempt")
    await steps.heal()
    assert await steps.is_rebuilt()
    # A row of the time before the group's commit is put back.
    await connection.execute("TRUNCATE attempt")
    await pend(connection, "k", TEAM.fingerprint(), seconds_ago=60)
    await steps.heal()
    assert await steps.is_rebuilt()
    assert ["reclaimed", "reclaimed", "healed", "healed"] == await steps.whats()
    # A heal that finds nothing to do adds nothing.
    await steps.heal()
    assert 4 == len(await steps.whats())


@pytest.mark.parametrize("is_reclaimed", [False, True])
async def test_a_failed_row_is_rebuilt(is_reclaimed: bool, steps: Steps) -> None:
    """By its first leader, or by the one that took it over."""
    ours = write("k")
    await steps.writes.claim([ours])
    if is_reclaimed:
        late, ours = ours, await steps.reclaim(ours)
        assert not await steps.writes.fail(late, FAILURE)
        assert ["reclaimed"] == await steps.whats()
    assert await steps.writes.fail(ours, FAILURE)
    assert await steps.is_rebuilt()
    entry = (await steps.trail.read(ID))[-1]
    assert ("failed", "quota", ours.claim_token, ours.trace_id) == (
        *(entry.what, entry.code, entry.token_before, entry.trace_id),
    )


async def test_an_entry_says_who_when_and_from_which_claim(
    steps: Steps, connection: Connection
) -> None:
    """At the time of the statement; its request's trace leads on."""
    first = write("k")
    await steps.writes.claim([first])
    second = await steps.reclaim(first)
    (entry,) = await steps.trail.read(ID)
    claimed_at = await connection.fetchval("SELECT claimed_at FROM attempt")
    assert entry == TrailEntry(
        *(claimed_at, "reclaimed", instance(), first.claim_token, second.claim_token),
        *(claimed_at, None, TRACE_ID),
    )


async def test_a_step_that_is_rolled_back_leaves_no_trail(
    steps: Steps, database_url: str, connection: Connection
) -> None:
    """What is in the trail has happened."""
    first = write("k")
    await steps.writes.claim([first])
    await connection.execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN RAISE EXCEPTION 'no'; END$$;
           CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON attempt DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION refuse()"""
    )
    with pytest.raises(Unreachable):
        await steps.attempts.reclaim(ID, first.claim_token, uuid4(), 0)
    assert [] == await steps.whats()


@asynccontextmanager
async def broken(connection: Connection, change: str) -> AsyncIterator[None]:
    """Change the trail's table; a lock on it is held as long as the context lasts."""
    if not change.startswith("LOCK"):
        await connection.execute(change)
        yield
        return
    async with connection.transaction():
        await connection.execute(change)
        yield


@pytest.mark.parametrize(
    "change",
    [
        "SELECT",
        "DROP TABLE attempt_trail",
        "REVOKE ALL ON attempt_trail FROM {role}",
        "ALTER TABLE attempt_trail ADD CHECK (what IS NULL)",
        "LOCK TABLE attempt_trail",
    ],
)
async def test_no_step_fails_or_waits_for_a_trail_that_cannot_be_written(
    change: str, role: str, role_url: str, connection: Connection
) -> None:
    """Healed, failed, taken over: each goes on without its entry. The twin has all three."""
    await grant(connection, "stretto", [role])
    settings = ComponentSettings(creator=CreatorSettings(lease_seconds=0.1))

    async def reject(_: object, groups: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
        if any(OTHER == new_group for _, new_group in groups):
            raise GroupRejected("quota", "Too many groups.")

    async with open_component(role_url, settings=settings, on_create=reject) as component:
        await component.creator.create(KEY, TEAM)
        await connection.execute("TRUNCATE attempt")
        await pend(connection, "left", TEAM.fingerprint(), seconds_ago=60)
        component.creator.forget()
        async with broken(connection, change.format(role=role)), asyncio.timeout(20):
            healed = await component.creator.create(KEY, TEAM)
            with pytest.raises(AttemptFailed):
                await component.creator.create(IdempotencyKey("failed"), OTHER)
            recovered = await component.creator.create(IdempotencyKey("left"), TEAM)
    assert [AnswerStatus.HEALED, AnswerStatus.RECOVERED] == [healed.status, recovered.status]
    assert await sound(connection)
    if not change.startswith("DROP"):
        added = await connection.fetch("SELECT what FROM attempt_trail ORDER BY number")
        expected = ["healed", "failed", "reclaimed"] if change == "SELECT" else []
        assert expected == [what for (what,) in added]


async def test_what_only_a_process_sees_is_recorded_by_it(
    component: Component, connection: Connection, database: Database
) -> None:
    """A key that comes with another body: from the memory, and from a follower."""
    await component.creator.create(KEY, TEAM)
    for _ in range(2):
        with pytest.raises(KeyReused):
            await component.creator.create(KEY, OTHER)
        component.creator.forget()
    await component.trail.run_once()
    trail = await PostgresTrailStore(database).read(ID)
    assert [("other_body", instance(), None)] * 2 == [
        (entry.what, entry.instance, entry.claimed_at) for entry in trail
    ]


async def test_an_unknown_outcome_and_another_claim_show_the_claim_that_is_there(
    steps: Steps, connection: Connection
) -> None:
    """Only if the attempt carries the token: then the row follows from it."""
    ours = write("k")
    unknown = AttemptStrayed("unknown", ID, ALICE, ours.claim_token, "OutcomeUnknown", TRACE_ID)
    await steps.trail.append([(unknown, 60.0)])
    (entry,) = await steps.trail.read(ID)
    assert (None, "OutcomeUnknown", TRACE_ID) == (entry.claimed_at, entry.code, entry.trace_id)
    age = await connection.fetchval("SELECT clock_timestamp() - $1", entry.happened_at)
    assert timedelta(seconds=60) < age < timedelta(seconds=90)
    await steps.writes.claim([ours])
    again = AttemptStrayed("claimed_again", ID, ALICE, ours.claim_token)
    await steps.trail.append([(unknown, 0.0), (again, 0.0)])
    assert await steps.is_rebuilt()
    claimed_at = (await row(connection)).claimed_at
    trail = await steps.trail.read(ID)
    assert [None, claimed_at, claimed_at] == [entry.claimed_at for entry in trail]
    # A claim is shown when it was made, and not when that was recorded.
    assert [False, False, True] == [entry.happened_at == claimed_at for entry in trail]
    assert ["unknown", "unknown", "claimed_again"] == await steps.whats()
    assert {ours.claim_token} == await steps.writes.lead([ours])
    assert await steps.is_rebuilt()


async def test_an_attempt_that_has_vanished_is_claimed_again_on_record(
    component: Component, database: Database, connection: Connection
) -> None:
    """Its row was another's, which was rolled back, or was lost with a crash of the server."""
    async with held_key(connection):
        request = asyncio.ensure_future(component.creator.create(KEY, TEAM))
        # Its first claim has not won, and it follows.
        await until(lambda: component.creator._flights._tasks)
    answer = await request
    await component.trail.run_once()
    trail = await PostgresTrailStore(database).read(ID)
    assert ["claimed_again"] == [entry.what for entry in trail]
    assert await row(connection) == rebuilt(answer.group.conversation_id, trail)


@asynccontextmanager
async def held_key(connection: Connection) -> AsyncIterator[None]:
    """Hold the key by a claim that is rolled back."""
    transaction = connection.transaction()
    await transaction.start()
    await pend(connection, "k", TEAM.fingerprint())
    yield
    await transaction.rollback()


async def test_lost_connections_are_on_record_with_the_claim_that_they_left(
    component: Component, connection: Connection, database: Database
) -> None:
    """The row follows from them alone, and from what the next request does."""
    await connection.execute(
        """CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END$$;
           CREATE TRIGGER die BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION die()"""
    )
    with pytest.raises(DatabaseUnavailable):
        await component.creator.create(KEY, TEAM)
    # Its actor adds them.
    await until(lambda: connection.fetchval("SELECT count(*) FROM attempt_trail"))
    store = PostgresTrailStore(database)
    trail = await store.read(ID)
    assert {("unknown", "OutcomeUnknown")} == {(entry.what, entry.code) for entry in trail}
    pending = await row(connection)
    assert ("pending", pending) == (pending.status, rebuilt(None, trail))
    await connection.execute("DROP TRIGGER die ON chat_group")
    answer = await component.creator.create(KEY, TEAM)
    assert AnswerStatus.RECOVERED is answer.status
    expected = rebuilt(answer.group.conversation_id, await store.read(ID))
    assert expected == await row(connection)


async def test_what_waits_when_the_service_stops_is_recorded(
    database_url: str, database: Database
) -> None:
    """A deployment often follows a failure."""
    async with open_component(database_url) as component:
        await component.creator.create(KEY, TEAM)
        with pytest.raises(KeyReused):
            await component.creator.create(KEY, OTHER)
    assert ["other_body"] == [e.what for e in await PostgresTrailStore(database).read(ID)]


async def test_the_history_is_shown_beside_the_attempt(
    database_url: str, steps: Steps, connection: Connection
) -> None:
    """One JSON object, a line for each entry; also of an attempt of which nothing else is left."""
    command = ("attempt", "alice", "k", "--history")
    assert 1 == (await stretto(*command, DATABASE_URL=database_url))[0]
    first = write("k")
    await steps.writes.claim([first])
    second = await steps.reclaim(first)
    await steps.writes.fail(second, FAILURE)
    for expected in ("failed", None):
        code, output, _ = await stretto(*command, DATABASE_URL=database_url)
        document = orjson.loads(output)
        assert (0, expected, str(ID)) == (code, document["status"], document["group_id"])
        assert [
            ("reclaimed", str(first.claim_token), str(second.claim_token), TRACE_ID),
            ("failed", str(second.claim_token), str(second.claim_token), TRACE_ID),
        ] == [
            tuple(entry[name] for name in ("what", "token_before", "token_after", "trace_id"))
            for entry in document["history"]
        ]
        assert 2 == sum(instance() in line for line in output.splitlines())
        await connection.execute("TRUNCATE attempt")
    await connection.execute("TRUNCATE attempt_trail")
    await pend(connection, "k")
    output = (await stretto(*command, DATABASE_URL=database_url))[1]
    assert ("pending", []) == (orjson.loads(output)["status"], orjson.loads(output)["history"])
    output = (await stretto(*command[:-1], DATABASE_URL=database_url))[1]
    assert "history" not in orjson.loads(output)
