"""Route of live events: a session over WebSocket or SSE, from where the client left.

Before the stream has begun, a refusal is a problem document; after that, a close code, told over
both in the same words. Nothing of a session outlives its request.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from stretto.errors import (
    OriginRefused,
    ParameterError,
    RequestInvalid,
    StoreError,
    StrettoError,
    Unauthenticated,
)
from stretto.events.catch_up import Replay
from stretto.events.close_codes import CloseCode
from stretto.events.positions import Bookmark, PositionLost
from stretto.http.event_streams import SUBPROTOCOL, ServerSentEvents, WebSocketStream
from stretto.http.requests import read_query
from stretto.http.service import SERVICE
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.session import Session
    from stretto.http.event_streams import EventStream, StreamSettings

# A client that is told of the past sets the pace itself; one that takes nothing for so long is too slow.
READ_ON_SECONDS: Final = 10.0
TOKEN_SUBPROTOCOL: Final = "stretto.token."  # noqa: S105 a prefix, no token
_EVENT_STREAM: Final = "text/event-stream"
_WEIGHT_OF_ZERO: Final = re.compile(r"(?:^|;)\s*q\s*=\s*0(?:\.0{0,3})?\s*(?:$|;)")


async def open_session(request: web.Request) -> web.StreamResponse:
    """`GET /v1/events`: tell the user's events until one of both ends it."""
    service = request.app[SERVICE]
    token = await service.authenticator.verify(_authorization(request))
    query = read_query(request, "since")
    stream = _stream(request, service.streams)
    bookmark = _bookmark(request, query)
    # Taking part comes before reading: what commits from now on comes live.
    with service.hub.session(token.owner, token.ends_at) as session:
        replay = Replay(service.history, session, service.hub.origin, bookmark)
        try:
            position = await replay.begin()
        except PositionLost:
            session.close(CloseCode.POSITION_LOST)
            position = ""
        try:
            async with stream.opened(request, session):
                await _serve(stream, session, replay, position)
                assert session.close_code is not None
                await stream.close(session.close_code)
        except ConnectionError as error:
            # Nobody is there to read this.
            raise RequestInvalid([], "The client left before the session began.") from error
    return stream.response


async def _serve(stream: EventStream, session: Session, replay: Replay, position: str) -> None:
    """Send what was missed, then what comes, until the session is closed."""
    if session.close_code is not None:
        return
    try:
        async with session.until_closed():
            await stream.tell_position(position)
            while (missed := await replay.next()) is not None:
                for outgoing in missed:
                    await _send_missed(stream, outgoing)
            if replay.is_resumption:
                # Nothing more of the past is to come.
                await stream.tell_position(replay.present)
            while True:
                await _send_next(stream, session)
    except ConnectionError:
        session.close(CloseCode.CLIENT_LEFT)
    except TimeoutError:
        session.close(CloseCode.TOO_SLOW)
    except PositionLost:
        session.close(CloseCode.POSITION_LOST)
    except (StoreError, StrettoError):
        session.close(CloseCode.TRY_AGAIN)
    except Exception:  # noqa: BLE001 the stream has begun: there is no room for a problem document
        logger.exception("request.crashed")
        session.close(CloseCode.INTERNAL_ERROR)


async def _send_missed(stream: EventStream, outgoing: OutgoingEvent) -> None:
    """Send an event of the past; raises `TimeoutError` where the client does not read on.

    Its queue does not tell, since that may overflow meanwhile.
    """
    async with asyncio.timeout(READ_ON_SECONDS):
        await stream.send(outgoing)


async def _send_next(stream: EventStream, session: Session) -> None:
    try:
        async with asyncio.timeout(stream.silence_seconds):
            events = await session.take()
    except TimeoutError:
        await stream.beat()
        return
    for outgoing in events:
        await stream.send(outgoing)


def _stream(request: web.Request, settings: StreamSettings) -> EventStream:
    """Return the stream that was asked for; raises `RequestInvalid` or `OriginRefused`."""
    if _wants_websocket(request):
        # Scripts of any page may open a WebSocket and read it; everything else browsers guard.
        _require_origin(request, settings.origins)
        _require_subprotocol(request)
        stream = WebSocketStream(settings)
        if not _is_handshake(stream, request):
            raise RequestInvalid([], "This is no handshake of a WebSocket (RFC 6455, 4.2.1).")
        return stream
    if _accepts_events(request):
        return ServerSentEvents(settings)
    raise RequestInvalid([], f"Open a WebSocket here, or ask for {_EVENT_STREAM} in Accept.")


def _accepts_events(request: web.Request) -> bool:
    """Whether Accept names our stream with any weight but 0, which means "not this" (RFC 9110, 12.4.2)."""
    ranges = ",".join(request.headers.getall(hdrs.ACCEPT, [])).lower().split(",")
    for media_type, _, parameters in (each.partition(";") for each in ranges):
        if media_type.strip() == _EVENT_STREAM:
            return _WEIGHT_OF_ZERO.search(parameters) is None
    return False


def _wants_websocket(request: web.Request) -> bool:
    return request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"


def _is_handshake(stream: WebSocketStream, request: web.Request) -> bool:
    try:
        return bool(stream.response.can_prepare(request))
    except ValueError:
        # aiohttp decodes the key as text, and puts what it refuses into an answer of its own: both
        # fail where that is no text.
        return False


def _require_origin(request: web.Request, allowed: frozenset[str]) -> None:
    """Raise `OriginRefused` for a foreign page; what is no browser names no origin."""
    for origin in request.headers.getall(hdrs.ORIGIN, []):
        own = (f"http://{request.host}", f"https://{request.host}")
        if origin not in own and not {origin, "*"} & allowed:
            raise OriginRefused


def _require_subprotocol(request: web.Request) -> None:
    """Raise `RequestInvalid` for a list of subprotocols without ours; there need not be one."""
    fields = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, [])
    if fields and (len(fields) > 1 or SUBPROTOCOL not in _subprotocols(request)):
        raise RequestInvalid([], f"The subprotocol here is {SUBPROTOCOL}.")


def _subprotocols(request: web.Request) -> list[str]:
    field = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")
    return [name.strip() for name in field.split(",")]


def _authorization(request: web.Request) -> str | None:
    """Return the one place that has a token; a browser's WebSocket has only its subprotocols."""
    fields = request.headers.getall(hdrs.AUTHORIZATION, [])
    if _wants_websocket(request):
        fields += [
            f"Bearer {name.removeprefix(TOKEN_SUBPROTOCOL)}"
            for name in _subprotocols(request)
            if name.startswith(TOKEN_SUBPROTOCOL)
        ]
    if len(fields) > 1:
        raise Unauthenticated("The request needs exactly one token.")
    return fields[0] if fields else None


def _bookmark(request: web.Request, query: Mapping[str, str]) -> Bookmark | None:
    """Return where to resume. A browser that comes back repeats its URL: the header is newer."""
    header = request.headers.get("Last-Event-ID")
    told = header or query.get("since")
    if not told:
        return None
    try:
        return Bookmark.parse(told)
    except ValueError as error:
        name = "Last-Event-ID" if header else "since"
        fault = ParameterError(name, "is no position that was given out here")
        raise RequestInvalid([fault]) from error
