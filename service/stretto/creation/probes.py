"""ProbeTurns: when one write of a paused owner may be tried, as a probe (`breakers.py`).

A paused owner is a culprit once its probe has failed, and not by a conflict. Until then it counts
as a victim: of a conflict that it has met (`IN_CONFLICT`), or not probed yet (`UNPROBED`). A probe
keeps waiting only owners of the same standing or a worse one: while it is under way, and for a time
after it has failed. So culprits share a part of the time that is theirs alone. However many they
are, and however long their probes take, they keep no victim from its probe.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.domain import UserId

# After a probe that failed, no owner that stands as well or worse is probed for so many times as long
# as it took: however many owners are paused, most of the time is left for the others.
PROBE_RATIO: Final = 4.0


class Standing(IntEnum):
    """What is known of a paused owner; who stands best is probed first."""

    IN_CONFLICT = 0
    """It has met a lock, or another passing conflict: it may be the victim of another owner."""
    UNPROBED = 1
    """What it has cost others is its own as far as is known, and no probe has failed yet."""
    CULPRIT = 2
    """Its probe has failed, and not by a conflict."""


class ProbeTurns:
    """Shared by the writers of a process."""

    def __init__(self, clock_seconds: Callable[[], float]) -> None:
        self._clock_seconds = clock_seconds
        self._under_way: dict[UserId, Standing] = {}
        self._not_before = dict.fromkeys(Standing, -math.inf)

    def earliest(self, standing: Standing) -> float:
        """Return when the next probe of such an owner may begin, at the earliest."""
        return self._not_before[standing]

    def may_begin(self, owner: UserId, standing: Standing) -> bool:
        """Whether a probe may begin now: none keeps it waiting, nor one of the same owner."""
        if any(other <= standing for other in self._under_way.values()):
            return False
        if owner in self._under_way:
            return False
        return self._clock_seconds() >= self._not_before[standing]

    def is_awaited(self, owner: UserId, standing: Standing) -> bool:
        """Whether only a probe under way keeps a victim from its own probe.

        Such a probe is a victim's, so it is short. A culprit's may take the time of its hook.
        """
        if standing is Standing.CULPRIT or self.may_begin(owner, standing):
            return False
        return self._clock_seconds() >= self._not_before[standing]

    def begin(self, owner: UserId, standing: Standing) -> None:
        """Note a probe."""
        self._under_way[owner] = standing

    def end(self, owner: UserId) -> None:
        """Allow the next probe, also after one that has shown nothing."""
        del self._under_way[owner]

    def note_failed(self, standing: Standing, seconds: float) -> None:
        """Note that a probe has failed after so long."""
        next_at = self._clock_seconds() + PROBE_RATIO * seconds
        for other in Standing:
            if other >= standing:
                self._not_before[other] = max(self._not_before[other], next_at)

    def is_culprit_tried(self) -> bool:
        """Whether a probe of a culprit is under way."""
        return Standing.CULPRIT in self._under_way.values()
