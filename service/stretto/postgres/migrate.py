"""Brings a database to the present schema: `schema.sql` where there is none, numbered files after.

A numbered file `migrations/NNNN_title.sql` takes a database from the number before to NNNN, in one
transaction; `schema.sql` always is the whole of the newest number. One runner at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.errors import ConfigurationError
from stretto.postgres.queries import QUERIES, schema_file
from stretto.postgres.server_settings import session_violation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from stretto.postgres.driver_connection import Connection

# Any constant will do, as long as it is nobody else's: the first bytes of "stretto" as a number.
_LOCK: Final = int.from_bytes(b"stretto", "big")
# Another runner is waited for, whatever short lock_timeout the connection has; the changes
# themselves keep that one: behind one that waits for a table, everybody waits.
_RUNNER_SECONDS: Final = 60
# What the statements of the service do with each table; a role needs no more.
PRIVILEGES: Final = MappingProxyType(
    {
        "attempt": "SELECT, INSERT, UPDATE, DELETE",
        "chat_group": "SELECT, INSERT",
        "conversation": "SELECT, INSERT",
        "conversation_member": "SELECT, INSERT",
        "history_start": "SELECT, UPDATE",
        "inbox": "SELECT, INSERT, DELETE",
        "outbox": "SELECT, INSERT, UPDATE, DELETE",
        "schema_version": "SELECT",
        "webhook": "SELECT, INSERT, UPDATE",
        "webhook_delivery": "SELECT, INSERT, UPDATE, DELETE",
    }
)


@dataclass(frozen=True, slots=True)
class Step:
    """One numbered change of the schema."""

    number: int
    statements: str

    @property
    def checksum(self) -> str:
        """What tells whether the file was changed after it had been applied."""
        return sha256(self.statements.encode()).hexdigest()


def read_steps(folder: Traversable | Path) -> list[Step]:
    """Return the numbered changes of a folder in their order."""
    if not folder.is_dir():
        return []
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [Step(int(name[:4]), (folder / name).read_text("utf-8")) for name in names]


async def migrate(
    connection: Connection, schema: str, steps: Sequence[Step] | None = None
) -> list[int]:
    """Apply what is missing and return the numbers; raises `ConfigurationError` on a mismatch.

    Each change is one transaction: one that fails leaves those before it applied, and nothing of
    itself.
    """
    violation = await session_violation(connection)
    if violation is not None:
        raise ConfigurationError(violation)
    changes = read_steps(files("stretto.postgres") / "migrations") if steps is None else steps
    newest = Step(changes[-1].number if changes else 1, schema_file().read_text("utf-8"))
    applied: list[int] = []
    while True:
        async with connection.transaction():
            await _wait_for_other_runners(connection)
            await _enter_schema(connection, schema)
            step = await _next_step(connection, newest, changes)
            if step is None:
                return applied
            await connection.execute(step.statements)
            await connection.execute(
                "INSERT INTO schema_version (number, checksum) VALUES ($1, $2)",
                step.number,
                step.checksum,
            )
            applied.append(step.number)


async def grant(connection: Connection, schema: str, roles: Sequence[str]) -> None:
    """Let the roles do what the service does, also with tables that later migrations add.

    Default privileges count for tables that the present role makes: it should be the one that
    migrates. Raises `ConfigurationError` where a role does not get its rights.
    """
    tables = [*PRIVILEGES], [*PRIVILEGES.values()]
    try:
        async with connection.transaction():
            # Two grants at once on one table end in an error.
            await _wait_for_other_runners(connection)
            for (statement,) in await connection.fetch(QUERIES["grants"], schema, roles, *tables):
                await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        await _require_granted(connection, schema, roles)
        raise
    await _require_granted(connection, schema, roles)


async def require_roles(connection: Connection, roles: Sequence[str]) -> None:
    """Raise `ConfigurationError` unless all of these are roles of the server."""
    unknown = [role for (role,) in await connection.fetch(QUERIES["unknown_roles"], roles)]
    if unknown:
        message = (
            f"there is no role {', '.join(unknown)}; make it with CREATE ROLE, or look for a typo"
        )
        raise ConfigurationError(message)


async def _require_granted(connection: Connection, schema: str, roles: Sequence[str]) -> None:
    """Raise `ConfigurationError` where a role still lacks a right.

    A role that does not own a table, but has rights on it, grants nothing and gets no error.
    """
    tables = [*PRIVILEGES], [*PRIVILEGES.values()]
    lacking = await connection.fetch(QUERIES["not_granted"], schema, roles, *tables)
    if lacking:
        owners = ", ".join(sorted({owner for _, owner in lacking}))
        names = ", ".join(sorted({role for role, _ in lacking}))
        message = f"nothing could be granted to {names}; run it as the owner {owners}"
        raise ConfigurationError(message)


def newest_number() -> int:
    """Return the number of the schema that this version of stretto is made for."""
    return read_steps(files("stretto.postgres") / "migrations")[-1].number


async def _wait_for_other_runners(connection: Connection) -> None:
    lock_timeout = await connection.fetchval("SELECT current_setting('lock_timeout')")
    await connection.execute(f"SET LOCAL lock_timeout = '{_RUNNER_SECONDS}s'")
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    await connection.execute("SELECT set_config('lock_timeout', $1, true)", lock_timeout)


async def _enter_schema(connection: Connection, schema: str) -> None:
    """Make the schema if it is not there, and look nowhere else until the transaction ends."""
    quoted = await connection.fetchval("SELECT quote_ident($1)", schema)
    # Where it is there, nobody needs the right to make one.
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", quoted):
        await connection.execute(f"CREATE SCHEMA {quoted}")
    await connection.execute("SELECT set_config('search_path', $1, true)", quoted)


async def _next_step(connection: Connection, newest: Step, changes: Sequence[Step]) -> Step | None:
    if not await connection.fetchval("SELECT to_regclass('schema_version') IS NOT NULL"):
        return newest
    version = await connection.fetchrow(
        "SELECT number, checksum FROM schema_version ORDER BY number DESC LIMIT 1"
    )
    if version is None:
        raise ConfigurationError(
            "the database has our tables, but schema_version is empty; restore its row"
        )
    number, checksum = version
    if number > newest.number:
        message = (
            f"the database has schema {number}, this stretto only knows {newest.number}; use the"
            " stretto that made it, or a newer one"
        )
        raise ConfigurationError(message)
    if number == newest.number:
        known = {newest.checksum, *(step.checksum for step in changes if step.number == number)}
        if checksum not in known:
            message = (
                f"schema {number} of the database was made by another file than ours; use the stretto"
                " that made it"
            )
            raise ConfigurationError(message)
        return None
    return next(step for step in changes if step.number > number)
