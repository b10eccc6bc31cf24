"""Errors that say how a host may not use its component."""

from __future__ import annotations

from stretto.errors import Picklable


class CreatedInHook(Picklable, RuntimeError):
    """A host's hook has awaited a creation by its own component; nothing was done for it."""

    def __init__(self, hook: str) -> None:
        """Take its name: a writer waits for `on_create`, and `authorize` would be asked again."""
        super().__init__(
            f"{hook} must not await a creation by its own component, which waits for {hook}, nor do"
            f" so in a task that it has started: create that group once {hook} has ended, or in a"
            f" task with a context of its own (contextvars.Context()) that {hook} does not await"
        )


class WrongEventLoop(Picklable, RuntimeError):
    """A component was used in another event loop than its own, such as in another thread's."""

    def __init__(self) -> None:
        super().__init__(
            "the component belongs to another event loop; from another thread, call"
            " asyncio.run_coroutine_threadsafe(..., loop) with the loop that has opened it, and"
            " loop.call_soon_threadsafe(component.announce)"
        )


class NotStarted(Picklable, RuntimeError):
    """A mounted component was used before its application has started."""

    def __init__(self) -> None:
        super().__init__(
            "the component starts with its application: use it in handlers of requests, or in handlers of"
            " `on_startup` that were added after stretto.setup"
        )
