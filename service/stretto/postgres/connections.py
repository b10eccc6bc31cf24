"""Where connections come from: the configured database, or a pool that a host hands in.

A writer keeps one for itself. Everything else shares a few, in lanes: each kind of work has its own, so
that none holds up another. A connection always leads to a primary that takes writes. A statement is
bounded by the server's own time-outs, and where the server does not answer at all, the connection is
terminated, which is an error for its caller. Actors wait for a connection without a time-out, which would
count the lag of our own event loop: few of them share a lane, and each needs one connection at a time.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute
from asyncpg.exceptions import TargetServerAttributeNotMatched

from stretto.errors import ReadCancelled, Unreachable
from stretto.postgres.driver_connection import Connection, DriverConnection, Pool
from stretto.postgres.driver_errors import DRIVER_ERRORS, URL_ERRORS, in_words, is_lasting
from stretto.postgres.hosts_pool import acquire
from stretto.postgres.pooler import ADD_PARAMETER, require_role_settings, split_pooler
from stretto.postgres.queries import QUERIES
from stretto.postgres.schema_state import is_newer, require_rights
from stretto.postgres.server_settings import ISOLATION, session_violation
from stretto.runtime.cancelling import is_cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType


# One host of several may be dead; the others must still be reached while a client waits.
CONNECT_SECONDS: Final = 2.0
# Below a client's default wait of 10 s. Writes have no statement_timeout: cancelling one that waits
# for a synchronous standby would make the server report a success that the standby does not have.
READ_SECONDS: Final = 5.0
WRITE_SECONDS: Final = 5.0
LOCK_SECONDS: Final = 1.0
# All of ours are over by then, or cut off. It ends those whose client cannot be told from a slow one:
# between the packets of a statement a session is neither idle nor cancelled, and keeps its locks.
TRANSACTION_SECONDS: Final = 30.0
# What the server is given to cancel a read by itself before we cut the connection.
GRACE_SECONDS: Final = 1.0
DEFAULT_PORT: Final = 5432
READ_ONLY: Final = "the database is read-only: a standby, or default_transaction_read_only is on"
# asyncpg's own default; behind a pooler the next transaction may not have what this one prepared.
PREPARED_MAX: Final = 100

# PgBouncer passes this one on by itself.
_NAME: Final = {"application_name": "stretto"}
_SERVER_SETTINGS: Final = _NAME | {
    "lock_timeout": f"{LOCK_SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": "30s",
    # A role may bring another one.
    "default_transaction_isolation": ISOLATION,
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    # Statements touch few rows by primary key; compiling them costs more than running them.
    "jit": "off",
    # They find their rows by index, too: without this, a plan that was made while a table was small
    # goes on reading the whole of it when it is large, until somebody has analysed it.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class Lane(StrEnum):
    """A kind of work with connections of its own."""

    LOOKS = "looks"
    """What became of attempts."""
    FOLLOWERS = "followers"
    """Heal and reclaim, key by key."""
    GROUPS = "groups"
    """What members read."""
    HISTORY = "history"
    """What sessions catch up on."""
    PROBE = "probe"
    """Is the database there?"""
    UPKEEP = "upkeep"
    """Relay, sweeper and webhook, which each do one thing at a time."""


# One for each actor; so that a large page does not hold up single groups, and a row lock not every
# other key, two.
CONNECTIONS_MAX: Final[Mapping[Lane, int]] = {
    Lane.LOOKS: 1,
    Lane.FOLLOWERS: 2,
    Lane.GROUPS: 2,
    Lane.HISTORY: 1,
    Lane.PROBE: 1,
    Lane.UPKEEP: 3,
}
# Followers are as many as keys: what cannot be finished within a client's default wait is answered
# with an error, and finished by the retry.
FOLLOWER_SECONDS: Final = 10.0


class Database:
    """The source of connections; use as `async with`.

    `pool`, if given, is the host's: its search_path must lead to the tables, and it is not closed.
    """

    def __init__(self, dsn: str = "", *, schema: str = "stretto", pool: Pool | None = None) -> None:
        self._dsn, self.is_pooled = split_pooler(dsn)
        self.is_shared = self.is_pooled
        """Whether others use the sessions between our transactions; of a host's pool, found out."""
        self._prepared_max = 0 if self.is_pooled else PREPARED_MAX
        self._schema = schema
        self._host_pool = pool
        # A host's pool serves all lanes.
        self._pools: dict[Lane, Pool] = {} if pool is None else dict.fromkeys(Lane, pool)
        self._hosts = [] if pool else _hosts(dsn)

    async def __aenter__(self) -> Self:
        if self._host_pool is None:
            for lane, connections_max in CONNECTIONS_MAX.items():
                self._pools[lane] = await self._make_pool(connections_max)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._host_pool is not None:
            return
        pools, self._pools = self._pools, {}
        await asyncio.gather(*map(_close, pools.values()))

    async def lend(self, *, may_take_long: bool = False) -> Connection:
        """Return a connection to keep until `give_back`; raises `Unreachable`.

        The server ends its transactions after `TRANSACTION_SECONDS`, unless they may take longer.
        """
        self._require_open()
        if self._host_pool is None:
            return await self._connect(may_take_long=may_take_long)
        return await acquire(self._host_pool, CONNECT_SECONDS)

    async def give_back(self, connection: Connection) -> None:
        """Take a lent connection back, dead or alive; raises nothing, for a dead one neither.

        Nor what the `reset` of a host's pool raises: the pool has dropped the connection then.
        """
        try:
            # Not told by their type: asyncpg has a pool's connections pass for its own class.
            if self._host_pool is None:
                await connection.close(timeout=GRACE_SECONDS)
            else:
                await self._host_pool.release(connection, timeout=GRACE_SECONDS)  # type: ignore[arg-type]
        except (Exception, asyncio.CancelledError):
            terminate(connection)
            if is_cancelled():
                raise

    @asynccontextmanager
    async def _acquired(self, lane: Lane) -> AsyncIterator[Connection]:
        if self._host_pool is None:
            seconds = FOLLOWER_SECONDS if lane is Lane.FOLLOWERS else None
            async with self._pools[lane].acquire(timeout=seconds) as connection:
                yield connection
            return
        # A host may keep all of its pool's for itself.
        lent = await acquire(self._host_pool, CONNECT_SECONDS)
        try:
            yield lent
        finally:
            await self.give_back(lent)

    @asynccontextmanager
    async def reading(self, lane: Lane) -> AsyncIterator[Connection]:
        """Acquire a connection of the lane for a short statement.

        Every failure of it is raised as `Unreachable`.
        """
        self._require_open()
        try:
            async with self._acquired(lane) as connection:
                try:
                    with watchdog(connection, READ_SECONDS + GRACE_SECONDS):
                        yield connection
                except asyncio.CancelledError:
                    # The pool would wait until the server has cancelled the statement, for ever
                    # where the server is frozen.
                    terminate(connection)
                    raise
        except asyncpg.QueryCanceledError as error:
            raise ReadCancelled(in_words(error)) from error
        except DRIVER_ERRORS as error:
            raise Unreachable(in_words(error)) from error

    def tending(self) -> AbstractAsyncContextManager[Connection]:
        """Acquire one of the upkeep's; failures are raised as `Unreachable`."""
        return self.reading(Lane.UPKEEP)

    def _require_open(self) -> None:
        """Raise `Unreachable` during and after the shutdown."""
        if not self._pools:
            message = "the service is shutting down"
            raise Unreachable(message)

    async def ping(self) -> None:
        """Raise `Unreachable` unless the database answers, has the tables and takes writes."""
        async with self.reading(Lane.PROBE) as connection:
            await self.require_tables(connection)
            await require_read_write(connection)

    async def inspect(self) -> None:
        """Raise `Unreachable` unless the database answers, and has a schema that we can serve."""
        async with self.reading(Lane.PROBE) as connection:
            await self.require_schema(connection)

    async def require_tables(self, connection: Connection) -> None:
        """Raise `Unreachable` unless the connection's search_path leads to our tables."""
        if self.is_pooled:
            await require_role_settings(connection, self._schema)
        elif not await connection.fetchval(QUERIES["ping"]):
            await require_rights(connection, self._schema if self._host_pool is None else None)
            message = (
                f"our search_path, {self._schema}, has not reached the server; {ADD_PARAMETER}"
            )
            raise Unreachable(message)

    async def require_schema(self, connection: Connection) -> bool:
        """Raise `Unreachable` unless the tables are there, not older than ours, and ours to use.

        The session must also suit them. Return whether they are newer.
        """
        missing = await require_rights(
            connection, self._schema if self._host_pool is None else None
        )
        await self.require_tables(connection)
        violation = await session_violation(connection)
        if violation is not None:
            raise Unreachable(violation)
        newer = await is_newer(connection)
        # An older schema has been told by now.
        if missing:
            message = (
                f"the schema lacks the tables {', '.join(missing)}; restore them from a backup"
            )
            raise Unreachable(message)
        return newer

    async def _make_pool(self, connections_max: int) -> Pool:
        pool: Pool = asyncpg.create_pool(
            min_size=0,
            max_size=connections_max,
            connect=self._connect_reader,
            reset=_leave_as_it_is,
            connection_class=asyncpg.Connection,
        )
        return await pool

    async def _connect_reader(self, *_: Any, **__: Any) -> asyncpg.Connection[asyncpg.Record]:
        return await self._connect(statement_timeout=f"{READ_SECONDS:.0f}s")

    async def _connect(
        self, *, may_take_long: bool = False, **more: str
    ) -> asyncpg.Connection[asyncpg.Record]:
        """Try each host for a primary that takes writes, the one that served last first."""
        server_settings = _SERVER_SETTINGS | {"search_path": self._schema} | more
        trouble: Exception | None = None
        # A copy: others connect meanwhile and change the order.
        for host in tuple(self._hosts):
            try:
                connection = await asyncpg.connect(
                    self._dsn,
                    host=host.name,
                    port=host.port,
                    timeout=CONNECT_SECONDS,
                    target_session_attrs=SessionAttribute.any
                    if self.is_pooled
                    else SessionAttribute.read_write,
                    server_settings=_NAME if self.is_pooled else server_settings,
                    statement_cache_size=self._prepared_max,
                    connection_class=DriverConnection,
                )
                try:
                    if self.is_pooled:
                        # What a pooler reports of its server may be long past.
                        await require_read_write(connection)
                    elif not may_take_long:
                        await _bound_transactions(connection)
                except BaseException:
                    terminate(connection)
                    raise
            except TargetServerAttributeNotMatched as error:
                failure: Exception = Unreachable(READ_ONLY)
                failure.__cause__ = error
            except (*DRIVER_ERRORS, *URL_ERRORS, Unreachable) as error:
                failure = error
            else:
                self._hosts.remove(host)
                self._hosts.insert(0, host)
                return connection
            # Of several hosts one that may serve in a moment is worth waiting for.
            if trouble is None or is_lasting(trouble) or not is_lasting(failure):
                trouble = failure
        assert trouble is not None, "a DSN names one host at least"
        if isinstance(trouble, Unreachable):
            raise trouble
        message = in_words(trouble)
        # PostgreSQL itself takes these settings; what else speaks its protocol may not.
        if isinstance(trouble, asyncpg.ProtocolViolationError) and not self.is_pooled:
            message = f"{message}; {ADD_PARAMETER}"
        raise Unreachable(message) from trouble


async def _close(pool: Pool) -> None:
    """Close our pool; what is not closed in time, or not to be waited for, is cut off."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await pool.close()
    except (*DRIVER_ERRORS, TimeoutError):
        pass
    finally:
        pool.terminate()


async def require_read_write(connection: Connection) -> None:
    """Raise `Unreachable` where the server refuses writes; the connection is then of no use."""
    with watchdog(connection, CONNECT_SECONDS):
        is_read_only = await connection.fetchval(QUERIES["is_read_only"])
    if is_read_only:
        terminate(connection)
        raise Unreachable(READ_ONLY)


async def _bound_transactions(connection: Connection) -> None:
    """Have the server end long transactions, if it can: PostgreSQL 17 is the first that does."""
    with watchdog(connection, CONNECT_SECONDS):
        await connection.fetch(QUERIES["bound_transactions"], f"{TRANSACTION_SECONDS:g}s")


async def _leave_as_it_is(_: object) -> None:
    """Reset nothing: reads leave nothing in a session, and a pooler's belongs to nobody."""


def is_lost(connection: Connection) -> bool:
    """Whether nothing can be sent any more; a pool takes a dead connection back by itself."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


def terminate(connection: Connection) -> None:
    """Cut the connection, unless its pool has already taken it back."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


@contextmanager
def watchdog(connection: Connection, seconds: float) -> Iterator[None]:
    """Terminate the connection after so many seconds, which fails whatever is waited for on it.

    Cancelling a query instead would open another connection to a server that may be frozen.
    """
    timer = asyncio.get_running_loop().call_later(seconds, terminate, connection)
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True, slots=True)
class _Host:
    """One place of a DSN; nothing given means that asyncpg reads it from the DSN itself."""

    name: str | None = None
    port: int | None = None


def _hosts(dsn: str) -> list[_Host]:
    """Return the hosts of a DSN that names several, to be tried one by one."""
    places = urlsplit(dsn).netloc.rpartition("@")[2].split(",")
    if len(places) == 1:
        return [_Host()]
    # An IPv6 address stands in brackets and has colons of its own.
    parts = [urlsplit(f"//{place}") for place in places]
    return [_Host(part.hostname, part.port or DEFAULT_PORT) for part in parts]
