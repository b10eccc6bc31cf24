"""Route of live events: a session over WebSocket or SSE, from the client's position on.

Before the stream has begun, an error is a problem document; after that, it is a close code, the
same over both. Nothing of a session outlives its request.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion11, hdrs, web

from stretto.errors import (
    OriginRefused,
    ParameterError,
    RequestInvalid,
    StrettoError,
    Unauthenticated,
    UpgradeRequired,
)
from stretto.events.catch_up import CatchUp
from stretto.events.close_codes import CloseCode
from stretto.events.place import Place, PositionLost
from stretto.http.bodies import BodyClient
from stretto.http.event_streams import SUBPROTOCOL, ServerSentEvents, WebSocketStream
from stretto.http.requests import (
    read_authorizations,
    read_query,
    read_subprotocols,
    wants_websocket,
)
from stretto.http.service import SERVICE, verify
from stretto.http.tokens.scopes import Scope
from stretto.store_errors import StoreError
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.events.hub import SessionHub
    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.session import Session
    from stretto.http.event_streams import EventStream
    from stretto.http.settings import StreamSettings

# A client that catches up sets the pace itself; one that reads no event for so long is too slow.
READ_ON_SECONDS: Final = 10.0
# And for as much longer as an event takes at this pace: over a phone's link, one of a thousand members takes
# longer than that, and would be begun again and again.
READ_BYTES_PER_SECOND: Final = 4096
# Of Accept, that are looked at: clients of events name one or two, and thousands cost a millisecond.
RANGES_MAX: Final = 16
_EVENT_STREAM: Final = "text/event-stream"
# 16 bytes in base64.
_WEBSOCKET_KEY: Final = re.compile(r"[A-Za-z0-9+/]{22}==")
_WEIGHT_OF_ZERO: Final = re.compile(r"(?:^|;)\s*q\s*=\s*0(?:\.0{0,3})?\s*(?:$|;)")


async def open_session(request: web.Request) -> web.StreamResponse:
    """`GET /v1/events`: send the user's events until the client or the service ends the session."""
    service = request.app[SERVICE]
    token = await verify(request, _authorization(request))
    token.require(Scope.EVENTS)
    query = read_query(request, "since")
    stream = _stream(request, service.streams)
    place = _client_place(request, query)
    # Join the hub before reading the log: what commits from now on comes live.
    with service.hub.session(token.owner, token.ends_at, token.key) as session:
        catch_up = CatchUp(service.history, session, service.hub, place)
        try:
            await catch_up.begin()
        except PositionLost:
            session.close(CloseCode.POSITION_LOST)
        try:
            async with stream.opened(request, session):
                if isinstance(request.protocol, BodyClient):
                    request.protocol.drop_fields()
                await _serve(stream, session, catch_up, service.hub)
                assert session.close_code is not None
                await stream.close(session.close_code)
        except ConnectionError as error:
            # It is counted; no client is left to read it.
            raise RequestInvalid([], "The client left before the session began.") from error
    return stream.response


async def _serve(stream: EventStream, session: Session, catch_up: CatchUp, hub: SessionHub) -> None:
    """Send the missed events, then live ones, until the session is closed."""
    if session.close_code is not None:
        return
    try:
        async with session.until_closed():
            await stream.send_position(catch_up.position)
            while True:
                position = await _catch_up(stream, session, catch_up)
                while not session.is_behind:
                    position = await _send_next(stream, session, hub, position)
                hub.fall_back(session)
                catch_up = catch_up.again(position)
                await catch_up.begin()
    except ConnectionError:
        session.close(CloseCode.CLIENT_LEFT)
    except TimeoutError:
        session.close(CloseCode.TOO_SLOW)
    except PositionLost:
        session.close(CloseCode.POSITION_LOST)
    except (StoreError, StrettoError):
        session.close(CloseCode.TRY_AGAIN)
    except Exception:  # noqa: BLE001 the stream has begun: too late for a problem document
        logger.exception("request.crashed")
        session.close(CloseCode.INTERNAL_ERROR)


async def _catch_up(stream: EventStream, session: Session, catch_up: CatchUp) -> str:
    """Send the missed events until the session is live; return the client's position then."""
    while (missed := await catch_up.next()) is not None:
        for outgoing in missed:
            if not session.may_send():
                await session.turn(len(missed))
            await _send_missed(stream, outgoing)
    if catch_up.is_resumption:
        # Every missed event has been sent.
        await stream.send_position(catch_up.position)
    return catch_up.position


async def _send_missed(stream: EventStream, outgoing: OutgoingEvent) -> None:
    """Send a missed event; raise `TimeoutError` if the client does not read.

    A full queue does not show a slow client here: while a session catches up, it may overflow.
    """
    async with asyncio.timeout(_read_on_seconds(outgoing)):
        await stream.send(outgoing)


def _read_on_seconds(outgoing: OutgoingEvent) -> float:
    return READ_ON_SECONDS + len(outgoing.event.envelope) / READ_BYTES_PER_SECOND


async def _send_next(stream: EventStream, session: Session, hub: SessionHub, position: str) -> str:
    """Send what is queued, or a heartbeat after a silence; return the client's position after it.

    Others' events move a silent client's position. With an old one it would later have the log read
    for nothing, or find that it is no longer kept.
    """
    if events := await session.take(stream.silence_seconds):
        for outgoing in events:
            if not session.may_send():
                await session.turn(len(events))
            await stream.send(outgoing)
        return events[-1].position
    newest = session.position(hub.delivered) or position
    await stream.beat(None if newest == position else newest)
    return newest


def _stream(request: web.Request, settings: StreamSettings) -> EventStream:
    """Return the stream that the client asks for.

    Raises `RequestInvalid`, `OriginRefused` or `UpgradeRequired`.
    """
    if request.body_exists:
        # It might never come in full, and a client's end shows only behind it.
        raise RequestInvalid([], "A request for events has no body.")
    if wants_websocket(request):
        # A script of any page may open a WebSocket and read it; browsers guard all other requests, and
        # let pages read those by what `cors.py` says.
        _require_origin(request, settings.origins)
        _require_subprotocol(request)
        if request.headers.getall(hdrs.SEC_WEBSOCKET_VERSION, []) != ["13"]:
            raise UpgradeRequired
        stream = WebSocketStream(settings)
        if not _is_handshake(stream, request):
            raise RequestInvalid([], "This is not a WebSocket handshake (RFC 6455, 4.2.1).")
        return stream
    if _accepts_events(request):
        return ServerSentEvents(settings)
    raise RequestInvalid([], f"Open a WebSocket here, or ask for {_EVENT_STREAM} in Accept.")


def _accepts_events(request: web.Request) -> bool:
    """Whether Accept names our stream with a weight above 0 (RFC 9110, 12.4.2)."""
    ranges = ",".join(request.headers.getall(hdrs.ACCEPT, [])).lower().split(",", RANGES_MAX)
    for media_type, _, parameters in (each.partition(";") for each in ranges[:RANGES_MAX]):
        if media_type.strip() == _EVENT_STREAM:
            return _WEIGHT_OF_ZERO.search(parameters) is None
    return False


def _is_handshake(stream: WebSocketStream, request: web.Request) -> bool:
    """Whether RFC 6455, 4.2.1 holds. aiohttp also takes HTTP/1.0, and most keys."""
    keys = request.headers.getall(hdrs.SEC_WEBSOCKET_KEY, [])
    if (
        request.version != HttpVersion11
        or len(keys) != 1
        or _WEBSOCKET_KEY.fullmatch(keys[0]) is None
    ):
        return False
    try:
        return bool(stream.response.can_prepare(request))
    except ValueError:
        # aiohttp repeats a bad field in an answer of its own, which fails for one that is not text.
        return False


def _require_origin(request: web.Request, allowed: frozenset[str]) -> None:
    """Raise `OriginRefused` for a foreign page; a client that is not a browser names no origin."""
    for origin in request.headers.getall(hdrs.ORIGIN, []):
        own = (f"http://{request.host}", f"https://{request.host}")
        if origin not in own and not {origin, "*"} & allowed:
            raise OriginRefused


def _require_subprotocol(request: web.Request) -> None:
    """Raise `RequestInvalid` for a list of subprotocols without ours; no list is fine."""
    fields = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, [])
    if fields and (len(fields) > 1 or SUBPROTOCOL not in read_subprotocols(request)):
        raise RequestInvalid([], f"Offer the subprotocol {SUBPROTOCOL}.")


def _authorization(request: web.Request) -> str | None:
    """Return the one token."""
    fields = read_authorizations(request)
    if len(fields) > 1:
        raise Unauthenticated("The request needs exactly one token.")
    return fields[0] if fields else None


def _client_place(request: web.Request, query: Mapping[str, str]) -> Place | None:
    """Return where the client's position leads. A browser reconnects with its old URL: the header is newer."""
    headers = request.headers.getall("Last-Event-ID", [])
    if len(headers) > 1:
        raise RequestInvalid([ParameterError("Last-Event-ID", "is given more than once")])
    header = headers[0] if headers else ""
    position = header or query.get("since")
    if not position:
        return None
    try:
        return Place.parse(position)
    except ValueError as error:
        name = "Last-Event-ID" if header else "since"
        invalid = ParameterError(name, "is no position that was given out here")
        raise RequestInvalid([invalid]) from error
