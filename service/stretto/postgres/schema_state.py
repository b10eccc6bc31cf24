"""Says of a database's schema whether it can be served, and if not, what an operator should do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from stretto.errors import Unreachable
from stretto.postgres.migrate import PRIVILEGES, newest_number
from stretto.postgres.pooler import NO_TABLES
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection


async def require_rights(connection: Connection, schema: str | None) -> list[str]:
    """Raise `Unreachable` where the schema is missing, or the role lacks rights on its tables.

    Without a name, the schema is the one that the search_path leads to. Return the names of the tables
    that it lacks: those of a later change, or some that are lost.
    """
    state = await connection.fetchrow(
        QUERIES["schema_state"], schema, [*PRIVILEGES], [*PRIVILEGES.values()]
    )
    assert state is not None
    if not state["is_migrated"]:
        raise Unreachable(NO_TABLES)
    role = state["role"]
    advice = f"run `stretto migrate --grant-to {shlex.quote(role)}`"
    if not state["is_usable"]:
        message = f'the role "{role}" lacks the right to use the schema of the tables; {advice}'
        raise Unreachable(message)
    if state["forbidden"]:
        tables = ", ".join(state["forbidden"])
        message = f'the role "{role}" lacks rights on the tables {tables}; {advice}'
        raise Unreachable(message)
    missing: list[str] = state["missing"]
    return missing


async def is_newer(connection: Connection) -> bool:
    """Return whether the schema is newer than ours; raise `Unreachable` where it is older.

    A newer one is served: old and new versions run side by side while an update is rolled out, and
    the migration comes first.
    """
    number: int | None = await connection.fetchval(QUERIES["schema_number"])
    known = newest_number()
    if number is None:
        message = "the database has our tables, but schema_version is empty; restore its row"
        raise Unreachable(message)
    if number < known:
        message = (
            f"the database has schema {number}, this stretto needs {known}; run `stretto migrate`"
        )
        raise Unreachable(message)
    return number > known
