"""The side of a connection that gives its parser one head at a time, or what belongs to one body.

So the parser never holds bytes behind the message that it reads, and no field behind the last chunk of
a body (a trailer): the request is refused. What it holds may come into the head of the next request. Nor
does it get empty lines between requests: it would keep the last head while it may seem to read the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiohttp.http import HttpRequestParser
from aiohttp.web_protocol import RequestPayloadError

from stretto.http.front.heads import HeadEnds
from stretto.http.front.reading_turns import BYTES_OF_CHUNK, CHUNKS_OF_READ
from stretto.http.front.writing import STRANGER_SECONDS, BoundedWriting

if TYPE_CHECKING:
    import asyncio

    from aiohttp import StreamReader

    from stretto.http.front.chunks import ChunkCount
    from stretto.http.front.limits import LimitedServer

# A body that waits to be read holds twice as much.
BODY_BUFFER_BYTES: Final = 32 * 1024
# Of a first request that is read at once: one with a large head or body waits for its turn.
NEWCOMER_BYTES_MAX: Final = 4 * 1024
NO_TRAILERS: Final = "Fields behind the body, trailers, are not accepted."


class PartedParsing(BoundedWriting):
    """aiohttp's side of a connection that knows where heads and bodies end."""

    __slots__ = (
        *(
            "_chunks",
            "_head_ends",
            "_is_new",
            "_is_read",
            "_late",
            "_length",
            "_newest",
            "_reading_turns",
        ),
        *("_rest", "_waits_to_be_read"),
    )

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, read_bufsize=BODY_BUFFER_BYTES, **options)
        # In place of aiohttp's own parser, whose bound is a constant.
        self._renew_parser()
        self._newest: StreamReader | None = None
        """The body of the newest message, whether or not aiohttp has taken it from its queue."""
        self._chunks: ChunkCount | None = None
        """Of the newest message's body, if it comes in chunks."""
        self._length = 0
        """Of that body, if it has a length."""
        self._head_ends = HeadEnds()
        self._rest = b""
        """Of the part that is parsed, what the parser has not been given."""
        self._reading_turns = manager.reading_turns
        self._waits_to_be_read = False
        """Whether what has arrived, or the rest of a body in chunks, waits until others are read."""
        self._late = b""
        """What has arrived since then."""
        self._is_read = False
        """Whether anything of it was read."""
        self._is_new = True
        """Whether what had come when it was accepted may not have been read yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new client."""
        super().connection_made(transport)
        # What has come before is read in this turn of the loop, however long that is.
        self._loop.call_soon(self._end_new)

    def _end_new(self) -> None:
        self._is_new = False

    def _renew_parser(self) -> None:
        """Take a new parser: one keeps a head that it has read, or a part of one, until the next begins."""
        self._parser = HttpRequestParser(
            self,
            self._loop,
            BODY_BUFFER_BYTES,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=RequestPayloadError,
            # aiohttp accepts gzip without its end; `read_body` decompresses, and finds that.
            auto_decompress=False,
            # It stops behind each request, so that what follows cannot spoil that request.
            max_msg_queue_size=1,
        )

    @property
    def _is_in_body(self) -> bool:
        """Whether the body of the newest message is not complete."""
        return self._newest is not None and not self._newest.is_eof()

    @property
    def _is_newest_queued(self) -> bool:
        """Whether the newest message waits in the queue: no handler has it."""
        return bool(self._messages) and self._messages[-1][1] is self._newest

    @property
    def _length_left(self) -> int:
        """How many of the next bytes belong to a body with a length."""
        if self._newest is None or self._newest.is_eof() or self._chunks is not None:
            return 0
        return self._length - self._newest.total_bytes

    def _count_chunks(self) -> bool:
        """Count the chunks that were parsed; return whether they are too many for one body."""
        if self._chunks is None:
            return False
        self._reading_turns.take(self, self._chunks.count())
        return self._chunks.are_too_many()

    def _must_wait_to_be_read(self, data: bytes) -> bool:
        """Return whether bytes that have arrived are kept until the connection has its turn to be read.

        Not where they may be the first request of a client that has just connected: of these, so many are
        accepted in a turn.
        """
        is_newcomer = (
            not self._is_read
            and len(data) <= NEWCOMER_BYTES_MAX
            and (self._is_new or self._loop.time() < self.connected_at + STRANGER_SECONDS)
        )
        if self._waits_to_be_read or not (is_newcomer or self._has_turn_to_be_read()):
            self._late += data
            return True
        self._is_read = True
        if data:
            # Chunks that have waited were read before: they could spend their turn by that alone.
            self._reading_turns.take(self, CHUNKS_OF_READ)
        return False

    def _has_turn_to_be_read(self) -> bool:
        """Return whether anything more is read in this turn; if not, wait for the next one."""
        if self._reading_turns.are_spent(self):
            self._waits_to_be_read = True
            self._reading_turns.wait(self)
            self._pause_transport_reading()
        return not self._waits_to_be_read

    def _must_wait_for_chunks(self) -> bool:
        """Return whether nothing more is parsed in this turn: the body goes on, and too much was."""
        if not self._waits_to_be_read and self._chunks is not None and self._is_in_body:
            self._has_turn_to_be_read()
        return self._waits_to_be_read

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 aiohttp's
        """Read on where flow control has paused that: aiohttp calls this for each chunk that is read."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _resume_transport_reading(self) -> None:
        """Read on, unless something waits: whatever has paused it before, and needs that no more."""
        if not self._waits_to_be_read:
            super()._resume_transport_reading()

    def go_on(self) -> None:
        """Read what has waited for its turn."""
        self._waits_to_be_read = False
        if not (self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()
        late, self._late = self._late, b""
        self.data_received(late)

    def _next_part(self) -> bytes:
        """Take the next bytes, up to the end of a head or of a body at most; none if the body has ended."""
        rest = self._rest
        if self._upgraded:
            count = len(rest)
        elif self._newest is None or self._newest.is_eof():
            rest = rest[self._head_ends.blanks_in(rest) :]
            count = self._head_ends.end_in(rest)
            self._reading_turns.take(self, CHUNKS_OF_READ + count // BYTES_OF_CHUNK)
        elif self._chunks is not None:
            count = self._chunks.framing.end_in(rest)
        else:
            count = min(self._length_left, len(rest))
        self._rest = rest[count:]
        return rest[:count]
