"""Whether a task was cancelled, and what a host's code leaves behind in the task that it runs in."""

from __future__ import annotations

import asyncio

import pytest

from stretto.runtime.cancelling import cancellations, in_own_task, is_cancelled
from stretto.targets.bus import BusUnavailable
from support.cancellations import fail_and_leave_one_behind


async def test_what_a_hosts_code_leaves_behind_is_not_ours() -> None:
    """Twin: in our own task it would pass for a cancellation from outside."""
    with pytest.raises(BusUnavailable):
        await in_own_task(fail_and_leave_one_behind(), "host")
    assert not is_cancelled()
    with pytest.raises(BusUnavailable):
        await fail_and_leave_one_behind()
    assert is_cancelled()
    assert not is_cancelled(cancellations())


async def test_a_cancellation_reaches_the_hosts_code() -> None:
    """And ends the task that waits for it."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(in_own_task(hang(), "host"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_cancelled_future_of_the_hosts_is_no_cancellation() -> None:
    """It is an error of what was called."""

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await in_own_task(cancel_itself(), "host")
    assert not is_cancelled()


def test_without_a_loop_a_coroutine_is_being_closed() -> None:
    """That counts as the end of its task."""
    assert is_cancelled()
