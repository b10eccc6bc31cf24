"""A turn of the loop accepts many connections, but not all that a flood may bring."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from stretto.http.front import accepting as module
from stretto.http.front.accepting import Acceptor, accepting, listening_sockets
from stretto.telemetry.logs import logger
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Run = Callable[[Coroutine[Any, Any, None]], None]

QUEUED = 100
# From the one that accepts a connection to the one in which the server knows it.
TURNS_TO_CONNECT = 6


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine on each kind of loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


class Client(asyncio.Protocol):
    """Tells a server of its connection."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be known from now on."""
        self._server.clients.append(transport)


class Server:
    """Knows its clients."""

    def __init__(self) -> None:
        self.clients: list[asyncio.BaseTransport] = []
        self.errors: list[Exception] = []
        """Raised for the first clients."""

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        if self.errors:
            raise self.errors.pop()
        return Client(self)

    async def close(self) -> None:
        """Close the connections, as a runner does behind the end of accepting."""
        for client in self.clients:
            client.close()
        for _ in range(TURNS_TO_CONNECT):
            await asyncio.sleep(0)


class Failing(socket.socket):
    """A listening socket whose first calls of `accept` fail."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, Any]:
        """Fail, or accept."""
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


async def listening(*errors: int) -> Failing:
    """Return a socket that listens."""
    (real,) = await listening_sockets("127.0.0.1", 0, share_port=False)
    failing = Failing(fileno=real.detach())
    failing.settimeout(0)
    failing.errors = list(errors)
    return failing


@contextmanager
def queued(server: socket.socket, count: int) -> Iterator[list[socket.socket]]:
    """Connect clients while the loop is busy: with this."""
    with ExitStack() as stack:
        address = server.getsockname()
        yield [
            stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(count)
        ]


def test_one_turn_accepts_what_has_queued(run: Run) -> None:
    """Where turns are long, one connection a turn would have newcomers wait for many seconds."""

    async def test() -> None:
        server, source = Server(), await listening()
        async with accepting([source], server):
            with queued(source, QUEUED):
                for _ in range(TURNS_TO_CONNECT):
                    await asyncio.sleep(0)
                count = len(server.clients)
        await server.close()
        assert QUEUED == count

    run(test())


def test_a_flood_of_newcomers_waits_for_those_who_are_connected(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are served between a bounded number of new connections and the next."""
    monkeypatch.setattr(module, "ACCEPTED_PER_TURN", 10)

    async def test() -> None:
        server, source = Server(), await listening()
        async with accepting([source], server):
            with queued(source, QUEUED):
                counts = [0]
                while counts[-1] < QUEUED:
                    await asyncio.sleep(0)
                    counts.append(len(server.clients))
        await server.close()
        assert 10 == max(new - old for old, new in pairwise(counts))

    run(test())


@pytest.mark.parametrize("number", module.OUT_OF_RESOURCES)
def test_without_resources_clients_wait_in_the_queue(
    run: Run, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop does other work meanwhile, and the log has one line about all the tries."""
    logged: list[str] = []
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(logger, "warning", lambda event, **_: logged.append(event))

    async def test() -> None:
        server, source = Server(), await listening(number, number)
        began = asyncio.get_running_loop().time()
        async with accepting([source], server):
            with queued(source, 2):
                await until(lambda: len(server.clients) == 2)
        await server.close()
        assert asyncio.get_running_loop().time() - began > 0.035

    run(test())
    assert ["server.not_accepting"] == logged


def test_a_later_lack_of_resources_is_logged_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was accepted between ends the first one."""
    logged: list[str] = []
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(logger, "warning", lambda event, **_: logged.append(event))

    async def test() -> None:
        server, source = Server(), await listening(errno.EMFILE)
        async with accepting([source], server):
            with queued(source, 1):
                await until(lambda: len(server.clients) == 1)
                source.errors.append(errno.EMFILE)
            with queued(source, 1):
                await until(lambda: len(server.clients) == 2)
        await server.close()

    run(test())
    assert ["server.not_accepting"] * 2 == logged


def test_a_client_that_has_gone_keeps_no_other_waiting(run: Run) -> None:
    """Its connection is aborted; the next one in the queue is accepted."""

    async def test() -> None:
        server, source = Server(), await listening(errno.ECONNABORTED)
        with queued(source, 1):
            acceptor = Acceptor([source], server)
            acceptor._accept(source)
            await acceptor.stop()
        await server.close()
        assert 1 == len(server.clients)

    run(test())


def test_a_stop_waits_until_the_server_knows_all_that_were_accepted(run: Run) -> None:
    """The server closes only what it knows; nothing is accepted later, nor after a pause."""

    async def test() -> None:
        server, source = Server(), await listening()
        acceptor = Acceptor([source], server)
        with queued(source, 5):
            acceptor._accept(source)
            source.errors = [errno.EMFILE]
            acceptor._accept(source)
            paused = acceptor._pause
            await acceptor.stop()
            assert 5 == len(server.clients)
        assert paused is not None
        assert paused.cancelled()
        assert -1 == source.fileno()
        await server.close()

    run(test())


def test_a_connection_that_fails_is_closed_and_costs_no_other(run: Run) -> None:
    """Its client learns of it, and the loop's handler logs the error."""

    async def test() -> None:
        reported: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        server, source = Server(), await listening()
        server.errors = [error := ZeroDivisionError()]
        async with accepting([source], server):
            with queued(source, 2) as (failed, _):
                await until(lambda: len(server.clients) == 1)
                assert b"" == failed.recv(1)
        await server.close()
        await until(lambda: bool(reported))
        assert [error] == [context["exception"] for context in reported]

    run(test())


async def test_a_name_is_listened_on_at_each_address() -> None:
    """Those of a kind that the kernel lacks are left out, if there are others."""
    sockets = await listening_sockets("127.0.0.1", 0, share_port=True)
    port = sockets[0].getsockname()[1]
    others = await listening_sockets("127.0.0.1", port, share_port=True)
    assert [port] == [each.getsockname()[1] for each in others]
    with pytest.raises(OSError, match="in use"):
        await listening_sockets("127.0.0.1", port, share_port=False)
    for each in (*sockets, *others):
        each.close()
