"""What the driver's connection should forget: at its end, and where its use passes to another.

The one place that touches private parts of the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy
    from asyncpg.transaction import Transaction

    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    # Not generic when it runs.
    _Connection = asyncpg.Connection


class DriverConnection(_Connection):
    """Lets go of its transaction when it is terminated.

    The driver's two refer to each other until the transaction is ended, and one whose connection was
    lost cannot be: every loss would leave some 20 objects that only the garbage collector frees.
    """

    __slots__ = ()
    _top_xact: object

    def terminate(self) -> None:
        """Terminate the connection without waiting for pending data."""
        super().terminate()
        self._top_xact = None


def end_resources(connection: Connection, own: Transaction) -> None:
    """End all statements, cursors and transactions that were made of the connection, but our own.

    As at a pool's release: their methods raise `asyncpg.InterfaceError` from now on.
    """
    # A pool's connection is a handle for the driver's, which it has lost where that was terminated.
    driver: Any = getattr(connection, "_con", connection)
    if driver is not None:
        driver._pool_release_ctr += 1  # noqa: SLF001 there is no other way
        kept: Any = own
        kept._con_release_ctr = driver._pool_release_ctr  # noqa: SLF001


# Names for annotations alone: the driver's classes are not generic when they run.
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
