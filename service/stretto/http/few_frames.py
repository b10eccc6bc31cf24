"""A WebSocket whose client sends no messages: the bytes of its frames are bounded, and masked.

aiohttp parses every frame that has arrived in one turn of the loop, and answers each ping. So one
session that sends only pings could block the process for all others: 130,000 pings, 780 kB, cost a
second. Here bytes are counted before a frame is parsed, and bytes beyond the bound are dropped. A
client's pings and its replies to ours stay far below the bound.

aiohttp also takes frames without a mask. The mask keeps a page's script from writing bytes that a
proxy would take for requests, so a server must not accept a client that sends none (RFC 6455, 5.1).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import web

from stretto.events.close_codes import CloseCode

if TYPE_CHECKING:
    from collections.abc import Callable

# A ping and a reply of the largest size every second. Of the smallest frames these are 341, which
# cost some 3 ms.
FRAME_BYTES_MAX: Final = 2 * 1024
FRAME_SECONDS: Final = 10.0
# RFC 6455, 5.2: the lengths of a frame's parts, and its marks.
_HEAD_BYTES: Final = 2
_LENGTH_BYTES: Final = {126: 2, 127: 8}
_MASK_BYTES: Final = 4
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F


class Reader(Protocol):
    """aiohttp's parser of a connection's bytes."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Parse bytes; return whether they are the last, and those that are left over."""

    def feed_eof(self) -> None:
        """Note that no more bytes come."""


class MaskWatch:
    """Follows a client's frames from head to head, however they are cut."""

    def __init__(self) -> None:
        self._head = b""
        """Of the next frame, as far as it has come."""
        self._rest_bytes = 0
        """Of the present frame behind its head: mask and content."""

    def masked_bytes(self, data: bytes) -> int:
        """Return how many of these bytes come before a frame without a mask; all, if none has none."""
        at = 0
        while at < len(data):
            if self._rest_bytes:
                passed = min(self._rest_bytes, len(data) - at)
                self._rest_bytes -= passed
                at += passed
                continue
            self._head += data[at : at + 1]
            at += 1
            if len(self._head) < _HEAD_BYTES:
                continue
            if not self._head[1] & _MASKED:
                # Its first byte may have come before these.
                return max(0, at - _HEAD_BYTES)
            length = self._head[1] & _LENGTH
            if len(self._head) == _HEAD_BYTES + _LENGTH_BYTES.get(length, 0):
                if length in _LENGTH_BYTES:
                    length = int.from_bytes(self._head[_HEAD_BYTES:], "big")
                self._rest_bytes = _MASK_BYTES + length
                self._head = b""
        return len(data)


class FewFrames:
    """Passes a client's bytes to a reader, up to a bound, or up to a frame without a mask."""

    def __init__(
        self,
        reader: Reader,
        on_end: Callable[[CloseCode], object],
        clock_seconds: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._on_end = on_end
        self._clock_seconds = clock_seconds
        self._masks = MaskWatch()
        self._left_bytes = FRAME_BYTES_MAX
        self._ends_at = clock_seconds() + FRAME_SECONDS
        """When the count begins again."""
        self._is_over = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass bytes on; drop all from the first one beyond the bound, or of a frame without mask."""
        if self._is_over:
            return False, b""
        now = self._clock_seconds()
        if now >= self._ends_at:
            self._left_bytes = FRAME_BYTES_MAX
            self._ends_at = now + FRAME_SECONDS
        few = data[: self._left_bytes]
        self._left_bytes -= len(data)
        masked_bytes = self._masks.masked_bytes(few)
        fed = self._reader.feed_data(few[:masked_bytes])
        if masked_bytes < len(few):
            self._end(CloseCode.BAD_FRAME)
        elif self._left_bytes < 0:
            self._end(CloseCode.TOO_MANY_FRAMES)
        return fed

    def feed_eof(self) -> None:
        """Pass the end on."""
        self._reader.feed_eof()

    def _end(self, code: CloseCode) -> None:
        self._is_over = True
        self._on_end(code)


class QuietWebSocket(web.WebSocketResponse):
    """A WebSocket that calls `on_end` if its client sends more than the bound, or without masks.

    Its pings are sent by `in_turn`: aiohttp has all that are due in a second sent at once, and
    sessions that began together would stop the loop together.
    """

    on_end: Callable[[CloseCode], object]
    in_turn: Callable[[Callable[[], int]], object]
    _has_ended = False

    def end(self) -> None:
        """Stop the timer of the pings: it would keep this object, and the session, until it is due.

        aiohttp stops it only where it closes the WebSocket itself, and begins it again with each byte.
        """
        self._has_ended = True
        self._cancel_heartbeat()

    def _reset_heartbeat(self) -> None:
        if not self._has_ended:
            super()._reset_heartbeat()

    def _send_heartbeat(self) -> None:
        self.in_turn(self._ping)

    def _ping(self) -> int:
        """Send a ping, unless the WebSocket was closed meanwhile, or its client has sent something."""
        if self.closed or self._has_ended:
            return 0
        super()._send_heartbeat()
        return 1

    def _post_start(self, request: Any, protocol: str | None, writer: Any) -> None:
        """Begin to read; aiohttp would parse all bytes that came before this without a bound."""
        client = request.protocol
        # aiohttp offers no other way.
        early, client._message_tail = client._message_tail, b""  # noqa: SLF001
        super()._post_start(request, protocol, writer)
        loop = asyncio.get_running_loop()
        # What was parsed before has woken the session's reader: its close code comes first.
        frames = FewFrames(
            client._payload_parser,  # noqa: SLF001
            lambda code: loop.call_soon(self.on_end, code),
            loop.time,
        )
        client._payload_parser = frames  # noqa: SLF001
        if early:
            frames.feed_data(early)
