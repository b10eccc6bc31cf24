"""Counts the turns of the event loop."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def counted_turns() -> Iterator[Callable[[], int]]:
    """Yield what returns the number of the present turn."""
    loop, number, handle = asyncio.get_running_loop(), 0, None

    def count() -> None:
        nonlocal number, handle
        number += 1
        handle = loop.call_soon(count)

    count()
    try:
        yield lambda: number
    finally:
        assert handle is not None
        handle.cancel()
