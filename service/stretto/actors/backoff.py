"""How long to wait after a failure, before the same is tried again.

A loop of our own around the call, and not a library's: theirs make objects that refer to each other
at every call, failed or not, which only the garbage collector frees.
"""

from __future__ import annotations

import random


def pause_seconds(failures: int, seconds_first: float, seconds_max: float) -> float:
    """Return a random pause that doubles with each failure before this one, up to a bound.

    Random, so that those who failed together do not come back together.
    """
    longest: float = min(seconds_first * 2**failures, seconds_max)
    return longest * random.uniform(0.5, 1)
