"""OwnerPlaces: owners take turns for the few statements that heal and reclaim, also for look-ups.

Such a statement may hang for one owner: in a trigger of the host's, or at a row that a host's
transaction holds. So an owner has one place at a time, and all whose statements have taken long
lately share one (`suspects.py`). The other one is left to everybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from stretto.creation.suspects import Suspects
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.domain import UserId

# As many as have connections (`postgres/lanes.py`).
PLACES_MAX: Final = 2
# A statement that takes as long: a wait for a lock, or several times what a busy server needs.
SLOW_SECONDS: Final = 0.25
# A client's default wait.
WAIT_SECONDS: Final = 10.0


class OwnerPlaces:
    """Places for statements, of one component."""

    def __init__(self) -> None:
        self._waiting: dict[UserId, deque[asyncio.Future[None]]] = {}
        """By owner, the one whose turn is next first."""
        self._held: set[UserId] = set()
        self._suspects = Suspects(_clock_seconds)

    @asynccontextmanager
    async def place(self, owner: UserId) -> AsyncIterator[None]:
        """Wait for this owner's turn, and hold a place; raises `Unreachable` after `WAIT_SECONDS`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._admit()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except GeneratorExit:
            # The loop is gone, and all who wait with it.
            raise
        except BaseException as error:
            # The place may have been granted in this same turn of the event loop.
            if not turn.cancel() and not turn.cancelled():
                self._leave(owner)
            if isinstance(error, TimeoutError):
                message = f"other attempts had their turns for {WAIT_SECONDS:g} s"
                raise Unreachable(message) from error
            raise
        began = _clock_seconds()
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            self._end(owner, _clock_seconds() - began)
            raise
        self._end(owner, _clock_seconds() - began)

    def _end(self, owner: UserId, seconds: float) -> None:
        if seconds < SLOW_SECONDS:
            self._suspects.discard(owner)
        else:
            self._suspects.note_untried(owner, seconds)
        self._leave(owner)

    def _leave(self, owner: UserId) -> None:
        self._held.discard(owner)
        self._admit()

    def _admit(self) -> None:
        """Give free places to the owners whose turn it is."""
        suspects = self._suspects
        suspects.drop_stale()
        for owner in list(self._waiting):
            if len(self._held) == PLACES_MAX:
                return
            is_slow = owner in suspects
            if owner in self._held or (is_slow and any(each in suspects for each in self._held)):
                continue
            queue = self._waiting.pop(owner)
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    self._held.add(owner)
                    break
            if queue:
                # Behind the others.
                self._waiting[owner] = queue


def _clock_seconds() -> float:
    return asyncio.get_running_loop().time()
