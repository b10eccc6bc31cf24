"""Where connections come from: the configured database, or a pool that a host hands in.

Three kinds: one that a writer keeps for itself, pooled ones for short reads, and a few of their own
for the upkeep (relay, sweeper, webhook), so that neither kind holds up the other. A connection always leads to
a primary. No call waits without a bound: the server's own time-outs come first, and where the server
does not answer at all, the connection is terminated, which is an error for whoever waits.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from urllib.parse import urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from stretto.protocol.ports import Unreachable
from stretto.storage.driver_errors import DRIVER_ERRORS, in_words
from stretto.storage.pooler import ADD_PARAMETER, require_role_settings, split_pooler
from stretto.storage.queries import QUERIES
from stretto.storage.schema_state import is_newer, require_rights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

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
READERS_MAX: Final = 4
# Relay, sweeper and webhook each do one thing at a time.
UPKEEP_MAX: Final = 3
DEFAULT_PORT: Final = 5432
# asyncpg's own default; behind a pooler the next transaction may not have what this one prepared.
PREPARED_MAX: Final = 100

# PgBouncer passes this one on by itself.
_NAME: Final = {"application_name": "stretto"}
_SERVER_SETTINGS: Final = _NAME | {
    "lock_timeout": f"{LOCK_SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": "30s",
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


class Database:
    """The source of connections; use as `async with`.

    `pool`, if given, is the host's: its search_path must lead to the tables, and it is not closed.
    """

    def __init__(self, dsn: str = "", *, schema: str = "stretto", pool: Pool | None = None) -> None:
        self._dsn, self.is_pooled = split_pooler(dsn)
        self._prepared_max = 0 if self.is_pooled else PREPARED_MAX
        self._schema = schema
        self._pool = pool
        # A host's pool serves both.
        self._upkeep_pool = pool
        self._owns_pool = pool is None
        self._hosts = [] if pool else _hosts(dsn)

    async def __aenter__(self) -> Self:
        if self._pool is None:
            self._pool = await self._make_pool(READERS_MAX)
            self._upkeep_pool = await self._make_pool(UPKEEP_MAX)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pools = (self._pool, self._upkeep_pool) if self._owns_pool else ()
        if self._owns_pool:
            self._pool = self._upkeep_pool = None
        for pool in filter(None, pools):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await pool.close()
            except (*DRIVER_ERRORS, TimeoutError):
                pool.terminate()

    async def lend(self, *, may_take_long: bool = False) -> Connection:
        """Return a connection to keep until `give_back`; raises `Unreachable`.

        The server ends its transactions after `TRANSACTION_SECONDS`, unless they may take longer.
        """
        pool = _open(self._pool)
        if self._owns_pool:
            return await self._connect(may_take_long=may_take_long)
        try:
            return await pool.acquire(timeout=CONNECT_SECONDS)
        except DRIVER_ERRORS as error:
            raise Unreachable(in_words(error)) from error

    async def give_back(self, connection: Connection) -> None:
        """Take a lent connection back, dead or alive; never raises for a dead one."""
        try:
            # Not told by their type: asyncpg has a pool's connections pass for its own class.
            if self._owns_pool:
                await connection.close(timeout=GRACE_SECONDS)
            else:
                assert self._pool is not None
                await self._pool.release(connection, timeout=GRACE_SECONDS)  # type: ignore[arg-type]
        except DRIVER_ERRORS:
            terminate(connection)

    def reading(self) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for a short read; every trouble with it is raised as `Unreachable`."""
        return _lent(self._pool)

    def tending(self) -> AbstractAsyncContextManager[Connection]:
        """Lend one of the upkeep's for a short statement; trouble is raised as `Unreachable`."""
        return _lent(self._upkeep_pool)

    async def ping(self) -> None:
        """Raise `Unreachable` unless the database answers and has the tables."""
        async with self.reading() as connection:
            await self.require_tables(connection)

    async def inspect(self) -> None:
        """Raise `Unreachable` unless the database answers, and has a schema that we can serve."""
        async with self.reading() as connection:
            await self.require_schema(connection)

    async def require_tables(self, connection: Connection) -> None:
        """Raise `Unreachable` unless the connection's search_path leads to our tables."""
        if self.is_pooled:
            await require_role_settings(connection, self._schema)
        elif not await connection.fetchval(QUERIES["ping"]):
            await require_rights(connection, self._schema if self._owns_pool else None)
            message = (
                f"our search_path, {self._schema}, has not reached the server; {ADD_PARAMETER}"
            )
            raise Unreachable(message)

    async def require_schema(self, connection: Connection) -> bool:
        """Raise `Unreachable` unless the tables are there, not older than ours, and ours to use.

        Return whether they are newer.
        """
        await require_rights(connection, self._schema if self._owns_pool else None)
        await self.require_tables(connection)
        return await is_newer(connection)

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
        """Try each host for a primary, the one that served last first."""
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
                    target_session_attrs=SessionAttribute.primary,
                    server_settings=_NAME if self.is_pooled else server_settings,
                    statement_cache_size=self._prepared_max,
                )
                if not (may_take_long or self.is_pooled):
                    await _bound_transactions(connection)
            except DRIVER_ERRORS as error:
                trouble = error
            else:
                self._hosts.remove(host)
                self._hosts.insert(0, host)
                return connection
        assert trouble is not None, "a DSN names one host at least"
        message = in_words(trouble)
        # PostgreSQL itself takes these settings; what else speaks its protocol may not.
        if isinstance(trouble, asyncpg.ProtocolViolationError) and not self.is_pooled:
            message = f"{message}; {ADD_PARAMETER}"
        raise Unreachable(message) from trouble


async def _bound_transactions(connection: Connection) -> None:
    """Have the server end long transactions, if it can: PostgreSQL 17 is the first that does."""
    with watchdog(connection, CONNECT_SECONDS):
        await connection.fetch(QUERIES["bound_transactions"], f"{TRANSACTION_SECONDS:g}s")


def _open(pool: Pool | None) -> Pool:
    if pool is None:
        message = "the service is shutting down"
        raise Unreachable(message)
    return pool


@asynccontextmanager
async def _lent(pool: Pool | None) -> AsyncIterator[Connection]:
    try:
        async with _open(pool).acquire(timeout=CONNECT_SECONDS) as connection:
            with watchdog(connection, READ_SECONDS + GRACE_SECONDS):
                yield connection
    except DRIVER_ERRORS as error:
        raise Unreachable(in_words(error)) from error


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
