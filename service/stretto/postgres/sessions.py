"""Sessions that others' code has changed: a trigger, a host's hook, or a handler of the host's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.postgres.driver_connection import is_lost, terminate, watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS, has_lost_statements
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.postgres.driver_connection import Connection

LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class SessionState:
    """The transaction that a session is in, and what can be left behind in it."""

    transaction_id: str | None
    at_commit: tuple[str, str]
    """What a commit waits for, and which messages the server sends: a warning says that it is unsure."""
    state: tuple[object, ...]


async def session_state(connection: Connection) -> SessionState:
    """Read the state of a session that a hook runs in."""
    row = await connection.fetchrow(QUERIES["session_state"])
    assert row is not None
    transaction_id, durability, messages, *state = row
    return SessionState(transaction_id, (durability, messages), tuple(state))


@asynccontextmanager
async def unchanged(connection: Connection, *, is_flushed: bool) -> AsyncIterator[None]:
    """Run statements in a transaction, and set back what their triggers set for the session.

    What these have deferred to the commit runs before. A writer keeps its session, and a pooler gives one
    to all. The commit is flushed, or waits for nothing.
    """
    async with connection.transaction():
        session = await connection.fetchrow(QUERIES["session_settings"])
        assert session is not None
        yield
        await run_deferred(connection)
        await connection.execute(QUERIES["set_back_session"], *session, is_flushed)


async def run_deferred(connection: Connection) -> None:
    """Run what is deferred to the end of the transaction now."""
    await connection.execute(QUERIES["run_deferred"])


async def is_changed(connection: Connection, error: BaseException) -> bool:
    """Whether a failed statement's session is not what it was: others' statements would fail too.

    Asked of the session itself: a trigger may refuse a row with any SQLSTATE. Not inside of a
    transaction.
    """
    if is_lost(connection) or not isinstance(error, asyncpg.PostgresError):
        return False
    if has_lost_statements(error):
        return True
    try:
        with watchdog(connection, LOOK_SECONDS):
            return bool(await connection.fetchval(QUERIES["is_session_changed"]))
    except DRIVER_ERRORS:
        return True
    except BaseException:
        # Cancelled: a pool would wait for the statement.
        terminate(connection)
        raise
