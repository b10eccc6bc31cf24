"""Parses what requests carry: keys, waits, bodies, parameters of the query."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from aiohttp import hdrs, web

from stretto.codec import BODIES_PER_TURN, BODY_BYTES_MAX
from stretto.creation.age import FIRST_SENT, parse_first_sent
from stretto.creation.creator import WAIT_SECONDS_MAX
from stretto.creation.reads import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from stretto.domain import FIELD_ERRORS_MAX, IdempotencyKey
from stretto.errors import (
    BodyTooLarge,
    FieldError,
    KeyInvalid,
    KeyMissing,
    ParameterError,
    RequestInvalid,
    UnsupportedMediaType,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiohttp.web_request import BaseRequest
    from multidict import CIMultiDictProxy

BODY_UNREADABLE: Final = "cannot be decompressed, is cut off or comes in too many chunks"

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?(?=$|[,;\s])", re.IGNORECASE)
_JSON_TYPE = re.compile(r"application/json\s*(?:;\s*charset=\"?utf-8\"?\s*)?", re.IGNORECASE)

TOKEN_SUBPROTOCOL: Final = "stretto.token."  # noqa: S105 a prefix, no token
# That are looked at: clients of events offer two. Thousands take a millisecond, before their request's turn.
SUBPROTOCOLS_MAX: Final = 16
# More than any route has. Thousands take milliseconds to parse.
PARAMETERS_MAX: Final = 16
_ENCODINGS: Final = frozenset({"identity", "gzip", "deflate"})
# Of one body (RFC 1952, 2.2): what is behind a member is copied before the next one.
MEMBERS_MAX: Final = 16
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


def wants_websocket(request: BaseRequest) -> bool:
    """Return whether a request asks for a WebSocket, in whatever form."""
    return request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"


def read_subprotocols(request: BaseRequest) -> list[str]:
    """Return the first subprotocols that a client offers."""
    names = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",", SUBPROTOCOLS_MAX)
    return [name.strip() for name in names[:SUBPROTOCOLS_MAX]]


def read_authorizations(request: BaseRequest) -> list[str]:
    """Return a request's tokens, each as `Authorization` has it.

    A browser's WebSocket can carry one only as a subprotocol.
    """
    fields = request.headers.getall(hdrs.AUTHORIZATION, [])
    if wants_websocket(request):
        fields += [
            f"Bearer {name.removeprefix(TOKEN_SUBPROTOCOL)}"
            for name in read_subprotocols(request)
            if name.startswith(TOKEN_SUBPROTOCOL)
        ]
    return fields


def read_key(headers: CIMultiDictProxy[str]) -> IdempotencyKey:
    """Return the one idempotency key; raises `KeyMissing` or `KeyInvalid`."""
    fields = headers.getall("Idempotency-Key", [])
    if not fields:
        raise KeyMissing
    if len(fields) > 1:
        raise KeyInvalid("There is more than one Idempotency-Key header.")
    return IdempotencyKey.parse(fields[0])


def read_key_of_path(request: web.Request) -> IdempotencyKey:
    """Return the key in the path of an attempt or its history; raises `KeyInvalid`.

    The router leaves bytes that are not UTF-8 percent-encoded: "%FF" would pass for a key. The key is
    one of the last two segments; the other one is a word of the route's, in ASCII.
    """
    segments = request.rel_url.raw_path.rsplit("/", 2)[1:]
    if not unquote_to_bytes("/".join(segments)).isascii():
        raise KeyInvalid
    return IdempotencyKey.parse(request.match_info["key"])


def read_first_sent(headers: CIMultiDictProxy[str]) -> int | None:
    """Return when the request was first sent, if it says so; raises `RequestInvalid`."""
    fields = headers.getall(FIRST_SENT, [])
    if len(fields) > 1:
        raise RequestInvalid([ParameterError(FIRST_SENT, "is given more than once")])
    return parse_first_sent(fields[0]) if fields else None


def read_wait_seconds(headers: CIMultiDictProxy[str], default_seconds: float) -> float:
    """Return how long the client wants to wait (RFC 7240, 4.3), at most `WAIT_SECONDS_MAX`."""
    if "Prefer" not in headers:
        return default_seconds
    return wait_seconds_in(", ".join(headers.getall("Prefer")), default_seconds)


def wait_seconds_in(preferences: str, default_seconds: float) -> float:
    """Return the wait that preferences ask for; one that cannot be parsed is ignored (RFC 7240)."""
    wait = _WAIT.search(preferences)
    return min(float(wait[1]), WAIT_SECONDS_MAX) if wait else default_seconds


async def _at_once(_: int) -> None:
    """Wait for no turn."""


async def read_body(
    request: web.Request, turn: Callable[[int], Awaitable[None]] = _at_once
) -> bytes:
    """Return the body of a request with JSON.

    `turn` waits for a turn of the loop in which so many of `BODIES_PER_TURN` may be read: the bodies
    of thousands of requests may be complete at once, long after these had their own turns.

    The body stays where `request.read()` finds it: a host's middleware may read it afterwards, or call
    the handler again. Raises `UnsupportedMediaType`, `BodyTooLarge` (bytes are counted as they arrive,
    and after decompression) or `RequestInvalid`.
    """
    media_type = request.headers.get(hdrs.CONTENT_TYPE, "")
    if media_type != "application/json" and _JSON_TYPE.fullmatch(media_type) is None:
        raise UnsupportedMediaType
    # The parser undoes `chunked` and looks for no other coding: a proxy may read another body.
    if [each.lower() for each in request.headers.getall(hdrs.TRANSFER_ENCODING, [])] not in (
        [],
        ["chunked"],
    ):
        raise UnsupportedMediaType("The request's Transfer-Encoding may be chunked, once.")
    encodings = request.headers.getall(hdrs.CONTENT_ENCODING, [])
    encoding = encodings[0].lower() if encodings else "identity"
    if len(encodings) > 1 or encoding not in _ENCODINGS:
        raise UnsupportedMediaType("The request's Content-Encoding may be gzip or deflate, once.")
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise BodyTooLarge
    content = request.content
    try:
        if content.at_eof():
            # It was read before and is kept, or there is none.
            body = await request.read()
        elif content.is_eof():
            # It came with the headers, as most do: nothing to wait for.
            body = content.read_nowait()
        else:
            body = await _read_arriving(request)
            await turn(1)
    except web.RequestPayloadError as error:
        raise RequestInvalid([FieldError("", BODY_UNREADABLE)]) from error
    if len(body) > BODY_BYTES_MAX:
        raise BodyTooLarge
    request._read_bytes = body  # noqa: SLF001 where aiohttp keeps a body that was read
    # A host's server has decompressed it already; our own leaves that to us (`front/queueing.py`).
    if not body or encoding == "identity" or content.total_compressed_bytes is not None:
        return body
    # 24 ms for 256 KiB of empty blocks.
    await turn(BODIES_PER_TURN)
    return _decompressed(body, encoding)


def _decompressed(body: bytes, encoding: str) -> bytes:
    """Return the content of a compressed body; raises `RequestInvalid` or `BodyTooLarge`.

    Every member must be whole: its end has a checksum, without which the content may be cut off or
    wrong, although it is JSON.
    """
    bits = _GZIP_BITS
    if encoding == "deflate":
        # Some clients leave out the header (RFC 9110, 8.4.1.2); with it, the low bits are 8.
        bits = zlib.MAX_WBITS if body[0] & 0x0F == 8 else -zlib.MAX_WBITS
    content = bytearray()
    rest = body
    try:
        for _ in range(MEMBERS_MAX):
            member = zlib.decompressobj(bits)
            # One byte beyond the maximum: a bomb is not decompressed.
            content += member.decompress(rest, BODY_BYTES_MAX + 1 - len(content))
            if len(content) > BODY_BYTES_MAX:
                raise BodyTooLarge
            rest = member.unused_data
            if not member.eof or not rest:
                break
    except zlib.error as error:
        raise RequestInvalid([FieldError("", BODY_UNREADABLE)]) from error
    if rest or not member.eof:
        raise RequestInvalid([FieldError("", BODY_UNREADABLE)])
    return bytes(content)


async def _read_arriving(request: web.Request) -> bytes:
    """Return a body as it arrives, up to one chunk beyond the maximum."""
    content, body = request.content, bytearray()
    try:
        async for chunk in content.iter_any():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                break
    except RuntimeError:
        if request.transport is not None:
            raise
        # aiohttp's, of a connection that was closed here before: as if its client had closed it.
        raise ConnectionResetError from None
    # A body that fails with the end of a chunk has woken its reader before, and looks complete.
    if (error := content.exception()) is not None:
        raise error
    return bytes(body)


def read_query(request: web.Request, *known: str) -> Mapping[str, str]:
    """Return the parameters of the query.

    Raises `RequestInvalid` for a parameter that the route does not know, and for one that is given
    twice: to ignore one of them would answer another question than the one that was asked.
    """
    if request.rel_url.raw_query_string.count("&") >= PARAMETERS_MAX:
        raise RequestInvalid([], f"The query has more than {PARAMETERS_MAX} parameters.")
    query = request.query
    unknown = (shortened(name) for name in query if name not in known)
    errors = [ParameterError(name, "unknown parameter") for name in unknown]
    twice = [name for name in known if len(query.getall(name, ())) > 1]
    errors += [ParameterError(name, "is given more than once") for name in twice]
    if errors:
        raise RequestInvalid(errors[:FIELD_ERRORS_MAX])
    return query


def read_limit(query: Mapping[str, str]) -> int:
    """Return the page size; raises `RequestInvalid`."""
    value = query.get("limit", str(PAGE_ITEMS_DEFAULT))
    if not re.fullmatch(r"[0-9]{1,9}", value) or not 1 <= int(value) <= PAGE_ITEMS_MAX:
        raise RequestInvalid([ParameterError("limit", f"must be 1 to {PAGE_ITEMS_MAX}")])
    return int(value)
