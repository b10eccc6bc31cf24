"""Whether a `CancelledError` is the task's own, or that of something that the task waits for.

The first ends the task. The second is a failure of what was called, such as a host's bus or pool
whose own future was cancelled.

A task counts its cancellations, and may have counted some that are over: on Python 3.11 and 3.12 an
`asyncio.TaskGroup` leaves one behind when its child fails. So only those since a call began are
looked at. What a host's code leaves behind in the call itself must not be counted either, so it runs
in a task of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


def cancellations() -> int:
    """Return how often this task was cancelled, as far as it has counted."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def is_cancelled(since: int = 0) -> bool:
    """Whether this task was cancelled since it had counted so many, and not what it waits for."""
    try:
        return cancellations() > since
    except RuntimeError:
        # No loop runs: a coroutine that is left over is being closed.
        return True


async def in_own_task(call: Coroutine[Any, Any, Result], name: str) -> Result:
    """Await a call of a host's code in a task of its own, which is cancelled with this one."""
    task = asyncio.create_task(call, name=name)
    try:
        return await task
    finally:
        # The traceback of its error refers to this frame, which must not refer back.
        del task


def retrieve(task: asyncio.Task[Any]) -> None:
    """Look at a task that has ended, or asyncio logs its error as never retrieved, with what is in its text."""
    if not task.cancelled():
        task.exception()
