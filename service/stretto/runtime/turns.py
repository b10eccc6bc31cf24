"""Turns: large pieces of work, one in each turn of the event loop.

Parsing the largest body takes milliseconds. A hundred of those in one turn would let every other
request wait for all of them. So each waits for a turn of its own, and small requests run in between.
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

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_taken = False
        """Whether this turn of the event loop, or the next one, is granted."""

    async def take(self, owner: Hashable) -> None:
        """Wait for a turn; what follows is run in it up to its first `await`."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._grant_next)
            return
        waiter = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(waiter)
        await waiter

    def _grant_next(self) -> None:
        while self._waiting:
            owner, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[owner] = waiters
            if not waiter.done():
                waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._grant_next)
                return
        self._is_taken = False
