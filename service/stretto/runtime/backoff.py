"""Back-off: how long to wait after a failure before the next try.

Every retry of the service waits by this rule, each with its own bounds, in a loop around the call.
No library does it: at each call, failed or not, those make objects in reference cycles, which only
the garbage collector frees.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

# By then every bound has been reached; 2.0 to the power of thousands is no float.
DOUBLINGS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `seconds_first` up to `seconds_max`."""

    seconds_first: float
    seconds_max: float

    def longest(self, failures: int) -> float:
        """Return the longest pause after a failure that so many others preceded."""
        return min(self.seconds_first * 2.0 ** min(failures, DOUBLINGS_MAX), self.seconds_max)

    def seconds(self, failures: int) -> float:
        """Return a random pause, of half to all of the longest.

        Random: what failed together must not come back together.
        """
        return self.longest(failures) * random.uniform(0.5, 1)
