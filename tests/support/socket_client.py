"""A client without transports or streams: it makes no garbage of its own, on any event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

RECEIVE_BYTES = 65_536
# Closing then resets the connection.
LINGER = struct.pack("ii", 1, 0)


class SocketClient:
    """One connection to a service on this machine, and what was received and not yet read."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._received = b""

    async def connect(self, port: int, first: bytes = b"") -> SocketClient:
        """Connect, and send what is given."""
        await asyncio.get_running_loop().sock_connect(self._socket, ("127.0.0.1", port))
        if first:
            self.send(first)
        return self

    def send(self, data: bytes) -> None:
        """Send bytes: few, so that the kernel takes them at once."""
        assert len(data) == self._socket.send(data)

    async def ask(self, data: bytes) -> int:
        """Send a request; return the status of its answer."""
        self.send(data)
        head = await self.until(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(self._received) < length:
            await self._receive()
        self._received = self._received[length:]
        return int(head.split()[1])

    async def until(self, data: bytes) -> bytes:
        """Read up to these bytes and over them; return what stood before. Raises `EOFError`."""
        while data not in self._received:
            await self._receive()
        found, _, self._received = self._received.partition(data)
        return found

    async def closed(self) -> None:
        """Read until the service closes the connection."""
        with suppress(EOFError, ConnectionError):
            while True:
                await self._receive()
        self._socket.close()

    def reset(self) -> None:
        """Vanish."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        self._socket.close()

    def close(self) -> None:
        """Close the connection in order. Idempotent."""
        self._socket.close()

    async def _receive(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self._socket, RECEIVE_BYTES)
        if not data:
            raise EOFError
        self._received += data
