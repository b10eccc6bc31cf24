"""Opening: a context manager that is no generator.

An event loop that is closing closes all async generators at once. Of two that stand in each other,
such as a host's around ours, the outer one would find the inner one already running, and give up
what it still has to close.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

Opened = TypeVar("Opened")


class Opening(AbstractAsyncContextManager[Opened]):
    """What `enter` returns; what it has put on its stack closes at the end, or when it fails.

    Raises `RuntimeError` where it is entered before it has ended: the first would never be closed.
    """

    def __init__(self, enter: Callable[[AsyncExitStack], Awaitable[Opened]]) -> None:
        self._enter = enter
        self._stack: AsyncExitStack | None = None
        """While it is entered."""

    async def __aenter__(self) -> Opened:
        if self._stack is not None:
            raise RuntimeError("this is open already: open another one instead")
        self._stack = AsyncExitStack()
        try:
            async with AsyncExitStack() as stack:
                opened = await self._enter(stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._stack = None
            raise
        return opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._stack is not None, "it was entered"
        stack, self._stack = self._stack, None
        return await stack.__aexit__(kind, error, traceback)
