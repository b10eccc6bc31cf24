"""Turns of connections that are read: so much is read in one turn of the event loop, of users and of others apart.

A few kilobytes hold a thousand chunks, and one read of a socket several large heads: either takes milliseconds
to parse. Thousands of connections that send them at once, or small requests, would keep all others waiting
for as many seconds: reading is done as bytes arrive, before any request has its turn. Beyond the bound, the rest
waits for the next turns, the first one first; of users, each in rotation.

All is counted as chunks: what costs as much as one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from stretto.http.front.fair_bytes import ClientOfUser

# In 3 to 5 ms: of users, and as many of others.
CHUNKS_A_TURN: Final = 512
# What a read of a socket costs, or a head, beside its bytes: an exact repeat takes 23 µs.
CHUNKS_OF_READ: Final = 2
# Of a head: 32 KiB take 0.5 ms.
BYTES_OF_CHUNK: Final = 512


class ReadClient(ClientOfUser, Protocol):
    """A connection that is read."""

    def go_on(self) -> None:
        """Read what has waited for its turn."""


class _Share:
    """What is left of a turn to some of the clients, and those of them that wait for the next one."""

    def __init__(self) -> None:
        self.left = CHUNKS_A_TURN
        self.waiting: OrderedDict[object, OrderedDict[ReadClient, None]] = OrderedDict()
        """Of each user, or of one other client: the first one first."""

    def next(self) -> ReadClient:
        """Take the next one out; its user's others wait behind those of all users."""
        owner, clients = self.waiting.popitem(last=False)
        client, _ = clients.popitem(last=False)
        if clients:
            self.waiting[owner] = clients
        return client


class ReadingTurns:
    """What is read of all connections of a server."""

    def __init__(self) -> None:
        self._users, self._others = _Share(), _Share()
        self._places: dict[ReadClient, tuple[_Share, object]] = {}
        """Where each one that waits does: its user may become known meanwhile."""
        self._next: asyncio.Handle | None = None

    def _share_of(self, client: ReadClient) -> _Share:
        return self._others if client.user is None else self._users

    def are_spent(self, client: ReadClient) -> bool:
        """Return whether nothing more of this client is read in this turn."""
        return self._share_of(client).left <= 0

    def take(self, client: ReadClient, count: int) -> None:
        """Note that so many chunks of this client were read, or as much as they cost."""
        if count:
            self._share_of(client).left -= count
            self._begin_later()

    def wait(self, client: ReadClient) -> None:
        """Have a client go on when it has its turn."""
        share, owner = self._share_of(client), client if client.user is None else client.user
        share.waiting.setdefault(owner, OrderedDict())[client] = None
        self._places[client] = share, owner
        self._begin_later()

    def forget(self, client: ReadClient) -> None:
        """Note that a client has gone."""
        place = self._places.pop(client, None)
        if place is None:
            return
        share, owner = place
        clients = share.waiting[owner]
        del clients[client]
        if not clients:
            del share.waiting[owner]

    def _begin_later(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the next turn: with those that have waited longest."""
        self._next = None
        try:
            for share in (self._users, self._others):
                share.left = CHUNKS_A_TURN
                while share.waiting and share.left > 0:
                    client = share.next()
                    del self._places[client]
                    client.go_on()
        finally:
            # Also where one has failed.
            if self._places:
                self._begin_later()
