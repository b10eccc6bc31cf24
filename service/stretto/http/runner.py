"""Runs an application so that every answer keeps the contract.

aiohttp answers a request that it cannot read, or whose expectation it does not know, before any
handler or middleware runs, and in plain text. Here such an answer is a problem document too.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from stretto.errors import InternalError, RequestInvalid, StrettoError
from stretto.http.problems import problem_of_exception, problem_response
from stretto.telemetry import logger

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest


class ContractRunner(web.AppRunner):
    """An `AppRunner` whose server tells its own errors as problems."""

    __slots__ = ()

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        handle = server.request_handler

        async def handle_or_tell(request: BaseRequest) -> web.StreamResponse:
            try:
                return await handle(request)
            except web.HTTPException as exception:
                return problem_of_exception(exception)

        return _ContractServer(
            handle_or_tell,
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
            **server._kwargs,  # noqa: SLF001 aiohttp passes them on in no other way
        )


class _ContractServer(web.Server):
    def __call__(self) -> RequestHandler:
        return _ContractHandler(self, loop=self._loop, **self._kwargs)


class _ContractHandler(RequestHandler):
    __slots__ = ()

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
            error = RequestInvalid([], "This is not a request that can be read.")
        response = problem_response(error)
        response.force_close()
        return response
