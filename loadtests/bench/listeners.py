"""Thousands of WebSocket clients in one process: each is a socket, a count and a time."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loadtests.bench.machinery import SECRET, BenchError

from stretto.domain import UserId
from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Handshakes under way at once: below the server's backlog of connections.
OPENING_MAX = 100
CONNECT_SECONDS = 120
_REQUEST = (
    "GET /v1/events HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    "Authorization: Bearer {}\r\n\r\n"
)


class Listener(asyncio.Protocol):
    """Counts the messages of a session."""

    def __init__(self, token: str) -> None:
        self.messages = 0
        self.last_at = 0.0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = _REQUEST.format(token).encode()
        self._rest = b""
        self._is_open = False
        self._expected = 0
        self._reached: asyncio.Future[None] | None = None

    def reached(self, messages: int) -> asyncio.Future[None]:
        """Return a future that is done once `messages` have arrived."""
        self._expected, self._reached = messages, asyncio.get_running_loop().create_future()
        self._notice()
        return self._reached

    def _notice(self) -> None:
        if self._reached and not self._reached.done() and self.messages >= self._expected:
            self._reached.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the session."""
        self.transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Count whole messages; the first one only gives the session's position."""
        self._rest += data
        if not self._is_open:
            head, found, self._rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                self._rest = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(BenchError(head.decode()))
                return
            self._is_open = True
        while len(self._rest) >= 4:
            length = self._rest[1]
            start = 2
            if length == 126:
                length, start = int.from_bytes(self._rest[2:4], "big"), 4
            if len(self._rest) < start + length:
                return
            self._rest = self._rest[start + length :]
            self.messages += 1
            self.last_at = time.monotonic()
            if not self.opened.done():
                self.opened.set_result(None)
        self._notice()


@asynccontextmanager
async def listeners(url: str, count: int, per_user: int) -> AsyncIterator[list[Listener]]:
    """Open `count` sessions of users from `user-0` on; each has received its position."""
    address = urlsplit(url)
    host, port = address.hostname, address.port
    assert host
    assert port
    gate = asyncio.Semaphore(OPENING_MAX)
    loop = asyncio.get_running_loop()

    async def opened(number: int) -> Listener:
        user = UserId(f"user-{number // per_user}")
        token = make_token(SECRET, user, lifetime_seconds=3600)
        async with gate:
            _, listener = await loop.create_connection(lambda: Listener(token), host, port)
            await listener.opened
        return listener

    async with asyncio.timeout(CONNECT_SECONDS):
        found = await asyncio.gather(*map(opened, range(count)))
    try:
        yield found
    finally:
        for listener in found:
            listener.transport.close()
