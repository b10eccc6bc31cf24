"""Pauses after failures."""

from __future__ import annotations

import pytest

from stretto.runtime.backoff import Backoff

BACKOFF = Backoff(0.1, 1.0)


@pytest.mark.parametrize(
    ("longest", "failures"), [(0.1, 0), (0.2, 1), (0.4, 2), (0.8, 3), (1.0, 4), (1.0, 100_000)]
)
def test_pauses_double_up_to_a_bound(longest: float, failures: int) -> None:
    """However long an outage lasts; each lies between half of its longest and that."""
    pauses = [BACKOFF.seconds(failures) for _ in range(200)]
    assert longest / 2 <= min(pauses)
    assert max(pauses) <= longest
    # Of two hundred, one at least lies in the upper half.
    assert max(pauses) > 0.75 * longest


def test_pauses_differ() -> None:
    """Those who failed together do not come back together."""
    assert len({BACKOFF.seconds(3) for _ in range(50)}) > 40
