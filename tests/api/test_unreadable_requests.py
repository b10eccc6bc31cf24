"""What no handler ever sees is answered as the contract has it all the same."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson
import pytest

from support.api_client import token_of
from support.raw_client import creation_head, raw_clients

if TYPE_CHECKING:
    from support.api_client import Api

DEADLINE_SECONDS = 30
HEAD = creation_head(token_of("alice"), "k")
BROKEN = b"\x78\x9c broken"
CUT_OFF = gzip.compress(b'{"name":"x"}')[:-8]


async def raw(api: Api, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; return status, headers and body of the answer, an HTTP/1.1 one."""
    url = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *fields = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (f.split(": ", 1) for f in fields)}
    body = await reader.readexactly(int(headers["content-length"]))
    writer.close()
    await writer.wait_closed()
    assert status.startswith("HTTP/1.1 ")
    return int(status.split()[1]), headers, body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/0.9\r\nHost: x\r\n\r\n",
        b"GET /livez\r\n\r\n",
        HEAD + b"X-Long: " + b"x" * 10_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n",
        b"GET http://xn--a/livez HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://a@xn--a/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT xn--a:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(BROKEN) + BROKEN,
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(CUT_OFF) + CUT_OFF,
        HEAD
        + b"Content-Encoding: deflate\r\nContent-Length: 10\r\n\r\n"
        + zlib.compress(b"{}" * 99)[:10],
    ],
)
async def test_an_unreadable_request_is_answered_with_a_problem(
    request_bytes: bytes, api: Api
) -> None:
    """400 as a document, never plain text, and never an internal error."""
    status, headers, body = await raw(api, request_bytes)
    assert status == 400
    assert headers["content-type"] == "application/problem+json"
    assert (400, "request_invalid", "never") == tuple(
        orjson.loads(body)[name] for name in ("status", "code", "retry")
    )


async def test_a_connection_that_nothing_answers_any_more_is_closed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has ended the task that did: no time-out of aiohttp's would close it."""

    def fail(*_: object) -> None:
        raise RuntimeError

    # aiohttp makes one for each request, before anything that it would answer for.
    monkeypatch.setattr("aiohttp.web_protocol.StreamWriter", fail)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        client = await clients.connect(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await client.closed() == b""


async def test_what_cannot_be_read_is_not_logged(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """A header that breaks the parser may hold a token."""
    await raw(api, HEAD.replace(b"Bearer ", b"Bearer \x00secret"))
    assert "secret" not in caplog.text
    assert token_of("alice")[:20] not in caplog.text
