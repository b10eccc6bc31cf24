"""How long a host's bus is waited for."""

from __future__ import annotations

import pytest

from stretto.assembly.host_bus_patience import (
    LOOK_SHARE,
    PATIENCE_SHARE,
    PATIENCE_TIMES,
    STALL_LEASES_MAX,
    STALL_SHARE,
    TOOK_SECONDS,
    Patience,
)
from support.clock import Clock

LEASE_SECONDS = 10.0
USUAL_SECONDS = PATIENCE_SHARE * LEASE_SECONDS
STALL_SECONDS = STALL_SHARE * LEASE_SECONDS
LONGEST_SECONDS = STALL_LEASES_MAX * LEASE_SECONDS


def waits(patience: Patience) -> tuple[float, float]:
    """Return for how long others wait for an answer, and how long a call keeps out others."""
    return patience.seconds, patience.stall_seconds


def test_a_bus_is_waited_for_for_a_part_of_the_lease() -> None:
    """A client whose own time-out is 2 s has given up before its call is cancelled, with a lease of 5 s."""
    assert (1.5, 3.0) == waits(Patience(5.0, Clock()))
    assert (USUAL_SECONDS, STALL_SECONDS) == waits(Patience(LEASE_SECONDS, Clock()))


def test_what_fails_within_a_third_of_that_time_is_quick() -> None:
    """Of a lease of 5 s half a second: it has kept out others for no longer."""
    assert pytest.approx(0.5) == Patience(5.0, Clock()).quick_seconds


def test_calls_are_looked_at_often_enough() -> None:
    """What others wait for lasts by a quarter longer at most."""
    patience = Patience(LEASE_SECONDS, Clock())
    assert LOOK_SHARE * LEASE_SECONDS == patience.look_seconds
    assert patience.look_seconds <= patience.seconds / 4


def test_a_bus_that_takes_long_gets_so_many_times_as_long() -> None:
    """That is forgotten after a while: by then it may be quick again."""
    clock = Clock()
    patience = Patience(LEASE_SECONDS, clock)
    patience.note_answer(5.0)
    assert (PATIENCE_TIMES * 5.0,) * 2 == waits(patience)
    clock.now += TOOK_SECONDS - 1
    assert (PATIENCE_TIMES * 5.0,) * 2 == waits(patience)
    clock.now += 1
    assert (USUAL_SECONDS, STALL_SECONDS) == waits(patience)


def test_a_bus_that_is_quick_gets_no_less_than_usual() -> None:
    """The twin: between the two, each has its own least."""
    patience = Patience(LEASE_SECONDS, Clock())
    patience.note_answer(0.01)
    assert (USUAL_SECONDS, STALL_SECONDS) == waits(patience)
    patience.note_answer(1.5)
    assert (PATIENCE_TIMES * 1.5, STALL_SECONDS) == waits(patience)


def test_no_bus_gets_longer_than_so_many_leases() -> None:
    """One call that takes minutes would have the next ones wait for three times as many."""
    patience = Patience(LEASE_SECONDS, Clock())
    patience.note_answer(LONGEST_SECONDS)
    assert (LONGEST_SECONDS,) * 2 == waits(patience)


def test_the_longest_answer_of_late_counts() -> None:
    """Calls differ: a quick one shows nothing about the slow ones, but one as slow renews it."""
    clock = Clock()
    patience = Patience(LEASE_SECONDS, clock)
    patience.note_answer(5.0)
    clock.now += 20.0
    patience.note_answer(4.0)
    assert PATIENCE_TIMES * 5.0 == patience.seconds
    patience.note_answer(5.0)
    clock.now += 20.0
    patience.note_answer(4.0)
    assert PATIENCE_TIMES * 5.0 == patience.seconds
    clock.now += 10.0
    patience.note_answer(4.0)
    assert PATIENCE_TIMES * 4.0 == patience.seconds


def test_one_that_is_silent_gets_twice_the_time() -> None:
    """Until it answers: each of its calls may take that long."""
    patience = Patience(LEASE_SECONDS, Clock())
    seconds = [waits(patience)]
    for _ in range(5):
        patience.note_silence()
        seconds.append(waits(patience))
    assert [(3.0, 6.0), (6.0, 12.0), (12.0, 24.0), (24.0, 48.0)] == seconds[:4]
    assert [(48.0, LONGEST_SECONDS), (LONGEST_SECONDS,) * 2] == seconds[4:]
    patience.note_answer(0.0)
    assert (USUAL_SECONDS, STALL_SECONDS) == waits(patience)


def test_a_bus_that_is_away_for_days_is_waited_for_all_the_same() -> None:
    """Two to the power of thousands is no number."""
    patience = Patience(LEASE_SECONDS, Clock())
    for _ in range(2000):
        patience.note_silence()
    assert LONGEST_SECONDS == patience.stall_seconds


@pytest.mark.parametrize(
    ("took_seconds", "owners", "count"),
    [
        # Each alone: of a quick bus, and while nothing is known.
        (0.0, 100, 1),
        (0.001, 100, 1),
        # Six parts, of a second each; five, of a little more.
        (1.0, 100, 17),
        (1.1, 100, 20),
        (1.1, 1, 1),
        (1.1, 0, 1),
        # Three of a slow one, which gets more time.
        (4.0, 100, 34),
        (4.0, 9, 3),
        # Two at least: what fails together must get smaller.
        (40.0, 100, 50),
        (40.0, 9, 5),
    ],
)
def test_owners_are_published_in_as_many_parts_as_a_stall_has_time_for(
    took_seconds: float, owners: int, count: int
) -> None:
    """A slow bus would take one owner after the other for longer than it is waited for."""
    patience = Patience(LEASE_SECONDS, Clock())
    patience.note_answer(took_seconds)
    assert count == patience.part_of(owners)


def test_parts_are_as_small_as_ever_where_a_bus_was_slow_long_ago() -> None:
    """The twin."""
    clock = Clock()
    patience = Patience(LEASE_SECONDS, clock)
    patience.note_answer(4.0)
    assert 34 == patience.part_of(100)
    clock.now += TOOK_SECONDS
    assert 1 == patience.part_of(100)
