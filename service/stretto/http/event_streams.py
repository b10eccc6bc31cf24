"""The two ways of events to a client: WebSocket text messages and server-sent events.

A stream sends, notices that its client has left, and closes, each within a bounded time. It does
not decide what is sent or why the session ends. An event is encoded once for all sessions.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import orjson
from aiohttp import WebSocketError, WSMsgType, hdrs, web

from stretto.events.close_codes import CloseCode
from stretto.http.few_frames import QuietWebSocket
from stretto.http.problems import COMMON_FIELDS, drop_frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.session import Session
    from stretto.http.settings import StreamSettings

SUBPROTOCOL: Final = "stretto.v1"
# Clients send no messages; the largest control frame has 125 bytes.
MESSAGE_BYTES_MAX: Final = 1024
# Buffered in the process and in the kernel for a client that does not read. Beyond that the session
# waits for the client, and events gather in the session's queue.
BUFFER_BYTES_MAX: Final = 16 * 1024
SOCKET_BYTES_MAX: Final = 64 * 1024
# A client that has vanished without closing, such as a phone without a network, acknowledges nothing:
# the kernel closes its connection after so long, and not after a quarter of an hour of its own tries.
# Until then it takes one of its user's sessions.
UNACKNOWLEDGED_SECONDS: Final = 30
# For the close frame or event to arrive, and a WebSocket's reply; below the hub's `STOP_SECONDS`.
CLOSE_SECONDS: Final = 2.0
# Spread, so that the clients of a stopped process do not all reconnect at once.
RECONNECT_MILLISECONDS: Final = (500, 5000)


class EventStream(Protocol):
    """The way of a session's events to its client."""

    @property
    def response(self) -> web.StreamResponse:
        """The answer to the request."""

    @property
    def silence_seconds(self) -> float:
        """After so long without events, `beat` is due."""

    def opened(self, request: web.Request, session: Session) -> AbstractAsyncContextManager[None]:
        """Answer the request and watch the client; close the session when the client leaves."""

    async def send_position(self, position: str) -> None:
        """Send the client's position, which holds until it gets an event."""

    async def send(self, outgoing: OutgoingEvent) -> None:
        """Send an event; wait for a client that does not read; raise `ConnectionResetError`."""

    async def beat(self, position: str | None) -> None:
        """Send a heartbeat, with the client's position if that has changed."""

    async def close(self, code: CloseCode) -> None:
        """Send the close code and close the connection, within `CLOSE_SECONDS`."""


class WebSocketStream:
    """Text messages `{"position", "event"}`; the client sends control frames only."""

    def __init__(self, settings: StreamSettings) -> None:
        self.silence_seconds = settings.heartbeat_seconds
        self._reading: asyncio.Task[None] | None = None
        self.response = QuietWebSocket(
            timeout=CLOSE_SECONDS,
            heartbeat=settings.heartbeat_seconds,
            protocols=(SUBPROTOCOL,),
            # A compressor would need more memory than the rest of the session.
            compress=False,
            max_msg_size=MESSAGE_BYTES_MAX,
            writer_limit=BUFFER_BYTES_MAX,
        )
        self.response.headers.update(COMMON_FIELDS)

    @asynccontextmanager
    async def opened(self, request: web.Request, session: Session) -> AsyncIterator[None]:
        """Answer the request and watch the client."""
        self.response.on_end = session.close
        self.response.in_turn = session.call
        try:
            await self.response.prepare(request)
            self._transport = _bounded(request)
            self._reading = asyncio.create_task(
                self._read(session), name="read a WebSocket session"
            )
            yield
        finally:
            # First: the wait below may be cancelled, by the client that leaves.
            self.response.end()
            await self._stop_reading()
            # The error of a malformed frame: it refers to frames of the response, which keeps it.
            drop_frames(self.response.exception())

    async def send_position(self, position: str) -> None:
        """Send the client's position."""
        await self._send_text(orjson.dumps({"position": position}))

    async def send(self, outgoing: OutgoingEvent) -> None:
        """Send an event."""
        await self._send_text(outgoing.encoded(websocket_message))

    async def beat(self, position: str | None) -> None:
        """Send a position; the response itself sends pings and waits for their replies."""
        if position is not None:
            await self.send_position(position)

    async def close(self, code: CloseCode) -> None:
        """Send the close code, and close the connection once the client has sent its own."""
        # aiohttp does not wait for it while another task reads.
        await self._stop_reading()
        async with _closing(self._transport):
            await self.response.close(code=code, message=code.reason.encode())

    async def _stop_reading(self) -> None:
        if self._reading is None:
            return
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        # The task refers to this object.
        self._reading = None

    async def _send_text(self, message: bytes) -> None:
        await self.response.send_frame(message, WSMsgType.TEXT)

    async def _read(self, session: Session) -> None:
        """Close the session when the client leaves or sends a message."""
        try:
            message = await self.response.receive()
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                session.close(CloseCode.UNWANTED_DATA)
            elif isinstance(message.data, WebSocketError):
                session.close(CloseCode.BAD_FRAME)
        finally:
            # Unless it was closed before: only the first code counts.
            session.close(CloseCode.CLIENT_LEFT)


class ServerSentEvents:
    """Events whose `id` is the client's position; a comment, or an `id` alone, is the heartbeat."""

    def __init__(self, settings: StreamSettings) -> None:
        self.silence_seconds = settings.heartbeat_seconds
        self.response = web.StreamResponse(
            headers={
                **COMMON_FIELDS,
                hdrs.CONTENT_TYPE: "text/event-stream",
                hdrs.CACHE_CONTROL: "no-store",
                # A proxy that buffers an answer until its end would buffer for ever.
                "X-Accel-Buffering": "no",
            }
        )
        # `_bounded` makes the connection's buffers too small for other answers.
        self.response.force_close()

    @asynccontextmanager
    async def opened(self, request: web.Request, session: Session) -> AsyncIterator[None]:
        """Answer the request; a client that leaves cancels the handler or fails the next beat.

        One that only closes its half looks like one that leaves: its stream ends in order.
        """
        await self.response.prepare(request)
        self._transport = _bounded(request)
        # Where the server is a host's own, aiohttp closes the connection instead.
        watch_end = getattr(request.protocol, "watch_end", None)
        if watch_end is not None:
            watch_end(partial(session.close, CloseCode.CLIENT_LEFT))
        yield

    async def send_position(self, position: str) -> None:
        """Send the client's position."""
        pause = random.randint(*RECONNECT_MILLISECONDS)
        await self.response.write(b"retry: %d\n%b" % (pause, _position_block(position)))

    async def send(self, outgoing: OutgoingEvent) -> None:
        """Send an event."""
        await self.response.write(outgoing.encoded(sse_chunk))

    async def beat(self, position: str | None) -> None:
        """Send a comment, or an `id` without data: a client remembers it and gets no event."""
        await self.response.write(b":\n\n" if position is None else _position_block(position))

    async def close(self, code: CloseCode) -> None:
        """Send the close code and close the connection."""
        data = orjson.dumps({"code": code, "reason": code.reason})
        # Without this, a browser would reconnect with the lost position for ever.
        forget = b"id\n" if code is CloseCode.POSITION_LOST else b""
        async with _closing(self._transport):
            await self.response.write(b"event: close\n" + forget + b"data: " + data + b"\n\n")
            await self.response.write_eof()


def _position_block(position: str) -> bytes:
    return b"id: %b\n\n" % position.encode()


def websocket_message(outgoing: OutgoingEvent) -> bytes:
    """Return the text message that all WebSocket sessions get."""
    return b'{"position":"%b","event":%b}' % (outgoing.position.encode(), outgoing.event.envelope)


def sse_chunk(outgoing: OutgoingEvent) -> bytes:
    """Return the event that all SSE sessions get; our JSON has no line breaks."""
    return b"id: %b\ndata: %b\n\n" % (outgoing.position.encode(), outgoing.event.envelope)


def _bounded(request: web.Request) -> asyncio.Transport:
    """Bound buffers and silence of the request's transport; raise `ConnectionResetError`."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has left")
    transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES_MAX)
        if sys.platform == "linux" and connection.family != socket.AF_UNIX:
            milliseconds = UNACKNOWLEDGED_SECONDS * 1000
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return transport


@asynccontextmanager
async def _closing(transport: asyncio.Transport) -> AsyncIterator[None]:
    """Bound the block in time; cut off a client that does not read what the block sends."""
    if not transport.is_closing():
        # From now on, a write is waited for until the kernel has all of its bytes.
        transport.set_write_buffer_limits(high=0)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            yield
    except (TimeoutError, ConnectionError):
        transport.abort()
    finally:
        # `close` alone would wait for the client without a bound.
        if transport.get_write_buffer_size() > 0:
            transport.abort()
