"""How an event is sent, and to which addresses it never is."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from aiohttp import web

from stretto.start_errors import ConfigurationError
from stretto.webhook import endpoint as endpoint_module
from stretto.webhook.endpoint import SEND_SECONDS, WebhookEndpoint, _retry_after
from stretto.webhook.rules import (
    Answered,
    NotCalled,
    NotConnected,
    Unanswered,
    WebhookSettings,
    is_public,
)
from support.flooding_server import flooding as flooding_server
from support.webhook_receiver import Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.webhook.rules import Answer

ONE = UUID(int=1)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """An endpoint on the loopback."""
    async with asyncio.timeout(20), receiving() as receiver:
        yield receiver


async def answer_of(
    url: str, *, is_private_allowed: bool = True, send_seconds: float = SEND_SECONDS
) -> Answer:
    """Send an event and return the answer."""
    settings = WebhookSettings(
        webhook_url=url, webhook_secret=(b"x",), webhook_allow_private=is_private_allowed
    )
    async with WebhookEndpoint(settings, send_seconds=send_seconds) as endpoint:
        return await endpoint.send(ONE, b"{}")


@pytest.mark.parametrize(
    ("expected", "address"),
    [
        (True, "1.1.1.1"),
        (True, "2606:4700::1111"),
        (True, "::ffff:1.1.1.1"),
        (True, "64:ff9b::1.1.1.1"),
        (False, "127.0.0.1"),
        (False, "127.8.8.8"),
        (False, "0.0.0.0"),
        (False, "10.0.0.1"),
        (False, "172.16.0.1"),
        (False, "192.168.0.1"),
        (False, "169.254.169.254"),
        (False, "100.64.0.1"),
        (False, "198.18.0.1"),
        (False, "224.0.0.1"),
        (False, "240.0.0.1"),
        (False, "255.255.255.255"),
        (False, "::"),
        (False, "::1"),
        (False, "::127.0.0.1"),
        (False, "::ffff:127.0.0.1"),
        (False, "::ffff:10.0.0.1"),
        (False, "64:ff9b::10.0.0.1"),
        (False, "2002:a00:1::"),
        (False, "2001:0:a00:1::"),
        (False, "2001:db8::1"),
        (False, "fd00:ec2::254"),
        (False, "fe80::1"),
        (False, "fe80::1%eth0"),
        (False, "fec0::1"),
        (False, "ff02::1"),
    ],
)
def test_only_hosts_of_the_internet_are_public(expected: bool, address: str) -> None:
    """Whatever an IPv4 address is wrapped in."""
    assert expected == is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_an_address_that_is_never_called_is_refused_at_the_start(host: str) -> None:
    """Without repeating it, and with the setting that allows it; the twins may be called."""
    url = f"http://{host}:8080/hidden"
    with pytest.raises(ConfigurationError, match="STRETTO_WEBHOOK_ALLOW_PRIVATE=true") as error:
        WebhookSettings(webhook_url=url, webhook_secret=())
    assert "hidden" not in str(error.value)
    WebhookSettings(webhook_url=url, webhook_secret=(), webhook_allow_private=True)
    for other in ("1.1.1.1", "[2606:4700::1111]", "backend.example", "localhost"):
        WebhookSettings(webhook_url=url.replace(host, other), webhook_secret=())


async def test_an_address_that_is_not_public_is_not_connected_to(receiver: Receiver) -> None:
    """By a name that resolves to it; the twin may, and does."""
    url = receiver.url.replace("127.0.0.1", "localhost")
    assert NotCalled() == await answer_of(url, is_private_allowed=False)
    assert [] == receiver.requests
    assert Answered(204) == await answer_of(url)
    assert [ONE] == receiver.ids


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f000001"])
async def test_an_address_in_a_form_of_old_is_not_connected_to(
    host: str, receiver: Receiver
) -> None:
    """Resolvers take such names for numbers."""
    url = receiver.url.replace("127.0.0.1", host)
    assert not isinstance(await answer_of(url, is_private_allowed=False), Answered)
    assert [] == receiver.requests


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
async def test_a_name_that_changes_its_address_gains_nothing(
    address: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked is the address that is connected to, and not an answer of DNS from before."""
    settings = WebhookSettings(
        webhook_url=receiver.url.replace("127.0.0.1", "backend.example"), webhook_secret=()
    )
    answers = []

    async def resolve(_: object, host: str, port: int, **__: object) -> list[dict[str, object]]:
        answers.append(host)
        more = {"hostname": host, "port": port, "proto": 0, "flags": 0}
        return [{"host": address, "family": 10 if ":" in address else 2, **more}]

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolve)
    async with WebhookEndpoint(settings) as endpoint:
        assert NotCalled() == await endpoint.send(ONE, b"{}")
    assert ["backend.example"] == answers
    assert [] == receiver.requests


@pytest.mark.parametrize(
    ("expected", "addresses"),
    [
        (True, ["127.0.0.1"]),
        (True, ["10.0.0.1", "fd00::1"]),
        (False, ["10.0.0.1", "1.1.1.1"]),
        (False, ["1.1.1.1"]),
        (False, None),
    ],
)
async def test_a_name_without_a_public_address_is_known_before_the_first_event(
    expected: bool, addresses: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of one that cannot be resolved now; with all allowed, nothing is asked."""

    def getaddrinfo(host: str, *_: object) -> list[tuple[object, ...]]:
        assert host == "backend.example"
        if addresses is None:
            raise OSError
        return [(2, 1, 6, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    url = "https://backend.example/hidden"
    async with WebhookEndpoint(WebhookSettings(webhook_url=url, webhook_secret=())) as endpoint:
        assert expected == await endpoint.is_blocked()
    allowed = WebhookSettings(webhook_url=url, webhook_secret=(), webhook_allow_private=True)
    monkeypatch.setattr(socket, "getaddrinfo", None)
    async with WebhookEndpoint(allowed) as endpoint:
        assert not await endpoint.is_blocked()


async def test_a_redirect_is_an_answer(receiver: Receiver) -> None:
    """Wherever it leads."""
    receiver.answers.append({"status": 307, "headers": {"Location": receiver.url}})
    assert Answered(307) == await answer_of(receiver.url)
    assert [ONE] == receiver.ids


async def test_nothing_is_unpacked(receiver: Receiver) -> None:
    """What comes packed could be of any size; it is not read."""
    settings = WebhookSettings(
        webhook_url=receiver.url, webhook_secret=(b"x",), webhook_allow_private=True
    )
    async with WebhookEndpoint(settings) as endpoint:
        assert not endpoint._session.auto_decompress


async def test_no_cookie_is_kept(receiver: Receiver) -> None:
    """Requests have nothing to do with each other."""
    receiver.answers.append({"headers": {"Set-Cookie": "a=b; Path=/"}})
    settings = WebhookSettings(
        webhook_url=receiver.url, webhook_secret=(b"x",), webhook_allow_private=True
    )
    async with WebhookEndpoint(settings) as endpoint:
        await endpoint.send(ONE, b"{}")
        await endpoint.send(ONE, b"{}")
    assert all("Cookie" not in headers for headers, _ in receiver.requests)


async def test_an_endpoint_that_does_not_answer_in_time_has_failed(receiver: Receiver) -> None:
    """The address, which may hold a secret, is not repeated."""
    receiver.is_held = True
    assert Unanswered("no answer in time") == await answer_of(receiver.url, send_seconds=0.1)


async def test_a_connection_that_does_not_open_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event has not been sent: another process may reach the endpoint."""
    monkeypatch.setattr(endpoint_module, "CONNECT_SECONDS", 0.1)
    ended = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert NotConnected("no answer in time") == await answer_of(f"https://127.0.0.1:{port}/")
        await ended.wait()


async def test_only_a_connection_that_was_opened_shows_that_the_endpoint_is_there(
    receiver: Receiver, unused_tcp_port: int
) -> None:
    """One that is used again may be dead, and behind one without its TLS may be anything."""

    async def opened(url: str) -> int:
        """Send two events; return how many connections were opened."""
        settings = WebhookSettings(
            webhook_url=url, webhook_secret=(b"x",), webhook_allow_private=True
        )
        async with WebhookEndpoint(settings) as endpoint:
            for _ in range(2):
                await endpoint.send(ONE, b"{}")
            return endpoint.connections_opened

    # To a server that does not speak TLS.
    no_tls = receiver.url.replace("http:", "https:")
    refusing = f"http://127.0.0.1:{unused_tcp_port}/"
    assert [1, 0, 0] == [await opened(url) for url in (receiver.url, no_tls, refusing)]


@pytest.mark.parametrize("host", ["hooks..example", f"{'a' * 64}.example"])
async def test_a_name_that_no_resolver_takes_is_an_answer(host: str) -> None:
    """As a host's program may set it: the sender would crash with every event."""
    assert NotConnected("the host's name cannot be looked up") == await answer_of(
        f"https://{host}/"
    )


async def test_no_server_to_connect_to_is_an_answer(unused_tcp_port: int) -> None:
    """The reason is given without the address."""
    url = f"http://127.0.0.1:{unused_tcp_port}/hidden"
    assert NotConnected("Connection refused") == await answer_of(url)


@asynccontextmanager
async def flooding(status: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Run an endpoint whose answers are too long; yields its address, and when it was cut off."""
    cut_off = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        try:
            # Longer than all buffers, and shorter than memory: the test must be able to fail.
            for _ in range(2000):
                await response.write(bytes(64 * 1024))
        except ConnectionError:
            cut_off.set()
        return response

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/", cut_off
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [200, 500])
async def test_an_endless_answer_is_not_read(status: int) -> None:
    """The status decides, and the connection is cut."""
    async with asyncio.timeout(20), flooding(status) as (url, cut_off):
        assert Answered(status) == await answer_of(url)
        await cut_off.wait()


@pytest.mark.parametrize(
    ("expected", "head", "flood"),
    [
        (
            Unanswered("the connection ended before a complete answer"),
            b"",
            b"HTTP/1.1 103 \r\n\r\n",
        ),
        (Answered(204), b"HTTP/1.1 204 \r\n\r\n", b"HTTP/1.1 204 \r\n\r\n"),
        (Answered(200), b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["interim answers", "further answers", "small chunks"],
)
async def test_an_endpoint_that_never_ends_is_cut_off(
    expected: Answer, head: bytes, flood: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before any time is up; the event is taken where there was a status."""
    monkeypatch.setattr(endpoint_module, "ANSWER_SECONDS", None)
    async with flooding_server(head, flood * 10_000) as flooder:
        if expected != Answered(204):
            flooder.may_flood.set()
        settings = WebhookSettings(
            webhook_url=flooder.url, webhook_secret=(b"x",), webhook_allow_private=True
        )
        async with WebhookEndpoint(settings) as endpoint:
            assert expected == await endpoint.send(ONE, b"{}")
            # Here it floods the connection that is kept.
            flooder.may_flood.set()
            assert await flooder.is_cut_off()


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (7.0, "7"),
        (30.0, "Thu, 01 Jan 1970 00:01:30 GMT"),
        (0.0, "Thu, 01 Jan 1970 00:00:30 GMT"),
        (None, ""),
        (None, "-7"),
        (None, "soon"),
        (None, "٣"),
        (None, f"Thu, 01 Jan {'9' * 20} 00:01:30 GMT"),
        (None, f"Thu, 01 Jan 1970 00:01:30 +{'9' * 20}"),
        (float("inf"), "9" * 400),
    ],
)
def test_retry_after_is_a_number_or_a_date(expected: float | None, text: str) -> None:
    """And nothing else."""
    assert expected == _retry_after(text, 60.0)
