"""What is a WebSocket handshake (RFC 6455, 4.2.1), and what is none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from stretto.events.close_codes import CloseCode
from stretto.http.few_frames import QuietWebSocket
from stretto.http.settings import StreamSettings
from support.api_client import token_of
from support.live_service import live_service, session_tasks
from support.raw_client import PING, raw_clients

if TYPE_CHECKING:
    from support.live_service import LiveService

DEADLINE_SECONDS = 60
# Empty ones, the client's with a mask (RFC 6455, 5.2).
PING_FRAME, PONG_FRAME = b"\x89\x80\0\0\0\0", b"\x8a\0"
# With a code of the client's own, and a mask that changes nothing.
CLOSE_FRAME = b"\x88\x82\0\0\0\0" + (4000).to_bytes(2)
KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
VERSION = "Sec-WebSocket-Version: 13"
HANDSHAKE = "\r\n".join(
    (
        "GET /v1/events HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token_of('bob')}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        VERSION,
        KEY,
        "\r\n",
    )
)
STREAM = HANDSHAKE.replace("Connection: Upgrade\r\nUpgrade: websocket", "Accept: text/event-stream")
GOOD = {
    "usual": ("", ""),
    "other letters": ("Upgrade: websocket", "upgrade: WebSocket"),
    "another option": ("Connection: Upgrade", "Connection: keep-alive, Upgrade"),
    # Its last bits are not 0: RFC 6455 has it as an example.
    "odd end of the key": (KEY, "Sec-WebSocket-Key: AQIDBAUGBwgJCgsMDQ4PEC=="),
    "empty body": (VERSION, f"{VERSION}\r\nContent-Length: 0"),
}
BAD = {
    "HTTP/1.0": (400, "HTTP/1.1", "HTTP/1.0"),
    "POST": (405, "GET", "POST"),
    "no upgrade": (400, "Connection: Upgrade", "Connection: keep-alive"),
    "version 8": (426, VERSION, "Sec-WebSocket-Version: 8"),
    "version 14": (426, VERSION, "Sec-WebSocket-Version: 14"),
    "versions": (426, VERSION, "Sec-WebSocket-Version: 13, 8"),
    "version twice": (426, VERSION, f"{VERSION}\r\n{VERSION}"),
    "no version": (426, VERSION, "X: x"),
    "no key": (400, KEY, "X: x"),
    "key twice": (400, KEY, f"{KEY}\r\n{KEY}"),
    "short key": (400, KEY, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAA"),
    "long key": (400, KEY, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAAA="),
    # A lenient decoder leaves out what is not base64.
    "key of other letters": (400, KEY, "Sec-WebSocket-Key: AAAAAAAAAAA AAAAAAAAAAA=="),
    "key for URLs": (400, KEY, "Sec-WebSocket-Key: AAAAAAAAAAA-_AAAAAAAAAA=="),
    "key without an end": (400, KEY, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA"),
    "body": (400, f"{KEY}\r\n\r\n", f"{KEY}\r\nContent-Length: 2\r\n\r\n{{}}"),
    "chunks": (400, f"{KEY}\r\n\r\n", f"{KEY}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "part of a body": (400, f"{KEY}\r\n\r\n", f"{KEY}\r\nContent-Length: 2\r\n\r\n{{"),
}


@pytest.mark.parametrize(("old", "new"), GOOD.values(), ids=GOOD)
async def test_a_handshake_opens_a_session(old: str, new: str, live: LiveService) -> None:
    """However its client writes it."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(HANDSHAKE.replace(old, new, 1).encode())
        await client.until(b"HTTP/1.1 101 ")
        await client.until(b'{"position":')
        client.send(PING_FRAME)
        await client.until(PONG_FRAME)


async def test_a_handshake_opens_a_session_behind_another_request(live: LiveService) -> None:
    """That one's answer is not taken for that to the handshake."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(PING + HANDSHAKE.encode() + PING_FRAME)
        assert 200 == (await client.answer())[0]
        await client.until(b"HTTP/1.1 101 ")
        await client.until(PONG_FRAME)


async def test_a_session_ends_with_a_client_that_leaves_without_a_frame(database_url: str) -> None:
    """It has sent nothing since its handshake, and closes its half: no keep-alive is waited for."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url, streams=StreamSettings(heartbeat_seconds=3600)) as live,
        raw_clients(live.api.url) as raw,
    ):
        client = await raw.connect(HANDSHAKE.encode())
        await client.until(b'{"position":')
        client.transport.write_eof()
        await client.closed()
        await live.emptied()


@pytest.mark.parametrize(("status", "old", "new"), BAD.values(), ids=BAD)
async def test_what_is_no_handshake_opens_none(
    status: int, old: str, new: str, live: LiveService
) -> None:
    """Its answer is the connection's last, and says which version is spoken where that is asked."""
    assert old in HANDSHAKE
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(HANDSHAKE.replace(old, new, 1).encode())
        found, headers, _ = await client.answer()
        assert status == found
        named = {name: headers.get(name) for name in ("upgrade", "sec-websocket-version")}
        if status == 426:
            assert {"upgrade": "websocket", "sec-websocket-version": "13"} == named
        else:
            assert {None} == {*named.values()}
        if new != "Connection: keep-alive":
            assert status == 426 or "1.0" in new or headers["connection"] == "close"
            assert b"" == await client.closed()
        assert (0, []) == (len(live.hub), session_tasks())


@pytest.mark.parametrize("body", ["Content-Length: 1", "Transfer-Encoding: chunked"])
async def test_a_stream_opens_behind_no_body(body: str, live: LiveService) -> None:
    """Nothing would show that its client has left, as long as the body has not come in full."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(STREAM.replace(VERSION, body).encode())
        status, headers, _ = await client.answer()
        assert (400, "close") == (status, headers["connection"])
        assert b"" == await client.closed()
        assert (0, []) == (len(live.hub), session_tasks())


async def test_a_stream_opens_without_a_body(live: LiveService) -> None:
    """The twin."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(STREAM.replace(VERSION, "Content-Length: 0").encode())
        await client.until(b"HTTP/1.1 200 ")


async def test_the_connection_ends_when_the_client_has_answered_the_close(
    live: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that finds it closed before may keep the code from the client (RFC 6455, 7.1.1)."""
    answered: list[int | None] = []
    close = QuietWebSocket.close

    async def close_and_note(response: QuietWebSocket, **options: Any) -> bool:
        is_first = await close(response, **options)
        # aiohttp closes again as it ends the answer.
        if is_first:
            answered.append(response.close_code)
        return is_first

    monkeypatch.setattr(QuietWebSocket, "close", close_and_note)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(HANDSHAKE.encode())
        await client.until(b'{"position":')
        stopping = asyncio.create_task(live.app.shutdown())
        await client.until(CloseCode.GOING_AWAY.to_bytes(2))
        client.send(CLOSE_FRAME)
        await stopping
        await client.closed()
    assert [4000] == answered
