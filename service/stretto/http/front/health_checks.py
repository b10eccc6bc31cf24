"""Health checks that were not parsed: all that wait have the same answer, and get it together.

Any client may ask, and thousands of connections may ask again and again: a proxy's check, or the kubelet's,
would wait behind them for longer than it may, if each took the way through the routes. So many answers
are sent in a turn of the event loop, to the connection first that has waited longest, and the database
is asked once for all that wait for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp.helpers import rfc822_formatted_time

from stretto.creation.flight import public_error
from stretto.errors import Overloaded
from stretto.http import readiness
from stretto.http.answers import around_date
from stretto.http.problems import final_problem, problem_response

if TYPE_CHECKING:
    from aiohttp import web

    from stretto.http.service import Service
    from stretto.telemetry.request_context import RequestContext

# They take the loop about 2.5 ms, a quarter of the time of a batch of creations.
CHECKS_SENT_PER_TURN: Final = 128
LIVE: Final = "/livez"


class CheckingClient(Protocol):
    """A connection whose health check waits for its answer."""

    def send_check(self, status: int, answer: bytes) -> None:
        """Send the answer, unless the client is gone."""


class _CheckAnswer:
    """The same answer to many checks, but for its date."""

    def __init__(self, response: web.Response) -> None:
        self.status = response.status
        self._around_date = around_date(response)

    def at(self, date: bytes) -> bytes:
        return date.join(self._around_date)


@dataclass(eq=False)
class _Asking:
    """A question to the database, and who waits for it."""

    context: RequestContext
    """Of the first of them: the log names that one."""
    clients: OrderedDict[CheckingClient, None] = field(default_factory=OrderedDict)


class HealthChecks:
    """The connections of a server whose checks wait; each has one at most."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._alive = _CheckAnswer(readiness.alive())
        self._new: _Asking | None = None
        """Those that have asked for `/readyz` in this turn of the loop."""
        self._askings: dict[asyncio.Task[bool], _Asking] = {}
        """Those that wait for the database, which is asked twice at most."""
        self._due: OrderedDict[CheckingClient, _CheckAnswer] = OrderedDict()
        """Those whose answer is known."""
        self._is_called = False
        """Whether the loop will call `_go_on` in its next turn."""

    def ask(self, client: CheckingClient, path: str, context: RequestContext) -> None:
        """Answer a client in its turn."""
        if path == LIVE:
            self._due[client] = self._alive
        else:
            if self._new is None:
                self._new = _Asking(context)
            self._new.clients[client] = None
        self._call()

    def forget(self, client: CheckingClient) -> None:
        """Answer a client no more that is gone."""
        self._due.pop(client, None)
        if self._new is not None:
            self._new.clients.pop(client, None)
        for asking in self._askings.values():
            asking.clients.pop(client, None)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Send as many answers as one turn of the loop may have."""
        self._is_called = False
        if self._new is not None:
            asking, self._new = self._new, None
            self._begin(asking)
        date = rfc822_formatted_time().encode()
        written: dict[_CheckAnswer, bytes] = {}
        for _ in range(min(CHECKS_SENT_PER_TURN, len(self._due))):
            client, answer = self._due.popitem(last=False)
            if answer not in written:
                written[answer] = answer.at(date)
            client.send_check(answer.status, written[answer])
        if self._due:
            self._call()

    def _begin(self, asking: _Asking) -> None:
        """Ask the database, if it decides."""
        refusal = readiness.refusal(self._service)
        if refusal is not None:
            self._answer(asking, refusal)
            return
        with asking.context:
            asked = self._service.database_asked.ask(readiness.asking(self._service))
        if asked in self._askings:
            self._askings[asked].clients.update(asking.clients)
        else:
            self._askings[asked] = asking
            asked.add_done_callback(self._end)

    def _end(self, asked: asyncio.Task[bool]) -> None:
        """Answer those who have waited for the database."""
        asking = self._askings.pop(asked)
        if asked.cancelled():
            # As a host may do with every task at its end.
            response = problem_response(Overloaded.while_stopping())
        elif (error := asked.exception()) is not None:
            with asking.context:
                response = final_problem(public_error(error))
        else:
            response = readiness.answer(self._service, does_database_answer=asked.result())
        self._answer(asking, response)
        self._call()

    def _answer(self, asking: _Asking, response: web.Response) -> None:
        self._due.update(dict.fromkeys(asking.clients, _CheckAnswer(response)))
