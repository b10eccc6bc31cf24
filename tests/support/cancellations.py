"""Cancellations that are over, and still counted by their task."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from stretto.targets.bus import BusUnavailable


async def leave_one_behind() -> None:
    """Count one that is over, as an `asyncio.TaskGroup` of Python 3.11 does whose child fails."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(asyncio.CancelledError):
        task.cancel()
        await asyncio.sleep(0)


async def fail_and_leave_one_behind() -> None:
    """Fail then, as a host's code does."""
    await leave_one_behind()
    message = "the broker is down"
    raise BusUnavailable(message)
