"""The fast path: creations that are answered before they are parsed and before a task begins.

An exact repeat of a success is replayed here, at a third of the cost of the way through the routes:
retries are the normal case, and come in storms. An exact repeat of a request in flight waits here for
the same outcome, and a valid new creation starts its flight here. A creation for which the writers'
mailbox has no room is rejected here (`admission.py`). A request that is not plain
(`plain_requests.py`), whose token was not verified before, or that will be refused takes the way
through the routes, and gets the same answer there.

While a creation of this connection is in flight, nothing behind it is read.
"""

from __future__ import annotations

from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.web_protocol import _ErrInfo

from stretto.creation.attempt import AnswerStatus
from stretto.creation.creator import WAIT_SECONDS_DEFAULT
from stretto.creation.flight import Answer
from stretto.errors import Overloaded
from stretto.http.admission import UnknownOwner
from stretto.http.answers import CREATE_PATH, created_answer, with_id, written_answer
from stretto.http.front.plain_creations import key_of, may_claim_of, recall_token
from stretto.http.front.unparsed_answers import UnparsedAnswers
from stretto.http.problems import final_problem
from stretto.http.request_spans import begin_plain_span, end_span
from stretto.http.requests import wait_seconds_in
from stretto.http.tokens.scopes import Scope
from stretto.telemetry.request_context import CURRENT_REQUEST

if TYPE_CHECKING:
    import asyncio

    from stretto.domain import UserId
    from stretto.errors import StrettoError
    from stretto.http.front.limits import LimitedServer
    from stretto.http.front.plain_requests import PlainRequest
    from stretto.http.service import Service
    from stretto.http.tokens.authenticator import Verified

CREATION: Final = f"{hdrs.METH_POST} {CREATE_PATH}".encode()
"""How every creation begins."""
_SPAN: Final = CREATION.decode()
# Members of enumerations: Python 3.11 takes 0.2 µs to look one up, and a repeat 12 µs in all.
_CREATED: Final = HTTPStatus.CREATED
_REPLAYED: Final = AnswerStatus.REPLAYED
_CREATE: Final = Scope.CREATE


class FastPathConnection(UnparsedAnswers):
    """aiohttp's side of a connection, with creations that are answered unparsed, or admitted."""

    __slots__ = ("_admitted_owner", "_in_flight", "_is_admitted", "_is_rejected", "_was_refused")

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, **options)
        self._is_admitted = False
        """Whether an admitted creation waits for its handler."""
        self._admitted_owner: UserId | UnknownOwner = UnknownOwner.NEW
        """Its owner, as it was known then."""
        self._is_rejected = False
        """Whether a creation was rejected and its answer has not been sent."""
        self._was_refused = False
        """Whether a token was refused, and none has been remembered as verified since."""
        self._in_flight: asyncio.Future[bytes] | None = None
        """What a creation that was not parsed waits for."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._end_admission()
        if self._is_rejected and self._service is not None:
            self._service.shedder.forget(self)
        if self._in_flight is not None:
            self._in_flight.cancel()
            self._in_flight = None
            self._end_span(None)
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
            self._send(with_id(answer, self._request.known_id))
            if self._service is not None:
                seconds = perf_counter() - self._began
                self._service.metrics.time_fast_path(Overloaded.code, seconds)

    @property
    def _owes_unparsed(self) -> bool:
        """Whether a creation that was not parsed has no answer yet."""
        return self._is_rejected or self._in_flight is not None

    def _must_wait(self, data: bytes) -> bool:
        """Keep the order of answers: return whether data is held until a creation is answered."""
        if self._is_rejected and self._service is not None:
            # It need not wait for its turn. With data behind it, it is not the last answer.
            self._held = data
            self.send_rejection(self._service.shedder.answer)
            self._service.shedder.forget(self)
            self._held = b""
        if self._in_flight is None:
            return self.is_ending
        self._hold(data)
        return True

    def _answer_unparsed(self, creation: PlainRequest, began: float) -> bool:
        """Replay, await or reject a creation, if nothing else is in progress on this connection."""
        service = self._take(creation)
        if service is None:
            return False
        token = recall_token(service, creation)
        owner = self.owner_of(creation.authorization) if token is None else token.owner
        has_room = service.shedder.has_room(owner, len(creation.body))
        self._began = began
        if not isinstance(owner, UnknownOwner):
            self.user = owner
        if token is not None:
            self._was_refused = False
            if _CREATE in token.scopes and self._begin_unparsed(
                service, token, creation, may_start=has_room
            ):
                return True
        if has_room:
            return False
        service.shedder.reject(self, owner)
        self._is_rejected = True
        return True

    def owner_of(self, authorization: str | None) -> UserId | UnknownOwner:
        """Return whose a token is, also one to be verified again; or what is known against it."""
        if self._service is None or authorization is None:
            return UnknownOwner.REFUSED
        if owner := self._service.authenticator.owner_of(authorization):
            return owner
        if self._service.authenticator.is_refused(authorization):
            return UnknownOwner.REFUSED
        return UnknownOwner.DOUBTED if self._was_refused else UnknownOwner.NEW

    def _begin_unparsed(
        self, service: Service, verified: Verified, creation: PlainRequest, *, may_start: bool
    ) -> bool:
        """Replay a creation, or wait for its flight; return whether either could be done."""
        key, may_claim = key_of(creation), may_claim_of(service, creation)
        if key is None or may_claim is None:
            return False
        wait_seconds = WAIT_SECONDS_DEFAULT
        if (preferences := creation.fields.get(b"prefer")) is not None:
            wait_seconds = wait_seconds_in(preferences.decode(), WAIT_SECONDS_DEFAULT)
        # No task has begun for it: what calls back takes the context along from here. Set by hand:
        # a `with` would take as long again, and most creations in a storm are repeats.
        before = CURRENT_REQUEST.set(self._request)
        try:
            begun = service.creator.begin(
                verified.owner,
                key,
                creation.body,
                wait_seconds=wait_seconds,
                may_start=may_start and may_claim,
                then=self._answer_flight,
                claims=verified.claims,
            )
        finally:
            CURRENT_REQUEST.reset(before)
        if begun is None:
            return False
        # Not before: what is not begun here gets its span from the routes, or is rejected without one.
        # No writer has taken it yet.
        self._begin_span(service, creation)
        if isinstance(begun, Answer):
            service.metrics.count_request(hdrs.METH_POST, CREATE_PATH, _CREATED, None)
            # No line of the log names it: an id that only the answer has would lead nowhere.
            self._send(created_answer(begun, self._request.known_id))
            self._end_span(_CREATED)
            service.metrics.time_fast_path(_REPLAYED, perf_counter() - self._began)
            return True
        service.shedder.count_admitted()
        self._in_flight = begun
        # The client waits for us now, for a shorter time than this.
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True

    def _answer_flight(self, outcome: Answer | StrettoError) -> None:
        """Answer the creation in flight; then read what has come behind it."""
        service = self._service
        assert service is not None
        if self._in_flight is None:
            # The client has left after the outcome came, in the same turn of the loop.
            return
        self._in_flight = None
        status: int = _CREATED
        if isinstance(outcome, Answer):
            answer = created_answer(outcome, self._request.id)
        else:
            problem = final_problem(outcome)
            status = problem.status
            answer = with_id(written_answer(problem, rfc822_formatted_time()), self._request.id)
        seconds = perf_counter() - self._began
        service.metrics.count_request(hdrs.METH_POST, CREATE_PATH, status, seconds)
        self._send(answer)
        self._end_span(status)
        self._read_held()

    def _begin_span(self, service: Service, creation: PlainRequest) -> None:
        """Begin the span of a creation that is answered here; it waits for a writer, if for any."""
        if service.tracing is not None:
            trace = begin_plain_span(service.tracing, _SPAN, creation.fields)
            if trace is not None:
                self._request.trace = trace
                trace.queued()

    def _end_span(self, status: int | None) -> None:
        """End the span of the creation that is answered, or whose client has left."""
        end_span(self._request, hdrs.METH_POST, CREATE_PATH, status)

    def _admit(self, service: Service, creation: PlainRequest) -> None:
        """Count a creation that the parser has accepted until its handler begins."""
        message = self._messages[-1][0]
        if not isinstance(message, _ErrInfo) and self._request_count == self._answered + 1:
            self._admitted_owner = self.owner_of(creation.authorization)
            service.shedder.admit(self._admitted_owner)
            self._is_admitted = True

    def _end_admission(self) -> None:
        """Count an admitted creation no longer: its handler begins, or never will."""
        if self._is_admitted and self._service is not None:
            self._is_admitted = False
            self._service.shedder.arrived(self._admitted_owner)
