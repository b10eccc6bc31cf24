"""What a host hands in, checked before anything of it is used.

A misspelt option, a hook that is no coroutine function or a pool that is too small would otherwise
show as answers that make no sense, when the first client comes. Wrong kinds of arguments are
`TypeError`s; what does not fit together is a `ConfigurationError`, whose message says what to do.
"""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from stretto.errors import ConfigurationError, Unreachable
from stretto.postgres.connections import Lane
from stretto.postgres.driver_connection import is_lost
from stretto.postgres.migrate import PRIVILEGES
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import session_violation
from stretto.telemetry.logs import logger
from stretto.telemetry.safe_calls import never_raising

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from stretto.observations import Observation, Observer
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection, Pool

# Beside the writers', which are kept for good: one for reads, one for relay, sweeper and webhook.
POOL_SPARE_MIN: Final = 2
# How many connections of a pool the components that run on it need. A pool cannot be asked who has
# its connections, and counting those that are lent would count the host's own.
_needed: Final[dict[Pool, int]] = {}
# That of the setting `DB_SCHEMA`: what needs quotes would be another schema, or none.
SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,62}")
DATA_CLASS: Final = "22"
# All that stands in a path as itself (RFC 3986, 3.3).
_PART_MARKS: Final = "-._~!$&'()*+,;=:@"
_PART: Final = re.compile(f"[A-Za-z0-9{re.escape(_PART_MARKS)}]+")
# What `ping_codecs` has in each type, as the driver takes and reads it. First those that it is sent.
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


def require_options(
    options: Mapping[str, object], known: Collection[str], required: Collection[str]
) -> None:
    """Raise `TypeError` for an option that is not known, and for one that is missing."""
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            message = f"unknown option {name!r}: {advice}"
            raise TypeError(message)
    for name in required:
        if name not in options:
            message = f"the option {name!r} is needed"
            raise TypeError(message)


def require_kind(name: str, value: object, kind: type) -> None:
    """Raise `TypeError` unless the value is of that kind."""
    if not isinstance(value, kind):
        message = f"{name} must be {kind.__module__}.{kind.__qualname__}, not {type(value)!r}"
        raise TypeError(message)


def require_observer(observe: object) -> None:
    """Raise `TypeError` unless it can be called with an event, and is done when it returns."""
    if not callable(observe) or _is_async(observe):
        message = (
            "observe must be a function of one event, and no async one: `def observe(event)`, not"
            f" {observe!r}"
        )
        raise TypeError(message)


def require_bus(bus: object) -> None:
    """Raise `TypeError` unless it has an async method `publish`."""
    if bus is not None and not _is_async(getattr(bus, "publish", None)):
        message = (
            "bus must be an object with `async def publish(self, events)`, which returns the reasons of"
            f" refused events by their ids, not {bus!r}"
        )
        raise TypeError(message)


def require_schema(schema: object) -> None:
    """Raise `ConfigurationError` unless the name stands in a search_path as it is written."""
    if not isinstance(schema, str) or SCHEMA.fullmatch(schema) is None:
        message = (
            f"ComponentSettings.schema is {schema!r}: it must be a name of up to 63 lower-case letters,"
            " digits and underscores that begins with no digit, such as 'stretto'"
        )
        raise ConfigurationError(message)


def pool_of(make_pool: Callable[[], Pool]) -> Pool:
    """Return the pool that the option `pool` leads to; raises `ConfigurationError`."""
    try:
        return make_pool()
    except Exception as error:
        message = (
            f"the function given as pool raised {error!r}: it is called when the application starts, and"
            " the host must have opened its pool by then; add what opens it before stretto.setup"
        )
        raise ConfigurationError(message) from error


def _is_async(function: object) -> bool:
    """Whether it is an async function, or an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 which kind?
    )


def require_hook(on_create: object) -> None:
    """Raise `TypeError` unless it is an async function, or an object that is called like one."""
    if on_create is None or _is_async(on_create):
        return
    message = (
        "on_create must be an async function of a connection and the created groups:"
        " `async def on_create(connection, created)`"
    )
    raise TypeError(message)


def guarded(observe: Observer) -> Observer:
    """Return an observer that never raises: it is called in the middle of writes and of answers."""

    def report(error: BaseException, observation: Observation) -> None:
        logger.error("observer.failed", kind=type(observation).__name__, exc_info=error)

    return never_raising(observe, report)


def require_one_source(dsn: str, pool: object) -> None:
    """Raise `TypeError` unless there is either a `dsn` or a `pool`."""
    if bool(dsn) == (pool is not None):
        given = "both were given" if dsn else "neither was given"
        message = f"one of dsn and pool is needed: {given}"
        raise TypeError(message)


def require_positive(**numbers: int) -> None:
    """Raise `ConfigurationError` for a number below one: nothing would be created."""
    for name, number in numbers.items():
        if number < 1:
            message = f"ComponentSettings.{name} must be at least 1, not {number}"
            raise ConfigurationError(message)


def require_prefix(prefix: str) -> None:
    """Raise `ConfigurationError` unless the prefix is a path that is sent as it is written.

    Any other would be found under another path, under none, or under one for each value of a pattern;
    and `Location` would lead nowhere.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        right = "/" + (prefix.strip("/") or "chat")
        message = f"the prefix {prefix!r} must begin with a slash and not end with one: {right!r}"
        raise ConfigurationError(message)
    parts = prefix[1:].split("/")
    if any(_PART.fullmatch(part) is None or part in {".", ".."} for part in parts):
        message = (
            f"the prefix {prefix!r} must be a path such as '/chat' or '/api/chat', without a pattern, a"
            f" query or an empty part: each part has letters, digits or {_PART_MARKS}, and is neither"
            " '.' nor '..'"
        )
        raise ConfigurationError(message)


def require_pool(pool: Any, writers: int) -> None:
    """Raise unless it is a pool that is open and has room for the writers and for reads."""
    require_kind("pool", pool, asyncpg.Pool)
    opened: Pool = pool
    if opened.is_closing():
        message = "the pool is closed; open it before stretto starts, and close it afterwards"
        raise ConfigurationError(message)
    needed = writers + POOL_SPARE_MIN
    if opened.get_max_size() < needed:
        message = (
            f"the pool has {opened.get_max_size()} connections and needs {needed} for stretto alone:"
            f" {writers} for writers, which keep them, and {POOL_SPARE_MIN} for everything else;"
            " raise its max_size or lower ComponentSettings.writers"
        )
        raise ConfigurationError(message)


@contextmanager
def sharing(pool: Pool, writers: int) -> Iterator[None]:
    """Have room in a host's pool for one component more, as long as it runs.

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


async def require_database(database: Database, *, is_hosts_pool: bool) -> None:
    """Raise `Unreachable` unless the database answers and has our tables.

    Raises `ConfigurationError` where a host's pool does not find them, or does not read our values.
    """
    if is_hosts_pool:
        await _require_right_pool(database)
    await database.inspect()


async def _require_right_pool(database: Database) -> None:
    try:
        async with database.connection(Lane.PROBE) as connection:
            # First: whatever else is asked is read through them.
            await _require_codecs(connection)
            violation = await session_violation(connection)
            if violation is not None:
                raise ConfigurationError(violation)
            pool = await connection.fetchrow(QUERIES["ping_pool"], [*PRIVILEGES])
            assert pool is not None
            if not pool["is_led"] and pool["schemas"]:
                message = (
                    f"the pool's search_path ({pool['search_path']}) does not lead to all of stretto's"
                    f" tables, which are in the schema {pool['schemas']}: open the pool with"
                    f' server_settings={{"search_path": "{pool["schemas"]}"}}'
                )
                raise ConfigurationError(message)
            # PgBouncer names a process that is none.
            database.is_shared = pool["backend"] != connection.get_server_pid()
    except Unreachable as error:
        if isinstance(error.__cause__, asyncpg.InterfaceError):
            # The driver's own objection, such as a pool that was never opened.
            message = f"the pool cannot be used: {error.__cause__}; open it before stretto starts"
            raise ConfigurationError(message) from error
        raise


async def _require_codecs(connection: Connection) -> None:
    """Raise `ConfigurationError` where the driver does not send and read our types as it is made to."""
    advice = (
        "leave the codecs of PostgreSQL's own types as they are, or give stretto a pool of its own"
    )
    try:
        row = await connection.fetchrow(QUERIES["ping_codecs"], *SENT.values())
    except Exception as error:
        # A codec of the host's raises what it likes; class 22 is the server's word for bad data.
        is_data = getattr(error, "sqlstate", DATA_CLASS).startswith(DATA_CLASS)
        if not is_data or is_lost(connection) or isinstance(error, (OSError, TimeoutError)):
            raise
        message = f"the pool does not send or read values as the driver does ({error}): {advice}"
        raise ConfigurationError(message) from error
    assert row is not None
    for name, value in {**SENT, **READ}.items():
        if (type(row[name]), row[name]) != (type(value), value) and not _is_uuid(row[name], value):
            message = f"the pool reads a {name} as {type(row[name]).__name__}: {advice}"
            raise ConfigurationError(message)
    if not row["is_sent"]:
        message = f"the pool sends other values than it is given: {advice}"
        raise ConfigurationError(message)


def _is_uuid(read: object, value: object) -> bool:
    """Whether it is that UUID; the driver's own class is another than the standard library's."""
    return isinstance(read, UUID) and read == value
