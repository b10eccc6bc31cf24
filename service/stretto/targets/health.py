"""TargetHealth: whether a target takes events.

Without it, the cause of a failure would show only in the dead letter, ten tries later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.observations import TargetFailed, TargetRecovered

if TYPE_CHECKING:
    from stretto.observations import Observer


class TargetHealth:
    """Reports the failures of a target, and its first success after one."""

    def __init__(self, actor: str, observe: Observer) -> None:
        """Take the name of the actor that hands the events over."""
        self._actor = actor
        self._observe = observe
        self.is_failing = False
        """Set it for a failure that is reported elsewhere."""

    def fail(self, cause: str) -> None:
        """Note and report a failure."""
        self.is_failing = True
        self._observe(TargetFailed(self._actor, cause))

    def succeed(self) -> None:
        """Note a success; report it after a failure."""
        if self.is_failing:
            self.is_failing = False
            self._observe(TargetRecovered(self._actor))
