"""Checks a host's connection pool before anything uses it.

A pool that is too small, leads to other tables or reads values in another way would otherwise fail
the first request, with an error that names none of these causes.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from stretto.kinds import require_kind
from stretto.postgres.driver_connection import is_lost, terminate
from stretto.postgres.hosts_pool import CHANGED_MAX, Changed
from stretto.postgres.lanes import Lane
from stretto.postgres.log import origin
from stretto.postgres.migrate import PRIVILEGES, ROUTINES
from stretto.postgres.pooler import RESET_SESSION
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import session_violation
from stretto.start_errors import ConfigurationError
from stretto.store_errors import ReadCancelled, Unreachable
from stretto.uuids import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection, Pool

# Beside the writers', which are kept for good: one for reads, one for relay, sweeper and webhook, one
# that the log tail keeps while there are sessions.
POOL_SPARE_MIN: Final = 3
# How many connections of a pool the components that run on it need. The pool cannot say which of
# its connections a component has, and a count of those in use would include the host's own.
_needed: Final[dict[Pool, int]] = {}
DATA_CLASS: Final = "22"
_ADVICE: Final = (
    "leave the codecs of PostgreSQL's own types as they are, or give stretto a pool of its own"
)
# A value of each type for `ping_codecs`, as the driver has it. First those that are sent.
_ID: Final = UUID(int=7)
SENT: Final[Mapping[str, object]] = {
    "uuid": _ID,
    "uuid[]": [_ID],
    "text": "a",
    "text[]": ["a", None],
    "bytea": b"a",
    "bytea[]": [b"a"],
    "timestamptz": datetime(2000, 1, 2, 3, 4, 5, tzinfo=UTC),
    "bool": True,
    "int4": 7,
    "int4[]": [7],
    "int8": 7,
    "float8": 7.5,
    "float8[]": [7.5],
    "xid8": 7,
    "bool[]": [True],
    "tid": (0, 7),
}
READ: Final[Mapping[str, object]] = {"name": "a", "name[]": ["a"], "json": '{"a": 1}', "pg_lsn": 7}

_READ_ONLY: Final = (
    "the pool is opened with default_transaction_read_only = on, so stretto could never write: leave"
    " that out of its server_settings and of its URL, or give stretto a pool of its own"
)

LOOKS_FOR_SESSION: Final = 10
_KEEPS: Final = (
    "a session of the pool keeps what a handler has set in it, such as SET search_path or SET ROLE: it would"
    " lead groups into other tables;"
)
_POOL_KEEPS: Final = f"{_KEEPS} leave the pool's reset as it is, or call connection.reset() in it"
_POOLER_KEEPS: Final = (
    f"{_KEEPS} have PgBouncer reset each session behind a transaction, by these lines of pgbouncer.ini:\n"
    f"server_reset_query = {RESET_SESSION}\n"
    "server_reset_query_always = 1"
)


def pool_of(make_pool: Callable[[], Pool]) -> Pool:
    """Return the pool that the option `pool` leads to; raises `ConfigurationError`."""
    try:
        return make_pool()
    except Exception as error:
        message = (
            f"the function given as pool raised {error!r}: it is called when the application starts,"
            " and the host must have opened its pool by then; add what opens it before stretto.setup"
        )
        raise ConfigurationError(message) from error


def require_pool(pool: Any, writers: int) -> None:
    """Raise unless it is a pool that is open and has room for the writers and for reads."""
    require_kind("pool", pool, asyncpg.Pool)
    opened: Pool = pool
    if opened.is_closing():
        message = "the pool is closed; open it before stretto starts, and close it afterwards"
        raise ConfigurationError(message)
    # asyncpg would read its connections in two loops: with two threads, that ends the process.
    running = asyncio.get_running_loop()
    if getattr(opened, "_loop", running) is not running:
        message = "the pool belongs to another event loop: open it in the one that stretto runs in"
        raise ConfigurationError(message)
    needed = writers + POOL_SPARE_MIN
    if opened.get_max_size() < needed:
        message = (
            f"the pool has {opened.get_max_size()} connections and needs {needed} for stretto"
            f" alone: {writers} for writers, which keep them, and {POOL_SPARE_MIN} for everything else;"
            " raise its max_size or lower ComponentSettings.writers"
        )
        raise ConfigurationError(message)


@contextmanager
def sharing(pool: Pool, writers: int) -> Iterator[None]:
    """Reserve connections of a host's pool for one more component, as long as it runs.

    Raises `ConfigurationError` where other components leave too few connections: then some of the
    writers would never get one.
    """
    others = _needed.get(pool, 0)
    needed = writers + POOL_SPARE_MIN
    if pool.get_max_size() < others + needed:
        message = (
            f"the pool has {pool.get_max_size()} connections, other components on it need {others}"
            f" and this one {needed} more (writers and {POOL_SPARE_MIN}): raise its max_size to"
            f" {others + needed} at least, lower ComponentSettings.writers or give it another pool"
        )
        raise ConfigurationError(message)
    _needed[pool] = others + needed
    try:
        yield
    finally:
        _needed[pool] -= needed
        if not _needed[pool]:
            del _needed[pool]


async def require_database(database: Database, *, is_hosts_pool: bool) -> str:
    """Return what identifies the database; raise `Unreachable` unless it answers and has our tables.

    Raises `ConfigurationError` where a host's pool does not find them, does not read our values, or
    ends our statements before the server has answered.
    """
    try:
        if is_hosts_pool:
            await _require_right_pool(database)
        await database.inspect()
        return await origin(database)
    except ReadCancelled as error:
        if not is_hosts_pool:
            raise
        message = (
            f"a statement was cancelled ({error}): open the pool with"
            ' server_settings={"statement_timeout": "0"}, or leave it out there and run'
            " ALTER ROLE … RESET statement_timeout"
        )
        raise ConfigurationError(message) from error


async def _require_right_pool(database: Database) -> None:
    try:
        for others_left in reversed(range(CHANGED_MAX)):
            async with database.connection(Lane.PROBE) as connection:
                # What a handler of the host's has left may lead to another deployment, which would become
                # ours. A role that the next ones have too is of the pool's `init`.
                if others_left and await connection.fetchrow(QUERIES["left_role"]) is not None:
                    terminate(connection)
                    continue
                session = await _checked_session(connection)
                database.home = session["schema"]
                # PgBouncer reports a process id that is not the server's.
                database.is_shared = session["backend"] != connection.get_server_pid()
                break
        await _require_reset(database)
    except Changed as error:
        raise ConfigurationError(str(error)) from error
    except Unreachable as error:
        if isinstance(error.__cause__, asyncpg.InterfaceError):
            # The driver's own objection, such as a pool that was never opened.
            message = f"the pool cannot be used: {error.__cause__}; open it before stretto starts"
            raise ConfigurationError(message) from error
        raise


async def _checked_session(connection: Connection) -> asyncpg.Record:
    """Return what is read of a session of the pool; raises `ConfigurationError` where it does not suit."""
    if connection.is_in_transaction():
        message = "the pool's setup leaves a transaction open: have it commit what it does"
        raise ConfigurationError(message)
    # First: the other checks read their answers through these codecs.
    await _require_codecs(connection)
    violation = await session_violation(connection)
    if violation is not None:
        raise ConfigurationError(violation)
    session = await connection.fetchrow(QUERIES["ping_pool"], [*PRIVILEGES], ROUTINES)
    assert session is not None
    if not session["is_led"] and session["schemas"]:
        message = (
            f"the pool's search_path ({session['search_path']}) does not lead to all of"
            f" stretto's tables, which are in the schema {session['schemas']}: open the pool with"
            f' server_settings={{"search_path": "{session["schemas"]}"}}'
        )
        raise ConfigurationError(message)
    # Where the server, the database or the role says so, an operator may end that: it is waited for.
    if session["is_read_only"]:
        raise ConfigurationError(_READ_ONLY)
    return session


async def _require_reset(database: Database) -> None:
    """Raise `ConfigurationError` where a session of the pool keeps what was set in it.

    A search_path that a handler of the host's has set there would lead groups into other tables.
    """
    token = str(uuid4())
    async with database.connection(Lane.PROBE) as connection:
        backend = await connection.fetchval(QUERIES["leave_setting"], token)
        # A pooler gives the session on while the pool's connection is still ours.
        is_kept = database.is_shared and await _is_kept(database, Lane.LOOKS, token, backend)
    if is_kept or await _is_kept(database, Lane.PROBE, token, backend):
        raise ConfigurationError(_POOLER_KEEPS if database.is_shared else _POOL_KEEPS)


async def _is_kept(database: Database, lane: Lane, token: str, backend: int) -> bool:
    """Whether what was set in a session is found there by the next one to have it."""
    # The session that came back last comes first, unless others use it meanwhile.
    for _ in range(LOOKS_FOR_SESSION):
        async with database.connection(lane) as connection:
            left = await connection.fetchrow(QUERIES["left_setting"])
        assert left is not None
        if left["setting"] == token or left["backend"] == backend:
            return bool(left["setting"] == token)
    return False


async def _require_codecs(connection: Connection) -> None:
    """Raise `ConfigurationError` unless rows, and the codecs of our types, are the driver's own."""
    try:
        row = await connection.fetchrow(QUERIES["ping_codecs"], *SENT.values())
        rows = [row, *await connection.fetch(QUERIES["ping_codecs"], *SENT.values())]
    except Exception as error:
        # A codec of the host's may raise anything; class 22 is the server's code for bad data.
        is_data = getattr(error, "sqlstate", DATA_CLASS).startswith(DATA_CLASS)
        if not is_data or is_lost(connection) or isinstance(error, (OSError, TimeoutError)):
            raise
        message = f"the pool does not send or read values as the driver does ({error}): {_ADVICE}"
        raise ConfigurationError(message) from error
    for each in rows:
        # A `connection_class` may override either method.
        if not isinstance(each, asyncpg.Record):
            message = f"the pool returns rows that are no asyncpg.Record: {_ADVICE}"
            raise ConfigurationError(message)
    assert row is not None
    for name, value in {**SENT, **READ}.items():
        if (type(row[name]), row[name]) != (type(value), value) and not _is_uuid(row[name], value):
            message = f"the pool reads a {name} as {type(row[name]).__name__}: {_ADVICE}"
            raise ConfigurationError(message)
    if not row["is_sent"]:
        message = f"the pool sends other values than it is given: {_ADVICE}"
        raise ConfigurationError(message)


def _is_uuid(read: object, value: object) -> bool:
    """Whether it is that UUID; the driver's class is not the standard library's."""
    return isinstance(read, UUID) and read == value
