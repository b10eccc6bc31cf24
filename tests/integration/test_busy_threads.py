"""A host keeps the loop's own threads busy: names are looked up all the same."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
import pytest_asyncio

import stretto
from stretto.http.tokens.jwks import KeySet
from stretto.postgres.connecting import Connector
from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.rules import Answered, WebhookSettings
from support.api_client import TEAM
from support.issuer import Issuer
from support.waiting import until
from support.webhook_receiver import receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS: Final = 30


@pytest_asyncio.fixture(autouse=True)
async def busy_threads() -> AsyncIterator[None]:
    """The only thread of the loop's own is taken until the test has ended."""
    end, loop = threading.Event(), asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    work = loop.run_in_executor(None, end.wait)
    yield
    end.set()
    await work


def by_name(url: str) -> str:
    """Return the URL with its host's name in place of the address."""
    assert "127.0.0.1" in url
    return url.replace("127.0.0.1", "localhost")


async def test_a_host_whose_threads_are_busy_has_its_database(database_url: str) -> None:
    """From the first connection on."""
    new_group = stretto.NewGroup.parse(stretto.UserId("alice"), TEAM)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        stretto.open_component(by_name(database_url)) as component,
    ):
        assert "created" == (await component.create("k", new_group)).status


async def test_a_statement_is_cancelled_by_name(database_url: str) -> None:
    """The driver asks for it over a connection of its own, and keeps nothing of that."""
    connection = await Connector(by_name(database_url), "stretto").connect()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await connection.execute("SELECT pg_sleep(60)", timeout=0.05)
            under_way: set[asyncio.Task[None]] = connection._cancellations  # type: ignore[attr-defined]
            await until(lambda: not under_way)
            assert 1 == await connection.fetchval("SELECT 1")
    finally:
        connection.terminate()


async def test_its_webhook_is_called() -> None:
    """And its name is known not to be public."""
    async with asyncio.timeout(DEADLINE_SECONDS), receiving() as receiver:
        url = by_name(receiver.url)
        settings = WebhookSettings(
            webhook_url=url, webhook_secret=(b"x",), webhook_allow_private=True
        )
        async with WebhookEndpoint(settings) as endpoint:
            assert Answered(204, None) == await endpoint.send(UUID(int=1), b"{}")
        refused = WebhookSettings(webhook_url=url, webhook_secret=(b"x",))
        async with WebhookEndpoint(refused) as endpoint:
            assert await endpoint.is_blocked()


async def test_its_issuer_is_asked() -> None:
    """For the keys that tokens are signed with."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Issuer("old").serving() as url,
        KeySet(by_name(url), asyncio.get_running_loop().time, lambda _: None) as keys,
    ):
        await until(lambda: not keys._fetching or keys._fetching.done())
        assert 1 == len(await keys.keys("old", "EdDSA"))
