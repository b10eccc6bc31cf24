"""Channel: one end of a socket between two processes, each of which may ask the other.

A question has no text: what is asked for is the one thing that the other side has to say. One
question is under way in each direction at most, so a side that does not answer is not sent any
number of them. A ping is answered by the channel itself: all that it asks is whether the other
side's event loop runs.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

# Before each message: its size. An empty message is a question.
_SIZE: Final = Struct("!I")
# In the place of a size. No message is nearly as large.
_PING: Final = 2**32 - 1
_PONG: Final = 2**32 - 2


class Channel(asyncio.Protocol):
    """Asks, and calls back for what the other side asks, says, and for its end."""

    def __init__(
        self,
        on_question: Callable[[Channel], object],
        on_answer: Callable[[Channel, bytes], object],
        on_end: Callable[[Channel], object],
    ) -> None:
        """Take the callbacks; `on_end` is not called after `close`."""
        self._on_question = on_question
        self._on_answer = on_answer
        self._on_end = on_end
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._asked: asyncio.Future[bytes] | None = None
        self._pinged: asyncio.Future[None] | None = None
        self._is_closed = self._has_ended = False

    def ask(self) -> asyncio.Future[bytes]:
        """Return the next answer to come; it is cancelled at the other side's end."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            if self._has_ended:
                self._asked.cancel()
            self._write(b"")
        return self._asked

    def ping(self) -> asyncio.Future[None]:
        """Return what is done once the other side's loop has run; it is cancelled at its end."""
        if self._pinged is None:
            self._pinged = asyncio.get_running_loop().create_future()
            if self._has_ended:
                self._pinged.cancel()
            self._write_sized(_PING)
        return self._pinged

    def answer(self, message: bytes) -> None:
        """Say what the other side has asked for, or will."""
        assert message, "an empty message is a question"
        self._write(message)

    def close(self) -> None:
        """End this side; what was sent is still delivered. Idempotent."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Take each message that is complete."""
        received = self._received
        received += data
        while len(received) >= _SIZE.size:
            size = _SIZE.unpack_from(received)[0]
            end = _SIZE.size if size in (_PING, _PONG) else _SIZE.size + size
            if len(received) < end:
                break
            message = bytes(received[_SIZE.size : end])
            del received[:end]
            if size == _PING:
                self._write_sized(_PONG)
            elif size == _PONG:
                self._take_pong()
            else:
                self._take(message)

    def connection_lost(self, _: Exception | None) -> None:
        """End: the other side is gone, or this one was closed."""
        self._has_ended = True
        for waiting in (self._asked, self._pinged):
            if waiting is not None:
                waiting.cancel()
        if not self._is_closed:
            self._on_end(self)

    def _take(self, message: bytes) -> None:
        if not message:
            self._on_question(self)
            return
        self._on_answer(self, message)
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(message)

    def _take_pong(self) -> None:
        pinged, self._pinged = self._pinged, None
        if pinged is not None and not pinged.done():
            pinged.set_result(None)

    def _write(self, message: bytes) -> None:
        self._write_sized(len(message), message)

    def _write_sized(self, size: int, message: bytes = b"") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_SIZE.pack(size) + message)
