"""Whether a target takes events is reported when it changes, and each failure with its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.observations import TargetFailed, TargetRecovered
from stretto.targets.health import TargetHealth

if TYPE_CHECKING:
    from stretto.observations import Observation


def test_failures_are_reported_with_their_cause_and_the_first_success_after_them() -> None:
    """What goes well all the time is not reported."""
    observed: list[Observation] = []
    health = TargetHealth("relay", observed.append)
    health.succeed()
    health.fail("answered 500")
    health.fail("answered 502")
    health.succeed()
    health.succeed()
    assert [
        TargetFailed("relay", "answered 500"),
        TargetFailed("relay", "answered 502"),
        TargetRecovered("relay"),
    ] == observed


def test_a_failure_that_is_reported_elsewhere_has_its_recovery_here() -> None:
    """Such as that of the bus, which is the failure of a turn."""
    observed: list[Observation] = []
    health = TargetHealth("relay", observed.append)
    health.is_failing = True
    health.succeed()
    assert [TargetRecovered("relay")] == observed
