"""What a host says first: nothing of it reaches the driver that it would read for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.postgres.first_answer import drivers_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

START, MORE = b"start", b"more"
WORDS = b"R", b"S"


class Driver(asyncio.Protocol):
    """Records what it gets."""

    def __init__(self) -> None:
        self.had = b""
        self.has_news = asyncio.Event()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(START)

    def data_received(self, data: bytes) -> None:
        self.had += data
        self.has_news.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
        self.has_news.set()


@pytest.fixture
async def port() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A host that says what is in the list, one after the other, each once the one before was answered."""
    words: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(START))
        for word in words:
            writer.write(word)
            await reader.readexactly(len(MORE))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], words


async def test_a_message_without_a_type_ends_the_connection(port: tuple[int, list[bytes]]) -> None:
    """The driver sees a connection that is lost, and nothing else."""
    port[1].append(bytes(5))
    _, driver = await drivers_loop().create_connection(Driver, "127.0.0.1", port[0])
    await driver.has_news.wait()
    assert (True, b"") == (driver.is_lost, driver.had)


async def test_after_a_first_message_the_driver_has_the_connection(
    port: tuple[int, list[bytes]],
) -> None:
    """All of it, and nothing stands between."""
    port[1].extend(WORDS)
    transport, driver = await drivers_loop().create_connection(Driver, "127.0.0.1", port[0])
    assert isinstance(driver, Driver)
    for _ in WORDS:
        await driver.has_news.wait()
        driver.has_news.clear()
        transport.write(MORE)
    assert b"".join(WORDS) == driver.had
    assert driver is transport.get_protocol()
    transport.close()
    await driver.has_news.wait()
    assert driver.is_lost
