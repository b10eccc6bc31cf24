"""How many flights one owner may start: a token bucket per owner, in this process.

A key that has an attempt already counts too, where this process does not remember its success.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

from stretto.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.domain import UserId

# Beyond this many, the owner unseen for longest is forgotten, which only gives it a full bucket.
OWNERS_MAX = 10_000


class OwnerLimiter:
    """Admits `rate_per_second` flights per owner, in bursts of up to one second's worth.

    A rate of 0 admits everything.
    """

    def __init__(self, rate_per_second: float, clock_seconds: Callable[[], float]) -> None:
        self._rate = rate_per_second
        self._burst = max(1.0, rate_per_second)
        self._clock_seconds = clock_seconds
        self._buckets: OrderedDict[UserId, tuple[float, float]] = OrderedDict()

    def admit(self, owner: UserId) -> None:
        """Take one token; raises `RateLimited` if there is none."""
        if not self._rate:
            return
        now = self._clock_seconds()
        tokens, seen_at = self._buckets.pop(owner, (self._burst, now))
        tokens = min(self._burst, tokens + (now - seen_at) * self._rate)
        is_admitted = tokens >= 1
        self._buckets[owner] = (tokens - is_admitted, now)
        if len(self._buckets) > OWNERS_MAX:
            self._buckets.popitem(last=False)
        if not is_admitted:
            raise RateLimited(retry_after_seconds=math.ceil((1 - tokens) / self._rate))

    def give_back(self, owner: UserId) -> None:
        """Return a token that `admit` has just taken: nothing was started."""
        if self._rate:
            tokens, seen_at = self._buckets[owner]
            self._buckets[owner] = (tokens + 1, seen_at)
