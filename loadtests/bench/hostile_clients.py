"""Hostile clients in their own process: idle, slow, endless, oversized, compressed.

It opens the lasting connections, prints that it is ready, and runs until it is ended: slow clients
send a byte now and then, the others connect one after another at a fixed rate.
"""

from __future__ import annotations

import asyncio
import gzip
import resource
import sys
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import orjson
import uvloop

from stretto.codec import BODY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

IDLE: Final = 10_000
SLOW: Final = 400
SLOW_SECONDS: Final = 1.0
QUICK_PER_SECOND: Final = 100
OPENING_MAX: Final = 100
QUICK_SECONDS_MAX: Final = 5.0
BOMB: Final = gzip.compress(b" " * (100 << 20))


def head(token: str, *fields: str) -> bytes:
    """Return the head of a creation."""
    lines = (
        "POST /v1/groups HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token}",
        "Idempotency-Key: hostile",
        "Content-Type: application/json",
        *fields,
    )
    return ("\r\n".join(lines) + "\r\n").encode()


def quick(token: str) -> list[bytes]:
    """Return the quick attacks: too large a head or body, or a compressed bomb."""
    bomb = head(token, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}")
    chunk = b"fffffff\r\n" + b" " * (BODY_BYTES_MAX + 1)
    return [
        head(token) + b"X-Many: 1\r\n" * 10_000,
        head(token) + b"X-Long: " + b"x" * 100_000,
        head(token, f"Content-Length: {BODY_BYTES_MAX + 1}") + b"\r\n{",
        head(token, "Transfer-Encoding: chunked") + b"\r\n" + chunk,
        bomb + b"\r\n" + BOMB,
    ]


class Client(asyncio.Protocol):
    """A connection that ignores all answers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, data: bytes) -> None:
        """Send, unless the connection is closing."""
        if not self.transport.is_closing():
            self.transport.write(data)


async def main() -> None:
    """Attack until ended."""
    port, token = int(sys.argv[1]), sys.argv[2]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = asyncio.get_running_loop()

    async def connect() -> Client:
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        return client

    idle = await _opened(IDLE, connect)
    slow = await _opened(SLOW, connect)
    for number, client in enumerate(slow):
        body = b"Content-Length: 200000\r\n\r\n{"
        client.send(head(token) + (body if number % 2 else b"X-Slow: "))
    ready = {"event": "hostile.started", "connections": len(idle) + len(slow)}
    sys.stderr.write(orjson.dumps(ready).decode() + "\n")
    sys.stderr.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_drip(slow, connect))
        async for sent in _every(1 / QUICK_PER_SECOND, quick(token)):
            tasks.create_task(_send(sent, connect))


async def _opened(count: int, connect: Callable[[], Awaitable[Client]]) -> list[Client]:
    clients: list[Client] = []
    while len(clients) < count:
        some = min(OPENING_MAX, count - len(clients))
        clients += await asyncio.gather(*(connect() for _ in range(some)))
    return clients


async def _every(seconds: float, things: list[bytes]) -> AsyncIterator[bytes]:
    for thing in cycle(things):
        yield thing
        await asyncio.sleep(seconds)


async def _drip(slow: list[Client], connect: Callable[[], Awaitable[Client]]) -> None:
    """Send a byte a second on each connection; reconnect those that were cut off."""
    while True:
        for number, client in enumerate(slow):
            if client.closed.done():
                with suppress(OSError):
                    slow[number] = await connect()
                    slow[number].send(b"POST /v1/groups HTTP/1.1\r\nX-Slow: ")
            else:
                client.send(b"x")
        await asyncio.sleep(SLOW_SECONDS)


async def _send(sent: bytes, connect: Callable[[], Awaitable[Client]]) -> None:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(QUICK_SECONDS_MAX):
            client = await connect()
            client.send(sent)
            try:
                await client.closed
            finally:
                client.transport.abort()


if __name__ == "__main__":
    uvloop.run(main())
