"""The side of a connection whose health checks are answered before they are parsed (`health_checks.py`).

A check with a token, with a body, with another target or in another form takes the way through the routes,
and gets the same answer there.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs

from stretto.http.answers import HEAD_END, with_id
from stretto.http.front.fast_path import CREATION, FastPathConnection
from stretto.http.front.plain_requests import CHECKS
from stretto.http.front.unparsed_answers import CLOSE_LINE

if TYPE_CHECKING:
    from stretto.http.front.limits import LimitedServer
    from stretto.http.front.plain_requests import PlainRequest


class UnparsedChecks(FastPathConnection):
    """aiohttp's side of a connection, with health checks that are answered unparsed."""

    __slots__ = ("_check", "_checks", "_is_check_last")

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, **options)
        self._checks = manager.checks
        self._check = ""
        """The path of the check that waits for its answer; empty if none does."""
        self._is_check_last = False
        """Whether that check says that nothing follows it."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        if self._check and self._checks is not None:
            self._check = ""
            self._checks.forget(self)
        super().connection_lost(exc)

    @property
    def _owes_unparsed(self) -> bool:
        """Whether a request that was not parsed has no answer yet."""
        return bool(self._check) or super()._owes_unparsed

    def _must_wait(self, data: bytes) -> bool:
        """Keep the order of answers: return whether data is held until a check is answered."""
        if not self._check:
            return super()._must_wait(data)
        self._hold(data)
        return True

    def _answer_unparsed(self, request: PlainRequest, began: float) -> bool:
        """Answer a plain creation or check here, if that can be done."""
        if request.begins == CREATION:
            return super()._answer_unparsed(request, began)
        path = CHECKS.get(request.begins)
        if path is None or request.authorization is not None or request.body:
            return False
        if self._checks is None or self._take(request) is None:
            return False
        self._began = began
        self._check = path
        self._is_check_last = request.is_last
        if self._is_check_last:
            self._has_all = True
        # A stranger, for which no work has begun: it may be closed to make room.
        self.user = None
        self.has_checked = self.waits_for_turn = True
        self._checks.ask(self, path, self._request)
        return True

    def send_check(self, status: int, answer: bytes) -> None:
        """Answer the check; then read what has come behind it."""
        path, self._check = self._check, ""
        self.waits_for_turn = False
        assert self._service is not None
        seconds = perf_counter() - self._began
        self._service.metrics.count_request(hdrs.METH_GET, path, status, seconds)
        if self._is_check_last:
            # Where aiohttp writes it if the client has asked for it.
            answer = answer.replace(HEAD_END, CLOSE_LINE, 1)
        self._send(with_id(answer, self._request.id), says_last=self._is_check_last)
        self._read_held()
