"""Lag: for how long the oldest event has waited to be handed over, by the relay or the webhook.

The store is asked at most once a second. In between the age of the oldest event goes on growing: an actor
that is stuck does not look idle. While the store cannot be asked, nothing is known: the event may have been
handed over since, and a 0 would hide what other instances see.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# Asking costs a statement: as often as an idle actor looks for work anyway.
LOOK_SECONDS: Final = 1.0


class Lag:
    """Asks `oldest_seconds` for the age of the oldest waiting event; None if no event waits."""

    def __init__(
        self,
        oldest_seconds: Callable[[], Awaitable[float | None]],
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._oldest_seconds = oldest_seconds
        self._clock_seconds = clock_seconds
        self._waiting_since: float | None = None
        self._is_known = False
        self._due_at = clock_seconds()

    @property
    def seconds(self) -> float | None:
        """The age of the oldest waiting event; 0 if there is none, None while that is not known."""
        if not self._is_known:
            return None
        return 0.0 if self._waiting_since is None else self._clock_seconds() - self._waiting_since

    async def look(self) -> bool:
        """Ask the store, if `LOOK_SECONDS` have passed; return whether it said that an event waits.

        Raises a `StoreError`.
        """
        if self._clock_seconds() < self._due_at:
            return False
        try:
            age = await self._oldest_seconds()
        except StoreError:
            self._is_known = False
            raise
        self._is_known = True
        now = self._clock_seconds()
        self._due_at = now + LOOK_SECONDS
        self._waiting_since = None if age is None else now - age
        return age is not None
