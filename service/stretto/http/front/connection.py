"""One client's connection: what it may send, and how long it may take to send and to read.

aiohttp waits for ever for the rest of a request, and for a client that does not read its answer.
Here both are bounded in time. A connection that is cut off while it sends has not been worked for:
nothing was claimed.

Bytes belong to a body as long as the body of the newest message is not complete; all others belong to
a head. What concerns the client's reading is in `writing.py`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp.web_protocol import _ErrInfo

from stretto.codec import BODY_BYTES_MAX
from stretto.errors import InternalError, RequestInvalid, StrettoError
from stretto.http.front.fast_path import CREATION, replay
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.front.queueing import BoundedQueue
from stretto.http.front.writing import DROPPED_BYTES_MAX
from stretto.http.problems import COMMON_FIELDS, drop_frames, problem_response
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web
    from aiohttp.web_request import BaseRequest

    from stretto.http.front.limits import LimitedServer
    from stretto.http.front.plain_requests import PlainRequest
    from stretto.http.service import Service

UNREADABLE: Final = "This is not a request that can be read."
# What a head may hold before it is complete: a token of 8 KiB and as much again thrice. aiohttp
# bounds each field and their number, which together would still be a megabyte per connection.
HEAD_BYTES_MAX: Final = 32 * 1024
# Between the header fields of an answer and its body, where aiohttp says it too.
CLOSE_LINE: Final = b"\r\nConnection: close\r\n\r\n"


class ClientConnection(BoundedQueue):
    """aiohttp's side of a connection, with bounds."""

    __slots__ = (
        "_body_bytes",
        "_head_bytes",
        "_is_coming",
        "_is_shed",
        "_plain_requests",
        "_read_seconds",
        "_reading",
        "_server",
        "_service",
    )

    def __init__(self, manager: LimitedServer, **options: Any) -> None:
        # Reading the rest of an answered request is bounded as reading any request is.
        limits = manager.limits
        super().__init__(
            manager, limits.write_seconds, lingering_time=limits.read_seconds, **options
        )
        self._server = manager
        self._service = manager.service
        self._plain_requests = PlainRequests()
        self._is_coming = False
        """Whether a creation was admitted that is not worked for yet."""
        self._is_shed = False
        """Whether a request was shed and its client has not been answered."""
        self._read_seconds = manager.limits.read_seconds
        self._reading: asyncio.TimerHandle | None = None
        """Runs while a request has begun to arrive and is not complete."""
        self._head_bytes = 0
        self._body_bytes = 0
        """Of the newest request, with what came beside it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new client."""
        super().connection_made(transport)
        if self._task_handler is not None:
            self._task_handler.add_done_callback(self._end)

    def _end(self, answering: asyncio.Task[None]) -> None:
        """Close when nothing answers any more, whatever has ended that: no timer of aiohttp's would."""
        if self.transport is None:
            return
        if not answering.cancelled() and (error := answering.exception()) is not None:
            logger.error("request.crashed", exc_info=error)
            drop_frames(error)
        self.force_close()

    @property
    def waiting_since(self) -> float | None:
        """Since when we wait for this client, to send or to read; nothing while it waits for us."""
        if self._is_shed:
            return None
        if (since := self.not_read_since) is not None:
            return since
        if self._owes_answers:
            return None
        if self._reading is not None:
            return self._reading.when() - self._read_seconds
        return self._next_keepalive_close_time - self._keepalive_timeout

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a request has come that was not answered."""
        return (
            self._reading is None
            and not self._is_shed
            and self._waiter is not None
            and not self._waiter.done()
        )

    @property
    def answering(self) -> asyncio.Task[None] | None:
        """Answers one request after the other, until the last one of this connection."""
        return self._task_handler

    @property
    def is_at_last_request(self) -> bool:
        """Whether the request that is worked for is the last one of this connection."""
        return self._is_at_last or (self._server.is_draining and not self._messages)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived. Most requests arrive at once, and then no timer is needed."""
        if self.is_ending:
            self.drop(data)
            return
        if self._has_all:
            # Nobody reads it, so nobody need send it.
            self._pause_transport_reading()
            return
        if self._is_shed and self._service is not None:
            # What comes next is answered next.
            self.tell(self._service.shedder.answer)
        request = self._plain_requests.read(data)
        if request is not None and request.begins != CREATION:
            request = None
        if request is not None and self._answer(request):
            self._head_bytes = 0
            self._stop_reading()
            return
        count = self._request_count
        was_in_body = self._is_in_body
        self._read_requests(data, is_one=request is not None)
        is_new = self._request_count > count
        if is_new:
            if request is not None and self._service is not None:
                self._admit(self._service)
            self._body_bytes = 0
        if self._is_in_body:
            self._head_bytes = 0
            self._body_bytes += len(data)
            if not self._owes_answers:
                self._read_on()
            if self._body_bytes > BODY_BYTES_MAX + DROPPED_BYTES_MAX:
                self._cut_off("body_too_large")
        elif is_new or was_in_body:
            self._head_bytes = 0
            self._stop_reading()
        else:
            self._take_head(data)

    def _take_head(self, data: bytes) -> None:
        """Count a part of a head, unless it is one that the parser has not looked at."""
        if self._close or self._upgraded or self._buffer_paused:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._cut_off("head_too_large")
        elif data and self._answered == self._request_count:
            self._read_on()

    def eof_received(self) -> Any:
        """Answer what was asked before the client closed its half; then close."""
        if self._is_shed:
            self._has_all = True
            return True
        self._stop_reading()
        return super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._arrive()
        self._stop_reading()
        super().connection_lost(exc)
        # They refer back to us, and only the garbage collector would free us then. aiohttp leaves
        # the first one with the WebSocket that was served here, and bodies with what is queued.
        self._data_received_cb = self._newest = None
        self._messages.clear()

    def force_close(self) -> None:
        """Close without waiting for a request; what is admitted will not be worked for."""
        self._arrive()
        super().force_close()

    def begin(self) -> None:
        """Take note that a request of this client is worked for."""
        if self._is_coming:
            self._arrive()

    def end_at_answer(self) -> None:
        """Read nothing more of a request that has been answered: a bomb would be unpacked for that."""
        self._lingering_time = 0.0

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer, and return when the client has taken it: no other is made before."""
        if not resp.prepared:
            resp.headers.update(COMMON_FIELDS)
            if not request.content.is_eof() and (self._is_chunked or not self._lingering_time):
                # What is still to come of it could cost as much as many requests: chunks of a byte.
                resp.force_close()
        self._decline_upgrade(resp)
        resp, is_lost = await super().finish_response(request, resp, start_time)
        if is_lost:
            return resp, True
        try:
            await self._drain_helper()
        except ConnectionError:
            return resp, True
        if self._close or not resp.keep_alive or self._is_at_last:
            self.close()
            self._stop_reading()
            await self.linger()
            self.end_at_answer()
        else:
            self._answered += 1
            # Until now it was the client that waited for us.
            if not self._owes_answers and (self._head_bytes or self._is_in_body):
                self._read_on()
        return resp, False

    def _answer(self, creation: PlainRequest) -> bool:
        """Answer a creation at the door, if nothing else is under way on this connection."""
        service = self._service
        if (
            # Go on only if every earlier request of this connection was answered.
            self._answered != self._request_count
            or self._close
            or service is None
            # Back-pressure: do not write ahead of a client that is not reading.
            or self._paused
        ):
            return False
        answer = replay(service, creation)
        if answer is not None:
            self._send(answer)
            return True
        if service.shedder.has_room():
            return False
        service.shedder.shed(self)
        self._is_shed = True
        return True

    def _admit(self, service: Service) -> None:
        """Count a creation that the parser has accepted until it is worked for."""
        message = self._messages[-1][0]
        if not isinstance(message, _ErrInfo) and self._request_count == self._answered + 1:
            service.shedder.admit()
            self._is_coming = True

    def tell(self, answer: bytes) -> None:
        """Answer the request that was shed."""
        if self._is_shed:
            self._is_shed = False
            self._send(answer)

    def _send(self, answer: bytes) -> None:
        """Answer a request of which aiohttp knows nothing; the client may be idle from now on."""
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self.transport is None:
            return
        if not (self._server.is_draining or self._has_all):
            self.transport.write(answer)
        else:
            self.transport.write(answer.replace(b"\r\n\r\n", CLOSE_LINE, 1))
            self.force_close()

    def _arrive(self) -> None:
        """Give back the place of a creation that was admitted: it is worked for, or never will be."""
        if self._is_coming and self._service is not None:
            self._is_coming = False
            self._service.shedder.arrived()

    def _read_on(self) -> None:
        if self._reading is None:
            self._reading = self._loop.call_later(self._read_seconds, self._cut_off, "too_slow")

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _cut_off(self, reason: str) -> None:
        logger.info("request.cut_off", reason=reason)
        if self._owes_answers:
            self._end_here()
        else:
            self.force_close()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 the signature is aiohttp's
    ) -> web.StreamResponse:
        """Answer what could not be read. Its bytes, which may hold a token, are not logged."""
        logger.info("request.unreadable", kind=type(exc).__name__, status=status)
        drop_frames(exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has been begun, there is no room for another")
        error: StrettoError = InternalError()
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            error = RequestInvalid([], UNREADABLE)
        return closing_response(error)


def closing_response(error: StrettoError) -> web.Response:
    """Return the answer that tells an error and is the last one of its connection."""
    response = problem_response(error)
    response.force_close()
    return response
