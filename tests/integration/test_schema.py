"""The database itself refuses what must never be, whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

ATTEMPT = """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status,
    conversation_id, failure_code, failure_detail, settled_at)
VALUES ($1, 'alice', '0123456789abcdef', $1, $2, $3, $4, $5,
        CASE WHEN $6 THEN clock_timestamp() END)"""
ONE, TWO = UUID(int=1), UUID(int=2)


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
