"""The side of a connection on which requests queue: how many, how large, and which is the last.

aiohttp queues 32 requests behind the one that is worked for, with 512 KiB of each body: 13 MB for one
client that does not read. Here that is about half a megabyte.

A client that closes its half has sent its last request, and is answered before the connection closes.
So is one whose newest request cannot go on. Nothing behind an upgrade that is declined is read: the
client meant another protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs
from aiohttp.http import HttpRequestParser
from aiohttp.web_protocol import RequestPayloadError, _ErrInfo

from stretto.http.writing import BoundedWriting

if TYPE_CHECKING:
    from aiohttp import StreamReader, web
    from aiohttp.http import RawRequestMessage

# Behind the one that is worked for. Few clients pipeline at all.
QUEUED_MAX: Final = 4
# What lies of a body before it is read is twice that, and once more where it is packed.
BODY_BUFFER_BYTES: Final = 32 * 1024
# Of all bodies that are queued; what was read from the socket at once may come on top.
QUEUED_BYTES_MAX: Final = 128 * 1024
EVENTS_PATH: Final = "/v1/events"


class BoundedQueue(BoundedWriting):
    """aiohttp's side of a connection, whose client may send requests before it is answered."""

    __slots__ = (
        "_answered",
        "_has_all",
        "_is_at_end",
        "_is_upgrade",
        "_taken",
    )

    def __init__(self, manager: web.Server, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, read_bufsize=BODY_BUFFER_BYTES, **options)
        # aiohttp's own takes its bound from a constant.
        self._parser = HttpRequestParser(
            self,
            self._loop,
            BODY_BUFFER_BYTES,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=RequestPayloadError,
            max_msg_queue_size=QUEUED_MAX,
        )
        self._max_msg_queue_size = QUEUED_MAX
        self._msg_queue_resume_size = 0
        self._answered = 0
        """Requests whose answers were taken in full; the last one of a connection is not counted."""
        self._taken: StreamReader | None = None
        """The body of the message that was taken from aiohttp's queue last."""
        self._has_all = False
        """Whether nothing more is read: the connection ends with what is queued."""
        self._is_at_end = False
        """Whether the client has closed its half."""
        self._is_upgrade = False
        """Whether the newest message asks for another protocol, which is not spoken here."""

    @property
    def _is_in_body(self) -> bool:
        """Whether the body of the newest message is not complete."""
        body = self._messages[-1][1] if self._messages else self._taken
        return body is not None and not body.is_eof()

    @property
    def _owes_answers(self) -> bool:
        """Whether a request that is complete has not been answered; only the newest can be in parts."""
        return self._request_count - self._answered > self._is_in_body

    @property
    def _is_at_last(self) -> bool:
        """Whether nothing comes behind the request that is worked for."""
        return self._has_all and not self._messages

    def _bound_queue(self, *, is_new: bool) -> None:
        """Read nothing further while much is queued, or behind the last request."""
        if is_new:
            self._is_upgrade = _is_declined(self._messages[-1][0])
        if self._is_upgrade and not self._is_in_body:
            self._message_tail = b""
            self._has_all = True
        queued = sum(body.total_bytes for _, body in self._messages)
        if queued > QUEUED_BYTES_MAX and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _end_here(self) -> None:
        """Read nothing more; what came in full is answered, what did not is dropped."""
        if self._messages and self._is_in_body:
            self._messages.pop()
            self._request_count -= 1
        self._has_all = True
        self._pause_transport_reading()

    def eof_received(self) -> Any:
        """Keep our half open while an answer is owed; a session ends with its client."""
        request = self._current_request
        is_session = request is not None and request.path == EVENTS_PATH
        if self._upgraded or is_session or not self._owes_answers:
            return False
        self._is_at_end = True
        self._end_here()
        return True

    async def linger(self) -> None:
        """Say that nothing more comes, unless the client has said so and only waits for the end."""
        if not self._is_at_end:
            await super().linger()

    def _decline_upgrade(self, response: web.StreamResponse) -> None:
        """Make the answer to a handshake that has failed the last one."""
        if self._upgraded and self._payload_parser is None and not self._messages:
            self._message_tail = b""
            self._has_all = True
            response.force_close()


def _is_declined(message: RawRequestMessage | _ErrInfo) -> bool:
    """Return whether a message asks for a protocol that is not spoken where it asks."""
    if isinstance(message, _ErrInfo):
        return False
    protocol = message.headers.get(hdrs.UPGRADE)
    if protocol is None:
        return message.method == hdrs.METH_CONNECT
    path = message.path.partition("?")[0]
    return path != EVENTS_PATH or protocol.strip().lower() != "websocket"
