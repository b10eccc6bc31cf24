"""What a host hands in, checked before anything of it is used.

A misspelt option, a hook that is no coroutine function or a pool that is too small would otherwise
show as answers that make no sense, when the first client comes. Wrong kinds of arguments are
`TypeError`s; what does not fit together is a `ConfigurationError`, whose message says what to do.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from stretto.errors import ConfigurationError
from stretto.protocol.ports import Unreachable
from stretto.storage.database import Lane
from stretto.storage.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stretto.storage.database import Database, Pool

# Beside the writers', which are kept for good: one for reads, one for relay, sweeper and webhook.
POOL_SPARE_MIN: Final = 2


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


def require_hook(on_create: object) -> None:
    """Raise `TypeError` unless it is an async function, or an object that is called like one."""
    if on_create is None or inspect.iscoroutinefunction(on_create):
        return
    if inspect.iscoroutinefunction(getattr(on_create, "__call__", None)):  # noqa: B004 which kind?
        return
    message = (
        "on_create must be an async function of a connection and the created groups:"
        " `async def on_create(connection, created)`"
    )
    raise TypeError(message)


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
    """Raise `ConfigurationError` unless the prefix begins with a slash and does not end with one."""
    if not prefix.startswith("/") or prefix.endswith("/"):
        right = "/" + (prefix.strip("/") or "chat")
        message = f"the prefix {prefix!r} must begin with a slash and not end with one: {right!r}"
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


async def require_tables(database: Database, *, is_hosts_pool: bool) -> None:
    """Raise `Unreachable` unless the database answers and has our tables.

    Raises `ConfigurationError` where a host's pool does not find them, or does not read our ids.
    """
    if is_hosts_pool:
        await _require_right_pool(database)
    await database.inspect()


async def _require_right_pool(database: Database) -> None:
    try:
        async with database.reading(Lane.PROBE) as connection:
            pool = await connection.fetchrow(QUERIES["ping_pool"])
    except Unreachable as error:
        if isinstance(error.__cause__, asyncpg.InterfaceError):
            # The driver's own objection, such as a pool that was never opened.
            message = f"the pool cannot be used: {error.__cause__}; open it before stretto starts"
            raise ConfigurationError(message) from error
        raise
    assert pool is not None
    if not pool["is_led"] and pool["schemas"]:
        message = (
            f"the pool's search_path ({pool['search_path']}) does not lead to stretto's tables, which"
            f" are in the schema {pool['schemas']}: open the pool with"
            f' server_settings={{"search_path": "{pool["schemas"]}"}}'
        )
        raise ConfigurationError(message)
    if not isinstance(pool["decoded"], UUID):
        message = (
            f"the pool reads a uuid as {type(pool['decoded']).__name__}: leave the codec of uuid as it"
            " is, or give stretto a pool of its own"
        )
        raise ConfigurationError(message)
