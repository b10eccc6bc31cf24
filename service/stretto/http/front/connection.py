"""One client's connection: bounds on what it sends, and on the time to send and to read.

aiohttp waits for ever for the rest of a request, and for a client that does not read its answer.
Both are bounded here. A request that is cut off while it arrives has claimed nothing, and is
answered: a proxy counts a connection that closes without an answer against the service.

Bytes belong to a body as long as the body of the newest message is not complete; all others belong
to a head. `writing.py` bounds the client's reading, `queueing.py` the requests that wait, `counting.py` what all
clients have sent, and `fast_path.py` answers creations before they are parsed.
"""

from __future__ import annotations

from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from stretto.errors import HeadTooLarge, InternalError, RequestInvalid, RequestTooSlow, StrettoError
from stretto.http.front.counting import CountedArrival
from stretto.http.front.fast_path import CREATION
from stretto.http.front.heads import HEAD_BYTES_MAX, too_large_part
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.problems import COMMON_FIELDS, drop_frames, problem_response
from stretto.http.request_ids import context_of
from stretto.telemetry.logs import logger
from stretto.telemetry.request_context import ID_FIELD

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from aiohttp.web_request import BaseRequest

    from stretto.http.front.limits import LimitedServer

UNREADABLE: Final = "This is not a request that can be read."


class ClientConnection(CountedArrival):
    """aiohttp's side of a connection, with bounds."""

    __slots__ = ("_head_bytes", "_plain_requests")

    def __init__(self, manager: LimitedServer, **options: Any) -> None:
        # The rest of a request that was answered early has the same time as any request.
        limits = manager.limits
        super().__init__(
            manager, limits.write_seconds, lingering_time=limits.read_timeout_seconds, **options
        )
        self._plain_requests = PlainRequests()
        self._head_bytes = 0
        """Of the newest request, with what arrived together with it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new client."""
        super().connection_made(transport)
        if self._task_handler is not None:
            self._task_handler.add_done_callback(self._end)

    def _end(self, answering: asyncio.Task[None]) -> None:
        """Close when the answering task ends, for whatever reason: no timer of aiohttp's would."""
        if self.transport is None:
            return
        if not answering.cancelled() and (error := answering.exception()) is not None:
            logger.error("request.crashed", exc_info=error)
            drop_frames(error)
        self.force_close()

    @property
    def waiting_since(self) -> float | None:
        """Since when we wait for this client, to send or to read; None while it waits for us."""
        if self._owes_unparsed:
            return None
        if (since := self.not_read_since) is not None:
            return since
        if self._owes_answers:
            return None
        if (since := self.arriving_since) is not None:
            return since
        return self._next_keepalive_close_time - self._keepalive_timeout

    @property
    def is_idle(self) -> bool:
        """Whether every byte that has arrived belongs to an answered request, not the last one."""
        return (
            self.arriving_since is None
            and not self._owes_unparsed
            and not self.is_ending
            and self._waiter is not None
            and not self._waiter.done()
        )

    @property
    def is_unworked(self) -> bool:
        """Whether it is idle, or no work has begun for its request."""
        return self.is_idle or self.is_in_head or self.waits_for_turn or self._is_rejected

    @property
    def fields_of_unread(self) -> Mapping[str, str]:
        """What the answer to a request that cannot be read says to browsers."""
        return {} if self._service is None else self._service.cors.unread

    @property
    def answering(self) -> asyncio.Task[None] | None:
        """The task that answers one request after the other, until the connection's last one."""
        return self._task_handler

    @property
    def is_at_last_request(self) -> bool:
        """Whether the request in progress is the last one of this connection."""
        return self._is_at_last or (self._server.is_draining and not (self._messages or self._late))

    def data_received(self, data: bytes) -> None:
        """Take what has arrived. Most requests arrive in one piece, which needs no timer."""
        if self.is_ending:
            self.drop(data)
            return
        if self._force_close:
            # The service stops. aiohttp would drop them, and they would count as around the chunks.
            return
        if self._has_all:
            # It is never read: flow control stops the client from sending it.
            self._pause_transport_reading()
            return
        if self._must_wait(data) or self._must_wait_to_be_read(data):
            self._note_arrived()
            return
        began = perf_counter()
        request = self._plain_requests.read(data)
        is_one = request is not None
        if request is not None and self._answer_unparsed(request, began):
            self._head_bytes = 0
            self._stop_read_timer()
            return
        if request is not None and request.begins != CREATION:
            request = None
        count = self._request_count
        was_in_body = self._is_in_body
        self._read_requests(data, is_one=is_one)
        is_new = self._request_count > count
        if is_new and request is not None and self._service is not None:
            self._admit(self._service, request)
        self._note_arrived()
        if self._is_in_body:
            self._head_bytes = 0
            if self._waits_to_be_read:
                self._pause_read_timer()
            elif not self._owes_answers:
                self._start_read_timer()
            return
        is_behind = is_new or was_in_body
        if is_behind:
            self._head_bytes = 0
            self._stop_read_timer()
        if self._ends_in_head:
            # How many bytes belong to a head behind a request is not known, or behind a full queue.
            self._count_head(len(data) if data and not is_behind else 1)

    def _count_head(self, count: int) -> None:
        """Count bytes of a head that is not complete."""
        if self._close or self._upgraded:
            return
        self._head_bytes += count
        if self._head_bytes > HEAD_BYTES_MAX:
            self._stop_read_timer()
            self._refuse_head(HeadTooLarge())
        elif self._answered == self._request_count:
            self._start_read_timer()

    def eof_received(self) -> Any:
        """Answer what was asked before the client closed its half; then close."""
        if self._owes_unparsed:
            self._has_all = self._is_at_end = True
            return True
        self._stop_read_timer()
        return super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        super().connection_lost(exc)
        # These refer back to this object, which only the garbage collector would free then. aiohttp
        # leaves the callback of a WebSocket that was served here, and the bodies of what is queued.
        self._data_received_cb = self._newest = self._on_end = None
        self._messages.clear()

    def _process_keepalive(self) -> None:
        """Close an idle connection; aiohttp takes one for idle whose request is still arriving, too."""
        if self.arriving_since is None and not self._owes_unparsed:
            super()._process_keepalive()
        else:
            self._keepalive_handle = self._loop.call_later(
                self._read_seconds, self._process_keepalive
            )

    def end_at_answer(self) -> None:
        """Read nothing of a request after its answer."""
        self._lingering_time = 0.0

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer, and return when the client has taken it: only then begin the next."""
        if not resp.prepared:
            resp.headers.update(COMMON_FIELDS)
            if not request.content.is_eof():
                # A proxy may never send the rest, and send another client's request in its place: that
                # would be read as the body. And a rest in chunks of a byte could cost as much as many
                # requests.
                resp.force_close()
        if resp.status == HTTPStatus.UNAUTHORIZED:
            self._was_refused = True
        self._decline_upgrade(resp)
        if isinstance(resp, web.Response) and isinstance(resp.body, bytes):
            self._answer_bytes = len(resp.body)
        resp, is_lost = await super().finish_response(request, resp, start_time)
        if is_lost:
            return resp, True
        try:
            await self._drain_helper()
        except ConnectionError:
            return resp, True
        # aiohttp keeps it until the connection's next request: a page of groups may have 2 MB.
        if isinstance(resp, web.Response):
            resp.body = None
        self._answer_bytes = 0
        if self._close or not resp.keep_alive or self._is_at_last:
            self.close()
            self._stop_read_timer()
            await self.linger()
            self.end_at_answer()
        else:
            self._answered += 1
            # Until now the client waited for us; from now on we wait for the rest of its request.
            if not self._owes_answers and (self._head_bytes or self._is_in_body):
                self._start_read_timer()
        return resp, False

    def _decline_upgrade(self, response: web.StreamResponse) -> None:
        """Make the answer to a failed handshake the connection's last."""
        # Before the end of the handshake's body, every answer is.
        is_handshake = self._upgraded and not self._messages
        if is_handshake and response.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self._message_tail = b""
            self._has_all = True
            response.force_close()

    def _cut_off(self, reason: str) -> None:
        logger.info("request.cut_off", reason=reason)
        if self._is_in_body and self._answered < self._request_count:
            self._refuse_body(RequestTooSlow())
        elif self._ends_in_head:
            self._refuse_head(RequestTooSlow())
        else:
            # It is answered, and its rest still arrives.
            self.force_close()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 the signature is aiohttp's
    ) -> web.StreamResponse:
        """Answer bytes that cannot be parsed. They may hold a token, so they are not logged."""
        if isinstance(exc, StrettoError):
            # It is logged as cut off.
            return closing_response(request, exc)
        if isinstance(exc, ConnectionError) and (not self.transport or self.transport.is_closing()):
            # While it was asked for its body: nothing was unreadable, and no answer reaches it.
            drop_frames(exc)
            raise ConnectionError("the client has left")
        if too_large := too_large_part(exc):
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        with context_of(request):
            logger.info("request.unreadable", kind=type(exc).__name__, status=status)
        drop_frames(exc)
        if request.writer.output_size > 0:
            raise ConnectionError("another answer to this request has begun")
        error: StrettoError = InternalError()
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            error = HeadTooLarge(too_large) if too_large else RequestInvalid([], UNREADABLE)
        return closing_response(request, error)


def closing_response(request: BaseRequest, error: StrettoError) -> web.Response:
    """Return the answer to an error, as the last one of its connection.

    No application has taken the request, so none gives the answer its id.
    """
    response = problem_response(error)
    response.headers[ID_FIELD] = context_of(request).id
    client = request.protocol
    assert isinstance(client, ClientConnection)
    response.headers.update(client.fields_of_unread)
    response.force_close()
    return response
