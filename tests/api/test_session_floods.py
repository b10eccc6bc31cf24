"""A client may send few frames into its session, whatever they are."""

from __future__ import annotations

import asyncio

import pytest

from stretto.events.close_codes import CloseCode
from stretto.http.few_frames import FRAME_BYTES_MAX
from support.api_client import token_of
from support.live_service import DEADLINE_SECONDS, UPGRADE, LiveService
from support.raw_client import raw_clients

BEGUN = (
    f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_of('eve')}\r\n"
    + "".join(f"{field}: {value}\r\n" for field, value in UPGRADE.items())
    + "\r\n"
).encode()
# Masked by zeros, so that they are what they look like.
PING, PONG = b"\x89\x80\0\0\0\0", b"\x8a\0"
FLOODS = {
    "pings": PING * 20_000,
    "replies": b"\x8a\x80\0\0\0\0" * 20_000,
    "parts of a message": b"\x01\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * 20_000,
}


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("name", FLOODS)
async def test_a_client_that_floods_its_session_with_frames_is_sent_away(
    live: LiveService, name: str, is_early: bool
) -> None:
    """Few of them are read, also of those that come with the request; others go on."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live.websocket("bob") as other,
        raw_clients(live.api.url) as raw,
    ):
        await other.next()
        client = await raw.connect(BEGUN + FLOODS[name] if is_early else BEGUN)
        if not is_early:
            await client.until(b'"position"')
            client.send(FLOODS[name])
        answered = await client.closed()
        assert b"\x03\xf0" + CloseCode.TOO_MANY_FRAMES.reason.encode() in answered
        assert answered.count(PONG) <= FRAME_BYTES_MAX // 2
        assert len(live.hub) == 1
    await live.emptied()


@pytest.mark.parametrize(
    ("bad", "is_early"),
    [
        (b"\x89\0", True),
        (b"\x89\0" * 60_000, False),
        (b"\x81\x02hi", False),
        (b"\x88\x02\x03\xe8", True),
    ],
    ids=["ping", "pings", "text", "close"],
)
async def test_a_frame_without_a_mask_ends_its_session(
    live: LiveService, bad: bytes, is_early: bool
) -> None:
    """Whatever it is, and before it is read: a ping gets no reply (RFC 6455, 5.1)."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(BEGUN + bad if is_early else BEGUN)
        if not is_early:
            await client.until(b'"position"')
            client.send(PING)
            await client.until(PONG)
            client.send(bad)
        answered = await client.closed()
        assert b"\x03\xea" + CloseCode.BAD_FRAME.reason.encode() in answered
        assert PONG not in answered
    await live.emptied()


@pytest.mark.parametrize("target", [b"/v1/event%73", b"http://x/v1/events", b"/v1/events?since="])
async def test_a_session_hears_its_client_however_its_target_is_spelled(
    target: bytes, live: LiveService
) -> None:
    """What the router takes for a session's path is read as a session."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(BEGUN.replace(b"/v1/events", target))
        await client.until(b'"position"')
        client.send(PING)
        await client.until(PONG)
        client.transport.abort()
        await live.emptied()


async def test_a_client_that_pings_now_and_then_is_answered(live: LiveService) -> None:
    """Clients have heartbeats of their own."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(live.api.url) as raw:
        client = await raw.connect(BEGUN)
        await client.until(b'"position"')
        for _ in range(10):
            client.send(PING)
            await client.until(PONG)
        assert not client.is_closed
