"""What a migration would do, and what it would make others wait for; changes and locks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.postgres.migrate import look_in, require_session
from stretto.postgres.migration_steps import (
    Way,
    missing_steps,
    oldest_served,
    own_steps,
)
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.migration_steps import Step


@dataclass(frozen=True, slots=True)
class Plan:
    """What `migrate` would do."""

    steps: Sequence[Step]
    oldest_served: int
    """The oldest schema whose instances may run afterwards."""
    sizes: Mapping[str, asyncpg.Record]
    """Rows and bytes of the tables that are locked, or gone through in batches."""
    filled_rows: int
    """What an interrupted back-fill, the first step, has done already."""


async def plan(connection: Connection, schema: str, steps: Sequence[Step] | None = None) -> Plan:
    """Return what `migrate` would do; raises as it does on a mismatch."""
    await require_session(connection)
    changes = own_steps() if steps is None else steps
    async with connection.transaction(readonly=True):
        # A schema that is missing contains no table, and is not made.
        await look_in(connection, schema)
        missing = await missing_steps(connection, changes)
        tables = sorted({name for step in missing for name in (*step.locks, step.table) if name})
        sizes = {name: await connection.fetchrow(QUERIES["table_size"], name) for name in tables}
        is_filling = bool(missing) and missing[0].way is Way.BATCHES
        filled = await connection.fetchrow(QUERIES["filled"]) if is_filling else None
    known = {name: size for name, size in sizes.items() if size is not None}
    return Plan(missing, oldest_served(changes), known, filled["filled_rows"] if filled else 0)
