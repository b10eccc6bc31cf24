"""Looks for a newer primary that was seen, while an older one serves.

The older one serves where the newer one has shown no life for some seconds (`primaries`). What is written there
is lost once the newer one is back; and where other processes have stayed with that, one key gets two groups.
Under a steady load no connection is opened that would show it. So all hosts are asked, once a second, without
cutting a connection that works. They are asked once as well after a host was silent in a comparison: it may be far
away.

States: idle, searching, closed. A search ends with the connection to a newer primary, which has all to older
ones cut; where no connection to an older one is left; and with its owner.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Final, TypeAlias

from stretto.postgres.comparing import ask_all
from stretto.postgres.driver_connection import terminate
from stretto.postgres.primaries import replaced_last
from stretto.runtime.actor import CANCEL_SECONDS
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from stretto.postgres.driver_connection import DriverConnection
    from stretto.postgres.host_failures import Host
    from stretto.postgres.primaries import OpenConnections, Primary

    _Opened: TypeAlias = tuple[DriverConnection, Primary]

# No request waits for a look. Enough for a host that is 200 ms away.
ASK_SECONDS: Final = 2.0
# From one look to the next: for so long at most, and the time of a look, groups are created at the older primary
# after the newer one is back. Each look costs every host a connection.
LOOK_SECONDS: Final = 1.0
REMEDY: Final = (
    "what is created at the older primary is lost: start the newer one, and stop the older"
)


class PrimarySearch:
    """Searches while connections lead to an older primary than one that was seen; `close` ends it.

    `open_at` opens a connection to one of `hosts`, or returns why there is none; `accept` has a
    connection used, or returns why it must not be. `pause` is for tests.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        opened: OpenConnections,
        open_at: Callable[[Host], Coroutine[None, None, _Opened | Exception]],
        accept: Callable[[Host, _Opened], DriverConnection | Exception],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._hosts = hosts
        self._opened = opened
        self._open_at = open_at
        self._accept = accept
        self._pause = pause
        self._task: asyncio.Task[None] | None = None
        self._is_older_serving = False
        """Whether that is the last thing that the log says."""
        self._found: DriverConnection | None = None
        self._is_closed = False

    def note_added(self) -> None:
        """Note that a connection was opened, and begin to search if it leads to an older primary."""
        newer = self._opened.newer_seen
        if newer is not None:
            self.begin()
        if self._is_older_serving != (newer is not None):
            self._is_older_serving = newer is not None
            if newer is not None:
                logger.warning("primary.older_serves", newer=newer.timeline, remedy=REMEDY)
            else:
                logger.info("primary.newer_serves")

    def begin(self) -> None:
        """Look at least once, unless a search goes on, or this is closed."""
        if self._task is None and not self._is_closed:
            # It goes on after the request, whose id its lines in the log must not have.
            self._task = asyncio.create_task(
                self._search(), name="search for a newer primary", context=Context()
            )

    def release(self) -> None:
        """Close the connection that was found: another one leads to a newer primary by now."""
        if self._found is not None:
            terminate(self._found)
            self._found = None

    async def close(self) -> None:
        """End the search, and begin none any more. Idempotent."""
        self._is_closed = True
        self.release()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)

    async def _search(self) -> None:
        try:
            while True:
                await self._pause(LOOK_SECONDS)
                await self._look()
                if self._opened.newer_seen is None:
                    return
        finally:
            self._task = None

    async def _look(self) -> None:
        """Ask all hosts; use a connection to a newer primary, and close all others."""
        opened, _ = await ask_all(
            self._hosts, self._open_at, lambda each: terminate(each[0]), ASK_SECONDS
        )
        for host in replaced_last({host: primary for host, (_, primary) in opened.items()}):
            connection, primary = opened[host]
            if not self._opened.are_replaced_by(primary):
                terminate(connection)
            elif not isinstance(found := self._accept(host, (connection, primary)), Exception):
                # It is kept until another one leads there: while it answers, a balancer that leads to the older
                # one again and again does not have us change again and again.
                self.release()
                self._found = found
