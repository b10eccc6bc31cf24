"""What clients meet behind haproxy and nginx with the sample files of `deploy/`, beyond the contract."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest
from yarl import URL

from stretto.codec import BODY_BYTES_MAX
from stretto.events.hub import RETRY_AFTER_SECONDS
from stretto.events.settings import HubSettings
from support.api_client import Api, api_for, connected_api, token_of
from support.live_service import live_service
from support.proxies import running_sample
from support.raw_client import BODY, creation, creation_head
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DEADLINE_SECONDS = 60
TOKEN = token_of("alice")
PROXIES = ("haproxy", "nginx")
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
async def behind(proxy: str, folder: Path, url: str) -> AsyncIterator[Api]:
    """Open a client of a proxy before one service."""
    async with running_sample(proxy, folder, url, url) as front:
        tls = ssl.create_default_context(cafile=folder / "server.crt")
        async with connected_api(front, tls) as api:
            yield api


@asynccontextmanager
async def stream(api: Api) -> AsyncIterator[aiohttp.ClientResponse]:
    """Ask for a stream; the client hangs up at the end."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}
    url = f"{api.url}/v1/events"
    timeout = aiohttp.ClientTimeout()
    async with api.session.get(url, headers=headers, timeout=timeout) as response:
        yield response


async def left(api: Api, count: int) -> None:
    """Open and leave so many streams."""
    for _ in range(count):
        async with stream(api) as response:
            assert 200 == response.status
            assert await response.content.readline()
            # A close would leave the socket open until the proxy has ended its half of TLS.
            assert response.connection is not None
            assert response.connection.transport is not None
            response.connection.transport.abort()


async def test_streams_that_clients_have_left_count_no_longer_when_the_user_comes_again(
    database_url: str, tmp_path: Path
) -> None:
    """Behind haproxy that shows only when something is sent to them. One that reads stays."""
    settings = HubSettings(sessions_per_user=4)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url, hub=settings) as live,
        behind("haproxy", tmp_path, live.api.url) as api,
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
