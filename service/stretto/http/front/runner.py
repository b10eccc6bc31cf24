"""Runs an application so that every answer keeps the contract and no client crowds out the others.

aiohttp answers a request that it cannot parse, or whose expectation it does not know, in plain text
and before any handler or middleware runs. Here such an answer is a problem document too.

aiohttp also accepts any number of connections. Here, when there are too many, connections that wait
for their client are closed to make room for a new one. `connection.py` bounds each of them.
"""

from __future__ import annotations

import asyncio
import heapq
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.web_protocol import ERROR
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from stretto.errors import RequestInvalid
from stretto.http.admission import UnknownOwner
from stretto.http.bodies import too_many_bodies
from stretto.http.front.connection import UNREADABLE, ClientConnection, closing_response
from stretto.http.front.head_memory import LargeHead
from stretto.http.front.heads import is_odd
from stretto.http.front.limits import LimitedServer
from stretto.http.problems import problem_of_exception, problem_response
from stretto.http.requests import read_authorizations
from stretto.http.service import BEGAN, SERVICE
from stretto.runtime.turns import Turns
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiohttp import StreamReader
    from aiohttp.web_protocol import RequestHandler
    from aiohttp.web_request import BaseRequest

    from stretto.domain import UserId
    from stretto.http.settings import ConnectionLimits

# The parser also accepts 0.9 and 2.0, which are not served here.
VERSIONS: Final = (HttpVersion10, HttpVersion11)
# aiohttp's own says HTTP/1.0. An answer has our highest version (RFC 9110, 6.2): with 1.0, clients
# and proxies would take the service for one that is too old for chunks. Its header fields are a
# plain dict.
_UNREADABLE: Final = ERROR._replace(version=HttpVersion11, headers=CIMultiDictProxy(CIMultiDict()))
# An answer to HEAD has no body (RFC 9110, 9.3.2).
_UNREADABLE_HEAD: Final = _UNREADABLE._replace(method=hdrs.METH_HEAD)
# Of a path. No route has as many, and aiohttp looks a path up once for each of them: 4,000 would cost
# as much as fifty creations.
SEGMENTS_MAX: Final = 16
_NOWHERE: Final = URL("/-")
# Handlers that begin in one turn of the loop, about 8 ms of work. A creation takes several turns: if
# each of them began with all that thousands of connections have sent, it would wait for all of those
# several times. So many of users whose tokens are known, as many of those that show a new token, and as many of all
# others: thousands of clients without a token, or whose tokens have expired, would outweigh the users. Health checks
# have turns of their own: a proxy takes an instance out that answers two seconds late.
REQUESTS_PER_TURN: Final = 12
CHECKS_PER_TURN: Final = 4
# The sample proxies of `deploy/` keep these from clients.
HEALTH_CHECKS: Final = frozenset({"/livez", "/readyz"})
# A share of all, so that one search through thousands of connections makes room for many new ones.
CLOSED_AT_ONCE_SHARE: Final = 100
# From a search that found few to close to the next one: meanwhile each newcomer is closed unsearched.
# To look at 10,000 connections takes 7 ms, and a turn of the loop accepts up to 128.
SEARCH_AGAIN_SECONDS: Final = 0.1


class ContractRunner(web.AppRunner):
    """An `AppRunner` whose server answers its own errors as problems and bounds its clients."""

    __slots__ = ("_limits",)

    def __init__(self, app: web.Application, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(app, **options)
        self._limits = limits
        # Before any answer's head is written, also that of a handler that writes its own.
        app.on_response_prepare.append(_close_at_last)

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        handle = server.request_handler
        make_request = server.request_factory
        turns_of_users, turns_of_others = Turns(REQUESTS_PER_TURN), Turns(REQUESTS_PER_TURN)
        turns_of_newcomers, turns_of_checks = Turns(REQUESTS_PER_TURN), Turns(CHECKS_PER_TURN)
        # None where a host mounts the application in a server of its own: no fast path.
        service = self.app.get(SERVICE)

        def take_request(
            message: Any, body: StreamReader, client: ClientConnection, *others: Any
        ) -> BaseRequest:
            if not isinstance(message, LargeHead):
                return make_request(_as_served(message), body, client, *others)
            request = make_request(_as_served(message.take()), body, client, *others)
            client.begin_head(request, message.memory_bytes)
            return request

        async def answer(request: BaseRequest) -> web.StreamResponse:
            client = request.protocol
            assert isinstance(client, ClientConnection)
            client.begin()
            # The waits for a turn are a part of the time that a client waits.
            request[BEGAN] = perf_counter()
            owner = _owner_of(request, client)
            user = client.user = None if isinstance(owner, UnknownOwner) else owner
            if user is not None:
                await turns_of_users.take(user)
            else:
                turns = turns_of_others
                if request.rel_url.raw_path in HEALTH_CHECKS:
                    turns = turns_of_checks
                elif owner is UnknownOwner.NEW:
                    turns = turns_of_newcomers
                client.waits_for_turn = True
                await turns.take(client)
                client.waits_for_turn = False
            if not client.begin_work():
                return closing_response(request, too_many_bodies())
            # No request has its fields, though one may have its method.
            if request.headers is _UNREADABLE.headers:
                return client.handle_error(request, HTTPStatus.BAD_REQUEST, ValueError())
            if request.version is not HttpVersion11 and hdrs.TRANSFER_ENCODING in request.headers:
                # A proxy that speaks HTTP/1.0 would not see where it ends (RFC 9112, 6.1).
                return closing_response(request, RequestInvalid([], UNREADABLE))
            try:
                response = await handle(request)
            except web.HTTPException as exception:
                response = problem_of_exception(exception)
            except UnicodeError:
                # aiohttp repeats an unknown expectation in its answer; this one cannot be decoded.
                response = problem_response(RequestInvalid([], UNREADABLE))
            if response.status == HTTPStatus.UNAUTHORIZED:
                # It was a user's token, and is none's now.
                client.user = None
            return response

        return ContractServer(
            answer,
            self._limits,
            service,
            request_factory=take_request,
            handler_cancellation=server.handler_cancellation,
            **server._kwargs,  # noqa: SLF001 aiohttp offers no other way
        )


def _as_served(message: Any) -> Any:
    """Return a message as the routes may see it."""
    if message is ERROR or message.version not in VERSIONS or is_odd(message):
        return _UNREADABLE_HEAD if message.method == hdrs.METH_HEAD else _UNREADABLE
    if message.url.raw_path.count("/") > SEGMENTS_MAX:
        return message._replace(url=_NOWHERE)
    if message.url.absolute:
        # aiohttp would decode the host as a name, before any turn: 8 KiB of it take 40 ms.
        return message._replace(url=message.url.relative())
    return message


def _owner_of(request: BaseRequest, client: ClientConnection) -> UserId | UnknownOwner:
    """Return who takes turns with other users; where it is not known, the connection does with others.

    A token that was not verified is no client: each request may have one of its own. And those
    without one are not one client together.
    """
    fields = read_authorizations(request)
    return client.owner_of(fields[0] if len(fields) == 1 else None)


async def _close_at_last(request: BaseRequest, response: web.StreamResponse) -> None:
    """Say that a connection ends with this answer, if no request comes behind it."""
    client = request.protocol
    assert isinstance(client, ClientConnection)
    if client.is_at_last_request:
        response.force_close()
        # aiohttp has made the head's fields by now. In HTTP/1.0 the end goes without saying.
        if request.version == HttpVersion11:
            response.headers.setdefault(hdrs.CONNECTION, "close")
        else:
            response.headers.pop(hdrs.CONNECTION, None)


class ContractServer(LimitedServer):
    """Makes a connection for each client, and closes others where there are too many."""

    _search_at = 0.0
    """When those that wait for their clients are searched for again."""

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return ClientConnection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a new client; where there are too many, close others."""
        super().connection_made(handler, transport)
        if len(self._connections) > self.limits.connections_max:
            assert isinstance(handler, ClientConnection)
            self._make_room(handler)

    def _make_room(self, newcomer: ClientConnection) -> None:
        """Close connections of strangers, the oldest first, then those that we have waited for longest.

        By that alone, those of users would go first: who asks again and again, or has always one more
        request behind the last, is never idle for long. A stranger's goes also while no work has begun for
        its request. If few of these are left, which may be as new as this one, connections of the user are closed
        who has most, of many. If there is none, the new one is.
        """
        if self._loop.time() < self._search_at:
            # The last search has found few, and logged that.
            self._close([newcomer])
            return
        waiting: list[tuple[bool, float, int, ClientConnection]] = []
        for number, handler in enumerate(cast("Iterable[ClientConnection]", self._connections)):
            if handler is newcomer:
                continue
            if handler.is_of_stranger and handler.is_unworked:
                waiting.append((False, handler.connected_at, number, handler))
            elif (since := handler.waiting_since) is not None:
                waiting.append((True, since, number, handler))
        count = 1 + self.limits.connections_max // CLOSED_AT_ONCE_SHARE
        closing = [handler for *_, handler in heapq.nsmallest(count, waiting)]
        if len(closing) < count:
            closing = self._of_one_user(count) or closing or [newcomer]
        if len(closing) < count or newcomer in closing:
            self._search_at = self._loop.time() + SEARCH_AGAIN_SECONDS
        self._close(closing)
        logger.warning("server.crowded", connections=len(self._connections), closed=len(closing))

    def _of_one_user(self, count: int) -> list[ClientConnection]:
        """Return so many connections of the user who has most, the oldest first; one with as few keeps them."""
        clients = cast("Iterable[ClientConnection]", self._connections)
        held: dict[UserId, list[ClientConnection]] = {}
        for client in clients:
            if client.user is not None:
                held.setdefault(client.user, []).append(client)
        most = max(held.values(), key=len, default=[])
        return most[: max(min(count, len(most) - count), 0)]

    def _close(self, closing: Sequence[ClientConnection]) -> None:
        if self.service is not None:
            self.service.metrics.count_closed(len(closing))
        for handler in closing:
            # aiohttp notices the loss later, when more clients may already have connected.
            del self._connections[handler]
            handler.close_at_once()

    def pre_shutdown(self) -> None:
        """Close the idle connections; each of the others ends with its last answer.

        aiohttp would stop reading from those too, and leave queued requests unanswered.
        """
        self._is_stopping = True
        for client in tuple(self._connections):
            if isinstance(client, ClientConnection) and client.is_idle:
                client.force_close()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 aiohttp's
        """Wait until every request that was read is answered, then close the other connections."""
        answering = [
            client.answering
            for client in self._connections
            if isinstance(client, ClientConnection) and client.answering is not None
        ]
        if answering:
            await asyncio.wait(answering, timeout=timeout)
        await super().shutdown(timeout)
