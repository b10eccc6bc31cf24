"""A clock that stands still unless a test sets it."""

from __future__ import annotations


class Clock:
    """Seconds, as the event loop and `time.monotonic` count them."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
