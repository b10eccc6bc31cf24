"""The schema: migrates it, grants rights on it, and says whether it can be served.

`schema.sql` is the whole of the newest version. From the first release on, each change adds a file
`migrations/NNNN_title.sql`, which takes a database from the number before to NNNN.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.errors import ConfigurationError
from stretto.postgres.queries import QUERIES, schema_file
from stretto.postgres.server_settings import NO_TABLES, session_violation
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from stretto.postgres.driver_connection import Connection

# The version of the first release. Lower numbers were never released: no migration starts there.
FIRST_NUMBER: Final = 7
# The key of the advisory lock, which no other program should use: "stretto" as a number.
_LOCK: Final = int.from_bytes(b"stretto", "big")
# The lock of another runner is waited for this long, whatever the connection's lock_timeout. The
# changes themselves keep that short time-out: every statement queues behind one that waits for a
# table.
_RUNNER_SECONDS: Final = 60
_EMPTY: Final = "schema_version is empty although the tables exist; restore its row from a backup"
_START_ANEW: Final = (
    "use the stretto that made it, or an empty database (embedded: another STRETTO_DATA_DIR)"
)

# Partitions of the log of events.
SLOTS: Final = 8

# What the service's statements do with each table; a role needs no more.
PRIVILEGES: Final = MappingProxyType(
    {
        "attempt": "SELECT, INSERT, UPDATE, DELETE",
        "chat_group": "SELECT, INSERT",
        "conversation": "SELECT, INSERT",
        "conversation_member": "SELECT, INSERT",
        "history_start": "SELECT, UPDATE",
        "inbox": "SELECT, INSERT, DELETE",
        "outbox": "SELECT, INSERT",
        "outbox_delivery": "SELECT, INSERT, UPDATE, DELETE",
        "outbox_history": "SELECT, INSERT, UPDATE, DELETE",
        "outbox_present": "SELECT",
        "outbox_reader": "SELECT, INSERT, UPDATE",
        "outbox_server": "SELECT",
        "outbox_slot": "SELECT, UPDATE",
        "schema_version": "SELECT",
    }
    # A sweep truncates whole partitions.
    | {f"outbox_{slot}": "TRUNCATE" for slot in range(SLOTS)}
)
# The routines that its statements call; they run with the role's own rights.
ROUTINES: Final = ("claim_and_lead_1", "claim_attempts_1", "lead_groups_1")
_NEEDED: Final = {**PRIVILEGES, **dict.fromkeys(ROUTINES, "EXECUTE")}


@dataclass(frozen=True, slots=True)
class Step:
    """One numbered change of the schema."""

    number: int
    statements: str

    @property
    def checksum(self) -> str:
        """Shows whether the file was changed after it had been applied."""
        return sha256(self.statements.encode()).hexdigest()


def read_steps(folder: Traversable | Path) -> list[Step]:
    """Return the numbered changes of a folder in their order; none if there is no folder."""
    if not folder.is_dir():
        return []
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [Step(int(name[:4]), (folder / name).read_text("utf-8")) for name in names]


def newest_number(steps: Sequence[Step] | None = None) -> int:
    """Return the number of the schema that this version of stretto is made for."""
    steps = _own_steps() if steps is None else steps
    return steps[-1].number if steps else FIRST_NUMBER


async def migrate(
    connection: Connection, schema: str, steps: Sequence[Step] | None = None
) -> list[int]:
    """Apply what is missing and return the numbers; raises `ConfigurationError` on a mismatch.

    One runner works at a time. Each change is one transaction: one that fails leaves those before
    it applied, and nothing of itself.
    """
    violation = await session_violation(connection)
    if violation is not None:
        raise ConfigurationError(violation)
    changes = _own_steps() if steps is None else steps
    newest = Step(newest_number(changes), schema_file().read_text("utf-8"))
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


async def is_newer(connection: Connection) -> bool:
    """Return whether the schema is newer than ours; raise `Unreachable` if it is older.

    A newer one is served: during a rolling update the migration comes first, and instances of the
    old version keep running beside the new one.
    """
    number: int | None = await connection.fetchval(QUERIES["schema_number"])
    known = newest_number()
    if number is None:
        raise Unreachable(_EMPTY)
    if number < known:
        message = (
            f"the database has schema {number}, this stretto needs {known}; run `stretto migrate`"
        )
        raise Unreachable(message)
    return number > known


async def grant(connection: Connection, schema: str, roles: Sequence[str]) -> None:
    """Grant the roles what the service needs, also on tables and routines that later migrations add.

    Default privileges apply to what the present role creates, so it should be the one that
    migrates. Raises `ConfigurationError` where a role does not get its rights.
    """
    try:
        async with connection.transaction():
            # Two concurrent grants on one table end in an error.
            await _wait_for_other_runners(connection)
            for (statement,) in await connection.fetch(
                QUERIES["grants"], schema, roles, [*_NEEDED], [*_NEEDED.values()]
            ):
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


async def require_rights(connection: Connection, schema: str | None) -> list[str]:
    """Raise `Unreachable` where the schema is missing, or the role lacks rights on what is in it.

    Without a name, the schema is the one that the search_path leads to. Return the names of missing
    tables and routines: a later migration adds them, or they are lost.
    """
    found = await connection.fetchrow(QUERIES["schema_state"], schema, [*_NEEDED])
    if found is None or "schema_version" in found["missing"]:
        raise Unreachable(NO_TABLES)
    role = found["role"]
    lacking = await _lacking_rights(connection, found["schema"], [role])
    if lacking:
        names = [row["name"] for row in lacking]
        lacks = "the right to use the schema of the tables"
        if None not in names:
            lacks = f"rights on {listed(names)}"
        advice = f"run `stretto migrate --grant-to {shlex.quote(role)}`"
        message = f'the role "{role}" lacks {lacks}; {advice}'
        raise Unreachable(message)
    if not found["may_identify"]:
        # Only a superuser can grant it, so `--grant-to` does not.
        message = (
            f'the role "{role}" may not call pg_control_system(), which identifies'
            " the server; run as a superuser, in this database:"
            f' GRANT EXECUTE ON FUNCTION pg_control_system() TO "{role}"'
        )
        raise Unreachable(message)
    missing: list[str] = found["missing"]
    return missing


async def waits_for_standby(connection: Connection) -> bool:
    """Whether a commit waits for a synchronous standby, of a session that this role may see."""
    return bool(await connection.fetchval(QUERIES["waits_for_standby"]))


def listed(names: Sequence[str]) -> str:
    """Return the names of tables and routines as a part of a sentence."""
    kinds = {
        "tables": [name for name in names if name not in ROUTINES],
        "routines": [name for name in names if name in ROUTINES],
    }
    return " and ".join(f"the {kind} {', '.join(found)}" for kind, found in kinds.items() if found)


async def _require_granted(connection: Connection, schema: str, roles: Sequence[str]) -> None:
    """Raise `ConfigurationError` where a role still lacks a right.

    PostgreSQL only warns a role that has rights without being the owner: nothing is granted.
    """
    lacking = await _lacking_rights(connection, schema, roles)
    if lacking:
        owners = ", ".join(sorted({row["owner"] for row in lacking}))
        names = ", ".join(sorted({row["role"] for row in lacking}))
        message = f"nothing could be granted to {names}; run it as the owner {owners}"
        raise ConfigurationError(message)


async def _lacking_rights(
    connection: Connection, schema: str, roles: Sequence[str]
) -> list[asyncpg.Record]:
    return await connection.fetch(
        QUERIES["lacking_rights"], schema, roles, [*_NEEDED], [*_NEEDED.values()]
    )


async def _wait_for_other_runners(connection: Connection) -> None:
    """Take the lock that only one migration or grant holds, until the transaction ends."""
    lock_timeout = await connection.fetchval("SELECT current_setting('lock_timeout')")
    await connection.execute(f"SET LOCAL lock_timeout = '{_RUNNER_SECONDS}s'")
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    await connection.execute("SELECT set_config('lock_timeout', $1, true)", lock_timeout)


def _own_steps() -> list[Step]:
    return read_steps(files("stretto.postgres") / "migrations")


async def _enter_schema(connection: Connection, schema: str) -> None:
    """Create the schema if it is missing; restrict the search_path to it for this transaction."""
    quoted = await connection.fetchval("SELECT quote_ident($1)", schema)
    # CREATE SCHEMA IF NOT EXISTS would need the right to create one even where it exists.
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
        raise ConfigurationError(_EMPTY)
    number, checksum = version
    if number < FIRST_NUMBER:
        message = (
            f"the database has schema {number}, made before the first release, which cannot be"
            f" migrated; {_START_ANEW}"
        )
        raise ConfigurationError(message)
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
                f"schema {number} of the database was made by another file than ours; {_START_ANEW}"
            )
            raise ConfigurationError(message)
        return None
    return next(step for step in changes if step.number > number)
