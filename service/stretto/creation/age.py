"""How old a request may be that starts an attempt.

A failed attempt is swept after `STRETTO_RETENTION_DAYS`: a request of its key that comes still later
would create the group after all. One that was held up for days would create a group that no client
waits for. So a request may say when it was first sent, and its retries say the same. If that is too
long ago, the request finds what its key has, and starts nothing (`Follower.require_attempt`).

This module only reads that time and compares it with the clock.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from stretto.errors import ParameterError, RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_SENT: Final = "Idempotency-First-Sent"
# Clocks of phones and desktops are wrong by minutes. A time that is further ahead says nothing of a
# request's age.
AHEAD_SECONDS_MAX: Final = 300.0

# A Date of RFC 9651, 3.3.7.
_DATE = re.compile(r"@(-?[0-9]{1,15})")


def parse_first_sent(field: str) -> int:
    """Return the time that a header field names, in seconds since the epoch.

    Raises `RequestInvalid`.
    """
    date = _DATE.fullmatch(field)
    if date is None:
        detail = "must be @ and the seconds since 1970, such as @1763870400 (RFC 9651, 3.3.7)"
        raise RequestInvalid([ParameterError(FIRST_SENT, detail)])
    return int(date[1])


class AttemptAge:
    """Decides by the time at which a request was first sent whether it may start an attempt."""

    def __init__(self, seconds_max: float, clock_seconds: Callable[[], float] = time.time) -> None:
        self._seconds_max = seconds_max
        self._clock_seconds = clock_seconds

    def allows(self, first_sent: float | None) -> bool:
        """Whether a request of that time, in seconds since the epoch, may start an attempt.

        One that does not say when it was first sent may.
        """
        if first_sent is None:
            return True
        age_seconds = self._clock_seconds() - first_sent
        return -AHEAD_SECONDS_MAX <= age_seconds <= self._seconds_max
