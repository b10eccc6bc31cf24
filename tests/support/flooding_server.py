"""A server that answers, and goes on sending for as long as it can."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

# More than the buffers of a connection take, and no more than memory: a test must be able to fail.
FLOOD_BYTES: Final = 32 * 1024 * 1024


class FloodingServer:
    """Answers each connection's first request, and sends the flood behind that answer."""

    def __init__(self, answer: bytes, flood: bytes) -> None:
        self.url = ""
        self.connections = 0
        self.may_flood = asyncio.Event()
        self.was_cut_off = False
        self._answer, self._flood = answer, flood
        self._has_ended = asyncio.Event()

    async def is_cut_off(self) -> bool:
        """Return whether its client has ended the connection before the flood's end."""
        await self._has_ended.wait()
        return self.was_cut_off

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer)
            await self.may_flood.wait()
            for _ in range(FLOOD_BYTES // len(self._flood)):
                writer.write(self._flood)
                await writer.drain()
                # Over TLS, the loop learns of the end in a turn of its own.
                await asyncio.sleep(0)
        except ConnectionError:
            self.was_cut_off = True
        finally:
            self._has_ended.set()
            writer.close()


@asynccontextmanager
async def flooding(
    answer: bytes, flood: bytes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FloodingServer]:
    """Run such a server on the loopback, for 20 s at most; `may_flood` must be set."""
    flooder = FloodingServer(answer, flood)
    server = await asyncio.start_server(flooder.handle, "127.0.0.1", 0, ssl=tls)
    flooder.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        async with asyncio.timeout(20):
            yield flooder
    finally:
        server.close()
