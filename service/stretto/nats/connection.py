"""One connection to NATS per process, renewed until the process stops.

States: away, linked. A link is the life of one connection: its users see it end and wait for the
next one, so that no state of an old connection (consumers, requests under way) leaks into a new
one. The client's own reconnecting is off: it gives up for good after an error that the server
sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import nats.errors
from nats.protocol.parser import AUTHORIZATION_VIOLATION

from stretto.nats.access import NatsSettings
from stretto.nats.client import Client
from stretto.network import network_failure
from stretto.observations import BusConnected, BusFailed
from stretto.runtime.actor import Actor, Pace, TryAgain
from stretto.runtime.backoff import Backoff
from stretto.runtime.cancelling import retrieve
from stretto.targets.bus import BusUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Mapping

    from nats.js import JetStreamContext

    from stretto.observations import Observer

Result = TypeVar("Result")

CONNECT_SECONDS: Final = 2
RETRY: Final = Backoff(0.5, 2.0)
# The client's own pause between one server of the list and the next.
NEXT_SERVER_SECONDS: Final = 1
# Two unanswered pings end a connection: a host that vanishes silently is noticed after 2 to 3 s.
PING_SECONDS: Final = 1
# A JetStream answer; `requests.py` does not wait so long for one that a leader may have lost.
ANSWER_SECONDS: Final = 5.0
# A connection whose other end has vanished cannot be closed in order: wait no longer than this.
CLOSE_SECONDS: Final = 2.0
# How often to look: the client reports a lost connection, but not while it hangs in closing it.
WATCH_SECONDS: Final = 1.0
# How long the server's limit of a message, which is sent to new connections alone, is taken for known.
LIMIT_KNOWN_SECONDS: Final = 60.0

# A pause while a connection that is lost still counts as the present one.
LOST_SECONDS: Final = 0.01
# A task that is still running after this has swallowed its cancellation, and is cancelled again.
CANCEL_SECONDS: Final = 0.5

# All errors of the network and of a server.
NATS_ERRORS: Final = (nats.errors.Error, OSError, TimeoutError)
# Added to what a server says of a user that it does not know.
ACCESS_HINT: Final = (
    "does it know the user, token or credentials that we have? In STRETTO_NATS_URL they are"
    " percent-encoded: %2F for a /, %25 for a %"
)
# What a server says where a right was taken away by a reload. It has dropped the subscription, and gives it
# back to new connections alone: no answer would ever reach us.
SUBSCRIPTION_REFUSED: Final = "permissions violation for subscription"
# JetStream's error codes for a message, or headers, larger than the stream accepts.
TOO_LARGE: Final = (10054, 10097)


def header_bytes(headers: Mapping[str, str]) -> int:
    """Return the size of a message's block of headers: a line for the version, one for each, an empty one."""
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    return len(f"NATS/1.0\r\n{''.join(lines)}\r\n".encode())


class LimitOutdated(ConnectionResetError):
    """A message is too large by a limit that the server may have raised meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One connection; `ended` is done once it is lost."""

    client: Client
    jetstream: JetStreamContext
    observe: Observer
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    made_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def end(self) -> None:
        """Mark the connection as lost, or have it given up. Idempotent."""
        if not self.ended.done():
            self.ended.set_result(None)

    def may_send(self, body_bytes: int, headers: Mapping[str, str]) -> bool:
        """Whether the server takes such a message: it cuts a connection that sends a larger one.

        Its limit includes the headers, and a sender's trace makes ours longer.
        """
        return body_bytes + header_bytes(headers) <= self.client.max_payload

    def require_known_limit(self) -> None:
        """Call it before a message counts as too large: an operator may have raised the limit since.

        Raises `LimitOutdated`, and ends the link, unless the limit was read within
        `LIMIT_KNOWN_SECONDS`: the next link reads it anew.
        """
        if asyncio.get_running_loop().time() - self.made_at >= LIMIT_KNOWN_SECONDS:
            self.end()
            message = f"larger than {self.client.max_payload} bytes, as NATS said some time ago"
            raise LimitOutdated(message)

    async def unless_ended(self, work: Coroutine[object, object, Result]) -> Result:
        """Run work that waits for the server; raises `ConnectionResetError` when the link ends."""
        task = asyncio.create_task(work, name="stretto nats request")
        try:
            await asyncio.wait((task, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionResetError("the connection was lost")
            return task.result()
        finally:
            # A lost connection brings no answer: end the request that waits for one.
            await end_tasks((task,))


class TlsClient(Client):
    """The NATS client, but with TLS always: it starts TLS itself only if the server demands it.

    An attacker that answers in the server's place would demand none, and read user and password.
    """

    def _process_info(
        self,
        info: dict[str, Any],
        initial_connection: bool = False,  # noqa: FBT001, FBT002 the client calls it so
    ) -> Coroutine[Any, Any, None]:
        # Read before anything is sent. What is set here makes the client start TLS, but not on a
        # WebSocket, which has it from the beginning or never.
        if initial_connection:
            is_plain = self._current_server is not None and self._current_server.uri.scheme == "ws"
            if is_plain or not (info.get("tls_required") or info.get("tls_available")):
                message = (
                    "the server offers no TLS, and tls:// in STRETTO_NATS_URL, or one of"
                    " STRETTO_NATS_TLS_..., requires it: no password was sent"
                )
                raise nats.errors.Error(message)
            info["tls_required"] = True
        return super()._process_info(info, initial_connection)


class NatsConnection(Actor):
    """Connects to one of the servers; a turn is one connection's life."""

    stop_seconds = 0.0
    cancel_again_seconds = CANCEL_SECONDS

    def __init__(self, url: str, observe: Observer, settings: NatsSettings | None = None) -> None:
        super().__init__("nats connection")
        self.pace, self.backoff = Pace(seconds=RETRY.seconds_first), RETRY
        self._servers = [server.strip() for server in url.split(",")]
        # Not all replicas to the same one.
        random.shuffle(self._servers)
        settings = settings or NatsSettings()
        self._credentials, self._tls = settings.credentials(), settings.tls()
        # One such address is enough: a server of the list may name others of its cluster.
        is_tls = self._tls or "tls" in {urlsplit(server).scheme for server in self._servers}
        self._client_type = TlsClient if is_tls else Client
        self._observe = observe
        self._link: Link | None = None
        self._linked = asyncio.Event()
        self._reported = ""

    def link(self) -> Link:
        """Return the live connection; raises `BusUnavailable` if there is none."""
        link = self._link
        if link is None or link.ended.done() or not link.client.is_connected:
            raise BusUnavailable("NATS is away")
        return link

    async def linked(self) -> Link:
        """Wait for a live connection."""
        while True:
            await self._linked.wait()
            with contextlib.suppress(BusUnavailable):
                return self.link()
            # Lost, but the task that owns it has not noticed yet, or hangs in closing it.
            await asyncio.sleep(LOST_SECONDS)

    def report(self, error: Exception) -> None:
        """Report a failure once per connection, not at every try that fails the same way."""
        failure = str(error) or network_failure(error)
        # The protocol has no code for it, and while it connects the client no class of its own.
        if AUTHORIZATION_VIOLATION in failure.lower():
            failure = f"{failure}; {ACCESS_HINT}"
        if failure != self._reported:
            self._reported = failure
            self._observe(BusFailed(failure))

    async def run_once(self) -> int:
        """Connect, and watch the connection until it is lost."""
        try:
            await self._connect_and_watch()
        except Exception as error:
            # The NATS client may raise anything.
            self.report(error)
            raise TryAgain from error
        return 0

    async def _connect_and_watch(self) -> None:
        client = self._client_type(self._credentials)
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        refusals: list[str] = []

        async def on_error(error: Exception) -> None:
            self.report(error)
            if SUBSCRIPTION_REFUSED in str(error).lower():
                refusals.append(str(error))
                closed.set()

        try:
            await client.connect(
                self._servers,
                name="stretto",
                tls=self._tls,
                dont_randomize=True,
                allow_reconnect=False,
                max_reconnect_attempts=-1,
                connect_timeout=CONNECT_SECONDS,
                reconnect_time_wait=NEXT_SERVER_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                error_cb=on_error,
                closed_cb=on_closed,
            )
            self._reported = ""
            self._observe(BusConnected())
            self._link = link = Link(
                client, client.jetstream(timeout=ANSWER_SECONDS), self._observe
            )
            link.ended.add_done_callback(lambda _: closed.set())
            self._linked.set()
            try:
                while client.is_connected and not link.ended.done() and not refusals:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(WATCH_SECONDS):
                            await closed.wait()
            finally:
                self._linked.clear()
                self._link = None
                is_lost = not link.ended.done()
                link.end()
            if refusals:
                raise BusUnavailable(refusals[0])
            if is_lost:
                self.report(client.last_error or ConnectionResetError("the connection was lost"))
        finally:
            # Begin with another one: this one may be gone without refusing connections.
            self._servers.sort(key=client.was_last_at)
            with contextlib.suppress(*NATS_ERRORS):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.close()


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended: the NATS client sometimes swallows a cancellation.

    Their errors are retrieved, or asyncio logs them as never retrieved; also where this is cancelled.
    """
    for task in tasks:
        if task.done():
            retrieve(task)
        else:
            task.add_done_callback(retrieve)
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_SECONDS)
