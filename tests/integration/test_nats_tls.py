"""What `tls://` in STRETTO_NATS_URL asks for: no password without TLS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest
from nats.aio.client import Srv
from nats.errors import Error

from stretto.nats.connection import NatsConnection, TlsClient
from stretto.observations import BusFailed
from stretto.runtime.actor import TryAgain
from stretto.runtime.runner import Runner
from support.certificate import make_certificate
from support.nats_process import NatsProcess

if TYPE_CHECKING:
    from pathlib import Path

    from stretto.observations import Observation

DEADLINE_SECONDS = 60
INFO = b'INFO {"server_id":"x","version":"2.12.0","headers":true,"auth_required":true}\r\n'


REFUSAL = b"-ERR 'Authorization Violation'\r\n"


async def failure(url: str) -> str:
    """Try to connect once; return what is reported."""
    observed: list[Observation] = []
    with pytest.raises(TryAgain):
        await NatsConnection(url, observed.append).run_once()
    (only,) = observed
    assert isinstance(only, BusFailed)
    return only.cause


@pytest.mark.parametrize(
    ("scheme", "sent", "cause"),
    [("tls", b"", "the server offers no TLS"), ("nats", b"CONNECT ", "nats: 'Authorization V")],
)
async def test_a_server_without_tls_is_sent_no_password(
    scheme: str, sent: bytes, cause: str
) -> None:
    """The server that answers may demand no TLS; with `nats://` the password is sent as ever."""
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        line = await reader.readline()
        writer.write(REFUSAL)
        writer.close()
        if not received.done():
            received.set_result(line)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(DEADLINE_SECONDS):
        assert (await failure(f"{scheme}://u:secret@127.0.0.1:{port}")).startswith(cause)
        assert sent == (await received)[:8]


@pytest.mark.parametrize("options", [(), ("allow_non_tls: true",)])
async def test_a_server_with_tls_is_used_if_its_certificate_is_trusted(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that would do without TLS, but offers it."""
    certificate, key = make_certificate(tmp_path)
    conf = tmp_path / "nats.conf"
    lines = (f"tls {{cert_file: '{certificate}', key_file: '{key}'}}", *options)
    conf.write_text("\n".join(lines))
    async with NatsProcess(tmp_path / "js", "--config", str(conf)) as server:
        url = server.url.replace("nats://", "tls://")
        assert "certificate" in (await failure(url)).lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        connection = NatsConnection(url, lambda _: None)
        async with Runner(lambda _: None) as runner, asyncio.timeout(DEADLINE_SECONDS):
            runner.start(connection)
            await connection.linked()


async def test_a_plain_websocket_is_no_tls_whatever_its_server_says() -> None:
    """The client could not start TLS on it, and would go on without."""
    client = TlsClient()
    client._current_server = Srv(urlparse("ws://127.0.0.1:1"))
    with pytest.raises(Error, match="the server offers no TLS"):
        await client._process_info({"tls_required": True}, initial_connection=True)
