"""CORS: pages of which other origins may call the service, and read its answers (Fetch, 3.3).

A browser hides an answer without these fields from its page: a 503 and its `Retry-After` look like a
broken network then. So every answer has them: those of the routes, of the fast path, of load
shedding, and those to requests that cannot be read.

They guard nothing. What a request may do, its token says, and a page has to know that token: cookies
mean nothing here, so an answer never allows credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from stretto.creation.age import FIRST_SENT
from stretto.telemetry.request_context import ID_FIELD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.web_request import BaseRequest

ANY_ORIGIN: Final = "*"
# All that the contract has, on every path: so a page reads a 405, too.
METHODS: Final = (hdrs.METH_DELETE, hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_POST)
# What the routes read, and what a page's own tracing adds (W3C Trace Context).
REQUEST_FIELDS: Final = (
    hdrs.AUTHORIZATION,
    hdrs.CONTENT_ENCODING,
    hdrs.CONTENT_TYPE,
    "Idempotency-Key",
    FIRST_SENT,
    "Last-Event-ID",
    "Prefer",
    ID_FIELD,
    "traceparent",
    "tracestate",
)
# What the contract names. By `Date` a client learns how wrong its own clock is.
ANSWER_FIELDS: Final = (
    hdrs.ALLOW,
    hdrs.DATE,
    "Idempotency-Status",
    "Idempotent-Replayed",
    hdrs.LOCATION,
    hdrs.RETRY_AFTER,
    hdrs.WWW_AUTHENTICATE,
    ID_FIELD,
)
# Chromium remembers a preflight for no longer.
PREFLIGHT_SECONDS: Final = 7200
_PREFLIGHT: Final = {
    hdrs.ACCESS_CONTROL_ALLOW_METHODS: ", ".join(METHODS),
    hdrs.ACCESS_CONTROL_ALLOW_HEADERS: ", ".join(REQUEST_FIELDS),
    hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_SECONDS),
}
_VARY: Final[Mapping[str, str]] = {hdrs.VARY: hdrs.ORIGIN}


class Cors:
    """What answers say to browsers, where pages of these origins are allowed."""

    def __init__(self, origins: frozenset[str]) -> None:
        self._to_all = _allowing(ANY_ORIGIN)
        self._of: dict[str, Mapping[str, str]] = {}
        self._others: Mapping[str, str] = {}
        if ANY_ORIGIN in origins:
            self._others = self._to_all
        elif origins:
            self._of = {origin: {**_allowing(origin), **_VARY} for origin in origins}
            # A cache must not give one origin the answer to another.
            self._others = _VARY
        else:
            self._to_all = {}
        self._lines = {origin.encode(): _lines(fields) for origin, fields in self._of.items()}
        self._others_lines = _lines(self._others)

    @property
    def unread(self) -> Mapping[str, str]:
        """The fields of an answer to a request that could not be read: its origin is not known.

        Every page may read such an answer, if any may: it says nothing of a user.
        """
        return self._to_all

    def lines(self, origin: bytes | None) -> bytes:
        """Return the end of an answer's head as it is sent; empty if there is nothing to say."""
        # As aiohttp's parser does, which does not see every request.
        return self._lines.get((origin or b"").strip(b" \t"), self._others_lines)

    def prepare(self, request: BaseRequest, response: web.StreamResponse) -> None:
        """Put the fields into an answer."""
        for name, value in self._fields(request).items():
            if name == hdrs.VARY:
                # A host's own stay.
                response.headers.add(name, value)
            else:
                response.headers[name] = value

    def preflight(self, request: web.Request) -> web.Response | None:
        """Return the answer to a preflight of an allowed page; None for any other request."""
        if (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
            and hdrs.ACCESS_CONTROL_ALLOW_ORIGIN in self._fields(request)
        ):
            return web.Response(status=204, headers=_PREFLIGHT)
        return None

    def _fields(self, request: BaseRequest) -> Mapping[str, str]:
        origins = request.headers.getall(hdrs.ORIGIN, [])
        return self._of.get(origins[0] if len(origins) == 1 else "", self._others)


def _allowing(origin: str) -> dict[str, str]:
    return {
        hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin,
        hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: ", ".join(ANSWER_FIELDS),
    }


def _lines(fields: Mapping[str, str]) -> bytes:
    """Return what stands in place of the blank line behind a head (`HEAD_END`)."""
    lines = "".join(f"\r\n{name}: {value}" for name, value in fields.items())
    return f"{lines}\r\n\r\n".encode() if lines else b""
