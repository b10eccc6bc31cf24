"""RetentionSweeper: has what is past its retention deleted, on a clock of its own.

Every replica has one. The sweep itself sees to it that only one of them works at a time, and that it
disturbs nobody; the sweeper owns nothing but the clock.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from stretto.protocol.ports import ActorCrashed, RowsSwept, StoreError, UpkeepTrouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from stretto.protocol.ports import Observer

# A sweep reads the tables once. What it finds is days old: nothing hurries.
SWEEP_SECONDS: Final = 600.0


class RetentionSweeper:
    """Runs `sweep`, which tells a callback the table and the number of rows of every batch."""

    def __init__(
        self,
        sweep: Callable[[Callable[[str, int], None]], Awaitable[Mapping[str, int]]],
        observe: Observer,
    ) -> None:
        self._sweep = sweep
        self._observe = observe

    async def run(self) -> None:
        """Sweep time and again, until cancelled; at random times, so that replicas take turns."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS * random.uniform(0.5, 1.5))
            try:
                await self.run_once()
            except StoreError as error:
                self._observe(UpkeepTrouble("sweeper", error))
            except Exception as error:  # noqa: BLE001 no bug may end the sweeping
                self._observe(ActorCrashed("sweeper", error))

    async def run_once(self) -> int:
        """Sweep once; return how many rows were deleted. Raises a `StoreError`."""
        return sum((await self._sweep(self._tell)).values())

    def _tell(self, table: str, rows: int) -> None:
        if rows:
            self._observe(RowsSwept(table, rows))
