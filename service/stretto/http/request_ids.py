"""The id of a request: `X-Request-Id` as the client or a proxy has sent it, or one that is made.

It is in every answer, and in each line of the log that the request causes. So it must not bring in
what a log may not hold: it is short and plain, and neither a key nor a token, nor a part of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from aiohttp import hdrs, web

from stretto.identifiers import KEY_FIELD_CHARACTERS_MAX
from stretto.telemetry.request_context import ID_FIELD, RequestContext, taken_id

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

# Every header field that carries a key or a token.
_SECRET_FIELDS: Final = ("Idempotency-Key", hdrs.AUTHORIZATION, hdrs.SEC_WEBSOCKET_PROTOCOL)
# Of a key in a path, percent-encoded.
_KEY_CHARACTERS_MAX: Final = 3 * KEY_FIELD_CHARACTERS_MAX
_CONTEXT: Final = web.RequestKey("stretto.request", RequestContext)


def context_of(request: BaseRequest) -> RequestContext:
    """Return a request's context, made at the first call."""
    context = request.get(_CONTEXT)
    if context is None:
        offered = request.headers.getall(ID_FIELD, [])
        secrets = [value for name in _SECRET_FIELDS for value in request.headers.getall(name, [])]
        if offered and "/attempts/" in request.path:
            # Split before it is decoded, as the router does: a key may have slashes. It is the last
            # segment, or the one before `history`. 8 KiB of % take 5 ms to decode.
            segments = request.rel_url.raw_path.rsplit("/", 2)[1:]
            secrets += (unquote(each) for each in segments if len(each) <= _KEY_CHARACTERS_MAX)
        context = RequestContext(taken_id(offered[0] if len(offered) == 1 else None, *secrets))
        request[_CONTEXT] = context
    return context


async def answer_request_id(request: BaseRequest, response: web.StreamResponse) -> None:
    """Put the request's id into its answer: a handler of aiohttp's `on_response_prepare`."""
    response.headers[ID_FIELD] = context_of(request).id
