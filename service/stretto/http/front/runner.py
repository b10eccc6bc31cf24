"""Runs an application so that every answer keeps the contract, and no client keeps out the others.

aiohttp answers a request that it cannot read, or whose expectation it does not know, before any
handler or middleware runs, and in plain text. Here such an answer is a problem document too.

aiohttp also takes any number of connections. Here a connection that owes us a request makes room for
a newcomer where there are too many; what one of them may do is told in `connection.py`.
"""

from __future__ import annotations

import asyncio
import heapq
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.web_protocol import ERROR

from stretto.errors import RequestInvalid
from stretto.http.front.connection import UNREADABLE, ClientConnection, closing_response
from stretto.http.front.limits import LimitedServer
from stretto.http.problems import problem_of_exception, problem_response
from stretto.http.service import SERVICE
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import StreamReader
    from aiohttp.web_protocol import RequestHandler
    from aiohttp.web_request import BaseRequest

    from stretto.http.front.limits import ConnectionLimits

# The parser also takes 0.9 and 2.0 for what they are not here.
VERSIONS: Final = (HttpVersion10, HttpVersion11)
# A share of all, so that looking for the idlest among thousands is done once for many newcomers.
CLOSED_AT_ONCE_SHARE: Final = 100


class ContractRunner(web.AppRunner):
    """An `AppRunner` whose server tells its own errors as problems and bounds its clients."""

    __slots__ = ("_limits",)

    def __init__(self, app: web.Application, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(app, **options)
        self._limits = limits

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        handle = server.request_handler
        make_request = server.request_factory

        def take_request(
            message: Any, body: StreamReader, client: ClientConnection, *others: Any
        ) -> BaseRequest:
            if message.version not in VERSIONS:
                message = ERROR
            try:
                return make_request(message, body, client, *others)
            except ValueError:
                # The host is no name that can be decoded. aiohttp's task would die of this.
                return make_request(ERROR, body, client, *others)

        async def handle_or_tell(request: BaseRequest) -> web.StreamResponse:
            client = request.protocol
            assert isinstance(client, ClientConnection)
            client.begin()
            if request.method == ERROR.method:
                return client.handle_error(request, HTTPStatus.BAD_REQUEST, ValueError())
            if hdrs.CONTENT_ENCODING in request.headers:
                client.end_at_answer()
            if request.version is not HttpVersion11 and hdrs.TRANSFER_ENCODING in request.headers:
                # A proxy that speaks 1.0 would not see where it ends (RFC 9112, 6.1).
                return closing_response(RequestInvalid([], UNREADABLE))
            try:
                response = await handle(request)
            except web.HTTPException as exception:
                response = problem_of_exception(exception)
            except UnicodeError:
                # aiohttp answers an expectation that it does not know with its text; this one has none.
                response = problem_response(RequestInvalid([], UNREADABLE))
            if client.is_at_last_request:
                response.force_close()
            return response

        return ContractServer(
            handle_or_tell,
            self._limits,
            # A host that mounts the contract has a server of his own, and no door.
            self.app.get(SERVICE),
            request_factory=take_request,
            handler_cancellation=server.handler_cancellation,
            **server._kwargs,  # noqa: SLF001 aiohttp passes them on in no other way
        )


class ContractServer(LimitedServer):
    """Makes a connection of each client, and room for it where there are too many."""

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return ClientConnection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a new client, at the price of another one where there are too many."""
        super().connection_made(handler, transport)
        if len(self._connections) > self.limits.connections_max:
            assert isinstance(handler, ClientConnection)
            self._make_room(handler)

    def _make_room(self, newcomer: ClientConnection) -> None:
        """Close those for which we have waited longest; else, the newcomer."""
        waiting = [
            (since, number, handler)
            for number, handler in enumerate(cast("Iterable[ClientConnection]", self._connections))
            if handler is not newcomer and (since := handler.waiting_since) is not None
        ]
        count = 1 + self.limits.connections_max // CLOSED_AT_ONCE_SHARE
        closing = [handler for _, _, handler in heapq.nsmallest(count, waiting)] or [newcomer]
        for handler in closing:
            # Their loss is only noticed later, when more newcomers may already be here.
            del self._connections[handler]
            handler.give_way()
        logger.warning("server.crowded", connections=len(self._connections), closed=len(closing))

    def pre_shutdown(self) -> None:
        """Close the idle connections; the others end with the last answer that they owe.

        aiohttp would read nothing more of those either, and leave what is queued unanswered.
        """
        self._is_stopping = True
        for client in tuple(self._connections):
            if isinstance(client, ClientConnection) and client.is_idle:
                client.force_close()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 aiohttp's
        """Wait until all that was read is answered, then close what is left."""
        answering = [
            client.answering
            for client in self._connections
            if isinstance(client, ClientConnection) and client.answering is not None
        ]
        if answering:
            await asyncio.wait(answering, timeout=timeout)
        await super().shutdown(timeout)
