"""BoundedConnector: makes connections that read a bounded part of each answer.

aiohttp bounds a field of a head and the unread part of a body, and no more. A server may send interim
answers (1xx) without end, which aiohttp reads for as long as more have come, in one turn of the event
loop; and answers to no request, which it keeps. So a connection is ended at the first byte beyond what
its answer may have. What was read until then counts: a head that has come is an answer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from aiohttp import StreamReader
    from aiohttp.http import RawResponseMessage

# The head of an answer with all interim ones before it: as much as a client's head may have. As many of
# the smallest interim answers as fit into it take 5 ms.
HEADS_BYTES_MAX: Final = 32 * 1024
# Bytes that are parsed before it is asked whether more may come: 240 of the smallest answers, 0.4 ms.
PIECE_BYTES_MAX: Final = 4 * 1024


class BoundedConnector(aiohttp.TCPConnector):
    """A connector for servers that are not trusted; takes the options of aiohttp's."""

    def __init__(self, *, body_bytes_max: int, **options: Any) -> None:
        """Take how many bytes are read after a head, with what stands around a body's chunks."""
        super().__init__(**options)
        loop = asyncio.get_running_loop()
        made = partial(_BoundedAnswers, loop, body_bytes_max=body_bytes_max)
        self._factory = cast("partial[ResponseHandler]", made)


class _BoundedAnswers(ResponseHandler):
    """A connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, body_bytes_max: int) -> None:
        super().__init__(loop)
        self._body_bytes_max = body_bytes_max
        self._bytes_left = HEADS_BYTES_MAX
        self._is_answered = False

    def set_response_params(self, **params: Any) -> None:
        """Begin with a request."""
        self._bytes_left = HEADS_BYTES_MAX
        self._is_answered = False
        super().set_response_params(**params)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Take a head from the parser."""
        message, _ = data
        # Those below are interim answers; those after it belong to no request.
        if message.code >= 200 and not self._is_answered:
            self._is_answered = True
            self._bytes_left = self._body_bytes_max
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parse what may come, and end the connection at the first byte beyond it."""
        parsed = 0
        # After bytes that are no answer, aiohttp closes it.
        while self.is_connected():
            if parsed < len(data) and self._is_over:
                self._end()
                return
            # No bytes: a reader has caught up, and the parser goes on with what it has put off.
            piece = data[parsed : parsed + min(PIECE_BYTES_MAX, self._bytes_left)]
            parsed += len(piece)
            self._bytes_left -= len(piece)
            super().data_received(piece)
            if parsed == len(data):
                return

    @property
    def _is_over(self) -> bool:
        """Whether nothing more may come: the answer is complete, or too long."""
        is_complete = self._is_answered and (self._payload is None or self._payload.is_eof())
        return is_complete or self._bytes_left == 0

    def _end(self) -> None:
        """Close the connection; a body ends with what has come, without an error."""
        body = self._payload
        self.abort()
        if body is not None:
            body.feed_eof()
