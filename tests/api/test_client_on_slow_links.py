"""A try of a call ends where nothing comes, and lasts for as long as something does."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from stretto.client import calls
from stretto.client.calls import BYTES_PER_SECOND_MIN, TRY_SECONDS_MAX, Calls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PARTS = [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", b"ab", b"cd", b"ef"]
CALL_SECONDS = 3 * TRY_SECONDS_MAX
LARGE = bytes(250_000)
# Of the sockets' buffers: most of a large body stays in the program.
BUFFER_BYTES = 4096


class Clock:
    """The loop's clock, which goes on at the test's command too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_seconds = 0.0
        loop = asyncio.get_running_loop()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + self._ahead_seconds)

    def advance(self, seconds: float) -> None:
        self._ahead_seconds += seconds


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Own the clock; no pause between two tries."""

    async def at_once(_: float) -> None:
        pass

    monkeypatch.setattr(calls, "sleep", at_once)
    return Clock(monkeypatch)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set whenever something has come to the client."""
    event = asyncio.Event()
    real = ResponseHandler.data_received

    def note(handler: ResponseHandler, data: bytes) -> None:
        real(handler, data)
        event.set()

    monkeypatch.setattr(ResponseHandler, "data_received", note)
    return event


@asynccontextmanager
async def calls_to(*tries: Handler) -> AsyncIterator[Calls]:
    """Make calls whose tries meet these, one after the other."""
    left = list(tries)

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await left.pop(0)(reader, writer)
        writer.close()

    listening = small(socket.socket())
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    connector = aiohttp.TCPConnector(
        socket_factory=lambda address: small(socket.socket(*address[:3]))
    )
    async with (
        await asyncio.start_server(play, sock=listening, limit=BUFFER_BYTES),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        yield Calls(session, f"http://127.0.0.1:{port}", "a")
    assert [] == left


def small(connection: socket.socket) -> socket.socket:
    """Return the socket with small buffers, as one that waits for the start of its work."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    connection.setblocking(False)
    return connection


async def body_of(made: Calls, **options: Any) -> bytes:
    """Return the body of the reply that a call gets."""
    options = {"timeout_seconds": CALL_SECONDS} | options
    return await made.call("POST", "groups", lambda reply: reply.body, **options)


async def test_a_reply_that_keeps_coming_is_read_however_long_that_takes(
    clock: Clock, received: asyncio.Event
) -> None:
    """A large page over a slow link: it would be cut off, however often it is tried."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in PARTS:
            received.clear()
            clock.advance(TRY_SECONDS_MAX / 2)
            writer.write(part)
            await received.wait()

    async with calls_to(drip) as made:
        assert b"abcdef" == await body_of(made)


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_a_reply_that_falls_silent_is_tried_again(
    parts: int, clock: Clock, received: asyncio.Event
) -> None:
    """Before its head, behind it, or in its body; the connection is given up."""

    async def fall_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in PARTS[:parts]:
            received.clear()
            writer.write(part)
            await received.wait()
        clock.advance(TRY_SECONDS_MAX)
        await reader.read()

    async with calls_to(fall_silent, answer) as made:
        assert b"abcdef" == await body_of(made, timeout_seconds=2 * TRY_SECONDS_MAX)


async def test_a_body_that_is_not_taken_is_sent_again(clock: Clock) -> None:
    """The connection is lost, and nothing comes back that would say so."""
    try_seconds = TRY_SECONDS_MAX + len(LARGE) / BYTES_PER_SECOND_MIN

    async def take_none(*_: object) -> None:
        clock.advance(try_seconds)
        await given_up.wait()

    async def take_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        given_up.set()
        await reader.readexactly(len(LARGE))
        await answer(reader, writer)

    given_up = asyncio.Event()
    async with calls_to(take_none, take_all) as made:
        seconds = try_seconds + TRY_SECONDS_MAX
        assert b"abcdef" == await body_of(made, timeout_seconds=seconds, body=LARGE)


async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply at once."""
    writer.writelines(PARTS)
    await writer.drain()
