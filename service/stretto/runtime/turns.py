"""Turns: pieces of work, few in each turn of the event loop.

Parsing the largest body takes milliseconds. A hundred of those in one turn would let every other
request wait for all of them. So each waits for a turn of its own, and small requests run in between.
So do small ones where thousands come at once, some in each turn, and sends to thousands of sessions.
Owners are served in rotation: one with many requests waits for its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Turns:
    """Grants turns in one event loop."""

    def __init__(self, per_turn: int = 1) -> None:
        """Take how many pieces of work a turn of the loop may have.

        The last one that begins in a turn may have more pieces than are left.
        """
        self._per_turn = per_turn
        self._waiting: OrderedDict[Hashable, deque[Callable[[], int]]] = OrderedDict()
        self._granted = 0
        """How many pieces of work this turn of the event loop, or the next one, has."""
        self._is_due = False
        """Whether `_grant_next` is to be called in the next turn of the loop."""
        self.number = 0
        """Changes with each turn of the loop in which work was granted."""

    @property
    def is_behind(self) -> bool:
        """Whether any work waits for a turn: the loop is busy with what was granted."""
        return bool(self._waiting)

    async def take(self, owner: Hashable, pieces: int = 1) -> None:
        """Wait for a turn; so many pieces of work follow in it, up to its first `await`."""
        if not self._has_room():
            waiter = asyncio.get_running_loop().create_future()
            self._queue(owner, partial(_end_wait, waiter, pieces))
            await waiter
            return
        self._granted += pieces

    def call(self, owner: Hashable, begin: Callable[[], int]) -> None:
        """Call `begin` in a turn: at once, if this one has room.

        It waits for nothing, and returns how many pieces of work it causes, in the next turn of the
        loop at the latest; 0, if there is nothing to do any more.
        """
        # As `_has_room`, without a call: each event to a session comes here.
        if self._granted >= self._per_turn:
            self._queue(owner, begin)
            return
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._grant_next)
        self._granted += begin()

    def _has_room(self) -> bool:
        """Whether work may begin now. If none has begun in this turn, the next one is prepared."""
        if self._granted >= self._per_turn:
            return False
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._grant_next)
        return True

    def _queue(self, owner: Hashable, begin: Callable[[], int]) -> None:
        if (waiting := self._waiting.get(owner)) is None:
            self._waiting[owner] = deque((begin,))
        else:
            waiting.append(begin)

    def _grant_next(self) -> None:
        self._granted = 0
        self.number += 1
        while self._waiting and self._granted < self._per_turn:
            owner, waiting = self._waiting.popitem(last=False)
            begin = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            self._granted += begin()
        self._is_due = self._granted > 0
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._grant_next)


def _end_wait(waiter: asyncio.Future[None], pieces: int) -> int:
    """Grant a turn to a task that waits for it, unless it has gone."""
    if waiter.done():
        return 0
    waiter.set_result(None)
    return pieces
