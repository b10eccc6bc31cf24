"""Shared: a result that takes long to make, made once for all who wait for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Makes one result after the other, however many ask."""

    def __init__(self) -> None:
        self._current: asyncio.Task[Result] | None = None
        """What is being made, or was made last."""
        self._next: asyncio.Task[Result] | None = None
        """What those get who ask from now on."""

    async def get(self, make: Callable[[], Awaitable[Result]]) -> Result:
        """Return a result whose making has begun after this call; raises what `make` raises."""
        making = self.ask(make)
        # Of those who wait, one may leave.
        await asyncio.wait((making,))
        return making.result()

    def ask(self, make: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result]:
        """Return what makes such a result, for all who ask before it has begun."""
        # One that is done was cancelled before it began, as a host may do with every task, or has
        # run within `create_task`, as an eager one does.
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._make(make, self._current), name="shared result")
        return self._next

    async def _make(
        self, make: Callable[[], Awaitable[Result]], before: asyncio.Task[Result] | None
    ) -> Result:
        if before is not None:
            await asyncio.wait((before,))
        self._current, self._next = self._next, None
        return await make()
