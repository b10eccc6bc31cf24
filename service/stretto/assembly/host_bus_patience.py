"""Patience: how long a host's bus is waited for, by what it took last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.runtime.backoff import DOUBLINGS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

# Of a lease: of 5 s, others wait 1.5 s for a call that hangs, and one is cancelled after 3 s. A client's
# own time-out, of 2 s, comes first: what a cancellation leaves behind, only the client knows.
PATIENCE_SHARE: Final = 0.3
STALL_SHARE: Final = 0.6
# A failure that took a smaller share of that time was quick.
QUICK_SHARE: Final = 1 / 3
# How often calls that are under way are looked at.
LOOK_SHARE: Final = 0.075
# A bus that has taken longer gets three times as long, while that is not long ago, six leases at most.
PATIENCE_TIMES: Final = 3.0
TOOK_SECONDS: Final = 30.0
STALL_LEASES_MAX: Final = 6.0


class Patience:
    """How long is waited for one answer, in seconds."""

    def __init__(self, lease_seconds: float, clock_seconds: Callable[[], float]) -> None:
        self._lease_seconds = lease_seconds
        self.look_seconds = LOOK_SHARE * lease_seconds
        self._clock_seconds = clock_seconds
        self._took_seconds = 0.0
        self._took_at = float("-inf")
        self._silent = 0
        """How often in a row the bus has answered nothing in time."""

    @property
    def seconds(self) -> float:
        """For an answer, where others wait for it."""
        return self._after(PATIENCE_SHARE)

    @property
    def quick_seconds(self) -> float:
        """What fails sooner has kept out others for little time."""
        return QUICK_SHARE * self.seconds

    @property
    def stall_seconds(self) -> float:
        """For any answer, until the call is cancelled that is the first in its turn."""
        return self._after(STALL_SHARE)

    def part_of(self, owners: int) -> int:
        """Return of how many owners, of so many that failed together, events are next published together.

        So many parts of them as the bus takes one after the other within a stall, two at least.
        """
        took_seconds = self._recent_seconds
        if not took_seconds:
            return 1
        parts = max(2, int(self.stall_seconds / took_seconds))
        return max(1, -(-owners // parts))

    @property
    def _recent_seconds(self) -> float:
        """The longest time that it has taken lately."""
        is_old = self._clock_seconds() >= self._took_at + TOOK_SECONDS
        return 0.0 if is_old else self._took_seconds

    def _after(self, share: float) -> float:
        least = share * self._lease_seconds * 2.0**self._silent
        longest = STALL_LEASES_MAX * self._lease_seconds
        return min(max(least, PATIENCE_TIMES * self._recent_seconds), longest)

    def note_answer(self, seconds: float) -> None:
        """Note that the bus has answered, after so long."""
        self._silent = 0
        now = self._clock_seconds()
        if seconds >= self._took_seconds or now >= self._took_at + TOOK_SECONDS:
            self._took_seconds, self._took_at = seconds, now

    def note_silence(self) -> None:
        """Note that it has answered nothing for several calls: it may need longer for each."""
        self._silent = min(self._silent + 1, DOUBLINGS_MAX)
