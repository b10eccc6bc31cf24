"""The driver's connection: whether it is lost, how it is cut, and what it should forget.

The one place that touches private parts of the driver.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from stretto.postgres.driver_errors import DRIVER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncpg.pool import PoolConnectionProxy
    from asyncpg.transaction import Transaction

    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    # Not generic at run time.
    _Connection = asyncpg.Connection


# bool, bytea, name, int8, int4, text, tid, json, float8, timestamptz, uuid, pg_lsn and xid8, by the
# numbers that they have in every database. Arrays follow their elements.
OUR_TYPES: Final = (16, 17, 19, 20, 23, 25, 27, 114, 701, 1184, 2950, 3220, 5069)
# What of the server warns of a commit whose wait for a synchronous standby was cancelled. Its name is not
# translated, as the text is.
UNSURE_COMMIT: Final = "SyncRepWaitForLSN"
# Several times what a request takes; each is a connection.
CANCEL_AGAIN_SECONDS: Final = 0.1
# Before a connection is cut: for the request, and for the server's answer.
CANCEL_SECONDS: Final = 0.5
NO_VERSION: Final = "the server names no version: it is no PostgreSQL"


class DriverConnection(_Connection):
    """Knows when the server has last answered; drops its transaction when it is terminated.

    The two refer to each other until the transaction is ended, and that of a lost connection cannot
    be: every loss would leave some 20 objects that only the garbage collector frees.
    """

    __slots__ = ("_asking", "_is_wanted", "answered_at")
    _top_xact: object

    def __init__(self, protocol: Any, *driver: Any) -> None:
        """Take what the driver gives; raises `asyncpg.InternalClientError` where no server can have given it."""
        self.answered_at = float("-inf")
        """When it has last answered a statement without an error (`time.monotonic`)."""
        self._asking: asyncio.Task[None] | None = None
        self._is_wanted = False
        """Whether a statement waits for the answer, and comes before another question."""
        try:
            super().__init__(protocol, *driver)
        except (AttributeError, ValueError) as error:
            # The driver leaves it open.
            protocol.abort()
            raise asyncpg.InternalClientError(NO_VERSION) from error

    def ask(self) -> None:
        """Have the server answer, if it lives, unless it is being asked, or a statement runs.

        Another task may use the connection: its next statement waits for the answer. There is no
        time-out, as a server that is only slow must not lose its connections: they are cut by their users.
        """
        if self._asking is None and not self._is_wanted:
            self._asking = asyncio.create_task(self._ask(), name="question to a server")

    # Its types leave `_execute` out, which all its methods that fetch use.
    async def _ask(self) -> None:
        with suppress(*DRIVER_ERRORS, AttributeError):
            # The driver refuses it between the steps of another task's statement.
            await super()._execute(";", (), 0, None)  # type: ignore[misc]
            self.answered_at = time.monotonic()
        self._asking = None

    async def execute(self, *statement: Any, **options: Any) -> str:
        """Execute as the driver does."""
        await self._until_asked()
        status = await super().execute(*statement, **options)
        self.answered_at = time.monotonic()
        return status

    async def _execute(self, *statement: Any, **options: Any) -> Any:
        await self._until_asked()
        result = await super()._execute(*statement, **options)  # type: ignore[misc]
        self.answered_at = time.monotonic()
        return result

    async def _until_asked(self) -> None:
        if self._asking is not None:
            self._is_wanted = True
            try:
                await asyncio.wait({self._asking})
            finally:
                self._is_wanted = False

    def terminate(self) -> None:
        """Terminate the connection without waiting for pending data."""
        super().terminate()
        self._top_xact = None


def is_lost(connection: Connection) -> bool:
    """Whether nothing can be sent any more; a pool takes a dead connection back by itself."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


def is_recoded(connection: Connection) -> bool:
    """Whether a host has changed how the session sends or reads a type of our statements.

    It costs no statement. A pool's reset leaves the codecs as they are.
    """
    driver: Any = getattr(connection, "_con", connection)
    codec_of = driver._protocol.get_settings().get_data_codec  # noqa: SLF001 no other way
    return any(codec_of(oid) is not codec_of(oid, ignore_custom_codec=True) for oid in OUR_TYPES)


def is_in_transaction(connection: Connection) -> bool:
    """Whether a living connection is in a transaction; what is sent then would be a part of it."""
    return not is_lost(connection) and connection.is_in_transaction()


def terminate(connection: Connection) -> None:
    """Cut the connection, unless its pool has already taken it back."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def close_pool(pool: Pool, seconds: float) -> None:
    """Close a pool of ours; what is not closed in time is left to be terminated."""
    with suppress(*DRIVER_ERRORS, TimeoutError):
        async with asyncio.timeout(seconds):
            await pool.close()


async def end_session(connection: Connection, seconds: float) -> None:
    """Have the server end the session and what runs in it; cut the connection after so many seconds.

    If the connection were only cut, the server would go on with the statement, and hold its locks.
    A cancel request needs a connection of its own: the driver's `close` makes one for a statement
    that runs, also through PgBouncer. Not for a commit of ours: a cancelled wait for a standby is a
    success that the standby lacks.
    """
    # Whatever the driver's `close` raises, there is no more to do than to cut the connection.
    with suppress(Exception), watchdog(connection, seconds), _cancelling(connection):
        await connection.close()
    terminate(connection)


@contextmanager
def _cancelling(connection: Connection) -> Iterator[None]:
    """Repeat the cancel request: the server ignores one that overtakes its statement.

    A request for a session that has ended, or waits for a statement, does nothing.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def cancel() -> None:
        nonlocal timer
        _cancel(connection)
        timer = loop.call_later(CANCEL_AGAIN_SECONDS, cancel)

    timer = loop.call_later(CANCEL_AGAIN_SECONDS, cancel)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def watchdog(connection: Connection, seconds: float) -> Iterator[None]:
    """Terminate the connection after so many seconds; every pending statement on it then fails.

    Cancelling a query instead would open another connection to a server that may be frozen.
    """
    timer = asyncio.get_running_loop().call_later(seconds, terminate, connection)
    try:
        yield
    except AttributeError as error:
        # A terminated connection has no protocol: the driver fails so in its next step.
        if not is_lost(connection):
            raise
        message = "the connection was terminated"
        raise asyncpg.ConnectionDoesNotExistError(message) from error
    finally:
        timer.cancel()


@contextmanager
def guarded(connection: Connection, seconds: float, *, is_reading: bool = False) -> Iterator[None]:
    """Bound the time of statements, and take a commit for one only where it is sure.

    A statement that only reads, and waits for a synchronous standby, is cancelled before the connection
    is cut: the server's process would wait on, and each further one keep another.
    """
    is_cancelled = False

    def cancel() -> None:
        nonlocal is_cancelled
        is_cancelled = True
        _cancel(connection)

    delay = seconds - CANCEL_SECONDS
    timer = asyncio.get_running_loop().call_later(delay, cancel) if is_reading else None
    try:
        with watchdog(connection, seconds), sure_commits(connection):
            yield
    finally:
        if timer is not None:
            timer.cancel()
        if is_cancelled:
            # A request that comes late would cancel the session's next statement.
            terminate(connection)


def _cancel(connection: Connection) -> None:
    """Ask the server to cancel what runs; it ignores that where nothing does."""
    driver: Any = getattr(connection, "_con", connection)
    if driver is not None:
        waiter = asyncio.get_running_loop().create_future()
        driver._cancel_current_command(waiter)  # noqa: SLF001 no other way


@contextmanager
def sure_commits(connection: Connection) -> Iterator[None]:
    """Raise `asyncpg.TransactionResolutionUnknownError` where the server has warned of a commit.

    It reports a commit whose wait for a synchronous standby somebody has cancelled as a success: a
    failover would lose it.
    """
    warnings: list[str] = []

    def note(_: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.server_source_function == UNSURE_COMMIT:
            warnings.append(message.message)

    connection.add_log_listener(note)
    try:
        yield
    finally:
        with suppress(asyncpg.InterfaceError):
            connection.remove_log_listener(note)
    if warnings:
        raise asyncpg.TransactionResolutionUnknownError(warnings[0])


def end_resources(connection: Connection, own: Transaction) -> None:
    """End all statements, cursors and transactions of the connection, except our own.

    As after a pool's release, their methods raise `asyncpg.InterfaceError` from now on.
    """
    # A pool's connection is a handle for the driver's, which is None once that was terminated.
    driver: Any = getattr(connection, "_con", connection)
    if driver is not None:
        driver._pool_release_ctr += 1  # noqa: SLF001 there is no other way
        kept: Any = own
        kept._con_release_ctr = driver._pool_release_ctr  # noqa: SLF001


# Names for annotations alone: the driver's classes are not generic at run time.
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
