"""RetentionSweeper: has what is past its retention deleted, on a clock of its own.

Every replica has one. The sweep itself sees to it that only one of them works at a time, and that it
disturbs nobody; the sweeper owns nothing but the clock.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stretto.protocol.ports import ActorCrashed, RowsSwept, StoreError, UpkeepTrouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from stretto.protocol.ports import Observer

# A sweep reads the tables once. What it finds is days old: nothing hurries.
SWEEP_SECONDS: Final = 600.0


class _Stopped(Exception):
    """The sweep is broken off between two batches."""


class RetentionSweeper:
    """Runs `sweep`, which tells a callback the table and the number of rows of every batch."""

    def __init__(
        self,
        sweep: Callable[[Callable[[str, int], None]], Awaitable[Mapping[str, int]]],
        observe: Observer,
    ) -> None:
        self._sweep = sweep
        self._observe = observe
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have `run` end, in the midst of a sweep after its next batch. Idempotent."""
        self._stopping.set()

    async def run(self) -> None:
        """Sweep time and again, until stopped; at random times, so that replicas take turns."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS * random.uniform(0.5, 1.5)):
                    await self._stopping.wait()
                    return
            try:
                await self.run_once()
            except _Stopped:
                return
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
        if self._stopping.is_set():
            raise _Stopped
