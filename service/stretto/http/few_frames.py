"""A WebSocket whose client has nothing to say: it may send few frames, whatever they are.

aiohttp takes every frame that has arrived in one turn of the loop, and answers each ping. So one
session that sends nothing but pings would take the process away from all others: 130,000 of them,
780 kB, cost a second. Here bytes are counted before a frame is read, and what is too much is dropped
unread. A client's pings and its replies to ours stay far below that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

# A ping and a reply every second, each as large as they may be, are as much. The smallest frames, of
# which these are 1,000, cost 10 ms.
FRAME_BYTES_MAX: Final = 2 * 1024
FRAME_SECONDS: Final = 10.0


class Reader(Protocol):
    """What takes the bytes of a connection."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes; return whether they are the last, and what is left of them."""

    def feed_eof(self) -> None:
        """Take note that there are no more."""


class FewFrames:
    """Hands a client's bytes to a reader, as long as they are few."""

    def __init__(
        self, reader: Reader, on_flood: Callable[[], None], clock_seconds: Callable[[], float]
    ) -> None:
        self._reader = reader
        self._on_flood = on_flood
        self._clock_seconds = clock_seconds
        self._left_bytes = FRAME_BYTES_MAX
        self._ends_at = clock_seconds() + FRAME_SECONDS
        """When as much may come again."""
        self._is_flooded = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Hand bytes on, or drop them: from the first that is too many, for ever."""
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
        """Hand it on."""
        self._reader.feed_eof()


class QuietWebSocket(web.WebSocketResponse):
    """A WebSocket that calls `on_flood` when its client sends too many frames."""

    on_flood: Callable[[], None]

    def _post_start(self, request: Any, protocol: str | None, writer: Any) -> None:
        """Begin to read; aiohttp would hand on all that came before this without a bound."""
        client = request.protocol
        # aiohttp has no other way in.
        early, client._message_tail = client._message_tail, b""  # noqa: SLF001
        super()._post_start(request, protocol, writer)
        loop = asyncio.get_running_loop()

        def later() -> None:
            # What was read before has woken its reader, who tells another fault if there is one.
            loop.call_soon(self.on_flood)

        frames = FewFrames(client._payload_parser, later, loop.time)  # noqa: SLF001
        client._payload_parser = frames  # noqa: SLF001
        if early:
            frames.feed_data(early)
