"""The log read over a connection of its own, on which other processes' announcements are heard."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from stretto.postgres.connections import GRACE_SECONDS, READ_SECONDS
from stretto.postgres.driver_connection import guarded, is_lost, terminate, watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS, upkeep_error
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from uuid import UUID

    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection


class PostgresTail(PostgresLogStore):
    """A `TailStore`. `token` marks this process's announcements: it ignores them.

    Where sessions are shared, as behind PgBouncer, nothing can be heard.
    """

    def __init__(self, database: Database, token: UUID) -> None:
        super().__init__(self._read_connection, database.home)
        self._database = database
        self._token = str(token)
        self._connection: Connection | None = None
        self._heard: tuple[str, Callable[..., None]] | None = None
        """The channel that the connection listens to, and what is called."""

    async def listen(self, on_announced: Callable[[], None]) -> None:
        """Open the connection, unless it is open; call back when another process has written."""
        if self._connection is not None and not is_lost(self._connection):
            return
        await self.close()

        def hear(_connection: object, _process: int, _channel: str, token: object) -> None:
            if token != self._token:
                on_announced()

        self._connection = await self._database.acquire(sees_all=True)
        if not self._database.is_shared:
            async with self._read_connection() as connection:
                channel = await connection.fetchval(QUERIES["announcements"])
                await connection.add_listener(channel, hear)
            self._heard = channel, hear

    async def announce(self) -> None:
        """Announce to other processes that this one has written; raises a `StoreError`."""
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["announce"], self._token)

    async def close(self) -> None:
        """Close the connection; raises nothing. Idempotent."""
        connection, self._connection = self._connection, None
        heard, self._heard = self._heard, None
        if connection is None:
            return
        try:
            # A host's pool warns of a connection that comes back with a listener.
            if heard is not None and not is_lost(connection):
                with suppress(*DRIVER_ERRORS), watchdog(connection, GRACE_SECONDS):
                    await connection.remove_listener(*heard)
        finally:
            await self._database.release(connection)

    @asynccontextmanager
    async def _read_connection(self) -> AsyncIterator[Connection]:
        """Yield our connection; it has no statement_timeout, and a page may wait for a standby."""
        connection = self._connection
        if connection is None or is_lost(connection):
            message = "the connection is not open"
            raise Unreachable(message)
        try:
            with guarded(connection, READ_SECONDS + GRACE_SECONDS, is_reading=True):
                yield connection
        except DRIVER_ERRORS as error:
            terminate(connection)
            raise upkeep_error(error) from error
        except BaseException:
            # Cancelling the statement instead would need another connection.
            terminate(connection)
            raise
