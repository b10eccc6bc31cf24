"""How long a write may take before it counts as a stall."""

from __future__ import annotations

import pytest

from stretto.domain import UserId
from stretto.postgres.stalls import OWNERS_MAX, TimesAlone

LEAST_SECONDS, MOST_SECONDS, RATIO = 0.5, 4.0, 5.0
ALICE, BOB, CAROL = (UserId(name) for name in ("alice", "bob", "carol"))


def patience(times: TimesAlone, *owners: UserId) -> float:
    """Return the patience with a write of these owners."""
    return times.patience(owners or (ALICE,), LEAST_SECONDS, MOST_SECONDS, RATIO)


def test_what_is_usual_may_take_several_times_as_long() -> None:
    """Within the bounds."""
    times = TimesAlone()
    assert LEAST_SECONDS == patience(times)
    times.note([ALICE], 0.2)
    assert 1.0 == patience(times)
    times.note([ALICE], 0.01)
    assert LEAST_SECONDS == patience(times)
    times.note([ALICE], 60)
    assert MOST_SECONDS == patience(times)


def test_a_batch_may_take_as_long_as_its_requests_one_after_the_other() -> None:
    """Beyond that, taking it apart makes nothing slower, nor where there is no time for all of them."""
    times = TimesAlone()
    times.note([ALICE], 0.1)
    times.note([BOB], 0.1)
    assert pytest.approx(2.0) == patience(times, *[ALICE, BOB] * 10)
    assert pytest.approx(MOST_SECONDS) == patience(times, *[ALICE, BOB] * 20)
    assert LEAST_SECONDS == patience(times, *[ALICE, BOB] * 21)


def test_one_owner_who_is_slow_gains_no_time() -> None:
    """However often it writes, alone or in a batch. Twin: a server that is slow for all."""
    times = TimesAlone()
    for owner in (BOB, CAROL):
        times.note([owner], 0.01)
    for _ in range(2 * OWNERS_MAX):
        times.note([ALICE], 0.7)
        times.note([ALICE, BOB], 0.7)
    assert LEAST_SECONDS == patience(times)
    for owner in (BOB, CAROL):
        times.note([owner], 0.7)
    assert 3.5 == patience(times)


def test_what_is_known_of_one_owner_gives_a_batch_of_several_no_time() -> None:
    """After a start, the first owner may be the slow one. Twin: it is all that is known to itself."""
    times = TimesAlone()
    times.note([ALICE], 0.6)
    assert LEAST_SECONDS == patience(times, ALICE, BOB)
    assert 3.0 == patience(times, ALICE, ALICE)
    times.note([BOB], 0.6)
    assert 3.0 == patience(times, ALICE, BOB)


def test_what_is_written_to_have_it_planned_says_nothing() -> None:
    """A new connection writes nothing at first."""
    times = TimesAlone()
    assert LEAST_SECONDS == times.patience([], LEAST_SECONDS, MOST_SECONDS, RATIO)
    times.note([ALICE], 0.2)
    times.note([], 0.001)
    assert 1.0 == patience(times)


def test_only_the_latest_owners_count() -> None:
    """A server that has become slow is known after a few writes."""
    times = TimesAlone()
    for number in range(OWNERS_MAX):
        times.note([UserId(f"before-{number}")], 0.01)
    for number in range(OWNERS_MAX // 2):
        assert LEAST_SECONDS == patience(times)
        times.note([UserId(f"after-{number}")], 0.3)
    times.note([ALICE], 0.3)
    assert 1.5 == patience(times)


def test_a_quick_batch_shows_that_each_alone_would_be_quick() -> None:
    """Under load nothing is written alone. Twin: a slow batch says nothing of one alone."""
    times = TimesAlone()
    times.note([ALICE], 0.2)
    times.note([BOB, CAROL], 3.0)
    assert 1.0 == patience(times)
    times.note([BOB, CAROL], 0.02)
    assert LEAST_SECONDS == patience(times)
