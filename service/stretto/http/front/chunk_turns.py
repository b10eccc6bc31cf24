"""Turns of connections whose bodies come in chunks: so many chunks are parsed in one turn of the event loop.

A few kilobytes hold a thousand chunks, which take milliseconds to parse. Thousands of connections that
send them at once would keep all others waiting for as many seconds: parsing is done as bytes arrive, before
any request has its turn. Beyond the bound, the rest of them waits for the next turns, the first one first.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

# In 5 to 10 ms.
CHUNKS_A_TURN: Final = 1024


class ChunkedClient(Protocol):
    """A connection that reads a body in chunks."""

    def go_on(self) -> None:
        """Parse what has waited for its turn."""


class ChunkTurns:
    """The chunks of all connections of a server."""

    def __init__(self) -> None:
        self._left = CHUNKS_A_TURN
        self._waiting: dict[ChunkedClient, None] = {}
        """The first one first."""
        self._next: asyncio.Handle | None = None

    @property
    def are_spent(self) -> bool:
        """Whether no chunks are parsed any more in this turn."""
        return self._left <= 0

    def take(self, count: int) -> None:
        """Note that so many were parsed."""
        if count:
            self._left -= count
            self._begin_later()

    def wait(self, client: ChunkedClient) -> None:
        """Have a client go on when it has its turn."""
        self._waiting[client] = None
        self._begin_later()

    def forget(self, client: ChunkedClient) -> None:
        """Note that a client has gone."""
        self._waiting.pop(client, None)

    def _begin_later(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the next turn: with those that have waited longest."""
        self._next = None
        self._left = CHUNKS_A_TURN
        for client in [*self._waiting]:
            if self.are_spent:
                break
            # One before it may have made it go.
            if client in self._waiting:
                del self._waiting[client]
                client.go_on()
