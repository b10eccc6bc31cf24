"""How much of an answer is read from a server that is not trusted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError

from stretto.runtime.bounded_answers import HEADS_BYTES_MAX, PIECE_BYTES_MAX, BoundedConnector
from support.flooding_server import flooding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp.client_proto import ResponseHandler

BODY_BYTES_MAX: Final = 10_000
INTERIM: Final = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session with one connection at a time."""
    connector = BoundedConnector(body_bytes_max=BODY_BYTES_MAX, limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


@asynccontextmanager
async def connecting() -> AsyncIterator[ResponseHandler]:
    """Yield a connection on which a request was sent; a test receives what it likes."""
    async with BoundedConnector(body_bytes_max=BODY_BYTES_MAX) as connector:
        connection, transport = connector._factory(), Mock()
        transport.is_closing.side_effect = lambda: transport.close.called
        connection.connection_made(transport)
        connection.set_response_params()
        yield connection


@asynccontextmanager
async def answering(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Run a server of a test's own; yields its URL."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(20):
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def test_interim_answers_without_end_are_no_answer(session: aiohttp.ClientSession) -> None:
    """Their reader would have no end either."""
    async with flooding(INTERIM, INTERIM * 1000) as flooder:
        flooder.may_flood.set()
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.get(flooder.url)
        assert await flooder.is_cut_off()


async def test_a_few_interim_answers_come_before_an_answer(session: aiohttp.ClientSession) -> None:
    """As of a server that has hints, or one that goes on with the request; they are no answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + INTERIM * 3 + ANSWER)
        writer.close()

    async with answering(answer) as url, session.get(url) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("head", "flood"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", bytes(100_000)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", bytes(100_000)),
        (CHUNKED, b"1\r\nx\r\n" * 10_000),
        (CHUNKED, b"1;" + b"e" * 100_000),
    ],
    ids=["until its end", "of a length", "in small chunks", "of a chunk's size"],
)
async def test_a_body_without_end_is_what_has_come_of_it(
    head: bytes, flood: bytes, session: aiohttp.ClientSession
) -> None:
    """The answer has its status; with its head, a piece of it may come uncounted."""
    async with flooding(head, flood) as flooder:
        flooder.may_flood.set()
        async with session.get(flooder.url) as response:
            assert len(await response.read()) <= BODY_BYTES_MAX + PIECE_BYTES_MAX
            assert response.status == 200
        assert await flooder.is_cut_off()


async def test_answers_to_no_request_end_the_connection(session: aiohttp.ClientSession) -> None:
    """Nothing would ever read them."""
    async with flooding(ANSWER, ANSWER * 1000) as flooder:
        async with session.get(flooder.url) as response:
            assert response.status == 200
        flooder.may_flood.set()
        assert await flooder.is_cut_off()


async def test_few_of_the_answers_that_come_at_once_are_parsed() -> None:
    """Each takes microseconds, in which nothing else runs."""
    async with connecting() as connection:
        connection.data_received(ANSWER * 10_000)
        assert not connection.is_connected()
        assert len(connection) < 200


async def test_an_answer_to_no_request_is_not_that_of_the_next() -> None:
    """The connection has ended, and has nothing to read."""
    async with connecting() as connection:
        connection.data_received(ANSWER)
        await connection.read()
        connection.data_received(ANSWER)
        assert not connection.is_connected()
        assert len(connection) == 0


async def test_an_answer_may_come_later_than_an_interim_one() -> None:
    """As a server's that takes its time."""
    async with connecting() as connection:
        connection.data_received(INTERIM)
        connection.data_received(ANSWER)
        assert connection.is_connected()
        assert [103, 200] == [(await connection.read())[0].code for _ in range(2)]


async def test_bytes_that_are_no_answer_are_an_error() -> None:
    """For its reader: what comes after them does not change that."""
    async with connecting() as connection:
        connection.data_received(b"x\r\n" * HEADS_BYTES_MAX)
        with pytest.raises(HttpProcessingError):
            await connection.read()


async def test_each_request_has_an_answer_of_its_own(session: aiohttp.ClientSession) -> None:
    """The bounds are not those of a connection, which is kept."""
    body = bytes(BODY_BYTES_MAX - 100)
    head = ANSWER.replace(b"0\r\n\r\n", b"%d\r\n\r\n" % len(body))
    connections = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        for _ in range(3 * HEADS_BYTES_MAX // len(body)):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(INTERIM * 200 + head + body)
        writer.close()

    async with answering(answer) as url:
        for _ in range(3 * HEADS_BYTES_MAX // len(body)):
            async with session.get(url) as response:
                assert body == await response.read()
    assert len(connections) == 1
