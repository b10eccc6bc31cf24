"""The driver's connection, with what it should forget at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
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
