"""One connection to NATS for a process, made again for as long as the process wants it.

States: away, linked. A link is one connection's life: whoever uses one sees it end and waits for
the next, so that nothing of an old connection (consumers, requests under way) leaks into a new one.
The client's own reconnecting is off: it gives up for good after an error that the server sends.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client

from stretto.events.event import BusUnavailable
from stretto.network import network_failure
from stretto.observations import BusConnected, BusTrouble
from stretto.runtime.actor import Actor, Pace, TryAgain
from stretto.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

    from nats.js import JetStreamContext

    from stretto.observations import Observer

Result = TypeVar("Result")

CONNECT_SECONDS: Final = 2
RETRY: Final = Backoff(0.5, 2.0)
# The client's own pause between one server of the list and the next.
NEXT_SERVER_SECONDS: Final = 1
# Two of them unanswered: a host that has vanished without a word is noticed within this times two.
PING_SECONDS: Final = 5
# An answer of JetStream's, which may have to wait for a new leader of its stream.
ANSWER_SECONDS: Final = 5.0
# A connection whose other end has vanished cannot be closed politely.
CLOSE_SECONDS: Final = 2.0
# The client reports a lost connection, but not while it is stuck in closing one.
WATCH_SECONDS: Final = 1.0

# A cancellation that was not swallowed has long ended its task by then.
CANCEL_SECONDS: Final = 0.5

# Whatever may go wrong between us and a server, or in it.
NATS_TROUBLE: Final = (nats.errors.Error, OSError, TimeoutError)


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A connection that lives, or has ended: `ended` is done then."""

    client: Client
    jetstream: JetStreamContext
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def end(self) -> None:
        """Say that the connection is lost. Idempotent."""
        if not self.ended.done():
            self.ended.set_result(None)

    async def unless_ended(self, work: Coroutine[object, object, Result]) -> Result:
        """Do work that waits for the server; raises `ConnectionResetError` when the link ends."""
        task = asyncio.create_task(work, name="stretto nats request")
        try:
            await asyncio.wait((task, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionResetError("the connection was lost")
            return task.result()
        finally:
            # Nobody waits any more for the answer that a lost connection cannot bring.
            await end_tasks((task,))


class NatsConnection(Actor):
    """Connects to one of the servers; a turn is one connection's life."""

    stop_seconds = 0.0
    cancel_again_seconds = CANCEL_SECONDS

    def __init__(self, url: str, observe: Observer) -> None:
        super().__init__("nats connection")
        self.pace, self.backoff = Pace(seconds=RETRY.seconds_first), RETRY
        self._servers = [server.strip() for server in url.split(",")]
        self._observe = observe
        self._link: Link | None = None
        self._linked = asyncio.Event()
        self._trouble = ""

    def link(self) -> Link:
        """Return the connection that lives now; raises `BusUnavailable` where there is none."""
        if self._link is None or not self._link.client.is_connected:
            raise BusUnavailable("NATS is away")
        return self._link

    async def linked(self) -> Link:
        """Wait for a connection that lives."""
        while True:
            await self._linked.wait()
            with contextlib.suppress(BusUnavailable):
                return self.link()
            # Lost, but not noticed yet by the task that keeps it.
            await asyncio.sleep(0)

    def tell(self, error: Exception) -> None:
        """Tell of trouble once per connection, not at each of the tries that meet the same."""
        trouble = str(error) or network_failure(error)
        if trouble != self._trouble:
            self._trouble = trouble
            self._observe(BusTrouble(trouble))

    async def run_once(self) -> int:
        """Connect, and watch the connection until it is lost."""
        try:
            await self._connect_and_watch()
        except Exception as error:
            # Whatever the client may raise.
            self.tell(error)
            raise TryAgain from error
        return 0

    async def _connect_and_watch(self) -> None:
        client = Client()
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        async def on_error(error: Exception) -> None:
            self.tell(error)

        try:
            await client.connect(
                self._servers,
                name="stretto",
                allow_reconnect=False,
                max_reconnect_attempts=-1,
                connect_timeout=CONNECT_SECONDS,
                reconnect_time_wait=NEXT_SERVER_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                error_cb=on_error,
                closed_cb=on_closed,
            )
            self._trouble = ""
            self._observe(BusConnected())
            self._link = link = Link(client, client.jetstream(timeout=ANSWER_SECONDS))
            self._linked.set()
            try:
                while client.is_connected:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(WATCH_SECONDS):
                            await closed.wait()
            finally:
                self._linked.clear()
                self._link = None
                link.end()
            self.tell(client.last_error or ConnectionResetError("the connection was lost"))
        finally:
            with contextlib.suppress(*NATS_TROUBLE):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.close()


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended: the client swallows a cancellation here and there."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_SECONDS)
    for task in tasks:
        if not task.cancelled():
            # Looked at, or it would be reported as forgotten.
            task.exception()
