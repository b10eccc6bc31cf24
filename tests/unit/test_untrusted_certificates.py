"""A server whose certificate is not trusted: each of those who call a host says so in words."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import aiohttp
import pytest
from aiohttp import web

from stretto import StrettoClient
from stretto.errors import Overloaded
from stretto.http.tokens import jwks
from stretto.network import network_failure
from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.rules import NotConnected, WebhookSettings
from support.certificate import make_certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

REASON = "TLS failed (the certificate is not accepted: self-signed certificate)"


@pytest.fixture
async def untrusted(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a server with a certificate that it has signed itself."""
    async with serving_tls(*make_certificate(tmp_path)) as url:
        yield url


@asynccontextmanager
async def serving_tls(certificate: Path, key: Path) -> AsyncIterator[str]:
    """Serve; yields the URL."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_webhook_reports_the_certificate(untrusted: str) -> None:
    """It is tried again: the certificate may be mended."""
    settings = WebhookSettings(
        webhook_url=untrusted, webhook_secret=(b"x",), webhook_allow_private=True
    )
    async with WebhookEndpoint(settings) as endpoint:
        assert NotConnected(REASON) == await endpoint.send(UUID(int=1), b"{}")


async def test_the_issuers_keys_report_the_certificate(
    untrusted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No token can be checked, and the log says why."""
    async with jwks.KeySet(untrusted, time.monotonic, lambda _: None) as keys:
        with pytest.raises(Overloaded):
            await keys.keys(None, None)
    assert [REASON] == [vars(record)["cause"] for record in caplog.records]


async def test_a_client_reports_the_certificate(untrusted: str) -> None:
    """Its time is up, and this is the last thing that it has seen."""
    async with aiohttp.ClientSession() as session:
        client = StrettoClient(session, untrusted, "token")
        with pytest.raises(TimeoutError, match="certificate is not accepted: self-signed"):
            await client.create_group("Team", timeout_seconds=1)


async def test_a_certificate_of_another_host_names_no_address(tmp_path: Path) -> None:
    """The library's text repeats the address, which may hold a secret."""
    certificate, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=certificate)
    async with serving_tls(certificate, key) as url, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError) as refused:
            await session.get(url.replace("127.0.0.1", "localhost"), ssl=trusting)
    expected = "TLS failed (the certificate is not accepted: Hostname mismatch)"
    assert expected == network_failure(refused.value)


async def test_a_server_that_speaks_no_tls_is_reported(unused_tcp_port: int) -> None:
    """The library says in its own way what has failed."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", unused_tcp_port)
    async with server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorSSLError) as refused:
            await session.get(f"https://127.0.0.1:{unused_tcp_port}")
    assert network_failure(refused.value).startswith("TLS failed (")
    assert "127.0.0.1" not in network_failure(refused.value)
