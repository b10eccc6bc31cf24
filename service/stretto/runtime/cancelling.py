"""Whether a `CancelledError` is the task's own, or that of something that the task waits for.

The first ends the task. The second is a failure of what was called, such as a host's bus or pool
whose own future was cancelled.
"""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether this task was cancelled, and not something that it waits for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # No loop runs: a coroutine that is left over is being closed.
        return True
    return task is not None and task.cancelling() > 0
