"""Which calls of a host's hooks run, and whether a creation comes from within one.

A writer waits for `on_create`. So `on_create` must not await a creation by its own component. Nor must
`authorize`: it would be called again for that creation, without an end. Such a wait may be in a task
that the hook has started, such as that of `asyncio.wait_for`, so it is known by a context variable:
tasks inherit it. Whether a hook awaits its task is not known: until the call has ended, each task of
its context counts. After that none does.

A call may run within one of another component's, and both count. But an `on_create` runs in a writer's
context, not in that of the request whose group it is called for: there the hook's time bounds the wait.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

# The calls, the innermost first. Objects of their own: contexts live long, and would keep a task's frames.
_CALLS: Final[ContextVar[tuple[object, ...]]] = ContextVar("stretto hooks", default=())


class HookCalls:
    """The running calls of one component's hooks."""

    def __init__(self) -> None:
        self._running: dict[object, str] = {}
        """With the name of its hook."""

    def begin(self, hook: str) -> object:
        """Mark this task's context, and return what `end` takes.

        No context manager of `contextlib`: it sets the traceback of a host's error, which may refuse.
        """
        call = object()
        self._running[call] = hook
        _CALLS.set((call, *_CALLS.get()))
        return call

    def end(self, call: object) -> None:
        """End the call: from now on its tasks count no more. Idempotent."""
        self._running.pop(call, None)

    def caller(self) -> str | None:
        """Return the name of the hook within whose call this runs, if it does."""
        if not self._running:
            return None
        return next((self._running[call] for call in _CALLS.get() if call in self._running), None)
