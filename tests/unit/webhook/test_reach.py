"""When an endpoint counts as away, and when it is there again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.reach import UNREACHED_MAX, Reach
from stretto.webhook.rules import Cut, Unreached, WebhookSettings, judge
from support.clock import Clock
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.webhook.rules import Answer

ONE = UUID(int=1)
TRY_SECONDS = 1.0


class CountedEndpoint:
    """Connections to it are opened when the test says so."""

    connections_opened = 0

    @property
    def url_digest(self) -> bytes:
        raise AssertionError

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answer:
        raise AssertionError

    async def is_blocked(self) -> bool:
        raise AssertionError


async def test_an_endpoint_that_takes_connections_again_is_there_while_its_requests_hang(
    unused_tcp_port: int,
) -> None:
    """They hang for their owners' events alone, perhaps: others' must not wait until they end."""
    url = f"http://127.0.0.1:{unused_tcp_port}/"
    settings = WebhookSettings(webhook_url=url, webhook_secret=(b"x",), webhook_allow_private=True)
    has_got = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        has_got.set()
        await reader.read()
        writer.close()

    async with WebhookEndpoint(settings) as endpoint:
        reach = Reach(endpoint, Clock(), try_seconds=TRY_SECONDS)
        for _ in range(UNREACHED_MAX):
            assert not reach.is_away
            reach.note(judge(await endpoint.send(ONE, b"{}")))
        assert reach.is_away
        async with await asyncio.start_server(hang, "127.0.0.1", unused_tcp_port):
            sending = asyncio.create_task(endpoint.send(ONE, b"{}"))
            await until(has_got.is_set)
            assert (False, False) == (reach.is_away, sending.done())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def test_a_connection_that_opens_between_others_that_do_not_begins_their_count_anew() -> None:
    """As an answer does; what was cut short may have had none."""
    endpoint, clock = CountedEndpoint(), Clock()
    reach = Reach(endpoint, clock, try_seconds=TRY_SECONDS)
    unreached = Unreached("Connection refused")
    for _ in range(UNREACHED_MAX - 1):
        reach.note(unreached)
    endpoint.connections_opened += 1
    for _ in range(UNREACHED_MAX - 1):
        reach.note(unreached)
    assert not reach.is_away
    reach.note(unreached)
    reach.note(Cut("too many"))
    assert (True, False) == (reach.is_away, reach.may_try)
    clock.now += TRY_SECONDS
    assert reach.may_try
