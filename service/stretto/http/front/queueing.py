"""The side of a connection on which requests queue: how many, how large, and which is the last.

aiohttp queues 32 requests behind the one in progress, with 512 KiB of each body: 13 MB for one
client that does not read. Here that is about half a megabyte.

One request is parsed at a time. So every request before bytes that cannot be parsed is answered, however
TCP has cut them, and a refused head in its turn. What comes behind a full queue, or behind an unread part
of a body, is kept as it came.

The connection of a client that closes its half, or whose newest request cannot go on, closes only
after every complete request is answered, but for a handshake behind others; a stream of events ends
then, as its client may have gone. Nothing is read behind a request that says that it is the last
(`Connection: close`, HTTP/1.0; RFC 9112, 9.6), nor behind a declined upgrade, whose protocol is another.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestPayloadError, _ErrInfo

from stretto.codec import STATUS
from stretto.errors import HeadTooLarge, RequestInvalid
from stretto.http.front.chunks import ChunkCount, in_parts
from stretto.http.front.heads import HEAD_BYTES_MAX, body_bytes, head_bytes, is_last
from stretto.http.front.parsing import NO_TRAILERS, PartedParsing
from stretto.http.problems import drop_frames
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from stretto.errors import StrettoError
    from stretto.http.front.limits import LimitedServer

# Behind the one in progress. Few clients pipeline at all.
QUEUED_MAX: Final = 4
# Of all queued bodies; one read of the socket may add its bytes on top.
QUEUED_BYTES_MAX: Final = 128 * 1024


class BoundedQueue(PartedParsing):
    """aiohttp's side of a connection whose client may send requests before it is answered."""

    __slots__ = (
        *("_answered", "_ends_in_head", "_has_all", "_is_at_end", "_is_last"),
        *("_newest_head_bytes", "_on_end", "_unparsed"),
    )

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, **options)
        self._max_msg_queue_size = QUEUED_MAX
        self._msg_queue_resume_size = 0
        self._answered = 0
        """Requests whose answers the client has read in full, without a connection's last one."""
        self._has_all = False
        """Whether nothing more is read: the connection ends once the queue is answered."""
        self._is_at_end = False
        """Whether the client has closed its half."""
        self._on_end: Callable[[], object] | None = None
        """Called then, by an answer that would go on for as long as the client is there."""
        self._is_last = False
        """Whether nothing can follow the newest message."""
        self._unparsed = b""
        """The last byte that has arrived, or more, while the parser may not have come to it."""
        self._ends_in_head = False
        """Whether the last byte that was parsed belongs to a head that is not complete."""
        self._newest_head_bytes = 0
        """Of the newest complete head."""

    @property
    def _is_held_up(self) -> bool:
        """Whether nothing can be parsed now: nothing more is read, or something waits for a reader.

        Bytes behind a handshake are not parsed here: aiohttp keeps them for the session.
        """
        if self._has_all or self._upgraded:
            return self._has_all
        is_full = len(self._messages) >= QUEUED_MAX
        return self._reading_paused or is_full or self._must_wait_for_chunks()

    def _whole_bytes(self) -> int:
        """How many of the next bytes hold no chunks that would be parsed now, whatever their lines."""
        return sys.maxsize if self._is_held_up or self._upgraded else self._length_left

    @property
    def _owes_answers(self) -> bool:
        """Whether a complete request has no answer yet; only the newest can be incomplete."""
        return self._request_count - self._answered > self._is_in_body

    @property
    def _is_at_last(self) -> bool:
        """Whether no request comes behind the one in progress."""
        return self._has_all and not self._messages

    def _read_requests(self, data: bytes, *, is_one: bool) -> None:
        """Parse what has arrived, request by request, as long as the queue has room.

        `is_one` says that the bytes are known to be exactly one complete request.
        """
        if (is_one or self._upgraded) and not self._unparsed:
            self._read_request(data)
            self._ends_in_head = False
        else:
            self._read_unknown(data)
        queued = sum(body.total_bytes for _, body in self._messages)
        if queued > QUEUED_BYTES_MAX and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _read_unknown(self, data: bytes) -> None:
        """Parse bytes that may end anywhere, part by part; note whether they end in a head.

        The parser does not say whether it holds a part of a head. So it gets the last byte by itself:
        if no request is complete with that byte, and no body goes on, a head has begun.
        """
        if self._unparsed or not data:
            # The rest of a part may be left: with another one it would grow.
            self._parse(b"")
            data = self._unparsed + data
        self._unparsed = data[-1:]
        for part in in_parts(data[:-1], self._whole_bytes):
            if self._is_held_up:
                # All that is left.
                self._unparsed = part + self._unparsed
            else:
                self._parse(part)
        if self._has_all:
            self._unparsed = self._rest = b""
        elif self._unparsed and not self._is_held_up:
            last, self._unparsed = self._unparsed, b""
            is_complete = self._read_request(last)
            self._ends_in_head = self._head_ends.is_in_head
            if is_complete and not self._has_all:
                # Behind a handshake, the parser changes the protocol only when it is called again.
                self._read_request(b"")

    def _parse(self, data: bytes) -> None:
        """Parse what the parser holds, and these bytes, until they end or something is held up."""
        while not self._is_held_up and self._read_request(data):
            # `_rest` holds what is left.
            data = b""

    def _read_request(self, data: bytes) -> bool:
        """Parse up to the end of one request at most; return whether it is complete."""
        self._rest += data
        while self._parser is not None and not self._must_wait_for_chunks():
            part = self._next_part()
            if self._head_ends.blank_bytes > HEAD_BYTES_MAX:
                self._refuse_head(HeadTooLarge())
                return True
            is_complete = self._read_part(part)
            if is_complete or self._has_all or self._reading_paused or not self._rest:
                return is_complete
            if not part:
                # The parser takes what comes behind the body for a part of it.
                self._refuse_body(RequestPayloadError("the body has no clear end"))
        return False

    def _read_part(self, data: bytes) -> bool:
        """Parse a part of one request; return whether that is complete."""
        assert self._parser is not None
        count = self._request_count
        was_in_body = self._is_in_body
        if self._chunks is not None:
            self._chunks.begin(len(data))
        # Let the parser take one more; `_read_requests` bounds how many there are.
        self._parser.message_consumed()
        super().data_received(data)
        is_new = self._request_count > count
        if is_new:
            self._ends_in_head = False
            message, body = self._messages[-1]
            self._newest_head_bytes = 0 if isinstance(message, _ErrInfo) else head_bytes(message)
            if self._newest_head_bytes > HEAD_BYTES_MAX:
                self._messages.pop()
                self._request_count -= 1
                self._refuse_head(HeadTooLarge())
                return True
            self._is_last = is_last(message)
            is_chunked = not isinstance(message, _ErrInfo) and message.chunked
            self._chunks = ChunkCount(body) if is_chunked else None
            if self._is_in_body:
                self._break_off()
            else:
                self._newest = body
                if self._is_in_body and not isinstance(message, _ErrInfo):
                    self._length = body_bytes(message)
        if self._count_chunks():
            # One that is complete has cost as much: not again on this connection.
            logger.info("request.cut_off", reason="many_chunks")
            self._refuse_body(RequestPayloadError("the body comes in too many small chunks"))
            return False
        if self._is_in_body:
            if self._chunks is not None and self._chunks.framing.has_trailer:
                logger.info("request.cut_off", reason="trailer")
                self._refuse_newest(RequestInvalid([], NO_TRAILERS))
            elif self._chunks is not None and self._chunks.is_framing_too_large():
                logger.info("request.cut_off", reason="large_framing")
                error = RequestPayloadError("the body comes with too much around its chunks")
                self._refuse_body(error)
            return False
        if self._is_last:
            self._message_tail = b""
            self._has_all = True
        return is_new or was_in_body

    def _break_off(self) -> None:
        """Fail a body that cannot go on; aiohttp would let its reader wait for ever.

        The message behind it is no request, but the parser's error.
        """
        assert self._newest is not None
        broken, _ = self._messages.pop()
        self._request_count -= 1
        # This request gets one answer, the connection's last.
        self._has_all = True
        if self._is_newest_queued:
            # No work has begun for it.
            self._messages[-1] = broken, EMPTY_PAYLOAD
            self._newest = EMPTY_PAYLOAD
            if isinstance(broken, _ErrInfo):
                drop_frames(broken.exc)
            return
        if not self._messages:
            self.close()
        self._newest.set_exception(RequestPayloadError("the body breaks off"))
        self._newest.feed_eof()

    def _refuse_newest(self, error: StrettoError) -> None:
        """Refuse the newest request, which is not complete; if it is queued, without any work for it."""
        if self._is_newest_queued:
            self._messages.pop()
            self._request_count -= 1
            self._refuse_head(error)
        else:
            self._refuse_body(error)
            self._renew_parser()

    def _refuse_body(self, error: Exception) -> None:
        """Fail a body that is not complete; its request is the connection's last."""
        assert self._newest is not None
        self._has_all = True
        self._newest.set_exception(error)
        self._newest.feed_eof()
        self._pause_transport_reading()

    def _refuse_head(self, error: StrettoError) -> None:
        """Answer the newest head with an error, behind what is queued; read nothing more."""
        if isinstance(error, HeadTooLarge):
            logger.info("request.cut_off", reason=error.code)
        self._messages.append((_ErrInfo(STATUS[error.code], error, error.detail), EMPTY_PAYLOAD))
        self._request_count += 1
        self._newest = EMPTY_PAYLOAD
        self._upgraded, self._message_tail = False, b""
        self._has_all = True
        self._pause_transport_reading()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end_reading(self) -> None:
        """Read nothing more: answer the complete requests, drop an incomplete one."""
        if self._messages and self._is_in_body:
            self._messages.pop()
            self._newest = None
            self._request_count -= 1
        self._has_all = True
        self._pause_transport_reading()

    def eof_received(self) -> Any:
        """Keep our half open while an answer is due; end one that has no end of its own."""
        if self.is_ending:
            self._leave()
            return False
        if self._upgraded and self._messages:
            # The handshake waits behind other requests: its client will not be there for the session.
            self._messages.pop()
            self._request_count -= 1
            self._upgraded, self._message_tail = False, b""
        if self._upgraded or not self._owes_answers:
            return False
        self._is_at_end = True
        self._end_reading()
        if self._on_end is not None:
            self._on_end()
        return True

    def watch_end(self, on_end: Callable[[], object]) -> None:
        """Call back when the client closes its half, at once if it has."""
        if self._is_at_end:
            on_end()
        else:
            self._on_end = on_end

    def half_close(self) -> asyncio.Future[None] | None:
        """Half-close, unless the client has closed its own half: then no more can arrive."""
        return None if self._is_at_end else super().half_close()
