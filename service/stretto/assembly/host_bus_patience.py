"""Patience: how long a host's bus is waited for, by what it took last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.runtime.backoff import DOUBLINGS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

# Of a lease, for all events together and for each owner's: of 5 s, others wait 1.5 s once or twice. A bus
# that is known to take longer gets three times what it took, a lease at most.
PATIENCE_SHARE: Final = 0.3
PATIENCE_TIMES: Final = 3.0
# Of that, where it has just failed for an owner, and where it has answered for others meanwhile.
QUICK_SHARE: Final = 1 / 3
# Where it has failed for one owner, it may soon for others.
QUICK_SECONDS: Final = 30.0


class Patience:
    """How long is waited for one answer, in seconds."""

    def __init__(self, lease_seconds: float, clock_seconds: Callable[[], float]) -> None:
        self.lease_seconds = lease_seconds
        self._clock_seconds = clock_seconds
        self.answered_at = float("-inf")
        self._took_seconds = 0.0
        self._failed_at = float("-inf")
        self._silent = 0
        """How often in a row the bus has not answered in time, and raised nothing."""

    @property
    def seconds(self) -> float:
        """For one answer, as a rule."""
        return self.after(self._took_seconds)

    @property
    def quick_seconds(self) -> float:
        """For one that is probably none."""
        return self.after(self._took_seconds, QUICK_SHARE)

    @property
    def has_just_failed(self) -> bool:
        """Whether it has failed for an owner a short time ago."""
        return self._clock_seconds() < self._failed_at + QUICK_SECONDS

    @property
    def together_seconds(self) -> float:
        """For all events together."""
        return self.quick_seconds if self.has_just_failed else self.seconds

    @property
    def alone_seconds(self) -> float:
        """For one owner's, of a bus that has answered nothing: twice as long each time."""
        return min(self.seconds * 2.0**self._silent, self.lease_seconds)

    def after(self, seconds: float, share: float = 1.0) -> float:
        """For one, where another has taken so many seconds; `share` is of the least."""
        least = PATIENCE_SHARE * self.lease_seconds * share
        return min(max(least, PATIENCE_TIMES * seconds), self.lease_seconds)

    def note_answer(self, seconds: float, *, is_busy: bool = False) -> None:
        """Note that the bus has answered, after so long; `is_busy`: other calls may have kept it busy."""
        self.answered_at = self._clock_seconds()
        # What it waits for others is no reason to wait for longer for those.
        self._took_seconds = min(seconds, self._took_seconds) if is_busy else seconds
        self._silent = 0

    def note_failure(self) -> None:
        """Note that it has failed for an owner."""
        self._failed_at = self._clock_seconds()

    def note_silence(self, *, has_raised: bool) -> None:
        """Note that it has answered nothing."""
        self._silent = 0 if has_raised else min(self._silent + 1, DOUBLINGS_MAX)
