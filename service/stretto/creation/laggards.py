"""Laggards: owners for whom the host's `authorize` took too long.

A host may ask another service for some of its owners, and that service may hang. Each request of
these owners then waits for the whole of its time, and thousands of them would take every call that
a process may have under way. So owners whose last call was late share a few calls among themselves,
until one of theirs is answered in time. The others keep the rest, however many the laggards are.

Each laggard is found by one wait. While there are many laggards, the wait for every other owner is
shorter: some times as long as the slowest recent answer. An owner who is wrongly called late is a laggard
for one call, which has the whole time.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.domain import UserId

# Nothing is claimed yet: only the request itself waits. A client waits 10 s, so 8 are left for the write.
AUTHORIZE_SECONDS: Final = 2.0
# The most calls that all laggards together have under way: an eighth of `AUTHORIZATIONS_MAX`. Hung ones are tried
# again at 64 a second, and those whom the host answers by now are no laggards any more.
LATE_CALLS_MAX: Final = 128
# A call is late if it takes so many times as long as the slowest answer of late, and so long at least.
LATE_RATIO: Final = 4.0
LATE_SECONDS_MIN: Final = 0.25
# How long a late call is remembered, and the slowest answer: longer than a laggard is asked to wait.
MEMORY_SECONDS: Final = 60.0
# A client that was asked to wait half a minute still has its user.
RETRY_AFTER_SECONDS_MAX: Final = 30
# Each costs some 200 bytes.
LAGGARDS_MAX: Final = 16_384


class Laggards:
    """Owners, for a bounded time and number."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self.clock_seconds = clock_seconds
        self._late_at: dict[UserId, float] = {}
        """When a call of the owner was late; the latest at the end."""
        self._slowest = (-math.inf, AUTHORIZE_SECONDS)
        """When the slowest answer of late came, and what it took."""

    def __contains__(self, owner: object) -> bool:
        self._forget()
        return owner in self._late_at

    def patience_seconds(self, owner: UserId) -> float:
        """Return how long a call for this owner is waited for."""
        is_cut = owner not in self and len(self._late_at) > LATE_CALLS_MAX
        return self._late_seconds() if is_cut else AUTHORIZE_SECONDS

    def retry_after_seconds(self) -> int:
        """Return when a laggard's turn may come, if none of them is answered."""
        round_seconds = len(self._late_at) * AUTHORIZE_SECONDS / LATE_CALLS_MAX
        return min(max(1, math.ceil(round_seconds)), RETRY_AFTER_SECONDS_MAX)

    def note_answered(self, owner: UserId, seconds: float) -> None:
        """Note that the host has said something in that time, whatever it was."""
        self._late_at.pop(owner, None)
        now, (at, slowest) = self.clock_seconds(), self._slowest
        if seconds >= slowest or now - at >= MEMORY_SECONDS:
            self._slowest = now, seconds

    def note_left(self, owner: UserId, seconds: float) -> None:
        """Note that the client has left a call that had no answer for so long."""
        if seconds >= self._late_seconds():
            self.note_late(owner)

    def note_late(self, owner: UserId) -> None:
        """Note that the time of a call was over."""
        self._late_at.pop(owner, None)
        self._late_at[owner] = self.clock_seconds()
        if len(self._late_at) > LAGGARDS_MAX:
            del self._late_at[next(iter(self._late_at))]

    def _late_seconds(self) -> float:
        at, slowest = self._slowest
        if self.clock_seconds() - at >= MEMORY_SECONDS:
            return AUTHORIZE_SECONDS
        return min(max(LATE_SECONDS_MIN, LATE_RATIO * slowest), AUTHORIZE_SECONDS)

    def _forget(self) -> None:
        now = self.clock_seconds()
        while self._late_at:
            owner, at = next(iter(self._late_at.items()))
            if now - at < MEMORY_SECONDS:
                return
            del self._late_at[owner]
