"""Whose a cancellation is: a task's own, or that of something that it waits for.

Both arrive as the same error. The first ends the task; the second is a failure of what was called, such
as a host's bus or pool whose own future was cancelled.
"""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether this task was cancelled, rather than something that it waits for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # Without a loop nothing runs: a coroutine that is left over is being closed.
        return True
    return task is not None and task.cancelling() > 0
