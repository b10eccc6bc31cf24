"""Which server a writer's connection leads to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.postgres.connections import GRACE_SECONDS
from stretto.postgres.driver_connection import watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import flush_violation
from stretto.store_errors import Misconfigured

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection


async def enter_server(connection: Connection) -> str:
    """Return which server this is; begin a history of events where the newest is another's.

    Raises `Misconfigured` where no history is left (each table has had one since it was made), and
    where commits are not flushed: the role's setting may be another one since our start.
    """
    row = await connection.fetchrow(QUERIES["server"])
    if row is None:
        message = "the table outbox_history has lost its rows; restore them from a backup"
        raise Misconfigured(message)
    violation = flush_violation(row)
    if violation is not None:
        raise Misconfigured(violation)
    if row["is_elsewhere"]:
        await begin_history(connection, row["number"])
    server: str = row["server"]
    return server


async def begin_history(connection: Connection, newest: int) -> None:
    """Begin the history of events behind the newest one, unless another connection has begun it."""
    await connection.execute(QUERIES["begin_history"], newest)


async def is_same_backend(connection: Connection) -> bool:
    """Whether the connection still leads to the server process that it was opened to.

    Then it leads to the same server, and no statement of ours is left under way. PgBouncer reports
    a server that it has lost while the connection to PgBouncer itself lives; the process id that it
    gives at the opening belongs to no server process.
    """
    try:
        with watchdog(connection, GRACE_SECONDS):
            backend = await connection.fetchval(QUERIES["backend"])
    except DRIVER_ERRORS:
        return False
    return bool(backend == connection.get_server_pid())
