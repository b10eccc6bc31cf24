"""Live sessions over WebSocket and SSE: which session gets what, and how sessions end."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import WSServerHandshakeError, web
from multidict import CIMultiDict

from stretto.assembly.application import create_app
from stretto.events.close_codes import CloseCode
from stretto.events.log import CommittedEvent, LoggedEvent
from stretto.events.place import History
from stretto.events.settings import HubSettings
from stretto.http.event_streams import SUBPROTOCOL
from stretto.http.service import SERVICE
from stretto.http.settings import StreamSettings
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, TOKEN_SECONDS, connected_api, token_of
from support.live_service import (
    DEADLINE_SECONDS,
    STREAM,
    UPGRADE,
    LiveService,
    MuteClient,
    live_service,
    session_tasks,
)
from support.waiting import until

if TYPE_CHECKING:
    from support.database import Connection

TOKEN = f"stretto.token.{token_of('bob')}"
# Shorter than is allowed, and longer than a busy machine lets a client wait with its pong.
HEARTBEAT = StreamSettings(heartbeat_seconds=0.25)


async def test_every_session_of_every_member_hears_of_a_group(
    live: LiveService, connection: Connection
) -> None:
    """Over either way, with the same event; no other user is."""
    async with (
        live.websocket("bob") as first,
        live.websocket("bob") as second,
        live.sse("carol") as third,
        live.websocket("mallory") as stranger,
    ):
        for client in (first, second, stranger):
            assert (await client.next()).keys() == {"position"}
        assert (await third.next()).id
        group = await live.create("k")
        await live.tail_once()
        one, two, three = await first.next(), await second.next(), await third.next()
        assert one == two == {"position": three.id, "event": three.json}
        assert ("message", "1.0", "group.created", group) == (
            three.type,
            one["event"]["specversion"],
            one["event"]["type"],
            one["event"]["subject"],
        )
        await stranger.socket.close()
        assert stranger.socket.close_code == CloseCode.CLIENT_LEFT
    await live.emptied()


async def test_a_browser_hands_its_token_over_among_the_subprotocols(live: LiveService) -> None:
    """It has no other place; ours is the one that is agreed on."""
    async with live.websocket(headers={}, protocols=(SUBPROTOCOL, TOKEN)) as client:
        assert SUBPROTOCOL == client.socket.protocol
        assert (await client.next()).keys() == {"position"}


async def test_nothing_is_compressed_even_if_the_client_offers_it(live: LiveService) -> None:
    """A compressor would cost each session more than all the rest of it."""
    async with live.websocket(compress=15) as client:
        assert 0 == client.socket.compress
        assert await client.next()
    headers = {"Accept_Encoding": "gzip, deflate"}
    async with live.sse(**headers) as reader:
        assert "Content-Encoding" not in reader.response.headers
        assert (await reader.next()).id


@pytest.mark.parametrize(
    ("status", "code", "headers"),
    [
        (401, "unauthenticated", {**UPGRADE, "Authorization": ""}),
        (401, "unauthenticated", {**STREAM, "Authorization": ""}),
        (401, "unauthenticated", {**UPGRADE, "Sec-WebSocket-Protocol": f"{SUBPROTOCOL}, {TOKEN}"}),
        (403, "origin_refused", {**UPGRADE, "Origin": "https://evil.example"}),
        (403, "origin_refused", {**UPGRADE, "Origin": "null"}),
        (400, "request_invalid", {**UPGRADE, "Sec-WebSocket-Protocol": "chat, superchat"}),
        (401, "unauthenticated", {**UPGRADE, "Sec-WebSocket-Protocol": TOKEN}),
        (426, "upgrade_required", {**UPGRADE, "Sec-WebSocket-Version": "12"}),
        (400, "request_invalid", {**UPGRADE, "Sec-WebSocket-Key": "short"}),
        (400, "request_invalid", {"Accept": "*/*"}),
        (400, "request_invalid", {**STREAM, "Last-Event-ID": "7"}),
        (400, "request_invalid", {**STREAM, "Last-Event-ID": f"{2**64}.00000000"}),
    ],
)
async def test_what_is_refused_before_the_stream_is_a_problem(
    live: LiveService,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
    headers: dict[str, str],
) -> None:
    """It leaves nothing behind, and no token in any log."""
    reply = await live.api.get("/v1/events", user="bob", headers=headers)
    assert (status, code) == (reply.status, reply.json["code"])
    assert (0, []) == (len(live.hub), session_tasks())
    assert not any(record.levelname == "WARNING" for record in caplog.records)


async def test_a_position_that_is_given_twice_is_refused(live: LiveService) -> None:
    """To ignore one of them would skip events, or send some again."""
    fields = CIMultiDict({**STREAM, "Authorization": f"Bearer {token_of('bob')}"})
    for _ in range(2):
        fields.add("Last-Event-ID", "")
    async with live.api.session.get(f"{live.api.url}/v1/events", headers=fields) as response:
        document = await response.json(content_type=None)
        assert (400, "Last-Event-ID") == (response.status, document["errors"][0]["parameter"])


async def test_pages_of_allowed_origins_may_connect(database_url: str) -> None:
    """Our own, and those of the setting."""
    streams = StreamSettings(origins=frozenset({"https://chat.example"}))
    async with live_service(database_url, streams=streams) as live:
        for origin in (live.api.url, "https://chat.example"):
            async with live.websocket(origin=origin) as client:
                assert await client.next()
        with pytest.raises(WSServerHandshakeError) as refused:
            async with live.websocket(origin="https://chat.example.evil"):
                pass
        assert refused.value.status == 403


async def test_a_user_and_a_process_have_so_many_sessions(database_url: str) -> None:
    """More are asked to wait; one that ends makes room."""
    settings = HubSettings(sessions_max=3, sessions_per_user=2)
    async with live_service(database_url, hub=settings) as live:
        async with live.websocket("bob"), live.sse("bob"):
            reply = await live.api.get("/v1/events", user="bob", headers=STREAM)
            assert (429, "rate_limited") == (reply.status, reply.json["code"])
            async with live.websocket("carol"):
                reply = await live.api.get("/v1/events", user="dave", headers=STREAM)
                assert (503, "overloaded") == (reply.status, reply.json["code"])
                assert int(reply.headers["Retry-After"]) > 0
        await live.emptied()
        async with live.websocket("bob") as client:
            assert await client.next()


FRAMES = {
    # Masked by zeros, so that they are what they look like.
    "text": (1003, b"\x81\x82\0\0\0\0hi"),
    "binary": (1003, b"\x82\x82\0\0\0\0hi"),
    "oversized": (1009, b"\x81\xfe\x10\x00\0\0\0\0" + b"x" * 4096),
    "not UTF-8": (1007, b"\x81\x82\0\0\0\0\xff\xff"),
    "reserved bits": (1002, b"\xf1\x82\0\0\0\0hi"),
    "unknown opcode": (1002, b"\x83\x82\0\0\0\0hi"),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_a_frame_that_should_not_come_closes_the_session(
    live: LiveService, connection: Connection, name: str
) -> None:
    """With the code of its error, and leaves nothing; others go on."""
    code, frame = FRAMES[name]
    async with live.websocket("bob") as other, live.websocket("bob") as client:
        await client.next()
        client.socket._writer.transport.write(frame)
        assert code == await client.close_code()
        await live.create("k")
        await live.tail_once()
        await other.next()
        assert "event" in await other.next()
    await live.emptied()


async def test_a_client_that_vanishes_leaves_nothing_behind(live: LiveService) -> None:
    """Whether it says goodbye or not."""
    async with live.websocket() as client, live.sse() as reader:
        await client.next()
        await reader.next()
        assert len(live.hub) == 2
        client.socket._writer.transport.abort()
        reader.response.close()
        await live.emptied()


async def test_a_client_that_vanishes_is_noticed_in_a_host_that_cancels_no_handlers(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next keep-alive, which is not read."""
    # Shorter than is allowed: the test would take seconds.
    monkeypatch.setattr("stretto.assembly.application.require_settings", lambda _: None)
    app = create_app(
        dsn=database_url,
        tokens=TokenSettings(jwt_secret=SECRET),
        streams=HEARTBEAT,
    )
    runner = web.AppRunner(app, handler_cancellation=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with connected_api(f"http://127.0.0.1:{runner.addresses[0][1]}") as api:
        live = LiveService(api, app)
        async with live.sse() as reader, live.websocket() as client:
            await reader.next()
            await client.next()
            assert len(live.hub) == 2
            reader.response.close()
            client.socket._writer.transport.abort()
            await live.emptied()
    await runner.cleanup()


def large_event() -> LoggedEvent:
    """Return an event of bob's that fills buffers, and that no place of this log covers."""
    event = CommittedEvent(uuid.uuid4(), ("bob",), b'{"fill":"%b"}' % (b"x" * 20_000))
    return LoggedEvent(event, History(1000, "00000000"), 1)


@pytest.mark.parametrize("headers", [UPGRADE, STREAM], ids=["WebSocket", "SSE"])
async def test_a_session_that_never_reads_is_closed_and_delays_no_other(
    database_url: str, connection: Connection, headers: dict[str, str]
) -> None:
    """Even its connection goes, although it does not take its goodbye."""
    async with (
        live_service(database_url, hub=HubSettings(session_events_max=8)) as live,
        MuteClient(live, headers),
        live.websocket("bob") as reader,
    ):
        await reader.next()
        await until(lambda: len(live.hub) >= 2)
        async with asyncio.timeout(DEADLINE_SECONDS):
            # Until kernel and process hold no more for it, its queue stays empty.
            while len(live.hub) == 2:
                live.hub.deliver(large_event(), "2.1000-00000000")
                assert "event" in await reader.next()
        assert len(live.hub) == 1
        await live.create("last")
        await live.tail_once()
        assert "event" in await reader.next()
        metrics = (await live.api.get("/metrics")).body.decode()
        assert 'stretto_sessions_ended_total{code="4408"} 1.0' in metrics
    assert session_tasks() == []


async def test_a_session_ends_with_its_token(live: LiveService) -> None:
    """By the hub's clock, over both ways; sessions of longer tokens go on."""
    now = time.time()
    async with live.websocket("bob") as client, live.sse("carol") as reader:
        await client.next()
        await reader.next()
        assert await live.hub.run_once() == 0
        live.hub._clock_seconds = lambda: now + TOKEN_SECONDS - 1
        assert await live.hub.run_once() == 0
        live.hub._clock_seconds = lambda: now + TOKEN_SECONDS + 1
        assert await live.hub.run_once() == 2
        assert CloseCode.TOKEN_ENDED == await client.close_code()
        goodbye = await reader.next()
        assert ("close", CloseCode.TOKEN_ENDED) == (goodbye.type, goodbye.json["code"])
        with pytest.raises(EOFError):
            await reader.next()
    await live.emptied()


async def test_a_session_ends_with_the_key_of_its_token(live: LiveService) -> None:
    """Once the issuer's keys lack it, over both ways; while there are sessions, the keys are read."""
    authenticator = live.app[SERVICE].authenticator
    assert authenticator.refresh_keys == live.hub.on_tick
    assert authenticator._keys
    async with live.websocket("bob") as client, live.sse("carol") as reader:
        await client.next()
        await reader.next()
        authenticator._keys_changed(())
        assert len(live.hub) == 2
        authenticator._keys_changed(authenticator._keys)
        assert CloseCode.TOKEN_ENDED == await client.close_code()
        goodbye = await reader.next()
        assert ("close", CloseCode.TOKEN_ENDED) == (goodbye.type, goodbye.json["code"])
    await live.emptied()


async def test_at_the_stop_sessions_are_sent_away(live: LiveService) -> None:
    """With 1001, or the event that says the same; no session is accepted any more."""
    async with live.websocket("bob") as client, live.sse("carol") as reader:
        await client.next()
        await reader.next()
        stopping = asyncio.create_task(live.app.shutdown())
        assert CloseCode.GOING_AWAY == await client.close_code()
        goodbye = await reader.next()
        assert ("close", CloseCode.GOING_AWAY) == (goodbye.type, goodbye.json["code"])
        await stopping
        assert (0, []) == (len(live.hub), session_tasks())
        refused = await live.api.get("/v1/events", headers=STREAM)
        assert (503, "overloaded") == (refused.status, refused.json["code"])


async def test_a_mute_client_does_not_hold_the_stop_up(live: LiveService) -> None:
    """Its goodbye is waited for, but not for long."""
    async with MuteClient(live, UPGRADE):
        await until(lambda: len(live.hub))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await live.app.shutdown()
        assert (0, []) == (len(live.hub), session_tasks())


async def test_a_silent_clients_position_moves_with_the_events_of_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over both ways; once for each new position, and it can be resumed."""
    # Shorter than is allowed: the test would take seconds.
    monkeypatch.setattr("stretto.assembly.application.require_settings", lambda _: None)
    async with live_service(database_url, streams=HEARTBEAT) as live:
        async with live.sse("dave") as reader, live.websocket("dave") as client:
            old = await client.next()
            assert old["position"] == (await reader.next()).id
            await live.create("k")
            await live.tail_once()
            new = await client.next()
            assert {"position"} == {*new}
            assert old != new
            while (block := await reader.next()).id is None:
                assert "" == block.comment
            assert (new["position"], "") == (block.id, block.data)
            assert "" == (await reader.next()).comment
        async with live.websocket("bob", since=new["position"]) as later:
            assert new == await later.next()
            subject = await live.create("next")
            await live.tail_once()
            while "event" not in (message := await later.next()):
                pass
            assert subject == message["event"]["subject"]


async def test_a_silent_session_is_given_signs_of_life(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment, or a ping; who does not answer a ping is gone."""
    # Shorter than is allowed: the test would take seconds.
    monkeypatch.setattr("stretto.assembly.application.require_settings", lambda _: None)
    async with live_service(database_url, streams=HEARTBEAT) as live:
        async with live.sse() as reader:
            await reader.next()
            assert (await reader.next()).comment == ""
        async with live.websocket(autoping=False) as client:
            await client.next()
            for _ in range(3):
                ping = await client.socket.receive()
                assert aiohttp.WSMsgType.PING == ping.type
                assert len(live.hub) == 1
                await client.socket.pong(ping.data)
            await live.emptied()
