"""The clock that goes on while a process is stopped."""

from __future__ import annotations

import time

from stretto.runtime.boot_clock import boot_seconds


def test_it_never_goes_back_and_is_in_seconds() -> None:
    """Like `time.monotonic`, which leaves out the time of a suspended machine."""
    began, now = boot_seconds(), time.monotonic()
    while time.monotonic() < now + 0.01:
        assert began <= boot_seconds()
    assert 0.009 <= boot_seconds() - began < 60
