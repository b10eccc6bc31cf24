"""Waits for what nothing signals: a process, a server, or a part of ours that has no event for it.

What can be awaited is awaited, and what can be driven is driven step by step; this is for the rest.
Each wait is bounded, so that what never comes fails its test and not the run.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Seen = TypeVar("Seen")

# More than a busy machine needs for anything that a test waits for.
WAIT_SECONDS: Final = 40.0
# Not without a pause: a loop that only looks takes the processor from what it waits for.
LOOK_SECONDS: Final = 0.005


@overload
async def until(look: Callable[[], Awaitable[Seen]], seconds: float = WAIT_SECONDS) -> Seen: ...


@overload
async def until(look: Callable[[], Seen], seconds: float = WAIT_SECONDS) -> Seen: ...


async def until(look: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Look until something true is seen, and return it; raises `TimeoutError` when time is up."""
    async with asyncio.timeout(seconds):
        while True:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if seen:
                return seen
            await asyncio.sleep(LOOK_SECONDS)
