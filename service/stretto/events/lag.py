"""Lag: for how long the oldest event has been owed to its receivers.

The store is asked at most once a second. In between, and while it cannot be asked, what was owed goes
on ageing: an actor that is stuck does not look as if it had nothing to do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# Asking costs a statement: as often as an idle actor looks for work anyway.
LOOK_SECONDS: Final = 1.0


class Lag:
    """Asks `oldest_seconds` for the age of the oldest event that is owed; none means nothing is."""

    def __init__(
        self,
        oldest_seconds: Callable[[], Awaitable[float | None]],
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._oldest_seconds = oldest_seconds
        self._clock_seconds = clock_seconds
        self._owed_since: float | None = None
        self._due_at = clock_seconds()

    @property
    def seconds(self) -> float:
        """The age of the oldest event that is owed; 0 where none is."""
        return 0.0 if self._owed_since is None else self._clock_seconds() - self._owed_since

    async def look(self) -> None:
        """Ask the store, if it is time to. Raises a `StoreError`."""
        if self._clock_seconds() < self._due_at:
            return
        age = await self._oldest_seconds()
        now = self._clock_seconds()
        self._due_at = now + LOOK_SECONDS
        self._owed_since = None if age is None else now - age
