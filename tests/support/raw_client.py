"""Clients that send bytes as they are, whatever HTTP says about them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from stretto.http.settings import ConnectionLimits
from support.api_client import api_for

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


BODY = b'{"name": "Team"}'
PING = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def creation_head(token: str, key: str) -> bytes:
    """Return how a creation begins: all but what says where it ends."""
    return (
        f"POST /v1/groups HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\n"
    ).encode()


def creation(token: str, key: str, body: bytes = BODY) -> bytes:
    """Return a creation as it goes over the wire."""
    return creation_head(token, key) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class RawClient(asyncio.Protocol):
    """One connection, and all that was answered on it."""

    def __init__(self) -> None:
        self.answered = b""
        self.is_closed = False
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answered += data
        self._changed.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.is_closed = True
        self._changed.set()

    def send(self, data: bytes) -> None:
        """Send bytes; to one that has closed, into the void."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def closed(self) -> bytes:
        """Wait until the service closes the connection; return what it had answered."""
        while not self.is_closed:
            await self._change()
        return self.answered

    async def until(self, data: bytes) -> None:
        """Wait for these bytes, and pass over them."""
        while data not in self.answered:
            assert not self.is_closed, self.answered
            await self._change()
        self.answered = self.answered.partition(data)[2]

    async def head(self) -> bytes:
        """Return the next answer's status line and fields, an interim one left out."""
        while True:
            while b"\r\n\r\n" not in self.answered:
                assert not self.is_closed, self.answered
                await self._change()
            head, _, self.answered = self.answered.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 100 "):
                return head

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Return the next answer's status, headers and document."""
        while b"\r\n\r\n" not in self.answered:
            assert not self.is_closed, self.answered
            await self._change()
        head, _, rest = self.answered.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (f.split(": ", 1) for f in fields)}
        length = int(headers["content-length"])
        while len(rest) < length:
            assert not self.is_closed, self.answered
            await self._change()
            rest = self.answered.partition(b"\r\n\r\n")[2]
        self.answered = rest[length:]
        return int(status.split()[1]), headers, orjson.loads(rest[:length])

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class RawClients:
    """Opens connections to one service, or to a proxy that encrypts."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        place = urlsplit(url)
        self._address = (place.hostname or "", place.port or 0)
        self._tls = tls
        self._opened: list[RawClient] = []

    async def connect(self, first: bytes = b"") -> RawClient:
        """Connect, and send what is given."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(RawClient, *self._address, ssl=self._tls)
        self._opened.append(client)
        client.send(first)
        return client

    def abort(self) -> None:
        """Close all connections, as a client that vanishes."""
        for client in self._opened:
            client.transport.abort()


@asynccontextmanager
async def hurried_clients(
    database_url: str, *, read_seconds: float, deadline_seconds: float
) -> AsyncIterator[RawClients]:
    """Serve a database in this process, and yield clients of a service that waits for no request for long."""
    limits = ConnectionLimits(read_timeout_seconds=read_seconds)
    async with (
        asyncio.timeout(deadline_seconds),
        api_for(database_url, limits=limits) as api,
        raw_clients(api.url) as clients,
    ):
        yield clients


@asynccontextmanager
async def raw_clients(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawClients]:
    """Open connections to the service at a URL, and close them all at the end."""
    clients = RawClients(url, tls)
    try:
        yield clients
    finally:
        clients.abort()
        for client in clients._opened:
            await client.closed()
