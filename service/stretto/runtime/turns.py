"""Turns: pieces of work, few in each turn of the event loop.

Parsing the largest body takes milliseconds. A hundred of those in one turn would let every other
request wait for all of them. So each waits for a turn of its own, and small requests run in between.
So do small ones where thousands come at once, some in each turn.
Owners are served in rotation: one with many requests waits for its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class Turns:
    """Grants turns in one event loop."""

    def __init__(self, per_turn: int = 1) -> None:
        """Take how many pieces of work a turn of the loop may have."""
        self._per_turn = per_turn
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._granted = 0
        """How many pieces of work this turn of the event loop, or the next one, has."""

    async def take(self, owner: Hashable) -> None:
        """Wait for a turn; what follows is run in it up to its first `await`."""
        loop = asyncio.get_running_loop()
        if self._granted < self._per_turn:
            if not self._granted:
                loop.call_soon(self._grant_next)
            self._granted += 1
            return
        waiter = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(waiter)
        await waiter

    def _grant_next(self) -> None:
        self._granted = 0
        while self._waiting and self._granted < self._per_turn:
            owner, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[owner] = waiters
            if not waiter.done():
                waiter.set_result(None)
                self._granted += 1
        if self._granted:
            asyncio.get_running_loop().call_soon(self._grant_next)
