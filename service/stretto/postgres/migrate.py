"""The schema: migrates it, grants rights on it, and says whether it can be served."""

from __future__ import annotations

import shlex
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.postgres.migration_runs import (
    build_index,
    fill_batch,
    record,
    rest,
    sole_session,
    sole_transaction,
)
from stretto.postgres.migration_steps import (
    EMPTY,
    Way,
    missing_steps,
    newest_number,
    oldest_served,
    own_steps,
)
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import NO_TABLES, session_violation
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Outdated, Unmigrated, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.migration_runs import Progress
    from stretto.postgres.migration_steps import Step

# Partitions of the log of events.
SLOTS: Final = 8

# What the service's statements, and a host's changes of groups, do with each table; a role needs no
# more.
PRIVILEGES: Final = MappingProxyType(
    {
        "attempt": "SELECT, INSERT, UPDATE, DELETE",
        "attempt_trail": "SELECT, INSERT, DELETE",
        "chat_group": "SELECT, INSERT, UPDATE",
        "conversation": "SELECT, INSERT, DELETE",
        "conversation_member": "SELECT, INSERT, UPDATE, DELETE",
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
ROUTINES: Final = (
    *("append_trail_1", "claim_and_lead_4", "claim_attempts_1", "delete_group_1"),
    *("delete_group_at_once_1", "deleted_groups_1", "lead_groups_4", "lead_groups_at_once_1"),
    *("plan_whole_log_1", "present_history_1", "require_all_rows_1", "require_home_1"),
    "require_whole_log_1",
)
# What makes a row the only one of its kind, by table; a host may have dropped one by hand.
KEYS: Final = (
    *(("attempt", "group_id"), ("attempt_trail", "group_id, number")),
    *(("chat_group", "conversation_id"), ("chat_group", "group_id")),
    *(("conversation", "conversation_id"), ("conversation_member", "conversation_id, user_id")),
    *(("history_start", "is_only"), ("inbox", "consumer, message_id")),
    *(("outbox_delivery", "reader, event_id"), ("outbox_history", "number")),
    *(("outbox_reader", "name"), ("outbox_slot", "slot"), ("schema_version", "number")),
)
_NEEDED: Final = {**PRIVILEGES, **dict.fromkeys(ROUTINES, "EXECUTE")}


async def migrate(
    connection: Connection,
    schema: str,
    steps: Sequence[Step] | None = None,
    progress: Progress | None = None,
) -> list[int]:
    """Apply what is missing and return the numbers; raises `ConfigurationError` on a mismatch.

    One runner works at a time. A step that fails leaves those before it applied. Of itself a
    transaction leaves nothing, a back-fill the batches that are done; the next run goes on there.
    """
    await require_session(connection)
    changes = own_steps() if steps is None else steps
    applied: list[int] = []
    while True:
        started = time.perf_counter()
        step, is_done = await _go_on(connection, schema, changes, progress or (lambda *_: None))
        if step is None:
            return applied
        if is_done:
            applied.append(step.number)
        else:
            await rest(time.perf_counter() - started)


async def require_session(connection: Connection) -> None:
    """Raise `ConfigurationError` where the tables must not be made."""
    violation = await session_violation(connection)
    if violation is not None:
        raise ConfigurationError(violation)


async def look_in(connection: Connection, schema: str) -> str:
    """Restrict the search_path to the schema for this transaction; return it as that has it.

    Raises `ConfigurationError` where the role may not use the schema: it would look like an empty one.
    """
    refusal = await connection.fetchrow(QUERIES["schema_refusal"], schema)
    if refusal is not None:
        message = (
            f'the role "{refusal["role"]}" lacks the right USAGE on the schema {schema}; run this as'
            f" its owner, {refusal['owner']}"
        )
        raise ConfigurationError(message)
    quoted: str = await connection.fetchval("SELECT quote_ident($1)", schema)
    await connection.execute("SELECT set_config('search_path', $1, true)", quoted)
    return quoted


async def is_newer(connection: Connection) -> bool:
    """Return whether the schema is newer than ours; raise `Unreachable` if we cannot run on it.

    That is `Outdated` for an older one.

    A newer one is served if it says so: during a rolling update the migration comes first, and
    instances of the old version keep running beside the new one.
    """
    number: int | None = await connection.fetchval(QUERIES["schema_number"])
    known = newest_number()
    if number is None:
        raise Unreachable(EMPTY)
    if number < known:
        message = (
            f"the database has schema {number}, this stretto needs {known}; run `stretto migrate`"
        )
        raise Outdated(message)
    if number == known:
        await _require_keys(connection)
        return False
    oldest: int = await connection.fetchval(QUERIES["schema_serves_from"])
    if known < oldest:
        message = (
            f"the database has schema {number}, which a stretto made for schema {oldest} or newer"
            f" can use; this one is made for {known}: run a newer version"
        )
        raise Unreachable(message)
    return True


async def _require_keys(connection: Connection) -> None:
    """Raise `Unreachable` where a table of this version lacks a unique index."""
    tables, columns = zip(*KEYS, strict=True)
    lacking = await connection.fetch(QUERIES["lacking_keys"], tables, columns)
    if lacking:
        statements = "; ".join(f"CREATE UNIQUE INDEX ON {key}" for (key,) in lacking)
        message = f"the schema lacks unique indexes; run, in the schema: {statements}"
        raise Unreachable(message)


async def grant(connection: Connection, schema: str, roles: Sequence[str]) -> None:
    """Grant the roles what the service needs, also on tables and routines that later migrations add.

    Default privileges apply to what the present role creates, so it should be the one that
    migrates. Raises `ConfigurationError` where a role does not get its rights.
    """
    try:
        # Two concurrent grants on one table end in an error.
        async with sole_transaction(connection):
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
    """Raise `Unmigrated` where the schema is missing, or the role lacks rights on what is in it.

    Without a name, the schema is the one that the search_path leads to. Return the names of missing
    tables and routines: a later migration adds them, or they are lost. Raises `Unreachable` where the
    role lacks a right that only a superuser can grant.
    """
    found = await connection.fetchrow(QUERIES["schema_state"], schema, [*_NEEDED])
    if found is None or "schema_version" in found["missing"]:
        raise Unmigrated(NO_TABLES)
    role = found["role"]
    lacking = await _lacking_rights(connection, found["schema"], [role])
    if lacking:
        names = [row["name"] for row in lacking]
        lacks = "the right to use the schema of the tables"
        if None not in names:
            lacks = f"rights on {listed(names)}"
        advice = f"run `stretto migrate --grant-to {shlex.quote(role)}`"
        message = f'the role "{role}" lacks {lacks}; {advice}'
        raise Unmigrated(message)
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


def listed(names: Sequence[str]) -> str:
    """Return the names of tables and routines as a part of a sentence."""
    kinds = {
        "tables": [name for name in names if name not in ROUTINES],
        "routines": [name for name in names if name in ROUTINES],
    }
    return " and ".join(f"the {kind} {', '.join(found)}" for kind, found in kinds.items() if found)


async def _go_on(
    connection: Connection, schema: str, changes: Sequence[Step], progress: Progress
) -> tuple[Step | None, bool]:
    """Do the next step, or one batch of it; return it and whether it is done, None if none is left."""
    async with sole_transaction(connection):
        path = await _enter_schema(connection, schema)
        step = next(iter(await missing_steps(connection, changes)), None)
        if step is None:
            return None, True
        oldest = oldest_served([each for each in changes if each.number <= step.number])
        if step.way is not Way.CONCURRENTLY:
            is_done = True
            if step.way is Way.BATCHES:
                is_done = await fill_batch(connection, step, progress)
            else:
                await connection.execute(step.statements)
            if is_done:
                await record(connection, step, oldest)
            return step, is_done
    async with sole_session(connection, path):
        # Another runner may have done it since.
        is_ours = step in await missing_steps(connection, changes)
        if is_ours:
            progress(step, 0, 0)
            await build_index(connection, step)
            await record(connection, step, oldest)
    return step, is_ours


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


async def _enter_schema(connection: Connection, schema: str) -> str:
    """Create the schema if it is missing; restrict the search_path to it for this transaction."""
    quoted = await look_in(connection, schema)
    # CREATE SCHEMA IF NOT EXISTS would need the right to create one even where it exists.
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", quoted):
        await connection.execute(f"CREATE SCHEMA {quoted}")
    return quoted
