"""Errors as problem documents (RFC 9457): the one place that knows which status a code has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import hdrs, web

from stretto.errors import (
    AttemptFailed,
    BodyTooLarge,
    InternalError,
    MethodNotAllowed,
    NotFound,
    RequestInvalid,
    StrettoError,
    Unauthenticated,
    UnsupportedMediaType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:stretto:problem:"

STATUS: Final[Mapping[str, int]] = {
    "key_missing": 400,
    "key_invalid": 400,
    "request_invalid": 400,
    "unauthenticated": 401,
    "origin_refused": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "attempt_pending": 409,
    "attempt_failed": 410,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "key_reused": 422,
    "rate_limited": 429,
    "internal_error": 500,
    "overloaded": 503,
    "database_unavailable": 503,
}

# What aiohttp itself raises before a handler runs.
_OWN_ERRORS: Final[Mapping[int, type[StrettoError]]] = {
    404: NotFound,
    405: MethodNotAllowed,
    413: BodyTooLarge,
    415: UnsupportedMediaType,
}


def problem(error: StrettoError) -> dict[str, Any]:
    """Return the document that tells an error."""
    document: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": error.code.replace("_", " ").capitalize(),
        "status": STATUS[error.code],
        "detail": error.detail,
        "code": error.code,
        "retry": error.retry,
    }
    if isinstance(error, RequestInvalid):
        document["errors"] = [{"pointer": e.pointer, "detail": e.detail} for e in error.errors]
    if isinstance(error, AttemptFailed):
        document["failure"] = {"code": error.failure.code, "detail": error.failure.detail}
    return document


def problem_response(error: StrettoError) -> web.Response:
    """Return the answer that tells an error."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers[hdrs.RETRY_AFTER] = str(error.retry_after_seconds)
    if isinstance(error, Unauthenticated):
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    return web.Response(
        status=STATUS[error.code],
        body=orjson.dumps(problem(error)),
        content_type=CONTENT_TYPE,
        headers=headers,
    )


def problem_of_exception(exception: web.HTTPException) -> web.StreamResponse:
    """Return aiohttp's own error as a problem document; a redirect stays what it is."""
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
