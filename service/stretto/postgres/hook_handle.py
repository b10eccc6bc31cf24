"""The connection as a host's hook gets it: it ends with the hook.

A task that the hook has started may go on. It must not use the connection later, when other groups
are written through it. Prepared statements, cursors and transactions end as well. What is still done
with the driver's own connection (by a coroutine that the hook has made, and that is awaited later)
shows in the session, which is looked at before each lead.

What would harm the writer whose connection it is raises `HandleMisused`: closing it, resetting it,
codecs, which change what our own statements send and read, and listeners, which would stay after the hook
and see the statements and values of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import asyncpg
import asyncpg.pool

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from stretto.postgres.driver_connection import Connection

    _Proxy = PoolConnectionProxy[asyncpg.Record]
else:
    # The driver's own handle for a connection that is lent: it passes for a connection.
    _Proxy = asyncpg.pool.PoolConnectionProxy

_CLOSING: Final = "the connection is a writer's, and ends with the hook: leave it open"
_RESETTING: Final = "it would end the transaction that creates the groups"
_CODECS: Final = (
    "other groups are written through this connection: convert values in the hook, or set codecs of"
    " types that stretto does not use in the `init` of a pool of yours"
)

_LISTENERS: Final = (
    "it would stay with the connection, through which other groups are written: use a connection of your"
    " own, or `with connection.query_logger(...)`"
)


class HandleMisused(asyncpg.InterfaceError):
    """A hook has called a method that would harm the writer; nothing was done."""


class HookHandle(_Proxy):
    """A connection until `end`; afterwards its methods raise `asyncpg.InterfaceError`."""

    def __init__(self, connection: Connection) -> None:
        # Not the driver's own: that one would have a pool's connection call this its pool's.
        self._con: Connection | None = connection

    def end(self) -> None:
        """Let go of the connection. Idempotent."""
        self._con = None

    async def close(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("close", _CLOSING)

    def terminate(self) -> NoReturn:
        """Refuse to."""
        self._refuse("terminate", _CLOSING)

    async def reset(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("reset", _RESETTING)

    async def set_type_codec(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("set_type_codec", _CODECS)

    async def set_builtin_type_codec(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("set_builtin_type_codec", _CODECS)

    async def reset_type_codec(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("reset_type_codec", _CODECS)

    async def add_listener(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("add_listener", _LISTENERS)

    def add_log_listener(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("add_log_listener", _LISTENERS)

    def add_query_logger(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("add_query_logger", _LISTENERS)

    def add_termination_listener(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to."""
        self._refuse("add_termination_listener", _LISTENERS)

    def _refuse(self, method: str, reason: str) -> NoReturn:
        if self._con is None:
            message = f"cannot call {method}(): the connection was released when on_create ended"
            raise asyncpg.InterfaceError(message)
        message = f"{method}() is not for on_create: {reason}"
        raise HandleMisused(message)
