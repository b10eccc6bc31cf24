"""Errors as answers: problem documents with their status and header fields.

`problem_of` makes them for every way in: our own routes, and those of a host's framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
from aiohttp import hdrs, web

from stretto.codec import PROBLEM_CONTENT_TYPE, STATUS, problem
from stretto.creation.flight import public_error
from stretto.errors import (
    BodyTooLarge,
    DatabaseUnavailable,
    InsufficientScope,
    InternalError,
    MethodNotAllowed,
    NotFound,
    RequestInvalid,
    StrettoError,
    Unauthenticated,
    UnsupportedMediaType,
    UpgradeRequired,
)
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

# Read and written past the error's own class, which may be a host's and refuse its attributes.
_CAUSE: Final = BaseException.__dict__["__cause__"]
_CONTEXT: Final = BaseException.__dict__["__context__"]
_TRACEBACK: Final = BaseException.__dict__["__traceback__"]

# For the statuses that aiohttp itself raises before a handler runs.
_OWN_ERRORS: Final[Mapping[int, type[StrettoError]]] = {
    404: NotFound,
    405: MethodNotAllowed,
    413: BodyTooLarge,
    415: UnsupportedMediaType,
}

# RFC 6455, 4.4 and RFC 9110, 7.8 and 15.5.22. Behind a declined upgrade nothing is read.
_UPGRADE_FIELDS: Final[Mapping[str, str]] = {
    hdrs.UPGRADE: "websocket",
    hdrs.CONNECTION: "upgrade, close",
    hdrs.SEC_WEBSOCKET_VERSION: "13",
}

# In every answer. The server is named without its version, which would only help an attacker.
COMMON_FIELDS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    hdrs.SERVER: "stretto",
}


class Problem(NamedTuple):
    """An answer that says what went wrong (RFC 9457)."""

    status: int
    headers: dict[str, str]
    body: bytes


def problem_of(error: BaseException) -> Problem:
    """Return the answer of the HTTP API to an error, for any framework.

    What is no error of stretto's is answered 500, and nothing of it is shown: log it yourself.
    """
    error = public_error(error)
    headers: dict[str, str] = {}
    if error.retry_after_seconds is not None:
        headers[hdrs.RETRY_AFTER] = str(error.retry_after_seconds)
    if isinstance(error, Unauthenticated):
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    if isinstance(error, InsufficientScope):
        # RFC 6750, 3.1.
        headers[hdrs.WWW_AUTHENTICATE] = f'Bearer error="insufficient_scope", scope="{error.scope}"'
    if isinstance(error, UpgradeRequired):
        headers |= _UPGRADE_FIELDS
    headers[hdrs.CONTENT_TYPE] = PROBLEM_CONTENT_TYPE
    return Problem(STATUS[error.code], headers, orjson.dumps(problem(error)))


def problem_response(error: StrettoError) -> web.Response:
    """Return an error as a problem document."""
    status, headers, body = problem_of(error)
    return web.Response(status=status, headers=headers, body=body)


def final_problem(error: StrettoError) -> web.Response:
    """Return the error that has ended a request as a problem document.

    A bug of ours is logged, and why the database could not do it.
    """
    if isinstance(error, InternalError):
        logger.error("request.crashed", exc_info=error.__cause__ or error)
    elif isinstance(error, DatabaseUnavailable) and error.__cause__ is not None:
        logger.warning("request.database_unavailable", cause=str(error.__cause__))
    drop_frames(error)
    return problem_response(error)


def problem_of_exception(exception: web.HTTPException) -> web.StreamResponse:
    """Return aiohttp's own error as a problem document; return a redirect as it is."""
    # aiohttp keeps the exception with the request, and the exception keeps the request's frames.
    drop_frames(exception)
    if exception.status < 400:
        return exception
    error: StrettoError
    if exception.status in _OWN_ERRORS:
        error = _OWN_ERRORS[exception.status]()
    elif exception.status < 500:
        error = RequestInvalid([], exception.reason)
    else:
        error = InternalError()
    response = problem_response(error)
    if isinstance(exception, web.HTTPMethodNotAllowed):
        response.headers[hdrs.ALLOW] = ", ".join(sorted(exception.allowed_methods))
    return response


def drop_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that has been answered, and of what caused it.

    An error refers to every frame that it has passed, and variables in some of these refer back to
    the error: a cycle of about a hundred objects, which only the garbage collector would free.
    """
    seen: set[int] = set()
    # What a host has chained by hand may be a circle.
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        _TRACEBACK.__set__(error, None)
        cause = _CAUSE.__get__(error)
        error = _CONTEXT.__get__(error) if cause is None else cause
