"""What clients are sent, byte by byte, and what operators set of it."""

from __future__ import annotations

import asyncio
import socket
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from aiohttp.test_utils import make_mocked_request

from stretto.domain import UserId
from stretto.environment import read_settings
from stretto.events.close_codes import CloseCode
from stretto.events.outgoing import OutgoingEvent
from stretto.events.session import Session
from stretto.http.event_streams import (
    UNACKNOWLEDGED_SECONDS,
    WebSocketStream,
    _bounded,
    sse_chunk,
    websocket_message,
)
from stretto.http.settings import StreamSettings
from support.live_service import UPGRADE
from support.log_events import logged, place

if TYPE_CHECKING:
    from unittest.mock import MagicMock

    from aiohttp import web

EVENT = OutgoingEvent(logged(7), str(place(8)))


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such option")
async def test_a_client_that_has_vanished_is_given_up_soon() -> None:
    """Its connection stays open for a quarter of an hour otherwise, and takes one of its user's sessions."""
    served: asyncio.Future[asyncio.WriteTransport] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda _, writer: served.set_result(writer.transport), "127.0.0.1"
    )
    async with server:
        _, client = await asyncio.open_connection(*server.sockets[0].getsockname())
        transport = await served
        _bounded(cast("web.Request", SimpleNamespace(transport=transport)))
        kernel = transport.get_extra_info("socket")
        milliseconds = kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        client.close()
        transport.close()

    assert UNACKNOWLEDGED_SECONDS * 1000 == milliseconds


async def test_a_client_that_leaves_without_a_word_leaves_no_timer_behind() -> None:
    """Nor can what still arrives, or a ping that has waited for its turn, begin one again."""
    stream, session = WebSocketStream(StreamSettings()), Session(UserId("bob"), 1e12, 1)
    response = stream.response
    async with stream.opened(handshake(), session):
        assert response._heartbeat_cb is not None
    assert response._heartbeat_cb is None
    response._reset_heartbeat()
    assert 0 == response._ping()
    assert (None, None) == (response._heartbeat_cb, response._pong_response_cb)


@pytest.mark.parametrize("is_prepared", [True, False])
async def test_a_session_that_does_not_begin_leaves_no_timer_behind(is_prepared: bool) -> None:
    """Where its client leaves while the handshake is answered, or just after that."""
    stream, session = WebSocketStream(StreamSettings()), Session(UserId("bob"), 1e12, 1)
    request = handshake()
    writer: MagicMock = request._payload_writer  # type: ignore[assignment]
    transport: MagicMock = request.transport  # type: ignore[assignment]
    if is_prepared:
        transport.set_write_buffer_limits.side_effect = ConnectionResetError
    else:
        writer.drain.side_effect = ConnectionResetError
    with pytest.raises(ConnectionResetError):
        async with stream.opened(request, session):
            pytest.fail("the session has begun")
    assert stream.response._heartbeat_when > 0
    assert stream.response._heartbeat_cb is None


def handshake() -> web.Request:
    """Return a request for a WebSocket."""
    request = make_mocked_request("GET", "/v1/events", headers=UPGRADE)
    # Of aiohttp's connection, in whose place there is a mock.
    request.protocol._timeout_ceil_threshold = 5.0
    request.protocol._message_tail = b""
    return request


def test_both_forms_carry_the_same_event_and_position() -> None:
    """The event is what it is on the bus; the position stands beside it."""
    assert websocket_message(EVENT) == b'{"position":"8.1-0a1b2c3d","event":{}}'
    assert sse_chunk(EVENT) == b"id: 8.1-0a1b2c3d\ndata: {}\n\n"


@pytest.mark.parametrize("code", CloseCode)
def test_a_reason_fits_into_a_close_frame(code: CloseCode) -> None:
    """It holds 125 bytes, the code among them (RFC 6455, 5.5)."""
    assert 0 < len(code.reason.encode()) <= 123


@pytest.mark.parametrize(
    ("expected", "setting"),
    [
        (frozenset(), ""),
        ({"*"}, "*"),
        ({"https://a.example", "http://b:81"}, " https://A.example/ ,http://b:81,"),
        ({"https://a.example", "http://[::1]"}, "https://a.example:443,http://[::1]:80/"),
        ({"https://a.example:80", "app://b:443"}, "https://a.example:080,APP://b:443"),
    ],
)
def test_origins_are_read_as_browsers_write_them(expected: set[str], setting: str) -> None:
    """In lower case, without a path, and without the port that its scheme has by default."""
    assert expected == read_settings(origins=setting).streams.origins
