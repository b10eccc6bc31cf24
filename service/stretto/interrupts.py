"""Ctrl-C while modules are loaded: it ends the process in words."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a shell reports of a program that SIGINT has ended.
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """End the process on Ctrl-C within: a `KeyboardInterrupt` would show where the loading was."""
    # Not where it is ignored, as in a shell's background.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os.write(2, b"stretto: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
