"""A way to a server that can be frozen: what is sent then is kept, and nothing is answered or closed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Frozen:
    """The way; `url` leads along it."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self.url = ""
        self.asked = asyncio.Event()
        """A client has sent something since `freeze`."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._links: set[asyncio.Task[None]] = set()

    def freeze(self) -> None:
        """Pass nothing on any more."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on what was kept, and what comes."""
        self._flows.set()

    def refuse(self) -> None:
        """Refuse new connections from now on; those that there are live on."""
        self._server.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Frozen]:
        """Listen until the block is left."""
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        account = self._place.netloc.rpartition("@")[0]
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._place._replace(netloc=f"{account}@127.0.0.1:{port}").geturl()
        try:
            yield self
        finally:
            self._server.close()
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        there, back = await asyncio.open_connection(self._place.hostname, self._place.port)
        try:
            await asyncio.gather(
                self._pass(reader, back, is_clients=True),
                self._pass(there, writer, is_clients=False),
            )
        except OSError:
            pass
        finally:
            back.close()
            writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_clients: bool
    ) -> None:
        while data := await reader.read(65536):
            if is_clients and not self._flows.is_set():
                self.asked.set()
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        writer.close()
