"""Errors that say how a host may not use its component."""

from __future__ import annotations

from stretto.errors import Picklable


class CreatedInHook(Picklable, RuntimeError):
    """A host's `on_create` has awaited a creation by its own component; nothing was done for it."""

    def __init__(self) -> None:
        super().__init__(
            "on_create must not await a creation by its own component, whose writer waits for the"
            " hook, nor do so in a task that it has started: create that group once on_create has ended,"
            " or in a task with a context of its own (contextvars.Context()) that on_create does not await"
        )


class WrongEventLoop(Picklable, RuntimeError):
    """A component was used in another event loop than its own, such as in another thread's."""

    def __init__(self) -> None:
        super().__init__(
            "the component belongs to another event loop; from another thread, call"
            " asyncio.run_coroutine_threadsafe(..., loop) with the loop that has opened it"
        )
