"""One client's connection: what it may send in which time, and what it is told when it may not.

aiohttp waits for ever for the rest of a request. Here a request has a bounded time to arrive in
full. Whoever is cut off has not been worked for: nothing was claimed.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from stretto.errors import InternalError, RequestInvalid, StrettoError
from stretto.http.door import CREATION, replay
from stretto.http.plain_requests import PlainRequests
from stretto.http.problems import problem_response
from stretto.telemetry import logger

if TYPE_CHECKING:
    import asyncio

    from aiohttp import StreamReader
    from aiohttp.web_request import BaseRequest

    from stretto.http.plain_requests import PlainRequest
    from stretto.http.runner import ContractServer

UNREADABLE: Final = "This is not a request that can be read."
# What a head may hold before it is complete: a token of 8 KiB and as much again thrice. aiohttp
# bounds each field and their number, which together would still be a megabyte per connection.
HEAD_BYTES_MAX: Final = 32 * 1024
# Between the status line of an answer and its header fields.
CLOSE_LINE: Final = b"\r\nConnection: close\r\n"


class ClientConnection(RequestHandler):
    """aiohttp's side of a connection, with bounds."""

    __slots__ = (
        "_begun",
        "_body",
        "_head_bytes",
        "_is_coming",
        "_is_shed",
        "_plain_requests",
        "_read_seconds",
        "_reading",
        "_server",
        "_service",
    )

    def __init__(self, manager: ContractServer, **options: Any) -> None:
        super().__init__(manager, **options)
        self._server = manager
        self._service = manager.service
        self._plain_requests = PlainRequests()
        self._begun = 0
        """Requests that were ever worked for."""
        self._is_coming = False
        """Whether a creation was let in that is not worked for yet."""
        self._is_shed = False
        """Whether a request was shed and its client has not been told."""
        self._read_seconds = manager.limits.read_seconds
        self._reading: asyncio.TimerHandle | None = None
        """Runs while a request has begun to arrive and is not complete."""
        self._head_bytes = 0
        self._body: StreamReader | None = None
        """Of the request that arrived last."""

    @property
    def waiting_since(self) -> float | None:
        """Since when we wait for a request of this client; nothing while one is worked for."""
        if self._is_shed:
            return None
        if self._reading is not None:
            return self._reading.when() - self._read_seconds
        if self._waiter is not None and not self._waiter.done():
            return self._next_keepalive_close_time - self._keepalive_timeout
        return None

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
    def is_ending(self) -> bool:
        """Whether the request that is worked for is the last one of this connection."""
        return self._server.is_draining and not self._messages

    def data_received(self, data: bytes) -> None:
        """Take what has arrived. Most requests arrive at once, and then no timer is needed."""
        if self._is_shed and self._service is not None:
            # What comes next is answered next.
            self.tell(self._service.shedder.answer)
        request = self._plain_requests.read(data)
        if request is not None and request.begins == CREATION and self._answer(request):
            self._head_bytes = 0
            self._stop_reading()
            return
        super().data_received(data)
        if self._messages and self._messages[-1][1] is not self._body:
            if self._body is not None and not self._body.is_eof():
                self._break_off(self._body)
            self._body = self._messages[-1][1] if self._messages else None
            self._head_bytes = 0
        if self._body is not None and not self._body.is_eof():
            self._read_on()
        elif data and not self._messages and self._current_request is None:
            # Nobody works for this client: this is a part of a head.
            self._head_bytes += len(data)
            self._read_on()
            if self._head_bytes > HEAD_BYTES_MAX:
                self._cut_off("head_too_large")
        else:
            self._stop_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._arrive()
        self._stop_reading()
        super().connection_lost(exc)

    def begin(self) -> None:
        """Take note that a request of this client is worked for."""
        self._begun += 1
        if self._is_coming:
            self._arrive()

    def end_at_answer(self) -> None:
        """Read nothing more of a request that has been answered: a bomb would be unpacked for that."""
        self._lingering_time = 0.0

    def _answer(self, creation: PlainRequest) -> bool:
        """Answer a creation at the door, if nothing else is under way on this connection."""
        service, transport = self._service, self.transport
        if (
            # All that came before has been answered; the task behind this may not know it yet.
            self._begun < self._request_count
            or self._request_in_progress
            or service is None
            or transport is None
            # Who does not read is not answered any faster than he reads.
            or transport.get_write_buffer_size()
        ):
            return False
        answer = replay(service, creation)
        if answer is not None:
            self._send(answer)
            return True
        self._is_coming = service.shedder.admit()
        if not self._is_coming:
            service.shedder.shed(self)
            self._is_shed = True
        return self._is_shed

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
        if not self._server.is_draining:
            self.transport.write(answer)
        else:
            self.transport.write(answer.replace(b"\r\n", CLOSE_LINE, 1))
            self.force_close()

    def _arrive(self) -> None:
        """Give back the place of a request that was let in: it is worked for, or never will be."""
        if self._is_coming and self._service is not None:
            self._is_coming = False
            self._service.shedder.arrived()

    def _break_off(self, body: StreamReader) -> None:
        """Fail a body that cannot go on; aiohttp would have its reader wait for ever.

        What has come behind it is no request, but the parser's complaint.
        """
        self._messages.pop()
        # One request, one answer, and no other after it.
        self.close()
        body.set_exception(web.RequestPayloadError("the body breaks off"))
        body.feed_eof()

    def _read_on(self) -> None:
        if self._reading is None:
            self._reading = self._loop.call_later(self._read_seconds, self._cut_off, "too_slow")

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _cut_off(self, reason: str) -> None:
        logger.info("request.cut_off", reason=reason)
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
