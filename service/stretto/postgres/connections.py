"""Where connections come from: the configured database, or a pool that a host hands in.

A writer keeps a connection of its own. Everything else shares a few, in lanes, so that no kind of
work delays another. The server's time-outs bound each statement; where it does not answer at all, the
connection is terminated, and its caller gets an error. Actors wait for a connection without a time-out,
which would count the lag of our own event loop: few share a lane, and each needs one at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import asyncpg

from stretto.postgres.connecting import CONNECT_SECONDS, READ_ONLY, Connector, refuses_writes
from stretto.postgres.cut_offs import CutOffs
from stretto.postgres.database_url import SCHEMA
from stretto.postgres.driver_connection import Connection, Pool, close_pool, guarded, terminate
from stretto.postgres.driver_errors import DRIVER_ERRORS, in_words, is_misfit, upkeep_error
from stretto.postgres.hosts_pool import acquire, release
from stretto.postgres.lanes import (
    CONNECTIONS_MAX,
    SEEING_ALL,
    SERVING,
    WRITING,
    Lane,
    keep_session,
)
from stretto.postgres.migrate import PRIVILEGES, is_newer, listed, require_rights
from stretto.postgres.pooler import ADD_PARAMETER
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import require_ping, require_role_settings, session_violation
from stretto.postgres.sessions import is_changed, unchanged
from stretto.postgres.standby import StandbyWatch
from stretto.runtime.cancelling import cancellations, is_cancelled
from stretto.store_errors import ReadCancelled, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from stretto.observations import Observer

# Below a client's default wait of 10 s. Writes have no statement_timeout: cancelling one that waits
# for a synchronous standby would make the server report a success that the standby does not have.
READ_SECONDS: Final = 5.0
WRITE_SECONDS: Final = 5.0
# What the server is given to cancel a read by itself before we cut the connection.
GRACE_SECONDS: Final = 1.0


class Database:
    """The source of connections; use as `async with`.

    `pool`, if given, is the host's: its search_path must lead to the tables, and it is not closed. A
    lane's connection is terminated after `cut_seconds` of use.
    """

    def __init__(
        self,
        dsn: str = "",
        *,
        schema: str = SCHEMA,
        pool: Pool | None = None,
        cut_seconds: float = READ_SECONDS + GRACE_SECONDS,
        observe: Observer = lambda _: None,
    ) -> None:
        self._connector = Connector(dsn, schema)
        self.is_pooled = self._connector.is_pooled
        self.is_shared = self.is_pooled
        """Whether others use sessions between our transactions; found out for a host's pool."""
        self.home = None if pool is not None else f'"{schema}"'
        """The schema whose tables we were opened with, which each session must lead to; likewise."""
        self._schema = schema
        self._host_pool = pool
        self._cut_seconds = cut_seconds
        # A host's pool is not ours to cut.
        doubt = self._connector.doubt if pool is None else (lambda _: None)
        self.standby = StandbyWatch(partial(self.connection, Lane.PROBE), observe, doubt)
        self._pools: dict[Lane, Pool] = {} if pool is None else dict.fromkeys(Lane, pool)
        self._places = {lane: asyncio.Semaphore(most) for lane, most in CONNECTIONS_MAX.items()}
        """Of a host's pool: no lane takes more of it than it would have of its own."""
        # Of a host's pool there are none.
        self.cut_offs = CutOffs(lambda lane: self._pools[lane].get_size() > 0)
        self._misfit: Counter[Lane] = Counter()
        """How many of a lane's newest statements met a missing table or right."""
        self._refuses_writes = False
        """Whether the server did when it was asked last."""

    async def __aenter__(self) -> Self:
        if self._host_pool is None:
            for lane, connections_max in CONNECTIONS_MAX.items():
                self._pools[lane] = await self._make_pool(lane, connections_max)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._host_pool is None:
            pools, self._pools = self._pools, {}
            try:
                await self._connector.close()
                closing = (close_pool(pool, CONNECT_SECONDS) for pool in pools.values())
                await asyncio.gather(*closing)
            finally:
                # A cancellation may come before one of them has begun.
                for pool in pools.values():
                    pool.terminate()

    async def acquire(self, *, may_take_long: bool = False, sees_all: bool = False) -> Connection:
        """Return a connection to keep until `release`; raises `Unreachable`.

        Transactions end after `TRANSACTION_SECONDS`, unless they may take longer. With `sees_all` a
        statement fails from which row-level security would hide rows.
        """
        self._require_open()
        if self._host_pool is None:
            return await self._connector.connect(may_take_long=may_take_long, sees_all=sees_all)
        return await acquire(self._host_pool, CONNECT_SECONDS, self.home, sees_all=sees_all)

    async def release(self, connection: Connection) -> None:
        """Release an acquired connection, dead or alive; raises nothing.

        Not even what the `reset` of a host's pool raises: the pool has dropped the connection then.
        """
        since = cancellations()
        try:
            # Not decided by the type: asyncpg has a pool's connections pass for its own class.
            if self._host_pool is None:
                await connection.close(timeout=GRACE_SECONDS)
            else:
                await release(self._host_pool, connection, GRACE_SECONDS)
        except (Exception, asyncio.CancelledError) as error:
            terminate(connection)
            if is_cancelled(since):
                if isinstance(error, asyncio.CancelledError):
                    raise
                # asyncpg turns a cancellation during its own time-out into a `TimeoutError`, which
                # would pass for a crash.
                raise asyncio.CancelledError from error

    def unchanged(self, connection: Connection) -> AbstractAsyncContextManager[None]:
        """Keep what a statement's triggers set out of a shared session; a pool's own is reset."""
        return unchanged(connection, is_flushed=False) if self.is_shared else nullcontext()

    @asynccontextmanager
    async def connection(self, lane: Lane) -> AsyncIterator[Connection]:
        """Acquire a connection for a short statement; raises `Unreachable`, or as `upkeep_error`."""
        self._require_open()
        sessions = self._pools[lane].get_max_size()
        began = self.standby.clock_seconds()
        try:
            async with self._acquired(lane) as connection:
                try:
                    with guarded(connection, self._cut_seconds, is_reading=lane.is_reading):
                        yield connection
                except (asyncio.CancelledError, Unreachable):
                    # The pool would wait until the server has cancelled it: for ever, if frozen. And a
                    # session that does not suit never learns what was set for its role since.
                    terminate(connection)
                    raise
                except asyncpg.PostgresError as error:
                    # What `init` of a host's pool changes, all of its sessions have.
                    is_suspect = is_misfit(error) and self._misfit[lane] < sessions
                    if is_suspect and await is_changed(connection, error):
                        terminate(connection)
                    raise
        except asyncpg.QueryCanceledError as error:
            raise ReadCancelled(in_words(error)) from error
        except DRIVER_ERRORS as error:
            if isinstance(error, asyncpg.PostgresError) and is_misfit(error):
                self._misfit[lane] += 1
            meaning = upkeep_error(error) if lane.is_reported else Unreachable(in_words(error))
            raise await self.standby.explained(meaning, began, error) from error
        else:
            del self._misfit[lane]

    @property
    def is_misfit(self) -> bool:
        """Whether the newest statement of such a lane met a missing table or right."""
        return not SERVING.isdisjoint(self._misfit)

    def forgive(self) -> None:
        """Forget which lanes have failed, until they fail again."""
        self.cut_offs.clear()
        self._misfit.clear()

    def upkeep(self) -> AbstractAsyncContextManager[Connection]:
        """Acquire a connection for relay, sweeper or webhook; raises as `upkeep_error`."""
        return self.connection(Lane.UPKEEP)

    @asynccontextmanager
    async def _acquired(self, lane: Lane) -> AsyncIterator[Connection]:
        if self._host_pool is None:
            async with self._pools[lane].acquire() as connection:
                yield connection
            return
        if self._refuses_writes and lane in SERVING:
            raise Unreachable(READ_ONLY)
        async with self._places[lane]:
            acquired = await self.acquire(sees_all=lane in SEEING_ALL)
            try:
                yield acquired
            finally:
                await self.release(acquired)

    def _require_open(self) -> None:
        """Raise `Unreachable` during and after the shutdown."""
        if not self._pools:
            raise Unreachable("the service is shutting down")

    async def ping(self) -> None:
        """Raise `Unreachable` unless the database answers, has the tables and takes writes."""
        async with self.connection(Lane.PROBE) as connection:
            self._require_writes(is_refused=await self.require_tables(connection))

    @asynccontextmanager
    async def upkeep_with_writes(self) -> AsyncIterator[Connection]:
        """Acquire a connection for upkeep; raises `Unreachable`, also where the server refuses writes."""
        async with self.upkeep() as connection:
            self._require_writes(is_refused=await refuses_writes(connection))
            yield connection

    def _require_writes(self, *, is_refused: bool) -> None:
        """Raise `Unreachable` where the server refuses writes; then it must not be read any more.

        A reload changes living sessions, and breaks none. So we cut them, as a failover would: the
        next ones lead to a server that takes writes, or fail. Those of a host's pool are the host's:
        requests get none of them until the server takes writes again.
        """
        self._refuses_writes = is_refused
        if is_refused:
            self._connector.cut()
            raise Unreachable(READ_ONLY)

    async def inspect(self) -> None:
        """Raise `Unreachable` unless the database answers, and has a schema that we can serve."""
        async with self.connection(Lane.PROBE) as connection:
            await self.require_schema(connection)

    async def require_tables(self, connection: Connection) -> bool:
        """Raise `Unreachable` unless the session finds our tables with all rows, and flushes.

        Return whether the server refuses writes.
        """
        if self.is_pooled:
            return await require_role_settings(connection, self._schema, [*PRIVILEGES])
        session = await connection.fetchrow(QUERIES["ping"], [*PRIVILEGES])
        assert session is not None
        if session["is_migrated"]:
            require_ping(session)
            return bool(session["is_read_only"])
        await self._require_rights(connection)
        message = f"our search_path, {self._schema}, has not reached the server; {ADD_PARAMETER}"
        raise Unreachable(message)

    async def require_schema(self, connection: Connection) -> bool:
        """Raise `Unreachable` unless the tables are there, not older than ours, and ours to use.

        The session must also suit them. Return whether they are newer.
        """
        missing = await self._require_rights(connection)
        await self.require_tables(connection)
        violation = await session_violation(connection)
        if violation is not None:
            raise Unreachable(violation)
        newer = await is_newer(connection)
        # Tables that an older schema lacks were reported by now: these are lost, unless a migration has
        # committed since they were looked for.
        if missing and (missing := await self._require_rights(connection)):
            raise Unreachable(f"the schema lacks {listed(missing)}; restore them from a backup")
        return newer

    async def _require_rights(self, connection: Connection) -> list[str]:
        return await require_rights(connection, self._schema if self._host_pool is None else None)

    async def _make_pool(self, lane: Lane, connections_max: int) -> Pool:
        return await asyncpg.create_pool(
            min_size=0,
            max_size=connections_max,
            connect=partial(self._connect_for_lane, lane),
            reset=self._connector.restore if lane in WRITING else keep_session,
            connection_class=asyncpg.Connection,
        )

    async def _connect_for_lane(
        self, lane: Lane, *_: Any, **__: Any
    ) -> asyncpg.Connection[asyncpg.Record]:
        try:
            timeout, sees_all = f"{READ_SECONDS:.0f}s", lane in SEEING_ALL
            connection = await self._connector.connect(sees_all=sees_all, statement_timeout=timeout)
        except Unreachable as error:
            self.cut_offs.note(lane, error)
            raise
        self.cut_offs.discard(lane)
        return connection
