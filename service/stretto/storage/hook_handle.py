"""The connection as a host's hook gets it: it ends with the hook.

A task that the hook has started may go on. It must not use the connection later, when other groups
are written through it. Prepared statements, cursors and transactions keep the driver's own connection:
what is done with those shows in the session, which is looked at before each lead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg.pool

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from stretto.storage.database import Connection

    _Proxy = PoolConnectionProxy[asyncpg.Record]
else:
    # The driver's own handle for a connection that is lent: it passes for a connection.
    _Proxy = asyncpg.pool.PoolConnectionProxy


class HookHandle(_Proxy):
    """A connection until `end`; afterwards its methods raise `asyncpg.InterfaceError`."""

    def __init__(self, connection: Connection) -> None:
        # Not the driver's own: that one would have a pool's connection call this its pool's.
        self._con: Connection | None = connection

    def end(self) -> None:
        """Let go of the connection. Idempotent."""
        self._con = None
