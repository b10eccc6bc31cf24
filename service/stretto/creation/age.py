"""How old a request may be that starts an attempt.

A request that was held up for days would create a group that no client waits for. If the record of
a failed attempt is lost (truncated, an old backup), a late retry would create the group after all.
So a request may say when it was first sent, and its retries say the same. If that is too long ago,
the request finds what its key has, and starts nothing (`Follower.require_attempt`).

This module only reads that time and compares it with the clock.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from stretto.errors import FirstSentOutOfRange, ParameterError, RequestInvalid

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


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The time at which a request was first sent, where that lets it start no attempt."""

    first_sent: float
    """In seconds since the epoch, as is the next."""
    now: float
    """What our clock said when it was compared."""

    @property
    def is_ahead(self) -> bool:
        """Whether that time is to come; else it is too long ago."""
        return self.first_sent > self.now

    @property
    def cause(self) -> str:
        """Both times, for the operator: the clock that is wrong may be this machine's."""
        return (
            f"a request was first sent at {_date(self.first_sent)} by its client's clock,"
            f" {self.first_sent - self.now:.0f} s ahead of this machine's: {_date(self.now)}"
        )

    def error(self) -> FirstSentOutOfRange:
        """Return what the client gets: it says which of the two it is."""
        if not self.is_ahead:
            detail = (
                "The request was first sent too long ago to start an attempt; nothing was done."
            )
            return FirstSentOutOfRange(detail)
        return FirstSentOutOfRange(
            f"The request was first sent {self.first_sent - self.now:.0f} s ahead of the service's"
            f" clock, and {AHEAD_SECONDS_MAX:.0f} s are allowed: one of the two clocks is wrong;"
            " nothing was done."
        )


class AttemptAge:
    """Decides by the time at which a request was first sent whether it may start an attempt."""

    def __init__(self, seconds_max: float, clock_seconds: Callable[[], float] = time.time) -> None:
        self._seconds_max = seconds_max
        self._clock_seconds = clock_seconds

    def allows(self, first_sent: float | None) -> bool:
        """Whether a request of that time, in seconds since the epoch, may start an attempt."""
        return self.out_of_range(first_sent) is None

    def out_of_range(self, first_sent: float | None) -> OutOfRange | None:
        """Return why a request of that time may not start an attempt; None if it may.

        One that does not say when it was first sent may.
        """
        if first_sent is None:
            return None
        now = self._clock_seconds()
        if -AHEAD_SECONDS_MAX <= now - first_sent <= self._seconds_max:
            return None
        return OutOfRange(first_sent, now)

    def out_of_range_stored(self, field: str | None, stored_at: float) -> OutOfRange | None:
        """Do the same for a stored request; without the field, its age counts from `stored_at`.

        If `stored_at` is ahead of our clock, our clock is behind the store's, and the request is
        new. Raises `RequestInvalid`.
        """
        if field is not None:
            return self.out_of_range(parse_first_sent(field))
        return self.out_of_range(min(stored_at, self._clock_seconds()))


def _date(seconds: float) -> str:
    """Return a time by ISO 8601; a number beyond the calendar, such as milliseconds, as it is."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OSError, OverflowError, ValueError):
        return f"@{seconds:.0f}"
