"""What no handler ever sees is answered as the contract has it all the same."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson
import pytest

from stretto.http.tokens.authenticator import Authenticator
from support.api_client import token_of
from support.raw_client import BODY, creation_head, raw_clients

if TYPE_CHECKING:
    from stretto.http.tokens.authenticator import Verified
    from support.api_client import Api

DEADLINE_SECONDS = 30
HEAD = creation_head(token_of("alice"), "k")
BROKEN = b"\x78\x9c broken"
CUT_OFF = gzip.compress(b'{"name":"x"}')[:-8]


@pytest.fixture
def database_url(server_url: str) -> str:
    """Without PgBouncer: what is sent here comes no further than the server's front."""
    return server_url


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
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x, y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x/y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a@x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x:y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"GET /livez HTTP/1.0\r\nHost: x y\r\n\r\n",
        b"GET /livez#x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/groups?limit=1# HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x/livez#x HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD.replace(b"/v1/groups", b"/v1/groups#x") + b"Content-Length: 2\r\n\r\n{}",
        HEAD.replace(b"Host: x", b"Host: x y") + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Length: " + b"0" * 5000 + b"2\r\n\r\n{}",
        HEAD + b"Content-Length: " + b"0" * 5000 + b"2\r\n\r\n{",
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


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"HEAD /livez HTTP/2.0\r\nHost: x\r\n\r\n",
        b"HEAD /livez HTTP/1.1\r\nHost: x y\r\n\r\n",
        b"HEAD /livez#x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD /livez HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"0" * 5000 + b"\r\n\r\n",
    ],
)
async def test_the_answer_to_an_odd_head_request_has_no_body(
    request_bytes: bytes, api: Api
) -> None:
    """Its client would take a body for the next answer. Of bytes that have no method, none is known."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        client = await clients.connect(request_bytes)
        head, _, body = (await client.closed()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"" == body


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nHost:\r\n",
        b"GET /livez HTTP/1.1\r\nHost: my_chat.example.com:8080\r\n",
        b"GET /livez HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n",
        b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n",
    ],
)
async def test_a_host_that_is_one_is_taken(head: bytes, api: Api) -> None:
    """It may be empty; HTTP/1.0 does not need it."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        client = await clients.connect(head + b"\r\n")
        await client.until(b'{"status":"alive"}')


@pytest.mark.parametrize(
    ("status", "target"),
    [
        (200, "GET http://{}/livez"),
        (200, "GET http://{}:80/livez?"),
        (200, "GET http://a@{}/livez"),
        (404, "GET http://{}"),
        (404, "CONNECT {}:443"),
    ],
)
@pytest.mark.parametrize("name", ["x", "xn--a", "xn--" + "a" * 8000], ids=["x", "bad", "long"])
async def test_the_name_in_a_target_is_not_decoded(
    name: str, status: int, target: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one would take 40 ms of the loop. Nothing here needs it."""
    decoded: list[str] = []
    monkeypatch.setattr("yarl._url._idna_decode", decoded.append)
    request = f"{target.format(name)} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    assert status == (await raw(api, request))[0]
    assert [] == decoded


@pytest.mark.parametrize(
    ("status", "head"),
    [
        (401, HEAD.replace(b"Bearer ", b"Bearer x") + b"Content-Length: 2\r\n"),
        (413, HEAD + b"Content-Length: 9999999\r\n"),
        (400, HEAD + b"Host: x\r\nContent-Length: 2\r\n"),
    ],
)
async def test_no_body_is_asked_for_where_the_head_is_refused(
    status: int, head: bytes, api: Api
) -> None:
    """A client that waits for `100 Continue` sends nothing for which there is no use."""
    assert status == (await raw(api, head + b"Expect: 100-continue\r\n\r\n"))[0]


@pytest.mark.parametrize("expectation", [b"", b"Expect: 100-continue\r\n"], ids=["no", "yes"])
async def test_a_refused_token_is_verified_once(
    expectation: bytes, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was verified before the body was asked for."""
    verified: list[str] = []
    verify = Authenticator._verify

    async def note(known: Authenticator, token: str) -> Verified:
        verified.append(token)
        return await verify(known, token)

    monkeypatch.setattr(Authenticator, "_verify", note)
    head = HEAD.replace(b"Bearer ", b"Bearer x") + expectation + b"Content-Length: 2\r\n\r\n"
    assert 401 == (await raw(api, head))[0]
    assert 1 == len(verified)


async def test_a_body_is_asked_for_once_its_head_is_accepted(api: Api) -> None:
    """The client sends it then."""
    head = HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(BODY)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        client = await clients.connect(head)
        await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(BODY)
        assert 201 == (await client.answer())[0]


async def test_a_connection_that_nothing_answers_any_more_is_closed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has ended the task that did: no time-out of aiohttp's would close it."""

    def fail(*_: object) -> None:
        raise RuntimeError

    # aiohttp makes one for each request, before anything that it would answer for.
    monkeypatch.setattr("aiohttp.web_protocol.StreamWriter", fail)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        client = await clients.connect(b"GET /livez? HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await client.closed() == b""


async def test_what_cannot_be_read_is_not_logged(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """A header that breaks the parser may hold a token."""
    await raw(api, HEAD.replace(b"Bearer ", b"Bearer \x00secret"))
    assert "secret" not in caplog.text
    assert token_of("alice")[:20] not in caplog.text
