"""A WebSocket whose client sends no messages: the bytes of its frames are bounded.

aiohttp parses every frame that has arrived in one turn of the loop, and answers each ping. So one
session that sends only pings could block the process for all others: 130,000 pings, 780 kB, cost a
second. Here bytes are counted before a frame is parsed, and bytes beyond the bound are dropped. A
client's pings and its replies to ours stay far below the bound.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

# A ping and a reply of the largest size every second. Of the smallest frames these are 1,000, which
# cost 10 ms.
FRAME_BYTES_MAX: Final = 2 * 1024
FRAME_SECONDS: Final = 10.0


class Reader(Protocol):
    """aiohttp's parser of a connection's bytes."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Parse bytes; return whether they are the last, and those that are left over."""

    def feed_eof(self) -> None:
        """Note that no more bytes come."""


class FewFrames:
    """Passes a client's bytes to a reader, up to a bound."""

    def __init__(
        self, reader: Reader, on_flood: Callable[[], None], clock_seconds: Callable[[], float]
    ) -> None:
        self._reader = reader
        self._on_flood = on_flood
        self._clock_seconds = clock_seconds
        self._left_bytes = FRAME_BYTES_MAX
        self._ends_at = clock_seconds() + FRAME_SECONDS
        """When the count begins again."""
        self._is_flooded = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass bytes on; drop all bytes from the first one beyond the bound."""
        if self._is_flooded:
            return False, b""
        now = self._clock_seconds()
        if now >= self._ends_at:
            self._left_bytes = FRAME_BYTES_MAX
            self._ends_at = now + FRAME_SECONDS
        few = data[: self._left_bytes]
        self._left_bytes -= len(data)
        fed = self._reader.feed_data(few)
        if self._left_bytes < 0:
            self._is_flooded = True
            self._on_flood()
        return fed

    def feed_eof(self) -> None:
        """Pass the end on."""
        self._reader.feed_eof()


class QuietWebSocket(web.WebSocketResponse):
    """A WebSocket that calls `on_flood` if its client sends more than the bound."""

    on_flood: Callable[[], None]

    def _post_start(self, request: Any, protocol: str | None, writer: Any) -> None:
        """Begin to read; aiohttp would parse all bytes that came before this without a bound."""
        client = request.protocol
        # aiohttp offers no other way.
        early, client._message_tail = client._message_tail, b""  # noqa: SLF001
        super()._post_start(request, protocol, writer)
        loop = asyncio.get_running_loop()

        def later() -> None:
            # What was parsed before has woken the session's reader: its close code comes first.
            loop.call_soon(self.on_flood)

        frames = FewFrames(client._payload_parser, later, loop.time)  # noqa: SLF001
        client._payload_parser = frames  # noqa: SLF001
        if early:
            frames.feed_data(early)
