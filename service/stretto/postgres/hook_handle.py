"""The connection as a host's hook gets it: it ends with the hook.

A task that the hook has started may go on. It must not use the connection later, when other groups
are written through it. Prepared statements, cursors and transactions end as well. What is still
done with the driver's own connection (by a coroutine that the hook created and that is awaited
later) shows in the session, which is compared before each lead.

What would harm the writer that owns the connection raises `HandleMisused`, and does nothing:
closing it, resetting it, codecs, which change what our own statements send and read, and listeners,
which would stay after the hook and see the statements and values of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import asyncpg
import asyncpg.pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncpg.pool import PoolConnectionProxy

    from stretto.postgres.driver_connection import Connection

    _Proxy = PoolConnectionProxy[asyncpg.Record]
else:
    # The driver's own handle for an acquired connection: it passes for a connection.
    _Proxy = asyncpg.pool.PoolConnectionProxy

_CLOSING: Final = "the connection is a writer's, and ends with the hook: leave it open"
_CODECS: Final = (
    "other groups are written through this connection: convert values in the hook, or set codecs of"
    " types that stretto does not use in the `init` of a pool of yours"
)
_LISTENERS: Final = (
    "it would stay with the connection, through which other groups are written: use a connection"
    " of your own, or `with connection.query_logger(...)`"
)
_REFUSED: Final = {
    "close": _CLOSING,
    "terminate": _CLOSING,
    "reset": "it would end the transaction that creates the groups",
    "set_type_codec": _CODECS,
    "set_builtin_type_codec": _CODECS,
    "reset_type_codec": _CODECS,
    "add_listener": _LISTENERS,
    "add_log_listener": _LISTENERS,
    "add_query_logger": _LISTENERS,
    "add_termination_listener": _LISTENERS,
}


class HandleMisused(asyncpg.InterfaceError):
    """A hook has called a method that would harm the writer; nothing was done."""


class HookHandle(_Proxy):
    """A connection until `end`; afterwards its methods raise `asyncpg.InterfaceError`."""

    def __init__(self, connection: Connection) -> None:
        # Not the driver's own: that one would have a pool's connection call this its pool's.
        self._con: Connection | None = connection

    def end(self) -> None:
        """Drop the connection. Idempotent."""
        self._con = None


def _refusal(method: str, reason: str) -> Callable[..., NoReturn]:
    def refuse(handle: HookHandle, *_: Any, **__: Any) -> NoReturn:
        if handle._con is None:  # noqa: SLF001 a method of the handle
            message = f"cannot call {method}(): the connection was released when on_create ended"
            raise asyncpg.InterfaceError(message)
        message = f"{method}() is not for on_create: {reason}"
        raise HandleMisused(message)

    return refuse


for _method, _reason in _REFUSED.items():
    setattr(HookHandle, _method, _refusal(_method, _reason))
