"""Hosts of the URL that are no PostgreSQL: they are passed over, and left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from struct import pack
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from stretto.postgres.connections import Database
from stretto.postgres.driver_connection import NO_VERSION
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS: Final = 20
# The first bytes of HTTP/2, of an X server, and others that the driver would read for ever.
NOT_OURS: Final = {
    "zeros": bytes(8),
    "five zeros": bytes(5),
    "nothing": b"\0\0\0\0\4",
    "four bytes": b"\0\0\0\0\x08abcdabcdabcd",
    "HTTP/2": b"\0\0\0\4\0\0\0\0\0",
    "X": b"\0\x1d\x0b\0\0\0\x08\0No protocol specified\n\0\0\0",
}


def message(kind: bytes, content: bytes) -> bytes:
    """Return a message of PostgreSQL's."""
    return kind + pack("!i", len(content) + 4) + content


READY: Final = message(b"Z", b"I")
VERSIONS: Final = {
    "none": message(b"R", bytes(4)) + READY,
    "odd": message(b"R", bytes(4)) + message(b"S", b"server_version\0banana\0") + READY,
}


@asynccontextmanager
async def host(answer: bytes) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Answer each connection's first bytes so; yields the port, and what is set once one has ended."""
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        # It may be cut.
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        left.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], left


@pytest.mark.parametrize("answer", [*NOT_OURS.values(), *VERSIONS.values()])
async def test_an_odd_host_is_passed_over(answer: bytes, database_url: str) -> None:
    """Whatever it says, and its connection does not stay open."""
    parts = urlsplit(database_url)
    account, _, place = parts.netloc.rpartition("@")
    async with asyncio.timeout(DEADLINE_SECONDS), host(answer) as (port, left):
        netloc = f"{account}@127.0.0.1:{port},{place}"
        url = parts._replace(netloc=netloc, query="sslmode=disable").geturl()
        async with Database(url) as database:
            assert database._connector.hosts[0][1] == port
            await database.ping()
            await left.wait()


@pytest.mark.parametrize("answer", VERSIONS.values(), ids=VERSIONS)
async def test_a_host_without_a_version_is_named_as_such(answer: bytes) -> None:
    """An operator reads it."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        host(answer) as (port, left),
        Database(f"postgresql://x@127.0.0.1:{port}/x?sslmode=disable") as database,
    ):
        with pytest.raises(Unreachable, match=NO_VERSION):
            await database.ping()
        await left.wait()
