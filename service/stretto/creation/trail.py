"""The trail of an attempt: what has happened to it beside the normal way.

A claim, its lead and a replay are the normal way, and leave no trail: the attempt's own row
shows them. The statements that reclaim, heal and fail add to the trail themselves, in their
commit. What only a process sees is added by the `TrailRecorder`, soon after and within bounds: it
never delays an answer, and what is beyond the bounds, or is not added when the process ends, is
lost.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from stretto.creation.limiter import OwnerLimiter
from stretto.errors import RateLimited
from stretto.runtime.actor import Actor, Pace
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from stretto.observations import AttemptStrayed

# A user's client leaves the normal way a few times at once, when an instance or the database fails.
# More often it is a program that sends one key with other bodies.
OWNER_ENTRIES_PER_SECOND: Final = 10
# As many as a lost database leaves open: the batches of a few writers. Some 300 bytes each.
QUEUED_MAX: Final = 1024
# One statement of a few milliseconds, twice a second at most: 512 entries a second in any case.
BATCH_MAX: Final = 256
GATHER_SECONDS: Final = 0.5
# A stop has little time, and the database may be what has failed.
STOP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One thing that has happened to an attempt, as it is stored."""

    happened_at: datetime
    what: str
    instance: str
    token_before: UUID | None
    """The claim token that was replaced or settled."""
    token_after: UUID | None
    """The claim token of the request."""
    claimed_at: datetime | None
    """Of the attempt's row, if it carried `token_after` then."""
    code: str | None
    trace_id: str | None


class TrailStore(Protocol):
    """Where trails are kept."""

    async def append(self, strays: Sequence[tuple[AttemptStrayed, float]]) -> None:
        """Add what happened so many seconds ago; raises a `StoreError`."""


class BatchTrailStore(Protocol):
    """Where trails are read; reads of many requests share one query."""

    async def newest(
        self, wanted: Sequence[UUID], entries_max: int
    ) -> Sequence[Sequence[TrailEntry]]:
        """Return up to so many of the newest entries of each trail, oldest first."""


class TrailRecorder(Actor):
    """Adds to the trails what observations report; a turn is one statement."""

    failures = (StoreError,)
    # Only what was noted makes work.
    pace = Pace(seconds=3600.0, gather_seconds=GATHER_SECONDS, rests_first=True)

    def __init__(
        self, store: TrailStore, clock_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("trail recorder")
        self._store = store
        self._clock_seconds = clock_seconds
        self._limiter = OwnerLimiter(OWNER_ENTRIES_PER_SECOND, clock_seconds)
        self._noted: list[tuple[AttemptStrayed, float]] = []
        """What is to be added, with the time at which it was noted."""

    def note(self, stray: AttemptStrayed) -> None:
        """Note what the next turn adds; drop it beyond the bounds. Never blocks."""
        if len(self._noted) >= QUEUED_MAX:
            return
        with suppress(RateLimited):
            self._limiter.admit(stray.owner)
            self._noted.append((stray, self._clock_seconds()))
            self.wake()

    async def run_once(self) -> int:
        """Add the oldest that was noted; raises a `StoreError`, and then the entries stay queued.

        A statement whose acknowledgement was lost may be repeated: the trail then has twins.
        """
        batch, now = self._noted[:BATCH_MAX], self._clock_seconds()
        if batch:
            await self._store.append([(stray, now - noted_at) for stray, noted_at in batch])
        del self._noted[: len(batch)]
        if self._noted:
            self.wake()
        return len(batch)

    async def close(self) -> None:
        """Add what a stop finds; what cannot be added soon is lost. Idempotent."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._noted:
                    await self.run_once()
        self._noted.clear()
