"""A proxy before PostgreSQL that breaks the connection at a chosen statement.

Faults are planned by the statement's name and by count ("the reply of the 3rd lead"),
so that a test is the same every time. What is not planned passes untouched.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from chaos.wire import (
    GSS_REQUEST,
    NO,
    READY_FOR_QUERY,
    SSL_REQUEST,
    Exchange,
    Message,
    StatementReader,
    read_messages,
    read_startup,
)
from stretto.postgres.queries import QUERIES, at_home

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

# As they stand, and as they ask where a session of ours leads.
NAMES = {at_home(sql, home): name for name, sql in QUERIES.items() for home in (None, '"stretto"')}
# As the driver sends it.
COMMIT = "COMMIT;"
# Before the name of the statement that a transaction ends with.
COMMIT_BEHIND = "commit behind "


class FaultKind(StrEnum):
    """What happens to a statement, and to its connection."""

    DROP = "drop"  # it never arrives; the connection stays open, and the client waits
    SWALLOW = "swallow"  # it is done, its reply never arrives; the connection stays open
    HOLD = "hold"  # it arrives only when the fault is released, even if its client has gone
    RESET_BEFORE = "reset before"  # the connection is reset, and it never arrives
    RESET_AFTER = "reset after"  # it is done, then the connection is reset
    TEAR = "tear"  # it is done, half of the reply's first message arrives, then comes the reset
    BLACK_HOLE = "black hole"  # from it on nothing passes in either direction, and nothing closes


_NEVER_ARRIVES = (FaultKind.DROP, FaultKind.RESET_BEFORE, FaultKind.BLACK_HOLE)


@dataclass(eq=False, slots=True)
class Fault:
    """A planned fault. `nth` counts the runs of its statement from the moment of planning."""

    kind: FaultKind
    statement: str
    nth: int
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    """It has met its statement."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """A held statement may go on."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has answered the statement, whichever side got the answer."""


class WireProxy:
    """Listens on a port of its own unless it is given one; use as `async with`."""

    def __init__(self, dsn: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._dsn = dsn
        self._place = host, port
        self._plan: list[Fault] = []
        self._faults: list[Fault] = []
        self._links: dict[asyncio.Task[None], _Link] = {}
        self.runs: Counter[str] = Counter()
        """How often each statement has come by."""
        self.trips = 0
        """How many round trips were begun, whatever was sent."""
        self.is_silent = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._place)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for fault in self._faults:
            fault.released.set()
        for link in self._links.values():
            link.reset()
            link.close()
        await asyncio.gather(*self._links)

    @property
    def dsn(self) -> str:
        """The database's address, by way of this proxy."""
        parts = urlsplit(self._dsn)
        login, _, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def target(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urlsplit(self._dsn)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def retarget(self, dsn: str) -> None:
        """Lead new connections to another server."""
        self._dsn = dsn

    def plan(self, kind: FaultKind, statement: str, nth: int = 1) -> Fault:
        """Plan a fault for the nth run of a statement from now on, or of the commit behind one."""
        assert statement.removeprefix(COMMIT_BEHIND) in QUERIES
        fault = Fault(kind, statement, self.runs[statement] + nth)
        self._plan.append(fault)
        self._faults.append(fault)
        return fault

    def reset(self) -> None:
        """Reset all connections; the server goes on with what it has got."""
        for link in self._links.values():
            link.reset()

    def silence(self) -> None:
        """Let nothing pass any more, on old connections or new ones, and close none."""
        self.is_silent = True
        for link in self._links.values():
            link.is_silent = True

    def restore(self) -> None:
        """Let new connections pass again; silent ones are reset."""
        self.is_silent = False
        for link in self._links.values():
            if link.is_silent:
                link.reset()
                link.close()

    def fault_of(self, name: str | None) -> Fault | None:
        """Count the statement, and take out the fault that was planned for this run of it."""
        if name is None:
            return None
        self.runs[name] += 1
        for fault in self._plan:
            if (fault.statement, fault.nth) == (name, self.runs[name]):
                self._plan.remove(fault)
                fault.happened.set()
                return fault
        return None

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = self._links[task] = _Link(self, reader, writer)
        try:
            # Broken connections are this proxy's trade.
            with suppress(OSError, asyncio.IncompleteReadError):
                await link.run()
        finally:
            link.close()
            del self._links[task]


class _Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: WireProxy, reader: StreamReader, writer: StreamWriter) -> None:
        self.is_silent = proxy.is_silent
        self._proxy = proxy
        self._from_client, self._to_client = reader, writer
        self._to_server: StreamWriter | None = None
        self._answering: deque[Fault | None] = deque()
        self._before: str | None = None
        """The statement that came by last."""
        self._broken = asyncio.Event()

    async def run(self) -> None:
        """Pass messages on until both sides have closed."""
        startup = await self._read_startup()
        if self.is_silent:
            await self._broken.wait()
            return
        from_server, self._to_server = await asyncio.open_connection(*self._proxy.target)
        self._to_server.write(startup)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forward(self._to_server), name="client to server")
            tasks.create_task(self._backward(from_server), name="server to client")

    def reset(self) -> None:
        """Break the client's connection, with a packet that says so."""
        self._broken.set()
        linger = struct.pack("ii", 1, 0)
        with suppress(OSError):  # it may be closed already
            self._to_client.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
        self._to_client.transport.abort()

    def close(self) -> None:
        """Close what is left."""
        self._to_client.close()
        if self._to_server is not None:
            self._to_server.close()

    async def _read_startup(self) -> bytes:
        while True:
            code, message = await read_startup(self._from_client)
            if code not in (SSL_REQUEST, GSS_REQUEST):
                return message
            self._to_client.write(NO)

    async def _forward(self, to_server: StreamWriter) -> None:
        statements = StatementReader()
        with suppress(OSError, asyncio.IncompleteReadError):
            async for message in read_messages(self._from_client):
                exchange = statements.feed(message)
                if exchange is not None and not await self._pass_on(exchange, to_server):
                    break
        if not self.is_silent:
            # The server finds out after what was sent before, and its answer is still read.
            with suppress(OSError):
                to_server.write_eof()

    async def _pass_on(self, exchange: Exchange, to_server: StreamWriter) -> bool:
        """Send an exchange to the server; return whether the connection goes on."""
        if self.is_silent:
            return True
        name = NAMES.get(exchange.sql or "")
        if exchange.sql == COMMIT:
            name = f"{COMMIT_BEHIND}{self._before}"
        self._before = name
        fault = self._proxy.fault_of(name)
        if fault is not None:
            if fault.kind == FaultKind.HOLD:
                await fault.released.wait()
            self.is_silent = fault.kind == FaultKind.BLACK_HOLE
            if fault.kind == FaultKind.RESET_BEFORE:
                self.reset()
                return False
            if fault.kind in _NEVER_ARRIVES:
                return True
        if exchange.is_answered_by_ready:
            self._proxy.trips += 1
            self._answering.append(fault)
        to_server.write(exchange.frames)
        await to_server.drain()
        return True

    async def _backward(self, from_server: StreamReader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            async for message in read_messages(from_server):
                fault = self._answering[0] if self._answering else None
                is_last = message.kind == READY_FOR_QUERY
                self._answer(message, fault, is_last=is_last)
                if is_last and self._answering:
                    self._answering.popleft()
                    if fault is not None:
                        fault.answered.set()
        if not self.is_silent:
            self._to_client.close()

    def _answer(self, message: Message, fault: Fault | None, *, is_last: bool) -> None:
        """Send the client what its fault leaves of an answer."""
        if self.is_silent or self._to_client.is_closing():
            return
        match fault and fault.kind:
            case None | FaultKind.HOLD:
                self._to_client.write(message.frame)
            case FaultKind.TEAR if not is_last:
                self._to_client.write(message.frame[: len(message.frame) // 2])
            case FaultKind.TEAR | FaultKind.RESET_AFTER if is_last:
                self.reset()
