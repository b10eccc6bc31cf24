"""What `make ha` measures, and what it takes for a miss."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from chaos.violation import Violation
from ha.measures import (
    HEAD,
    Pause,
    Turn,
    kinds_of,
    last_of_backlog,
    longest_pause,
    misses,
    row,
)
from ha.place import ProgramsMissing, make_place
from ha.scenarios import SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path

TURN = Turn(engine=50.0, replicas=(50.1, 50.4), backlog=52.0, come_back=0.2, lag=0.0)


def test_the_longest_pause_begins_before_the_failure_is_noticed() -> None:
    """The last acknowledgement before a failure may be a moment earlier than the failure."""
    assert Pause(1.0, 5.0) == longest_pause([0.0, 0.5, 1.0, 5.0, 5.5], 1.2, 6.0)


def test_a_replica_that_stumbles_after_it_has_resumed_is_measured_by_the_longer_pause() -> None:
    """Its first acknowledgement would look as if it were well."""
    assert Pause(3.0, 9.0) == longest_pause([0.0, 2.0, 3.0, 9.0], 0.5, 10.0)


def test_pauses_before_and_after_a_failure_are_of_no_account() -> None:
    """A busy machine makes some as well."""
    assert Pause(8.0, 9.2) == longest_pause([0.0, 7.0, 8.0, 9.2, 9.5, 20.0], 8.1, 9.4)


@pytest.mark.parametrize("times", [[], [0.0, 1.0]])
def test_a_replica_that_never_resumes_pauses_until_the_end(times: list[float]) -> None:
    """Not for no time at all."""
    pause = longest_pause(times, 2.0, 60.0)
    assert 60.0 == pause.ended
    assert pause.seconds >= 58.0


def test_the_backlog_is_what_was_begun_before_the_engine_was_back_and_answered_after() -> None:
    """Without any it is over at once."""
    assert 12.0 == last_of_backlog([(1.0, 2.0), (3.0, 11.0), (4.0, 12.0), (10.5, 19.0)], 10.0)
    assert 10.0 == last_of_backlog([(1.0, 2.0), (10.5, 19.0)], 10.0)


def test_violations_are_counted_by_what_they_mean_to_a_client() -> None:
    """What fits no kind is not lost."""
    whats = (
        *("acknowledged, but there is no group", "seen as succeeded, then as unseen"),
        *("created more than once", "answers differ", "more than one group"),
        *("its event never came to client 7", "actor.crashed: 2"),
    )
    found = kinds_of(Violation(None, what) for what in whats)
    assert {"lost": 2, "doubled": 3, "gaps": 1, "other": 1} == found


def test_a_run_without_violations_misses_only_what_took_too_long() -> None:
    """The slower replica counts, from the moment when another node has taken a write."""
    assert [] == misses([TURN], Counter())
    slow = replace(TURN, replicas=(50.1, 51.6))
    assert ["2 lost", "creations resumed 1.60 s after the engine"] == misses(
        [TURN, slow], Counter(lost=2)
    )


def test_a_row_has_a_cell_for_each_column() -> None:
    """With the spread where there is more than one turn."""
    text = row("kill", [TURN, TURN], Counter(gaps=1))
    assert HEAD.splitlines()[0].count("|") == text.count("|")
    assert "| kill | 2 | 50.0 (50.0 to 50.0) | 0.40 (0.40 to 0.40) |" in text


def test_missing_packages_are_named_before_anything_is_started(tmp_path: Path) -> None:
    """With the command that installs them."""
    with pytest.raises(ProgramsMissing, match="apt-get install"):
        make_place(tmp_path, tmp_path, tmp_path / "nothing is installed here")
    assert [] == list(tmp_path.iterdir())


def test_every_scenario_says_what_happens() -> None:
    """In the help and in the lines of progress."""
    assert len(SCENARIOS) == len({each.what for each in SCENARIOS.values()})
