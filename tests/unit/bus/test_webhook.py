"""How an event is sent, and to which addresses it never is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from aiohttp import web

from stretto.bus.webhook import SEND_SECONDS, WebhookEndpoint, _retry_after, is_public
from stretto.protocol.webhooks import Answered, Unanswered, WebhookSettings
from webhook_receiver import Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.protocol.webhooks import Answer

ONE = UUID(int=1)
REFUSED = Unanswered("address is not public")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """An endpoint on the loopback."""
    async with asyncio.timeout(20), receiving() as receiver:
        yield receiver


async def answer_of(
    url: str, *, is_private_allowed: bool = True, send_seconds: float = SEND_SECONDS
) -> Answer:
    """Send an event and return the answer."""
    settings = WebhookSettings(url=url, secrets=(b"x",), is_private_allowed=is_private_allowed)
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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_an_address_that_is_not_public_is_not_connected_to(
    host: str, receiver: Receiver
) -> None:
    """By its number, by a name that resolves to it, in disguise; the twin may, and does."""
    url = receiver.url.replace("127.0.0.1", host)
    assert REFUSED == await answer_of(url, is_private_allowed=False)
    assert [] == receiver.requests
    assert Answered(204) == await answer_of(url)
    assert [ONE] == receiver.ids


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f000001"])
async def test_an_address_in_a_form_of_old_is_not_connected_to(
    host: str, receiver: Receiver
) -> None:
    """Resolvers take such names for numbers."""
    url = receiver.url.replace("127.0.0.1", host)
    assert isinstance(await answer_of(url, is_private_allowed=False), Unanswered)
    assert [] == receiver.requests


async def test_a_name_that_changes_its_address_gains_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked is the address that is connected to, and not an answer of DNS from before."""
    settings = WebhookSettings(url=receiver.url.replace("127.0.0.1", "backend.example"), secrets=())
    answers = []

    async def resolve(_: object, host: str, port: int, **__: object) -> list[dict[str, object]]:
        answers.append(host)
        more = {"hostname": host, "port": port, "proto": 0, "flags": 0}
        return [{"host": "127.0.0.1", "family": 2, **more}]

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolve)
    async with WebhookEndpoint(settings) as endpoint:
        assert REFUSED == await endpoint.send(ONE, b"{}")
    assert ["backend.example"] == answers
    assert [] == receiver.requests


async def test_a_redirect_is_an_answer(receiver: Receiver) -> None:
    """Wherever it leads."""
    receiver.answers.append({"status": 307, "headers": {"Location": receiver.url}})
    assert Answered(307) == await answer_of(receiver.url)
    assert [ONE] == receiver.ids


async def test_nothing_is_unpacked(receiver: Receiver) -> None:
    """What comes packed could be of any size; nobody reads it."""
    settings = WebhookSettings(url=receiver.url, secrets=(b"x",), is_private_allowed=True)
    async with WebhookEndpoint(settings) as endpoint:
        assert not endpoint._session.auto_decompress


async def test_no_cookie_is_kept(receiver: Receiver) -> None:
    """Requests have nothing to do with each other."""
    receiver.answers.append({"headers": {"Set-Cookie": "a=b; Path=/"}})
    settings = WebhookSettings(url=receiver.url, secrets=(b"x",), is_private_allowed=True)
    async with WebhookEndpoint(settings) as endpoint:
        await endpoint.send(ONE, b"{}")
        await endpoint.send(ONE, b"{}")
    assert all("Cookie" not in headers for headers, _ in receiver.requests)


async def test_an_endpoint_that_does_not_answer_in_time_has_failed(receiver: Receiver) -> None:
    """The address, which may hold a secret, is not repeated."""
    receiver.is_held = True
    assert Unanswered("no answer in time") == await answer_of(receiver.url, send_seconds=0.1)


async def test_nobody_to_connect_to_is_an_answer(unused_tcp_port: int) -> None:
    """The reason is given without the address."""
    url = f"http://127.0.0.1:{unused_tcp_port}/hidden"
    assert Unanswered("Connection refused") == await answer_of(url)


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
    ("expected", "text"),
    [
        (7.0, "7"),
        (30.0, "Thu, 01 Jan 1970 00:01:30 GMT"),
        (0.0, "Thu, 01 Jan 1970 00:00:30 GMT"),
        (None, ""),
        (None, "-7"),
        (None, "soon"),
        (None, "٣"),
        (float("inf"), "9" * 400),
    ],
)
def test_retry_after_is_a_number_or_a_date(expected: float | None, text: str) -> None:
    """And nothing else."""
    assert expected == _retry_after(text, 60.0)
