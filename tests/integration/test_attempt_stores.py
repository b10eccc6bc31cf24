"""The leader's and the follower's statements on a real database: each guard, and what it guards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import Failure, GroupRejected
from stretto.protocol.attempt import AttemptStatus
from stretto.protocol.ports import OutcomeUnknown, Refused, Transient, Unreachable, Write
from stretto.storage.attempts import OnCreate, PostgresAttemptStore, PostgresWriteStore
from stretto.storage.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from stretto.domain import CreatedGroup
    from stretto.storage.database import Connection as InnerConnection

    Connection = asyncpg.Connection[asyncpg.Record]

FAILURE = Failure("full", "No more groups.")
LEASE_SECONDS = 5.0


def write(key: str, *, name: str = "Team", members: tuple[str, ...] = ("bob",)) -> Write:
    """Return the write of a fresh request."""
    alice = UserId("alice")
    new_group = NewGroup.parse(alice, {"name": name, "members": list(members)})
    return Write(
        group_id=group_id(alice, IdempotencyKey(key)),
        claim_token=uuid4(),
        conversation_id=uuid4(),
        new_group=new_group,
        fingerprint=new_group.fingerprint(),
        is_claimed=False,
    )


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The source of connections."""
    async with Database(database_url) as database:
        yield database


@pytest_asyncio.fixture
async def store(database: Database) -> AsyncIterator[PostgresWriteStore]:
    """A writer's store."""
    store = PostgresWriteStore(database, on_lost=lambda: None)
    yield store
    await store.close()


@pytest.fixture
def attempts(database: Database) -> PostgresAttemptStore:
    """A follower's store."""
    return PostgresAttemptStore(database)


async def counts(connection: Connection) -> tuple[int, ...]:
    """Return how many rows each table has: attempt, group, conversation, member, event."""
    tables = ("attempt", "chat_group", "conversation", "conversation_member", "outbox")
    return tuple([await connection.fetchval(f"SELECT count(*) FROM {name}") for name in tables])


async def test_one_of_two_claims_of_a_key_wins(store: PostgresWriteStore) -> None:
    """The second claim learns that the attempt exists."""
    first, second = write("k"), write("k")
    assert {first.claim_token} == await store.claim([first])
    assert set() == await store.claim([second])


async def test_a_key_twice_in_one_batch_is_one_claim(store: PostgresWriteStore) -> None:
    """The token that comes back says which of the two has won."""
    twins = [write("k"), write("k")]
    assert len(await store.claim(twins)) == 1


async def test_leading_writes_all_rows_and_settles(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """Group, conversation, members, event and outcome come together (G5)."""
    batch = [write("a", members=("bob", 'c"ar\\ol')), write("b", members=())]
    await store.claim(batch)
    assert {w.claim_token for w in batch} == await store.lead(batch)
    assert (2, 2, 2, 4, 2) == await counts(connection)
    members = await connection.fetch(
        """SELECT user_id, role FROM conversation_member WHERE conversation_id = $1
           ORDER BY user_id""",
        batch[0].conversation_id,
    )
    expected = [("alice", "owner"), ("bob", "member"), ('c"ar\\ol', "member")]
    assert expected == [tuple(row) for row in members]
    statuses = await connection.fetch("SELECT DISTINCT status FROM attempt")
    assert ["succeeded"] == [row["status"] for row in statuses]


async def test_a_lost_claim_leads_nothing(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """A claim that vanished in a crash of the server is noticed by the settle."""
    lost = write("k")
    assert set() == await store.lead([lost])
    assert (0, 0, 0, 0, 0) == await counts(connection)


async def test_a_fenced_leader_writes_nothing_and_spoils_nobody(
    store: PostgresWriteStore, attempts: PostgresAttemptStore, connection: Connection
) -> None:
    """Its token is not the attempt's any more; its neighbours in the batch are led."""
    fenced, neighbour = write("a"), write("b")
    await store.claim([fenced, neighbour])
    assert await attempts.reclaim(fenced.group_id, fenced.claim_token, uuid4(), lease_seconds=0)
    assert {neighbour.claim_token} == await store.lead([fenced, neighbour])
    assert (2, 1, 1, 2, 1) == await counts(connection)


async def test_without_the_fence_a_reclaimed_attempt_would_be_written_by_its_old_leader(
    store: PostgresWriteStore, attempts: PostgresAttemptStore, connection: Connection
) -> None:
    """The negative twin: whoever knows the new token passes, so it is the token that fences."""
    fenced, token = write("a"), uuid4()
    await store.claim([fenced])
    assert await attempts.reclaim(fenced.group_id, fenced.claim_token, token, lease_seconds=0)
    assert {token} == await store.lead([replace(fenced, claim_token=token)])
    assert (1, 1, 1, 2, 1) == await counts(connection)


async def test_a_stale_key_is_neither_claimed_nor_led(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """A group from before its attempt was swept keeps its key; a batch with it still goes through."""
    old = write("a")
    await store.claim([old])
    await store.lead([old])
    await connection.execute("TRUNCATE attempt")
    again = write("a")
    assert set() == await store.claim([again])
    # As when the claim was made before the group was committed:
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           VALUES ($1, 'alice', $2, $3)""",
        again.group_id,
        again.fingerprint,
        again.claim_token,
    )
    neighbour = write("b")
    await store.claim([neighbour])
    assert {neighbour.claim_token} == await store.lead([again, neighbour])
    assert (2, 2, 2, 4, 2) == await counts(connection)


async def test_leading_twice_with_one_token_writes_once(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """So an unknown outcome is found out by simply leading again."""
    ours = write("k")
    await store.claim([ours])
    assert {ours.claim_token} == await store.lead([ours])
    assert set() == await store.lead([ours])
    assert (1, 1, 1, 2, 1) == await counts(connection)


async def test_only_its_leader_can_fail_an_attempt(
    store: PostgresWriteStore, attempts: PostgresAttemptStore
) -> None:
    """A failure is written under the leader's token and is then final."""
    ours, other = write("k"), write("k")
    await store.claim([ours])
    assert not await store.fail(other, FAILURE)
    assert await store.fail(ours, FAILURE)
    seen = (await attempts.look(ours.group_id, LEASE_SECONDS)).attempt
    assert seen is not None
    assert (AttemptStatus.FAILED, FAILURE) == (seen.status, seen.failure)
    assert set() == await store.lead([ours])


async def test_an_attempt_whose_group_exists_cannot_fail(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """Failed means that there is no group (G4)."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    await connection.execute("TRUNCATE attempt")
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           VALUES ($1, 'alice', $2, $3)""",
        ours.group_id,
        ours.fingerprint,
        ours.claim_token,
    )
    assert not await store.fail(ours, FAILURE)


async def test_a_lease_runs_on_the_given_clock(
    store: PostgresWriteStore, database: Database, connection: Connection
) -> None:
    """It is over exactly `lease_seconds` after the claim, and a reclaim starts it anew."""
    ours, token = write("k"), uuid4()
    await store.claim([ours])
    claimed_at = await connection.fetchval("SELECT claimed_at FROM attempt")
    now = claimed_at + timedelta(seconds=LEASE_SECONDS) - timedelta(microseconds=1)
    attempts = PostgresAttemptStore(database, now=lambda: now)
    assert not await attempts.reclaim(ours.group_id, ours.claim_token, token, LEASE_SECONDS)
    now += timedelta(microseconds=1)
    seen = (await attempts.look(ours.group_id, LEASE_SECONDS)).attempt
    assert seen is not None
    assert seen.lease_over
    assert await attempts.reclaim(ours.group_id, ours.claim_token, token, LEASE_SECONDS)
    seen = (await attempts.look(ours.group_id, LEASE_SECONDS)).attempt
    assert seen is not None
    assert (token, False) == (seen.claim_token, seen.lease_over)
    assert not await attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), LEASE_SECONDS)


async def test_a_leader_that_is_writing_is_not_reclaimed(
    store: PostgresWriteStore, attempts: PostgresAttemptStore, connection: Connection
) -> None:
    """The row lock says that it lives, however long ago its lease has run out."""
    ours = write("k")
    await store.claim([ours])
    async with connection.transaction():
        await connection.execute("SELECT FROM attempt FOR UPDATE")
        assert not await attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), 0)
    assert await attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), 0)


async def test_healing_settles_a_pending_attempt_and_restores_a_deleted_one(
    store: PostgresWriteStore, attempts: PostgresAttemptStore, connection: Connection
) -> None:
    """Either way the record says again what the domain tables say."""
    ours = write("k")
    await store.claim([ours])
    await store.lead([ours])
    await connection.execute("TRUNCATE attempt")
    await attempts.heal(ours.group_id)
    healed = (await attempts.look(ours.group_id, LEASE_SECONDS)).attempt
    assert healed is not None
    assert (AttemptStatus.SUCCEEDED, ours.conversation_id, ours.fingerprint) == (
        healed.status,
        healed.conversation_id,
        healed.fingerprint,
    )
    await connection.execute("TRUNCATE attempt")
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           VALUES ($1, 'alice', 'another body....', $1)""",
        ours.group_id,
    )
    await attempts.heal(ours.group_id)
    healed = (await attempts.look(ours.group_id, LEASE_SECONDS)).attempt
    assert healed is not None
    assert (AttemptStatus.SUCCEEDED, ours.fingerprint) == (healed.status, healed.fingerprint)


async def test_healing_without_a_group_does_nothing(
    store: PostgresWriteStore, attempts: PostgresAttemptStore
) -> None:
    """Only a committed group can settle an attempt as succeeded."""
    ours = write("k")
    await store.claim([ours])
    await attempts.heal(ours.group_id)
    seen = (await attempts.look(ours.group_id, LEASE_SECONDS)).attempt
    assert seen is not None
    assert seen.status is AttemptStatus.PENDING


async def test_a_connection_that_breaks_during_a_write_leaves_its_outcome_unknown(
    database: Database, connection: Connection
) -> None:
    """The store says so, tells that what was learnt counts no more, and connects again."""
    lost: list[str] = []
    store = PostgresWriteStore(database, on_lost=lambda: lost.append("lost"))
    ours = write("k")
    await store.claim([ours])
    await connection.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END$$;"
        "CREATE TRIGGER die BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION die()"
    )
    with pytest.raises(OutcomeUnknown):
        await store.lead([ours])
    assert ["lost"] == lost
    await connection.execute("DROP TRIGGER die ON chat_group")
    assert {ours.claim_token} == await store.lead([ours])
    await store.close()


async def test_a_table_that_is_locked_is_passing_trouble(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """The lock time-out comes before any client's patience ends."""
    ours = write("k")
    await store.claim([ours])
    async with connection.transaction():
        await connection.execute("LOCK TABLE conversation IN SHARE MODE")
        with pytest.raises(Transient):
            await store.lead([ours])
    assert {ours.claim_token} == await store.lead([ours])


async def test_bad_data_is_refused_with_the_constraints_name(store: PostgresWriteStore) -> None:
    """What a parser would have let through is the request's own fault, told without row data."""
    ours = write("k")
    await store.claim([ours])
    poisoned = replace(ours, new_group=replace(ours.new_group, name="n" * 65))
    with pytest.raises(Refused) as refused:
        await store.lead([poisoned])
    expected = "The database refused the group (chat_group_name_check)."
    assert Failure("refused_by_database", expected) == refused.value.failure


async def test_a_missing_table_is_nobodys_failure(
    store: PostgresWriteStore, connection: Connection
) -> None:
    """An operator's mistake must not fail keys for good."""
    ours = write("k")
    await store.claim([ours])
    await connection.execute("ALTER TABLE outbox RENAME TO gone")
    with pytest.raises(Unreachable):
        await store.lead([ours])


async def _reject(*_: object) -> None:
    raise GroupRejected("quota", "Ten groups are enough.")


async def _crash(*_: object) -> None:
    raise RuntimeError


async def _swallow_an_error(connection: InnerConnection, _: object) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.execute("SELECT 1 / 0")


async def _hang(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("expected", "hook"),
    [
        (Refused, lambda: _reject),
        (Transient, lambda: _hang),
        (Transient, lambda: _crash),
        # PostgreSQL answers COMMIT of an aborted transaction without an error: only the tag tells.
        (Transient, lambda: _swallow_an_error),
    ],
)
async def test_a_hook_that_fails_takes_the_group_back(
    expected: type[Exception],
    hook: Callable[[], OnCreate],
    database: Database,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever goes wrong in the host's part, nothing of the group is left, and it is known."""
    monkeypatch.setattr("stretto.storage.attempts.HOOK_SECONDS", 0.1)
    store = PostgresWriteStore(database, on_lost=lambda: None, on_create=hook())
    ours = write("k")
    await store.claim([ours])
    with pytest.raises(expected):
        await store.lead([ours])
    assert (1, 0, 0, 0, 0) == await counts(connection)
    await store.close()


async def test_a_hooks_rows_are_committed_with_the_group(
    database: Database, connection: Connection
) -> None:
    """It is called inside the transaction, for just the groups that were led."""
    await connection.execute("CREATE TABLE channel (group_id uuid, name text)")

    async def add_channels(
        inner: InnerConnection, created: Sequence[tuple[CreatedGroup, NewGroup]]
    ) -> None:
        for group, new_group in created:
            await inner.execute(
                "INSERT INTO channel VALUES ($1, $2)", group.group_id, new_group.name
            )

    store = PostgresWriteStore(database, on_lost=lambda: None, on_create=add_channels)
    ours, unclaimed = write("a"), write("b")
    await store.claim([ours])
    assert {ours.claim_token} == await store.lead([ours, unclaimed])
    rows = await connection.fetch("SELECT * FROM channel")
    assert [(ours.group_id, "Team")] == [tuple(row) for row in rows]
    await store.close()


async def test_tokens_from_the_driver_equal_our_own(store: PostgresWriteStore) -> None:
    """The driver's UUID type is its own; comparing must not depend on that."""
    ours = write("k")
    (token,) = await store.claim([ours])
    assert type(token) is not UUID
    assert ours.claim_token == token


async def test_only_the_lead_waits_for_the_disk(store: PostgresWriteStore) -> None:
    """A claim flushes nothing, a lead flushes the WAL once, whatever the size of its batch."""
    rounds, claims, leads = 10, 0, 0

    async def flushes() -> int:
        """Count this very connection's flushes so far."""
        connection = store._connection
        assert connection is not None
        await connection.execute("SELECT pg_stat_force_next_flush()")
        count: int = await connection.fetchval(
            """SELECT sum(fsyncs)::int FROM pg_stat_get_backend_io(pg_backend_pid())
               WHERE object = 'wal'"""
        )
        return count

    await store.claim([write("warm")])
    for number in range(rounds):
        batch = [write(f"{number} {key}".replace(" ", "-")) for key in range(32)]
        before = await flushes()
        assert 32 == len(await store.claim(batch))
        between = await flushes()
        assert 32 == len(await store.lead(batch))
        claims += between - before
        leads += await flushes() - between
    assert claims == 0
    # The server's own WAL writer may now and then have been faster.
    assert 0 < leads <= rounds
