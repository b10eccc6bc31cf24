"""Which calls of a host's hook run, and whether a creation comes from within one.

A writer waits for its hook, so a hook must not await a creation by its own component. Such a wait may
be in a task that the hook has started, such as that of `asyncio.wait_for`, so it is known by a
context variable: tasks inherit it. Whether a hook awaits its task is not known: until the call has
ended, each task of its context counts. After that none does.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

# The innermost call. An object of its own: contexts live long, and would keep a task's frames.
_CALL: Final[ContextVar[object]] = ContextVar("stretto on_create")


class HookCalls:
    """The running calls of one component's hook."""

    def __init__(self) -> None:
        self._running: set[object] = set()

    def begin(self) -> object:
        """Mark this task's context, and return what `end` takes.

        No context manager of `contextlib`: it sets the traceback of a host's error, which may refuse.
        """
        call = object()
        self._running.add(call)
        _CALL.set(call)
        return call

    def end(self, call: object) -> None:
        """End the call: from now on its tasks count no more. Idempotent."""
        self._running.discard(call)

    def has_caller(self) -> bool:
        """Whether this runs within such a call."""
        return bool(self._running) and _CALL.get(None) in self._running
