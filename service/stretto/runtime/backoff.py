"""Back-off: how long to wait after a failure, before the same is tried again.

Everything that tries again waits by this rule, each with bounds of its own. A loop around the call, and
not a library's: theirs make objects that refer to each other at every call, failed or not, which only
the garbage collector frees.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

# Beyond this the bound has long been reached; a power of thousands has no float.
DOUBLINGS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `seconds_first` up to `seconds_max`."""

    seconds_first: float
    seconds_max: float

    def longest(self, failures: int) -> float:
        """Return the longest pause after so many failures before this one."""
        return min(self.seconds_first * 2.0 ** min(failures, DOUBLINGS_MAX), self.seconds_max)

    def seconds(self, failures: int) -> float:
        """Return a random pause, of half to all of the longest.

        Random, because those that failed together must not come back together.
        """
        return self.longest(failures) * random.uniform(0.5, 1)
