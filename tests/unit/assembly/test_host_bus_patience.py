"""How long a host's bus is waited for."""

from __future__ import annotations

import pytest

from stretto.assembly.host_bus_patience import (
    PATIENCE_SHARE,
    PATIENCE_TIMES,
    QUICK_SECONDS,
    QUICK_SHARE,
    Patience,
)
from support.clock import Clock

LEASE_SECONDS = 10.0
USUAL_SECONDS = PATIENCE_SHARE * LEASE_SECONDS


def test_where_it_has_failed_for_an_owner_all_together_are_waited_for_for_a_shorter_time() -> None:
    """It may soon fail for another one. What it took last counts all the same."""
    clock = Clock()
    patience = Patience(LEASE_SECONDS, clock)
    assert USUAL_SECONDS == patience.together_seconds
    patience.note_failure()
    assert pytest.approx(QUICK_SHARE * USUAL_SECONDS) == patience.together_seconds
    patience.note_answer(0.5)
    assert pytest.approx(PATIENCE_TIMES * 0.5) == patience.together_seconds
    clock.now += QUICK_SECONDS
    assert USUAL_SECONDS == patience.together_seconds


def test_one_that_is_silent_gets_twice_the_time_for_one_owner() -> None:
    """A lease at most, until it answers or raises."""
    patience = Patience(LEASE_SECONDS, Clock())
    seconds = []
    for _ in range(3):
        seconds.append(patience.alone_seconds)
        patience.note_silence(has_raised=False)
    assert [USUAL_SECONDS, 2 * USUAL_SECONDS, LEASE_SECONDS] == seconds
    patience.note_silence(has_raised=True)
    assert USUAL_SECONDS == patience.alone_seconds
    patience.note_silence(has_raised=False)
    patience.note_answer(0.0)
    assert USUAL_SECONDS == patience.alone_seconds


def test_an_answer_that_others_may_have_delayed_makes_it_no_longer() -> None:
    """But shorter: a bus that is slow by itself has shown that without others."""
    patience = Patience(LEASE_SECONDS, Clock())
    patience.note_answer(2.0)
    for seconds, took_seconds in [(3.0, 2.0), (1.5, 1.5)]:
        patience.note_answer(seconds, is_busy=True)
        assert pytest.approx(PATIENCE_TIMES * took_seconds) == patience.seconds
    patience.note_answer(2.0)
    assert pytest.approx(PATIENCE_TIMES * 2.0) == patience.seconds
