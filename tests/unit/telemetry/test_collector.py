"""How much of a collector's answer is read, and for how long: as much as an exporter needs."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import requests
from aiohttp import web

from stretto.telemetry import collector
from stretto.telemetry.collector import ANSWER_BYTES_MAX, CollectorSession
from support.certificate import Authority
from support.flooding_server import flooding

if TYPE_CHECKING:
    import io
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

TRY_SECONDS = 15.0
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(bytes(16 * 1024 * 1024))


async def answered(
    url: str, *, authority: str | None = None, proxy: str = ""
) -> tuple[int | str, list[str]]:
    """Return the status of the answer or the kind of the error, and what the session says of it."""
    kinds = list[str]()
    with CollectorSession(kinds.append) as session:
        session.proxies = {"http": proxy} if proxy else {}
        try:
            answer = await asyncio.to_thread(
                session.post, url, timeout=TRY_SECONDS, verify=authority
            )
        except requests.RequestException as error:
            return type(error).__name__, kinds
        # No more is to be had of it.
        assert b"" == answer.content
        return answer.status_code, kinds


@pytest.mark.parametrize(
    ("answer", "flood"),
    [
        (OK + b"Content-Length: 10000000000\r\n\r\n", b"y" * 4096),
        (OK + b"\r\n", b"y" * 4096),
        (CHUNKED, b"1000\r\n" + b"y" * 4096 + b"\r\n"),
        (CHUNKED + b"0\r\n", b"Trailer: y\r\n" * 400),
        (OK + b"Content-Encoding: gzip\r\n\r\n", BOMB[:4096]),
    ],
    ids=["a length", "no length", "chunks", "trailers", "gzip"],
)
async def test_an_answer_that_goes_on_is_an_answer_and_ends_its_connection(
    answer: bytes, flood: bytes
) -> None:
    """Its head has said that the spans were taken."""
    async with flooding(answer, flood) as server:
        server.may_flood.set()
        assert (200, [""]) == await answered(server.url)
        assert await server.is_cut_off()


@pytest.mark.parametrize(
    ("answer", "flood"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 4096),
    ],
    ids=["interim answers", "a field"],
)
async def test_a_head_that_goes_on_is_no_answer(answer: bytes, flood: bytes) -> None:
    """It would keep a processor busy for ever."""
    async with flooding(answer, flood) as server:
        server.may_flood.set()
        assert ("ConnectionError", ["ConnectionError"]) == await answered(server.url)
        assert await server.is_cut_off()


async def test_an_answer_over_tls_is_bounded_as_well(tmp_path: Path) -> None:
    """Most collectors that are far away have it."""
    authority = Authority(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.issue("collector"))
    async with flooding(OK + b"\r\n", b"y" * 4096, tls) as server:
        server.may_flood.set()
        assert (200, [""]) == await answered(server.url, authority=str(authority.certificate))
        assert await server.is_cut_off()
        assert ("SSLError", ["SSLError"]) == await answered(server.url)


async def test_an_answer_of_a_proxy_is_bounded_as_well() -> None:
    """It may be one that the environment names."""
    async with flooding(OK + b"\r\n", b"y" * 4096) as proxy:
        proxy.may_flood.set()
        assert (200, [""]) == await answered("http://collector.invalid/", proxy=proxy.url)
        assert await proxy.is_cut_off()


@asynccontextmanager
async def answering(
    status: int, **head: str
) -> AsyncIterator[tuple[str, list[tuple[object, str | None]]]]:
    """Run a collector that answers with a packed body; yield its address, and who asks with what."""
    asked = list[tuple[object, str | None]]()

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.transport, request.headers.get("Cookie")))
        fields = {"Content-Encoding": "gzip", "Set-Cookie": "a=b", **head}
        return web.Response(status=status, body=BOMB, headers=fields)

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/", asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "head", "kind"),
    [
        (200, {}, ""),
        (503, {}, "HTTP 503"),
    ],
)
async def test_nothing_is_unpacked(status: int, head: dict[str, str], kind: str) -> None:
    """Whatever the answer is; and no redirect is followed, as the exporter asks."""
    kinds = list[str]()
    async with answering(status, **head) as (url, asked):
        with CollectorSession(kinds.append) as session:
            answer = await asyncio.to_thread(
                session.post, url, timeout=TRY_SECONDS, allow_redirects=False
            )
            assert (status, b"") == (answer.status_code, answer.content)
    assert [kind] == kinds
    assert 1 == len(asked)


async def test_a_redirect_is_no_success() -> None:
    """The exporter follows none, and takes one for a success; `requests` reads its body all the same."""
    kinds = list[str]()
    async with answering(302, Location="/") as (url, asked):
        with CollectorSession(kinds.append) as session, pytest.raises(requests.TooManyRedirects):
            await asyncio.to_thread(session.post, url, timeout=TRY_SECONDS, allow_redirects=False)
    assert ["HTTP 302"] == kinds
    assert 1 == len(asked)


async def test_the_next_batch_goes_over_the_same_connection_without_a_cookie() -> None:
    """A new one, with TLS, would cost more than the batch."""
    async with answering(200) as (url, asked):
        with CollectorSession(lambda _: None) as session:
            for _ in range(2):
                await asyncio.to_thread(session.post, url, timeout=TRY_SECONDS)
    assert asked[0] == asked[1]
    assert asked[0][1] is None


async def test_an_error_that_is_raised_is_named() -> None:
    """The exporter's own line would name the address."""
    assert ("InvalidSchema", ["InvalidSchema"]) == await answered("user:secret@collector:4318")


def bounded(timeout_seconds: float, sent: bytes) -> tuple[io.RawIOBase, Callable[[], float | None]]:
    """Return what reads an answer that has come, and the time-out of its connection."""
    ours, peer = socket.socketpair()
    with peer:
        peer.sendall(sent)
    ours.settimeout(timeout_seconds)
    source = ours.makefile("rb", buffering=0)
    ours.close()
    return collector._BoundedReader(ours, source), ours.gettimeout


def test_all_reads_of_an_answer_share_one_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a byte now and then would keep the exporter's thread for ever."""
    now = 100.0
    monkeypatch.setattr("stretto.telemetry.collector.time.monotonic", lambda: now)
    reader, timeout = bounded(5.0, b"abc")
    with reader:
        assert b"a" == reader.read(1)
        now = 104.0
        assert b"b" == reader.read(1)
        assert 1.0 == timeout()
        now = 105.0
        with pytest.raises(TimeoutError):
            reader.read(1)


def test_an_answer_of_just_the_bound_is_read() -> None:
    """The first byte beyond it is not."""
    reader, _ = bounded(5.0, b"y" * (ANSWER_BYTES_MAX + 1))
    with reader:
        count = 0
        while count < ANSWER_BYTES_MAX:
            count += len(reader.read(ANSWER_BYTES_MAX) or b"")
        assert ANSWER_BYTES_MAX == count
        with pytest.raises(ConnectionError):
            reader.read(1)
