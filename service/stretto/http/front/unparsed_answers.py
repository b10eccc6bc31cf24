"""The side of a connection that answers requests which aiohttp has not seen, one at a time.

Until such a request is answered, what comes behind it is held as it came: one read of the socket at most.
Then it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stretto.http.answers import HEAD_END
from stretto.http.front.plain_creations import taken_id_of
from stretto.http.front.queueing import BoundedQueue
from stretto.telemetry.request_context import CURRENT_REQUEST, RequestContext

if TYPE_CHECKING:
    from stretto.http.front.limits import LimitedServer
    from stretto.http.front.plain_requests import PlainRequest
    from stretto.http.service import Service

# The last header field of an answer, where aiohttp writes it too.
CLOSE_LINE: Final = b"\r\nConnection: close\r\n\r\n"


class UnparsedAnswers(BoundedQueue):
    """aiohttp's side of a connection, with an order between its answers and ours."""

    __slots__ = ("_began", "_cors", "_held", "_request", "_server", "_service")

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, **options)
        self._server = manager
        self._service = manager.service
        self._began = 0.0
        """When the request came that is answered here."""
        self._request = RequestContext()
        """Of the same request."""
        self._cors = b""
        """What its answer says to browsers."""
        self._held = b""
        """What has come behind it."""

    def _take(self, request: PlainRequest) -> Service | None:
        """Return the service if this request may be answered here: nothing else is in progress."""
        service = self._service
        if (
            # Go on only if every earlier request of this connection was answered.
            self._answered != self._request_count
            or self._close
            or service is None
            # Back-pressure: do not write ahead of a client that is not reading.
            or self._paused
        ):
            return None
        self._request = RequestContext(taken_id_of(request))
        self._cors = service.cors.lines(request.fields.get(b"origin"))
        return service

    def _hold(self, data: bytes) -> None:
        """Hold what comes behind a request that waits for its answer."""
        if data:
            # One read of the socket at most.
            self._held += data
            self._pause_transport_reading()

    def _read_held(self) -> None:
        """Read what was held: its request has its answer."""
        if self._held and self.transport is not None:
            # It belongs to other requests.
            CURRENT_REQUEST.set(None)
            held, self._held = self._held, b""
            self._resume_transport_reading()
            self.data_received(held)

    def _send(self, answer: bytes, *, says_last: bool = False) -> None:
        """Answer a request that aiohttp has not seen; the client may be idle from now on.

        `says_last` says that the answer names the end of its connection already.
        """
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self.transport is None:
            return
        if self._cors:
            answer = answer.replace(HEAD_END, self._cors, 1)
        # What is held was read, so it is answered before the connection ends.
        if self._held or not (self._server.is_draining or self._has_all):
            self.transport.write(answer)
        else:
            self.transport.write(answer if says_last else answer.replace(HEAD_END, CLOSE_LINE, 1))
            left = self.half_close()
            if left is None:
                self.force_close()
            else:
                left.add_done_callback(lambda _: self.force_close())
