"""The two ways of events to a client: WebSocket text messages and server-sent events.

A stream sends, notices that its client has gone, and says goodbye, each within a bounded time. What
is sent, and why it ends, others decide. Every form of an event is made once for all who get it.
"""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
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

    from stretto.config import Settings
    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.session import Session

SUBPROTOCOL: Final = "stretto.v1"
# Clients have nothing to say; the largest control frame has 125 bytes.
MESSAGE_BYTES_MAX: Final = 1024
# What may lie in the process and in the kernel for a client that does not read; then it is waited
# for, and events gather in its session's queue.
BUFFER_BYTES_MAX: Final = 16 * 1024
SOCKET_BYTES_MAX: Final = 64 * 1024
# For the goodbye to arrive, and a WebSocket's reply; below the hub's own patience at the stop.
CLOSE_SECONDS: Final = 2.0
# Spread, so that the clients of a stopped process do not all come back at once.
RECONNECT_MILLISECONDS: Final = (500, 5000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How sessions are opened and kept."""

    heartbeat_seconds: float = 25.0
    """Below the minute after which proxies drop a silent connection."""
    origins: frozenset[str] = frozenset()
    """Whose pages may open a WebSocket, beside our own; `*` stands for everybody's."""

    @classmethod
    def of(cls, settings: Settings) -> StreamSettings:
        """Return the streams' part of the service's settings."""
        origins = (origin.strip().rstrip("/").lower() for origin in settings.origins.split(","))
        return cls(
            heartbeat_seconds=settings.heartbeat_seconds, origins=frozenset(filter(None, origins))
        )


class EventStream(Protocol):
    """What a session is served through."""

    @property
    def response(self) -> web.StreamResponse:
        """What is answered to the request."""

    @property
    def silence_seconds(self) -> float | None:
        """After so long without events, `beat` is due."""

    def opened(self, request: web.Request, session: Session) -> AbstractAsyncContextManager[None]:
        """Answer the request and watch the client; it closes the session when the client goes."""

    async def tell_position(self, bookmark: str) -> None:
        """Say where to resume, as long as there is no event."""

    async def send(self, outgoing: OutgoingEvent) -> None:
        """Send an event; waits for a client that does not read, raises `ConnectionResetError`."""

    async def beat(self) -> None:
        """Send a sign of life."""

    async def close(self, code: CloseCode) -> None:
        """Say goodbye and hang up, within `CLOSE_SECONDS`."""


class WebSocketStream:
    """Text messages `{"position", "event"}`; the client answers pings and sends little else."""

    silence_seconds = None

    def __init__(self, settings: StreamSettings) -> None:
        self.response = QuietWebSocket(
            timeout=CLOSE_SECONDS,
            heartbeat=settings.heartbeat_seconds,
            protocols=(SUBPROTOCOL,),
            # A compressor would cost more memory than all the rest of the session.
            compress=False,
            max_msg_size=MESSAGE_BYTES_MAX,
            writer_limit=BUFFER_BYTES_MAX,
        )
        self.response.headers.update(COMMON_FIELDS)

    @asynccontextmanager
    async def opened(self, request: web.Request, session: Session) -> AsyncIterator[None]:
        """Answer the request and watch the client."""
        self.response.on_flood = partial(session.close, CloseCode.TOO_MANY_FRAMES)
        await self.response.prepare(request)
        self._transport = _bounded(request)
        reading = asyncio.create_task(self._read(session), name="read a WebSocket session")
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait((reading,))
            # Of a malformed frame; it has passed frames of the response, which keeps it.
            drop_frames(self.response.exception())

    async def tell_position(self, bookmark: str) -> None:
        """Say where to resume."""
        await self._send_text(orjson.dumps({"position": bookmark}))

    async def send(self, outgoing: OutgoingEvent) -> None:
        """Send an event."""
        await self._send_text(outgoing.encoded(websocket_message))

    async def beat(self) -> None:
        """Do nothing: pings are sent by the response itself, which waits for their replies."""

    async def close(self, code: CloseCode) -> None:
        """Say goodbye and hang up."""
        async with _hanging_up(self._transport):
            await self.response.close(code=code, message=code.reason.encode())

    async def _send_text(self, message: bytes) -> None:
        await self.response.send_frame(message, WSMsgType.TEXT)

    async def _read(self, session: Session) -> None:
        """Close the session when the client leaves, or says anything at all."""
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
    """Events whose `id` is the position; a comment is the sign of life."""

    def __init__(self, settings: StreamSettings) -> None:
        self.silence_seconds = settings.heartbeat_seconds
        self.response = web.StreamResponse(
            headers={
                **COMMON_FIELDS,
                hdrs.CONTENT_TYPE: "text/event-stream",
                hdrs.CACHE_CONTROL: "no-store",
                # A proxy that gathers an answer before it passes it on would gather for ever.
                "X-Accel-Buffering": "no",
            }
        )
        # Its buffers are kept too small for other answers.
        self.response.force_close()

    @asynccontextmanager
    async def opened(self, request: web.Request, session: Session) -> AsyncIterator[None]:  # noqa: ARG002 the port's
        """Answer the request; who leaves cancels the handler, or is missed at the next beat."""
        await self.response.prepare(request)
        self._transport = _bounded(request)
        yield

    async def tell_position(self, bookmark: str) -> None:
        """Say where to resume."""
        pause = random.randint(*RECONNECT_MILLISECONDS)
        await self.response.write(f"retry: {pause}\nid: {bookmark}\n\n".encode())

    async def send(self, outgoing: OutgoingEvent) -> None:
        """Send an event."""
        await self.response.write(outgoing.encoded(sse_chunk))

    async def beat(self) -> None:
        """Send a comment."""
        await self.response.write(b":\n\n")

    async def close(self, code: CloseCode) -> None:
        """Say goodbye and hang up."""
        goodbye = orjson.dumps({"code": code, "reason": code.reason})
        # Without this, a browser would come back with the lost position for ever.
        forget = b"id\n" if code is CloseCode.POSITION_LOST else b""
        async with _hanging_up(self._transport):
            await self.response.write(b"event: close\n" + forget + b"data: " + goodbye + b"\n\n")
            await self.response.write_eof()


def websocket_message(outgoing: OutgoingEvent) -> bytes:
    """Return the text of the one message that all WebSocket sessions get."""
    return b'{"position":"%b","event":%b}' % (outgoing.bookmark.encode(), outgoing.event.envelope)


def sse_chunk(outgoing: OutgoingEvent) -> bytes:
    """Return the event that all SSE sessions get; JSON has no line breaks of its own here."""
    return b"id: %b\ndata: %b\n\n" % (outgoing.bookmark.encode(), outgoing.event.envelope)


def _bounded(request: web.Request) -> asyncio.Transport:
    """Return the request's transport, which from now on buffers little; raises `ConnectionResetError`."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES_MAX)
    return transport


@asynccontextmanager
async def _hanging_up(transport: asyncio.Transport) -> AsyncIterator[None]:
    """Bound a goodbye in time; a client that does not even read that is cut off."""
    if not transport.is_closing():
        # What is sent from now on has been handed to the kernel once it has been waited for.
        transport.set_write_buffer_limits(high=0)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            yield
    except (TimeoutError, ConnectionError):
        transport.abort()
    finally:
        # Closing alone would wait for the client, for as long as it likes.
        if transport.get_write_buffer_size() > 0:
            transport.abort()
