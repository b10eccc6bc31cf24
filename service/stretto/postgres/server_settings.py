"""What a session must be like: UTF-8, READ COMMITTED, flushed, with all rows of our tables.

Behind a pooler its role must bring the settings.

In another encoding the server rejects names that the contract allows. Above READ COMMITTED a
statement does not see what another transaction committed while it waited: most claims would fail.
Without a flush, neither an answer nor a position outlives a crash of the server.
Where a policy hides rows, lists end early, and `stretto check` finds nothing to check. Nor does it where
partitions of the log are detached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.postgres.queries import QUERIES
from stretto.store_errors import Unmigrated, Unreachable

if TYPE_CHECKING:
    import asyncpg

    from stretto.postgres.driver_connection import Connection

ENCODING: Final = "UTF8"
ISOLATION: Final = "read committed"
NO_TABLES: Final = "the database has no stretto tables; run `stretto migrate`"


async def session_violation(connection: Connection) -> str | None:
    """Return what is wrong with the session or its database, and what to do about it."""
    row = await connection.fetchrow(QUERIES["ping_session"])
    assert row is not None
    if row["server_encoding"] != ENCODING:
        return (
            f"the database {row['database']} has the encoding {row['server_encoding']} and needs"
            f" {ENCODING}, which cannot be changed: make another one with"
            f" CREATE DATABASE … ENCODING '{ENCODING}' TEMPLATE template0"
        )
    if row["client_encoding"] != ENCODING:
        return (
            f"the session's client_encoding is {row['client_encoding']} and must be {ENCODING}:"
            " leave it out of the database's URL and of the pool's settings, and run"
            f" ALTER ROLE {row['role']} RESET client_encoding"
        )
    if row["isolation"] != ISOLATION:
        return (
            f"default_transaction_isolation is {row['isolation']} and must be {ISOLATION}: leave it"
            " out of the pool's settings, and run"
            f" ALTER ROLE {row['role']} IN DATABASE {row['database']}"
            f" SET default_transaction_isolation = '{ISOLATION}'"
        )
    return flush_violation(row)


def flush_violation(row: asyncpg.Record) -> str | None:
    """Return what is wrong where a session's commits are not flushed, or not said to be unsure.

    The row has its `synchronous_commit` and `client_min_messages`, which may change under a living
    session, and its role and database, quoted.
    """
    # Of the other values, each flushes here; which standby is waited for is the operator's choice.
    if row["synchronous_commit"] == "off":
        return (
            "synchronous_commit is off, so a crash of the server would lose acknowledged groups:"
            " leave it out of the database's URL and of the pool's settings, and run"
            f" ALTER ROLE {row['role']} IN DATABASE {row['database']} SET synchronous_commit = 'on'"
        )
    if row["client_min_messages"] == "error":
        return (
            "client_min_messages is error, so the server would not warn of a commit that its standby"
            " lacks: leave it out of the database's URL and of the pool's settings, and run"
            f" ALTER ROLE {row['role']} IN DATABASE {row['database']}"
            " SET client_min_messages = 'notice'"
        )
    return None


def require_ping(row: asyncpg.Record) -> None:
    """Raise `Unreachable` where commits are not flushed, rows are hidden, or the log lacks some."""
    violation = flush_violation(row)
    if violation is not None:
        raise Unreachable(violation)
    require_all_rows(row)
    _require_whole_log(row)


def require_all_rows(row: asyncpg.Record) -> None:
    """Raise `Unreachable` where policies may hide rows of our tables from the row's role."""
    violation = hidden_rows(row)
    if violation is not None:
        raise Unreachable(violation)


def hidden_rows(row: asyncpg.Record) -> str | None:
    """Return what is wrong where policies may hide rows of our tables from the row's role.

    What they hide is not known; the owner of the tables, and a superuser, see all of them.
    """
    if row["filtered"] is None:
        return None
    return (
        f"row-level security applies to the role {row['role']} in {row['filtered']}: rows that a"
        " policy hides would look as if they did not exist; run"
        " ALTER TABLE … DISABLE ROW LEVEL SECURITY for each of these tables, or"
        f" ALTER ROLE {row['role']} BYPASSRLS as a superuser"
    )


def _require_whole_log(row: asyncpg.Record) -> None:
    """Raise `Unreachable` where partitions of the log are detached, and what reads it fails."""
    detached: str | None = row["detached"]
    if detached is None:
        return
    states = [each.partition(" ") for each in detached.split(", ")]
    statements = "; ".join(_attach(row["schema"], name, state) for name, _, state in states)
    raise Unreachable(
        f"detached from outbox: {', '.join(name for name, *_ in states)}; their events would look as if"
        f" they were swept, so nothing is read from the log; run {statements}"
    )


def _attach(schema: str, name: str, state: str) -> str:
    """Return what brings a partition back that is detached; what was in one that is dropped is lost."""
    values = f"FOR VALUES IN ({name.removeprefix('outbox_')})"
    if state == "dropped":
        return f"CREATE TABLE {schema}.{name} PARTITION OF {schema}.outbox {values}"
    attach = f"ALTER TABLE {schema}.outbox ATTACH PARTITION {schema}.{name} {values}"
    if state == "pending":
        # Left behind by a `DETACH ... CONCURRENTLY` that was broken off; or one goes on.
        return f"ALTER TABLE {schema}.outbox DETACH PARTITION {schema}.{name} FINALIZE; {attach}"
    return attach


async def require_role_settings(connection: Connection, schema: str, tables: list[str]) -> bool:
    """Raise `Unreachable`, with the statements that help, unless the role brings what we need.

    Return whether the server refuses writes.
    """
    role = await connection.fetchrow(QUERIES["ping_pooled"], schema, tables)
    assert role is not None
    if not role["is_migrated"]:
        raise Unmigrated(NO_TABLES)
    if role["is_set"]:
        violation = flush_violation(role)
        if violation is None:
            require_all_rows(role)
            _require_whole_log(role)
            return bool(role["is_read_only"])
        raise Unreachable(f"{violation}, and then RECONNECT on PgBouncer's console")
    alter = f"  ALTER ROLE {role['role']} IN DATABASE {role['database']} SET "
    settings = (
        f"search_path = {schema}",
        "lock_timeout = '1s'",
        "statement_timeout = 0",
        "jit = off",
        f"default_transaction_isolation = '{ISOLATION}'",
    )
    statements = ";\n".join(alter + setting for setting in settings)
    message = (
        "behind PgBouncer the role itself must bring its settings; run\n"
        f"{statements};\nand then RECONNECT on PgBouncer's console"
    )
    raise Unreachable(message)
