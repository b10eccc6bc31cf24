"""The side of a connection on which answers are written: how long a client may take to read them.

aiohttp waits for ever for a client that does not read its answer, and a socket that is closed while
bytes wait for the client stays open until it has taken them. Here both are bounded in time.

The last answer of a connection is followed by a half-close. Closing a socket with unread bytes would
reset the connection, which could destroy the answer on its way (RFC 9112, 9.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp.web_protocol import RequestHandler

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web

# What is read and dropped of a request that is answered already, so that a client that only reads
# when it has sent everything sees its answer. It costs about 10 ms.
DROPPED_BYTES_MAX: Final = 16 * 1024 * 1024
# For a client to see the end of the last answer and to close: some round trips.
LINGER_SECONDS: Final = 2.0


class BoundedWriting(RequestHandler):
    """aiohttp's side of a connection, whose client has to read."""

    __slots__ = (
        "_dropped_bytes",
        "_left",
        "_lingering",
        "_write_seconds",
        "_writing",
    )

    def __init__(self, manager: web.Server, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._write_seconds = write_seconds
        self._writing: asyncio.TimerHandle | None = None
        """Runs while something waits that the client does not take."""
        self._lingering: asyncio.TimerHandle | None = None
        """Runs after the last answer, until the client closes."""
        self._left: asyncio.Future[None] | None = None
        """Set when the client has closed after the last answer, or may be closed."""
        self._dropped_bytes = 0
        """Read after the last answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new client; `pause_writing` is called as soon as it does not take everything."""
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._stop_writing()
        self._leave()
        super().connection_lost(exc)

    @property
    def not_read_since(self) -> float | None:
        """Since when the client does not take what waits for it, or does not close at the end."""
        if self._writing is not None:
            return self._writing.when() - self._write_seconds
        if self._lingering is not None:
            return self._lingering.when() - LINGER_SECONDS
        return None

    @property
    def is_ending(self) -> bool:
        """Whether the last answer has been sent."""
        return self._left is not None

    def pause_writing(self) -> None:
        """Bound the time in which the client takes what waits for it."""
        super().pause_writing()
        assert self.transport is not None
        self._writing = self._loop.call_later(self._write_seconds, self._abandon, self.transport)

    def resume_writing(self) -> None:
        """Go on: the client has taken everything."""
        self._stop_writing()
        super().resume_writing()

    def give_way(self) -> None:
        """Close at once: what the client has not taken until now would keep the socket open."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    async def linger(self) -> None:
        """Say that nothing more comes, and drop what still arrives until the client closes."""
        transport = self.transport
        if transport is None or transport.is_closing() or self._upgraded:
            return
        self._dropped_bytes = 0
        self._left = self._loop.create_future()
        self._lingering = self._loop.call_later(LINGER_SECONDS, self._leave)
        transport.write_eof()
        # The parser may have held it.
        transport.resume_reading()
        await self._left

    def drop(self, data: bytes) -> None:
        """Take what arrives after the last answer; so much of it, and no more."""
        self._dropped_bytes += len(data)
        if self._dropped_bytes > DROPPED_BYTES_MAX:
            self._leave()

    def _leave(self) -> None:
        """End the time after the last answer."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _abandon(self, transport: asyncio.Transport) -> None:
        """Cut off a client that does not read; closing alone would wait for it."""
        logger.info("request.cut_off", reason="not_read")
        self.force_close()
        transport.abort()
