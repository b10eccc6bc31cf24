"""What `stretto migrate` says of a plan, and of steps that take long."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from stretto.commands.migrate import _lines, _progress
from stretto.postgres.migration_plan import Plan
from stretto.postgres.migration_steps import Step

if TYPE_CHECKING:
    import pytest

ALTER = Step(11, "-- locks: outbox ACCESS EXCLUSIVE\nALTER TABLE outbox ADD x text", "a column")
FILL = Step(12, "-- runs: in batches of outbox\nSELECT 1", "its back-fill")
INDEX = Step(13, "-- runs: concurrently\nCREATE INDEX CONCURRENTLY i ON outbox (x)", "an index")
SIZES: Any = {"outbox": {"rows": 5_000, "bytes": 2_000_000}}


def test_a_plan_says_what_each_step_makes_others_wait_for() -> None:
    """In the order of the steps; then whom the schema serves, and who gets rights."""
    column, fill, index, served, rights = _lines(
        Plan([ALTER, FILL, INDEX], 9, SIZES, filled_rows=0), ["app"]
    )
    assert "0011 a column: in one transaction; locks outbox (ACCESS EXCLUSIVE, 2.0 MB)" == column
    expected = "in batches of outbox, a transaction each: 0 of about 5000 rows done"
    assert f"0012 its back-fill: {expected}" == fill
    assert index.startswith("0013 an index: concurrently, outside a transaction; delays no request")
    assert "afterwards, instances made for schema 9 or newer can run" == served
    assert "rights for app" == rights


def test_a_plan_says_how_far_an_interrupted_back_fill_is() -> None:
    """It is the first step then; one behind it has not begun."""
    lines = _lines(Plan([FILL, Step(13, FILL.statements)], 7, SIZES, filled_rows=3_000), [])
    assert ["3000 of", "0 of"] == [line.split(": ")[2].split(" about")[0] for line in lines[:2]]


def test_nothing_is_shown_while_no_step_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads what a short migration says."""
    with ExitStack() as stack:
        _progress(stack)
    assert ("", "") == capsys.readouterr()


def test_steps_that_take_long_are_shown_each_by_its_title(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A back-fill by its rows; of an index nothing is known but that it is being built."""
    with ExitStack() as stack:
        show = _progress(stack)
        show(FILL, 1_000, 5_000)
        show(FILL, 5_000, 5_000)
        show(INDEX, 0, 0)
    shown = capsys.readouterr().err
    assert "0012 its back-fill" in shown
    assert "100%" in shown
    assert "0013 an index" in shown
