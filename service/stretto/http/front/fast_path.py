"""The fast path: creations that are answered before they are parsed and before a task begins.

An exact repeat of a success is replayed here, at a third of the cost of the way through the routes:
retries are the normal case, and come in storms. A creation for which the writers' mailbox has no
room is rejected here (`admission.py`). A request that is not plain (`plain_requests.py`) takes the
way through the routes and gets the same answer there.
"""

from __future__ import annotations

from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.web_protocol import _ErrInfo

from stretto.creation.attempt import AnswerStatus
from stretto.errors import Overloaded
from stretto.http.answers import created_fields, written
from stretto.http.front.queueing import BoundedQueue
from stretto.http.problems import COMMON_FIELDS

if TYPE_CHECKING:
    from stretto.domain import UserId
    from stretto.http.front.limits import LimitedServer
    from stretto.http.front.plain_requests import PlainRequest
    from stretto.http.service import Service

CREATE_PATH: Final = "/v1/groups"
CREATION: Final = f"{hdrs.METH_POST} {CREATE_PATH}".encode()
"""How every creation begins."""
# Between the header fields of an answer and its body, where aiohttp writes it too.
CLOSE_LINE: Final = b"\r\nConnection: close\r\n\r\n"


class FastPathConnection(BoundedQueue):
    """aiohttp's side of a connection, with creations that are answered unparsed, or admitted."""

    __slots__ = (
        *("_admitted_owner", "_is_admitted", "_is_rejected"),
        *("_rejected_began", "_server", "_service"),
    )

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, **options)
        self._server = manager
        self._service = manager.service
        self._is_admitted = False
        """Whether an admitted creation waits for its handler."""
        self._admitted_owner: UserId | None = None
        """Its owner, if that was known."""
        self._is_rejected = False
        """Whether a creation was rejected and its answer has not been sent."""
        self._rejected_began = 0.0
        """When its reading began."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._end_admission()
        super().connection_lost(exc)

    def force_close(self) -> None:
        """Close without waiting for a request; no handler will begin an admitted one."""
        self._end_admission()
        super().force_close()

    def begin(self) -> None:
        """Note that a handler begins to work for a request of this client."""
        if self._is_admitted:
            self._end_admission()

    def send_rejection(self, answer: bytes) -> None:
        """Send the answer to the rejected request."""
        if self._is_rejected:
            self._is_rejected = False
            self._send(answer)
            if self._service is not None:
                seconds = perf_counter() - self._rejected_began
                self._service.metrics.time_fast_path(Overloaded.code, seconds)

    def _answer_unparsed(self, creation: PlainRequest, began: float) -> bool:
        """Replay or reject a creation, if nothing else is in progress on this connection."""
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
        owner = recall_owner(service, creation)
        answer = None if owner is None else replay(service, owner, creation)
        if answer is not None:
            self._send(answer)
            service.metrics.time_fast_path(AnswerStatus.REPLAYED, perf_counter() - began)
            return True
        if service.shedder.has_room(owner):
            return False
        service.shedder.reject(self)
        self._is_rejected, self._rejected_began = True, began
        return True

    def _admit(self, service: Service, creation: PlainRequest) -> None:
        """Count a creation that the parser has accepted until its handler begins."""
        message = self._messages[-1][0]
        if not isinstance(message, _ErrInfo) and self._request_count == self._answered + 1:
            self._admitted_owner = recall_owner(service, creation)
            service.shedder.admit(self._admitted_owner)
            self._is_admitted = True

    def _end_admission(self) -> None:
        """Count an admitted creation no longer: its handler begins, or never will."""
        if self._is_admitted and self._service is not None:
            self._is_admitted = False
            self._service.shedder.arrived(self._admitted_owner)

    def _send(self, answer: bytes) -> None:
        """Answer a request that aiohttp has not seen; the client may be idle from now on."""
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self.transport is None:
            return
        if not (self._server.is_draining or self._has_all):
            self.transport.write(answer)
        else:
            self.transport.write(answer.replace(b"\r\n\r\n", CLOSE_LINE, 1))
            self.force_close()


def recall_owner(service: Service, request: PlainRequest) -> UserId | None:
    """Return the owner of a creation, if its token is remembered and still valid."""
    authorization = request.fields.get(b"authorization")
    if authorization is None:
        return None
    verified = service.authenticator.recall(authorization.decode())
    return None if verified is None else verified.owner


def replay(service: Service, owner: UserId, request: PlainRequest) -> bytes | None:
    """Return the answer to an exact repeat of an owner's creation, as it is sent."""
    key = request.fields.get(b"idempotency-key")
    if (
        key is None
        # A quoted key has to be parsed first.
        or key.startswith(b'"')
        or request.fields.get(b"content-type") != b"application/json"
    ):
        return None
    answer = service.creator.replay(owner, key.decode(), request.body)
    if answer is None:
        return None
    service.metrics.count_request(hdrs.METH_POST, CREATE_PATH, HTTPStatus.CREATED, None)
    answer_fields = created_fields(CREATE_PATH, answer)
    # The other fields have the order in which aiohttp and `connection.py` add them.
    answer_fields[hdrs.CONTENT_TYPE] = "application/json"
    answer_fields.update(COMMON_FIELDS)
    answer_fields[hdrs.CONTENT_LENGTH] = str(len(answer.document))
    answer_fields[hdrs.DATE] = rfc822_formatted_time()
    return written(HTTPStatus.CREATED, answer_fields, answer.document)
