"""A clock that also counts while the process is stopped (SIGSTOP) or its machine is suspended."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# On Linux CLOCK_MONOTONIC, which is `time.monotonic`, stands still while the machine is suspended.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# A request calls it: a `partial` takes no Python frame.
boot_seconds: Final[Callable[[], float]] = partial(time.clock_gettime, _CLOCK)
