"""The database itself refuses what must never be, for every client."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest

if TYPE_CHECKING:
    from support.database import Connection

ATTEMPT = """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status,
    conversation_id, failure_code, failure_detail, settled_at)
VALUES ($1, 'alice', '0123456789abcdef', $1, $2, $3, $4, $5,
        CASE WHEN $6 THEN clock_timestamp() END)"""
OWN_ATTEMPT = """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
    VALUES ($1, $2, $3, $1)"""
OWN_GROUP = """INSERT INTO chat_group (group_id, owner_id, name, fingerprint, conversation_id)
    VALUES ($1, 'alice', 'Team', $2, $1)"""
CHOSEN_GROUP = """INSERT INTO chat_group (group_id, owner_id, name, fingerprint, conversation_id,
    group_kind, metadata) VALUES ($1, 'alice', 'Team', '0123456789abcdef', $1, $2, $3)"""
CONVERSATION = "INSERT INTO conversation (conversation_id, kind, next_offset) VALUES ($1, $2, $3)"
READER = """INSERT INTO outbox_reader (name, history, seen, target_digest)
    VALUES ($1, 0, '1:1:', $2)"""
DELIVERY = """INSERT INTO outbox_delivery (reader, event_id, subject, conversation_id, recipients,
    group_name, created_at, due_at, tries, dead_reason)
    VALUES ('bus', $1, $1, $1, '{a}', 'Team', now(), now(), $2, $3)"""
EVENT = """INSERT INTO outbox (slot, history, event_id, subject, conversation_id, recipients,
    group_name) VALUES (0, 0, $1, $1, $1, $2, 'Team')"""
MEMBER = "INSERT INTO conversation_member (conversation_id, user_id, role) VALUES ($1, $2, $3)"
ONE, TWO = UUID(int=1), UUID(int=2)
BEYOND: list[tuple[str, str, tuple[object, ...]]] = [
    ("attempt_owner_id_check", OWN_ATTEMPT, (ONE, "", b"f" * 16)),
    ("attempt_owner_id_check", OWN_ATTEMPT, (ONE, "o" * 129, b"f" * 16)),
    ("attempt_fingerprint_check", OWN_ATTEMPT, (ONE, "alice", b"f" * 15)),
    ("attempt_fingerprint_check", OWN_ATTEMPT, (ONE, "alice", b"f" * 17)),
    ("chat_group_fingerprint_check", OWN_GROUP, (ONE, b"f" * 17)),
    ("chat_group_group_kind_check", CHOSEN_GROUP, (ONE, "", None)),
    ("chat_group_group_kind_check", CHOSEN_GROUP, (ONE, "k" * 65, None)),
    ("chat_group_metadata_check", CHOSEN_GROUP, (ONE, None, "[]")),
    ("chat_group_metadata_check", CHOSEN_GROUP, (ONE, None, f'{{"a": "{"x" * 8184}"}}')),
    ("conversation_kind_check", CONVERSATION, (TWO, "public", 0)),
    ("conversation_next_offset_check", CONVERSATION, (TWO, "direct", -1)),
    ("conversation_member_user_id_check", MEMBER, (ONE, "", "member")),
    ("conversation_member_user_id_check", MEMBER, (ONE, "u" * 129, "member")),
    ("conversation_member_role_check", MEMBER, (ONE, "bob", "guest")),
    ("outbox_recipients_check", EVENT, (ONE, [])),
    ("outbox_recipients_check", EVENT, (ONE, ["a"] * 1002)),
    ("history_start_is_only_check", "INSERT INTO history_start VALUES ($1)", (False,)),
    ("outbox_slot_number_check", "INSERT INTO outbox_slot VALUES (8, $1)", (-1,)),
    ("outbox_reader_name_check", READER, ("other", None)),
    ("outbox_reader_target_digest_check", READER, ("webhook", b"d" * 31)),
    ("outbox_delivery_tries_check", DELIVERY, (ONE, -1, None)),
    ("outbox_delivery_dead_reason_check", DELIVERY, (ONE, 0, "")),
    ("outbox_delivery_dead_reason_check", DELIVERY, (ONE, 0, "r" * 1025)),
    ("inbox_consumer_check", "INSERT INTO inbox VALUES ($1, $2)", ("", ONE)),
    ("inbox_consumer_check", "INSERT INTO inbox VALUES ($1, $2)", ("c" * 129, ONE)),
]
WITHIN: list[tuple[str, tuple[object, ...]]] = [
    (OWN_ATTEMPT, (ONE, "o" * 128, b"f" * 16)),
    (OWN_GROUP, (ONE, b"f" * 16)),
    (CHOSEN_GROUP, (ONE, "k" * 64, f'{{"a": "{"x" * 8183}"}}')),
    (CONVERSATION, (TWO, "direct", 0)),
    (MEMBER, (ONE, "u" * 128, "owner")),
    (MEMBER, (ONE, "bob", "admin")),
    (EVENT, (ONE, ["a"] * 1001)),
    (READER, ("webhook", b"d" * 32)),
    (DELIVERY, (ONE, 0, "r" * 1024)),
    ("INSERT INTO inbox VALUES ($1, $2)", ("c" * 128, ONE)),
]


async def conversation(connection: Connection, id_: UUID) -> None:
    """Insert a conversation."""
    await connection.execute("INSERT INTO conversation (conversation_id) VALUES ($1)", id_)


async def group(connection: Connection, id_: UUID, conversation_id: UUID, **values: object) -> None:
    """Insert a group."""
    row = {"name": "Team", "description": None, "owner_id": "alice"} | values
    await connection.execute(
        """INSERT INTO chat_group (group_id, owner_id, name, description, fingerprint,
               conversation_id) VALUES ($1, $2, $3, $4, '0123456789abcdef', $5)""",
        id_,
        row["owner_id"],
        row["name"],
        row["description"],
        conversation_id,
    )


@pytest.mark.parametrize(
    ("constraint", "state"),
    [
        ("attempt_succeeded_names_its_conversation", ("succeeded", None, None, None, True)),
        ("attempt_succeeded_names_its_conversation", ("pending", TWO, None, None, False)),
        ("attempt_failed_says_why", ("failed", None, None, None, True)),
        ("attempt_failed_says_why", ("failed", None, "full", None, True)),
        ("attempt_failed_says_why", ("pending", None, "full", "x", False)),
        ("attempt_settled_says_when", ("succeeded", TWO, None, None, False)),
        ("attempt_settled_says_when", ("pending", None, None, None, True)),
        ("attempt_status_check", ("done", None, None, None, True)),
        ("attempt_failure_code_check", ("failed", None, "", "x", True)),
        ("attempt_failure_code_check", ("failed", None, "c" * 65, "x", True)),
        ("attempt_failure_detail_check", ("failed", None, "full", "x" * 1025, True)),
    ],
)
async def test_every_state_has_exactly_its_own_columns(
    constraint: str, state: tuple[object, ...], connection: Connection
) -> None:
    """A half-settled attempt cannot be written."""
    with pytest.raises(asyncpg.CheckViolationError) as error:
        await connection.execute(ATTEMPT, ONE, *state)
    assert constraint == error.value.constraint_name


@pytest.mark.parametrize(
    "state", [("succeeded", TWO, None, None, True), ("failed", None, "full", "No.", True)]
)
@pytest.mark.parametrize(
    "change",
    [
        """status = 'pending', settled_at = NULL, conversation_id = NULL, failure_code = NULL,
           failure_detail = NULL""",
        """status = 'succeeded', conversation_id = group_id, failure_code = NULL,
           failure_detail = NULL""",
        "claim_token = gen_random_uuid()",
        "fingerprint = '0123456789ABCDEF'",
    ],
)
async def test_a_settled_attempt_never_changes(
    state: tuple[object, ...], change: str, connection: Connection
) -> None:
    """Terminal states are final in the database itself, not only in our statements."""
    await connection.execute(ATTEMPT, ONE, *state)
    with pytest.raises(asyncpg.RestrictViolationError):
        await connection.execute(f"UPDATE attempt SET {change}")


async def test_a_settled_attempt_may_be_deleted(connection: Connection) -> None:
    """Retention is not forbidden by finality."""
    await connection.execute(ATTEMPT, ONE, "succeeded", TWO, None, None, True)
    assert await connection.execute("DELETE FROM attempt") == "DELETE 1"


async def test_there_is_no_second_group_of_one_id(connection: Connection) -> None:
    """The primary key is the last guard of G1."""
    await conversation(connection, ONE)
    await conversation(connection, TWO)
    await group(connection, ONE, ONE)
    with pytest.raises(asyncpg.UniqueViolationError) as error:
        await group(connection, ONE, TWO)
    assert error.value.constraint_name == "chat_group_pkey"


async def test_a_group_has_its_conversation_alone(connection: Connection) -> None:
    """No two groups share a conversation, and none is without."""
    await conversation(connection, ONE)
    await group(connection, ONE, ONE)
    with pytest.raises(asyncpg.UniqueViolationError):
        await group(connection, TWO, ONE)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await group(connection, TWO, TWO)


@pytest.mark.parametrize(
    "values",
    [
        {"name": ""},
        {"name": "n" * 65},
        {"description": "d" * 1025},
        {"owner_id": ""},
        {"owner_id": "o" * 129},
    ],
)
async def test_every_bound_holds_in_the_database(
    values: dict[str, str], connection: Connection
) -> None:
    """A host that writes rows of its own meets the same limits."""
    await conversation(connection, ONE)
    with pytest.raises(asyncpg.CheckViolationError):
        await group(connection, ONE, ONE, **values)


async def test_no_row_is_beyond_its_bounds(connection: Connection) -> None:
    """Whichever table it is in: statements of ours have bugs too."""
    await conversation(connection, ONE)
    for constraint, statement, values in BEYOND:
        with pytest.raises(asyncpg.CheckViolationError) as error:
            await connection.execute(statement, *values)
        assert constraint == error.value.constraint_name


async def test_what_is_within_its_bounds_is_stored(connection: Connection) -> None:
    """The twin: it is the bound that refuses, and no other error of the row."""
    await conversation(connection, ONE)
    for statement, values in WITHIN:
        async with connection.transaction():
            assert "INSERT 0 1" == await connection.execute(statement, *values)
            await connection.execute("TRUNCATE attempt, chat_group, conversation_member, outbox")


async def test_a_deleted_conversation_takes_its_group_and_members_along(
    connection: Connection,
) -> None:
    """A host that deletes one leaves no part of a group behind."""
    await conversation(connection, ONE)
    await group(connection, ONE, ONE)
    await connection.execute(MEMBER, ONE, "alice", "owner")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute(MEMBER, ONE, "alice", "member")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await connection.execute(MEMBER, TWO, "alice", "owner")
    assert "DELETE 1" == await connection.execute("DELETE FROM conversation")
    for table in ("chat_group", "conversation_member"):
        assert 0 == await connection.fetchval(f"SELECT count(*) FROM {table}")


async def test_history_begins_at_one_place(connection: Connection) -> None:
    """At the very first, in a new database; the sweeper moves that one row on."""
    rows = await connection.fetch("SELECT history, position FROM history_start")
    assert [(0, 0)] == [tuple(row) for row in rows]


async def test_settling_an_attempt_stays_on_its_page(connection: Connection) -> None:
    """No index covers what changes: the one update of an attempt is HOT."""
    await connection.execute(ATTEMPT, ONE, "pending", None, None, None, False)
    await connection.execute(
        """UPDATE attempt SET status = 'succeeded', conversation_id = $1,
               settled_at = clock_timestamp()""",
        TWO,
    )
    await connection.execute("SELECT pg_stat_force_next_flush()")
    hot = "SELECT pg_stat_get_tuples_hot_updated('attempt'::regclass)"
    assert await connection.fetchval(hot) == 1


async def test_many_attempts_that_are_settled_stay_on_their_pages(connection: Connection) -> None:
    """Pages are half filled by claims: what settles them finds room there."""
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           SELECT gen_random_uuid(), 'alice', '0123456789abcdef', gen_random_uuid()
           FROM generate_series(1, 400)"""
    )
    await connection.execute(
        """UPDATE attempt SET status = 'succeeded', conversation_id = group_id,
               settled_at = clock_timestamp()"""
    )
    await connection.execute("SELECT pg_stat_force_next_flush()")
    hot = "SELECT pg_stat_get_tuples_hot_updated('attempt'::regclass)"
    assert 200 < await connection.fetchval(hot)
