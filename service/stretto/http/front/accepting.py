"""Listens, and accepts the clients' connections: many in a turn of the loop, up to a bound.

uvloop accepts one connection in a turn. Where clients with pipelined requests make each turn long,
newcomers would wait in the kernel's queue for many seconds, although no limit is reached.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

# Connections that the kernel accepts while the loop is busy. Where it has no room for one, a client
# that takes itself for connected is reset as it sends its request. The kernel lowers it to
# `somaxconn`.
BACKLOG_CONNECTIONS: Final = 4096
# A new connection costs about 0.12 ms, with one request: a flood of newcomers adds 15 ms to a turn,
# and those who are connected are served in each.
ACCEPTED_PER_TURN: Final = 128
# What `accept` lacks while it fails with these. The socket stays readable: without a pause the loop
# would do nothing else.
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_SECONDS: Final = 1.0


async def listening_sockets(host: str, port: int, *, share_port: bool) -> list[socket.socket]:
    """Return a socket that listens for each address of the host. Raises `OSError`."""
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as stack:
        sockets = []
        for family, *_, address in dict.fromkeys(infos):
            try:
                # It reuses addresses in TIME_WAIT, and takes no IPv4 on an address of IPv6.
                listening = socket.create_server(
                    address, family=family, backlog=BACKLOG_CONNECTIONS, reuse_port=share_port
                )
            except OSError as error:
                # `localhost` may have an address of IPv6 where the kernel has none.
                if error.errno != errno.EAFNOSUPPORT or len(infos) == 1:
                    raise
                continue
            sockets.append(stack.enter_context(listening))
            listening.settimeout(0)
        stack.pop_all()
    return sockets


@asynccontextmanager
async def accepting(
    sockets: Sequence[socket.socket], make_client: Callable[[], asyncio.BaseProtocol]
) -> AsyncIterator[None]:
    """Accept connections while the block runs; close the sockets at its end."""
    acceptor = Acceptor(sockets, make_client)
    acceptor.start()
    try:
        yield
    finally:
        await acceptor.stop()


class Acceptor:
    """Accepts the connections of listening sockets, which it owns."""

    def __init__(
        self, sockets: Sequence[socket.socket], make_client: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._make_client = make_client
        self._connecting: set[asyncio.Task[None]] = set()
        """Of accepted connections that the server does not know yet."""
        self._pause: asyncio.TimerHandle | None = None
        self._is_out_of_resources = False
        """Whether no connection was accepted since the last pause."""

    def start(self) -> None:
        """Accept from now on."""
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def stop(self) -> None:
        """Accept no more, and wait until the server knows every accepted connection.

        The server closes only what it knows. What the kernel has queued is reset.
        """
        if self._pause is not None:
            self._pause.cancel()
        self._stop_reading()
        for listening in self._sockets:
            listening.close()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _stop_reading(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept what the kernel has queued, up to a turn's share."""
        for _ in range(ACCEPTED_PER_TURN):
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                # This client has gone; others may be queued behind it.
                continue
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._begin_pause(error)
                return
            self._is_out_of_resources = False
            task = self._loop.create_task(self._connect(connection), name="connect a client")
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        """Give a connection to the server."""
        try:
            await self._loop.connect_accepted_socket(self._make_client, connection)
        except BaseException:
            connection.close()
            raise

    def _begin_pause(self, error: OSError) -> None:
        """Leave clients in the kernel's queue for a while; log only the first of several pauses."""
        if not self._is_out_of_resources:
            self._is_out_of_resources = True
            logger.warning("server.not_accepting", error=error.strerror, seconds=PAUSE_SECONDS)
        self._stop_reading()
        self._pause = self._loop.call_later(PAUSE_SECONDS, self.start)
