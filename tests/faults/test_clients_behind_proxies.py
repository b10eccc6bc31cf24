"""What clients meet behind haproxy and nginx with the sample files of `deploy/`, beyond the contract."""

from __future__ import annotations

import asyncio
import ctypes
import re
import socket
import ssl
import struct
import sys
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest
from yarl import URL

from stretto import StrettoClient
from stretto.codec import BODY_BYTES_MAX
from stretto.events.hub import RETRY_AFTER_SECONDS
from stretto.events.settings import HubSettings
from stretto.http.settings import StreamSettings
from support.api_client import Api, api_for, connected_api, token_of
from support.live_service import live_service
from support.proxies import running_sample
from support.raw_client import BODY, creation, creation_head
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

DEADLINE_SECONDS = 60
TOKEN = token_of("alice")
PROXIES = ("haproxy", "nginx")
SILENT = StreamSettings(heartbeat_seconds=3600)
# Shorter than asyncio waits for the other side's end of TLS: 30 s.
AT_ONCE_SECONDS = 20
# Linux's own number, and a program of one instruction for its packet filter: keep no byte of a packet.
SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)
# What nginx would refuse by itself, unless it is told otherwise: more than 1 MiB.
LARGE_BYTES = 3 * 2**20
TOO_LARGE = {
    "length": creation_head(TOKEN, "k") + b"Content-Length: %d\r\n\r\n" % LARGE_BYTES,
    "chunks": creation_head(TOKEN, "k")
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n" % (2 * BODY_BYTES_MAX, b" " * 2 * BODY_BYTES_MAX),
    "without a token": creation_head("no token", "k") + b"Content-Length: %d\r\n\r\n" % LARGE_BYTES,
}


@asynccontextmanager
async def behind(
    proxy: str, folder: Path, url: str, paces: Mapping[str, str] | None = None
) -> AsyncIterator[Api]:
    """Open a client of a proxy before one service."""
    async with running_sample(proxy, folder, url, url, paces=paces) as front:
        tls = ssl.create_default_context(cafile=folder / "server.crt")
        async with connected_api(front, tls) as api:
            yield api


@asynccontextmanager
async def stream(api: Api) -> AsyncIterator[aiohttp.ClientResponse]:
    """Ask for a stream; the client closes it at the end."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}
    url = f"{api.url}/v1/events"
    timeout = aiohttp.ClientTimeout()
    async with api.session.get(url, headers=headers, timeout=timeout) as response:
        yield response


def transport_of(response: aiohttp.ClientResponse) -> asyncio.Transport:
    """Return the transport of a response that goes on."""
    assert response.connection is not None
    assert response.connection.transport is not None
    return response.connection.transport


async def left(api: Api, count: int) -> None:
    """Open and leave so many streams."""
    for _ in range(count):
        async with stream(api) as response:
            assert 200 == response.status
            # All that came: what a client leaves unread makes its end a reset.
            await response.content.readuntil(b"\n\n")
            # A close would leave the socket open until the proxy has ended its half of TLS.
            transport_of(response).abort()


async def test_streams_that_clients_have_left_count_no_longer_when_the_user_comes_again(
    database_url: str, tmp_path: Path
) -> None:
    """By default haproxy notices only when something is sent to them. One that reads stays."""
    settings = HubSettings(sessions_per_user=4)
    by_default = {"    option abortonclose\n": ""}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url, hub=settings) as live,
        behind("haproxy", tmp_path, live.api.url, by_default) as api,
        stream(api) as staying,
    ):
        assert 200 == staying.status
        await left(api, 3)
        async with stream(api) as refused:
            assert 429 == refused.status
            assert str(RETRY_AFTER_SECONDS) == refused.headers["Retry-After"]
        async with asyncio.timeout(RETRY_AFTER_SECONDS):
            await until(lambda: len(live.hub) == 1)
        async with stream(api) as again:
            assert 200 == again.status
            assert 2 == len(live.hub)


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_stream_that_its_client_has_left_ends_before_anything_is_sent_to_it(
    proxy: str, database_url: str, tmp_path: Path
) -> None:
    """It would keep its place among those of its address and its user until a heartbeat."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url, streams=SILENT) as live,
        behind(proxy, tmp_path, live.api.url) as api,
        stream(api),
    ):
        await left(api, 1)
        await until(lambda: len(live.hub) == 1)


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_stream_of_our_client_ends_when_its_events_are_closed(
    proxy: str, database_url: str, tmp_path: Path
) -> None:
    """Within TLS, nginx does not see an end while it has nothing to send."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url, streams=SILENT) as live,
        behind(proxy, tmp_path, live.api.url) as api,
    ):
        async with aclosing(StrettoClient(api.session, api.url, TOKEN).events()) as events:
            await anext(events)
            assert 1 == len(live.hub)
        await until(lambda: not live.hub, AT_ONCE_SECONDS)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such option")
async def test_a_client_that_has_vanished_is_given_up_soon_behind_haproxy(
    database_url: str, tmp_path: Path
) -> None:
    """The service's own bound holds for the proxy, which acknowledges all that it gets."""
    heartbeats = StreamSettings(heartbeat_seconds=1)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url, streams=heartbeats) as live,
        behind("haproxy", tmp_path, live.api.url, {"tcp-ut 30s": "tcp-ut 1s"}) as api,
        stream(api) as response,
    ):
        await response.content.readuntil(b"\n\n")
        assert 1 == len(live.hub)
        instruction = ctypes.create_string_buffer(DROP_ALL)
        program = struct.pack("HP", 1, ctypes.addressof(instruction))
        client = transport_of(response).get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        await until(lambda: not live.hub)
        # Nothing else ends it: it does not hear that its connection was given up.
        transport_of(response).abort()


async def answer_to(request: bytes, api: Api) -> tuple[int, Any]:
    """Send bytes as they are; return the answer's status and document.

    A busy machine may fail haproxy's checks, 100 ms apart here: it answers 503 by itself then.
    """
    place = URL(api.url)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    assert length is not None, head
    document = await reader.readexactly(int(length[1]))
    writer.close()
    status = int(head.split(b" ", 2)[1])
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return await answer_to(request, api)
    assert status == HTTPStatus.CREATED or b"/problem+json" in head, head
    return status, orjson.loads(document)


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_body_that_is_too_large_is_refused_by_the_service_itself(
    proxy: str, database_url: str, tmp_path: Path
) -> None:
    """With a problem document, by its length or as it arrives; the largest that is allowed passes."""
    answered = {}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as service,
        behind(proxy, tmp_path, service.url) as api,
    ):
        for name, request in TOO_LARGE.items():
            status, document = await answer_to(request, api)
            answered[name] = (status, document["code"])
        largest = creation(TOKEN, "k", BODY.ljust(BODY_BYTES_MAX))
        assert 201 == (await answer_to(largest, api))[0]
    assert {
        "length": (413, "body_too_large"),
        "chunks": (413, "body_too_large"),
        "without a token": (401, "unauthenticated"),
    } == answered
