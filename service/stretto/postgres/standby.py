"""Whether commits wait for a synchronous standby that is away: why a statement had no answer.

The server goes on waiting after our connection was cut, and reads that commit nothing are answered,
so nothing else shows the cause. Once a statement was cut for its time, another connection asks
whether commits have been waiting for a standby. If so, that is the cause in the log and in the
answer. It is reported once, and its end once, with the first group that is written. Until then nothing
more is written while a commit waits: each would keep a process of the server's. The server may
not be the primary any more: its standby may have replaced it. So the next look is over a new connection.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.observations import StandbyAwaited, StandbyReached
from stretto.postgres.queries import QUERIES
from stretto.store_errors import StoreError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from stretto.observations import Observer
    from stretto.postgres.driver_connection import Connection

# A standby that is there is waited for less (`waits_for_standby`), and a server that goes down
# breaks connections at once.
LATE_SECONDS: Final = 1.0
# On top of the time after which a statement was cut: a server that has frozen does not say it. Enough for a
# new connection where a host of the URL is silent (`comparing.COMPARE_SECONDS`).
ASK_SECONDS: Final = 0.75
# While a commit is known to wait: enough for a new connection to a server that is far away, or busy. Without an
# answer the next write would wait as well, and keep one more of the server's processes.
ASK_AGAIN_SECONDS: Final = 3.0
# A commit waits some milliseconds for a standby that is there. A part of `ASK_SECONDS`. Where the server does
# not track since when statements run, it is `LATE_SECONDS`, for which the bound is extended: each commit may
# wait for longer than this for a standby that is far away, or busy.
WAIT_SECONDS: Final = 0.2
# From one question to the next, while a commit is known to wait.
LOOK_SECONDS: Final = 1.0
# For clients, whose error is `database_unavailable` in any case.
DETAIL: Final = (
    "The database answers reads, but its commits wait for a standby server;"
    " the same request finds out what became of it."
)


async def waits_for_standby(
    connection: Connection, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> bool:
    """Whether a commit waits for a synchronous standby, of a session that this role may see.

    One that waits in both of two looks, and whose statement has run for `LATE_SECONDS`. Where the server
    does not say for how long it has, these pass between the looks. `pause` waits for that; it is for tests
    too.
    """
    waiting = await connection.fetch(QUERIES["commits_waiting"])
    if not waiting:
        return False
    long = {xid for xid, is_tracked in waiting if is_tracked}
    await pause(WAIT_SECONDS if long else LATE_SECONDS)
    xids = long or {xid for xid, _ in waiting}
    return any(xid in xids for xid, _ in await connection.fetch(QUERIES["commits_waiting"]))


class StandbyWatch:
    """What is known of the standby; `connection` acquires one that waits for no commit."""

    def __init__(
        self,
        connection: Callable[[], AbstractAsyncContextManager[Connection]],
        observe: Observer,
        doubt: Callable[[Connection | None], None] = lambda _: None,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what is called while commits wait, with the connection that has shown it."""
        self._connection = connection
        self._observe = observe
        self._doubt = doubt
        self.clock_seconds = clock_seconds
        self._awaited_since: float | None = None
        self._is_waiting = False
        """Whether a commit waited when the server was last asked."""
        self._due_at = clock_seconds()

    async def explained(
        self, error: StoreError, began: float, met: BaseException | None = None
    ) -> StoreError:
        """Return the error of a statement that `began` then and had no answer, with its cause.

        The server is not asked where it has said that the statement waited: it was cancelled then.
        """
        is_late = self.clock_seconds() - began >= LATE_SECONDS
        is_said = isinstance(met, asyncpg.TransactionResolutionUnknownError)
        if not is_late or not (is_said or await self._asks()):
            return error
        if is_said:
            # The connection of a cancelled read is cut in any case.
            self._doubt(None)
        if self._awaited_since is None:
            self._awaited_since = began
            self._observe(StandbyAwaited())
        return _explained(type(error))

    async def require_reached(self) -> None:
        """Raise `Unreachable` while a commit is known to wait, before another one does.

        The connection of each would be cut in the end, while the server's process waits on: they would
        be as many as the server has connections. Those that were cut show when the standby is back.
        """
        if self._awaited_since is None:
            return
        if self.clock_seconds() >= self._due_at:
            await self._asks()
        if self._is_waiting:
            raise _explained(Unreachable)

    def note_commit(self) -> None:
        """Note that a commit went through which waits for the standby where there is one."""
        if self._awaited_since is not None:
            seconds = self.clock_seconds() - self._awaited_since
            self._awaited_since = None
            self._observe(StandbyReached(seconds))

    async def _asks(self) -> bool:
        """Ask the server whether a commit waits; return whether it says so in time."""
        seconds = ASK_SECONDS if self._awaited_since is None else ASK_AGAIN_SECONDS
        self._due_at = self.clock_seconds() + LOOK_SECONDS
        try:
            async with asyncio.timeout(seconds) as bound, self._connection() as connection:

                async def pause(pause_seconds: float) -> None:
                    # The bound is for the server's answers, and has room for the short pause.
                    if (ends_at := bound.when()) is not None:
                        bound.reschedule(ends_at + pause_seconds - WAIT_SECONDS)
                    await asyncio.sleep(pause_seconds)

                self._is_waiting = await waits_for_standby(connection, pause)
                if self._is_waiting:
                    self._doubt(connection)
        except (StoreError, TimeoutError):
            # Then a write finds out, whose own connection may be well.
            self._is_waiting = False
        return self._is_waiting


def _explained(kind: type[StoreError]) -> StoreError:
    explained = kind(StandbyAwaited.cause)
    explained.detail = DETAIL
    return explained
