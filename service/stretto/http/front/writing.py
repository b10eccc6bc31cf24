"""The side of a connection on which answers are written: how long a client may take to read them.

aiohttp waits for ever for a client that does not read its answer. A socket that is closed while
bytes wait for the client stays open until the client has taken them. Both are bounded in time here,
and what waits for all clients is bounded in `unread.py`.

The last answer of a connection is followed by a half-close. Closing a socket with unread bytes
would reset the connection, which could destroy the answer on its way (RFC 9112, 9.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp.web_protocol import RequestHandler

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    import asyncio

    from stretto.domain import UserId
    from stretto.http.front.limits import LimitedServer

# Read and dropped of a request that is answered already, so that a client that reads only after it
# has sent everything sees its answer. It costs about 10 ms.
DROPPED_BYTES_MAX: Final = 16 * 1024 * 1024
# Some round trips, in which a client sees the end of the last answer and closes.
LINGER_SECONDS: Final = 2.0
# A client that has just connected may be a user, whose request is on its way: it comes with the last packet of
# the handshake, or just behind it. A client that connects again and again must not keep
# places for longer.
STRANGER_SECONDS: Final = 0.1


class BoundedWriting(RequestHandler):
    """aiohttp's side of a connection whose client has to read."""

    __slots__ = (
        "_answer_bytes",
        "_dropped_bytes",
        "_left",
        "_linger_timer",
        "_unread",
        "_write_seconds",
        "_write_timer",
        "connected_at",
        "has_checked",
        "user",
        "waits_for_turn",
    )

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._unread = manager.unread
        self._write_seconds = write_seconds
        self._write_timer: asyncio.TimerHandle | None = None
        """Runs while bytes wait that the client does not take."""
        self._linger_timer: asyncio.TimerHandle | None = None
        """Runs after the last answer, until the client closes."""
        self._left: asyncio.Future[None] | None = None
        """Set when the client has closed after the last answer, or its time to close is over."""
        self._dropped_bytes = 0
        """Read after the last answer."""
        self._answer_bytes = 0
        """Of the answer that is being written, if it is in memory as a whole."""
        self.user: UserId | None = None
        """Of the last request that was taken, if its token is known."""
        self.waits_for_turn = False
        """Whether a request without a known token waits until its work begins."""
        self.has_checked = False
        """Whether it has sent a health check that was not parsed."""
        self.connected_at = self._loop.time()

    @property
    def is_of_stranger(self) -> bool:
        """Whether the last request had no token that is known, or none has come in time."""
        is_late = self._loop.time() >= self.connected_at + STRANGER_SECONDS
        return self.user is None and (self._request_count > 0 or self.has_checked or is_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new client; asyncio calls `pause_writing` once it does not take everything."""
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._stop_write_timer()
        self._unread.forget(self)
        self._leave()
        super().connection_lost(exc)

    @property
    def not_read_since(self) -> float | None:
        """Since when the client has not taken what waits for it, or not closed at the end."""
        if self._write_timer is not None:
            return self._write_timer.when() - self._write_seconds
        if self._linger_timer is not None:
            return self._linger_timer.when() - LINGER_SECONDS
        return None

    @property
    def unread_bytes(self) -> int:
        """What waits in the process for the client to read."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """What is kept in memory for that: the whole answer, until its last byte is taken."""
        return max(self._answer_bytes, self.unread_bytes)

    @property
    def is_ending(self) -> bool:
        """Whether the last answer has been sent."""
        return self._left is not None

    def pause_writing(self) -> None:
        """Bound the time for the client to take what waits for it."""
        super().pause_writing()
        assert self.transport is not None
        self._write_timer = self._loop.call_later(
            self._write_seconds, self._abandon, self.transport
        )
        self._unread.note(self)

    def resume_writing(self) -> None:
        """Go on: the client has taken everything."""
        self._stop_write_timer()
        self._unread.forget(self)
        super().resume_writing()

    def close_at_once(self) -> None:
        """Close and drop what the client has not taken: it would keep the socket open."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    async def linger(self) -> None:
        """Half-close, and drop what still arrives until the client closes."""
        left = self.half_close()
        if left is not None:
            await left

    def half_close(self) -> asyncio.Future[None] | None:
        """Half-close, and drop what still arrives; return what is done once the client has left.

        None if there is nothing to wait for.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self._upgraded:
            return None
        try:
            transport.write_eof()
        except OSError:
            # The client has reset the connection; the loop learns of it with the next read.
            return None
        self._dropped_bytes = 0
        self._left = self._loop.create_future()
        self._linger_timer = self._loop.call_later(LINGER_SECONDS, self._leave)
        # The parser may have paused it.
        transport.resume_reading()
        return self._left

    def drop(self, data: bytes) -> None:
        """Drop what arrives after the last answer, up to a bound."""
        self._dropped_bytes += len(data)
        if self._dropped_bytes > DROPPED_BYTES_MAX:
            self._leave()

    def _leave(self) -> None:
        """Stop waiting for the client to close."""
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abandon(self, transport: asyncio.Transport) -> None:
        """Cut off a client that does not read; `close` alone would wait for it."""
        logger.info("request.cut_off", reason="not_read")
        self.force_close()
        transport.abort()
