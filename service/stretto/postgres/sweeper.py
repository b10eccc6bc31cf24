"""RetentionSweeper: has what is past its retention deleted, now and then.

Every replica has one. The sweep itself sees to it that only one of them works at a time, and that it
disturbs nobody; the sweeper only says how often, and breaks it off at the stop.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stretto.errors import StoreError
from stretto.observations import RowsSwept
from stretto.runtime.actor import Actor, Pace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from stretto.observations import Observer

# A sweep reads the tables once. What it finds is days old: nothing hurries.
SWEEP_SECONDS: Final = 600.0


class _Stopped(Exception):
    """The sweep is broken off between two batches."""


class RetentionSweeper(Actor):
    """Runs `sweep`, which tells a callback the table and the number of rows of every batch."""

    failures = (StoreError,)

    def __init__(
        self,
        sweep: Callable[[Callable[[str, int], None]], Awaitable[Mapping[str, int]]],
        observe: Observer,
    ) -> None:
        super().__init__("sweeper")
        self.pace = Pace(seconds=SWEEP_SECONDS, spread=0.5, rests_first=True)
        self._sweep = sweep
        self._observe = observe

    async def run_once(self) -> int:
        """Sweep, until the end or until stopped; return how many rows were deleted.

        Raises a `StoreError`.
        """
        deleted = 0

        def tell(table: str, rows: int) -> None:
            nonlocal deleted
            deleted += rows
            if rows:
                self._observe(RowsSwept(table, rows))
            if self.is_stopping:
                raise _Stopped

        with suppress(_Stopped):
            await self._sweep(tell)
        return deleted
