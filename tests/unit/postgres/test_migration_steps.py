"""What a migration's header says, and what the headers of our own must say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from stretto.postgres.migration_steps import (
    FIRST_NUMBER,
    Step,
    Way,
    newest_number,
    oldest_served,
    own_steps,
    read_steps,
    whole_schema,
)

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "-- runs: concurrently\nCREATE INDEX CONCURRENTLY by_x ON attempt (x);\n"
FILL = "-- Fill x.\n-- runs: in batches of attempt\nSELECT $1::text AS position, 0 AS rows;\n"
# What instances of the version before may still use.
TAKES_AWAY = re.compile(
    r"\bDROP (TABLE|COLUMN|VIEW|FUNCTION|PROCEDURE)\b|\bRENAME\b|\bSET NOT NULL\b"
    r"|\bALTER COLUMN \w+ (SET DATA )?TYPE\b"
)


def unmarked(step: Step) -> bool:
    """Whether a step takes something away without saying from which instances."""
    text = re.sub(r"--.*", "", step.statements)
    return bool(TAKES_AWAY.search(text)) and step.serves_from == FIRST_NUMBER


def test_a_file_without_a_header_is_one_transaction_that_every_version_suits() -> None:
    """The usual step."""
    step = Step(8, "ALTER TABLE inbox ADD COLUMN x text")
    assert (Way.TRANSACTION, "", {}, FIRST_NUMBER) == (
        step.way,
        step.table,
        step.locks,
        step.serves_from,
    )


def test_a_header_says_how_a_step_runs() -> None:
    """Outside a transaction, or a batch at a time."""
    assert (Way.CONCURRENTLY, "by_x") == (Step(8, INDEX).way, Step(8, INDEX).index)
    assert (Way.BATCHES, "attempt") == (Step(8, FILL).way, Step(8, FILL).table)


def test_a_way_that_there_is_not_is_an_error() -> None:
    """A misspelt one is not silently a transaction."""
    with pytest.raises(ValueError, match="step 8 runs in no way that there is: in batches"):
        _ = Step(8, "-- runs: in batches\nSELECT 1").way


@pytest.mark.parametrize("text", ["CREATE INDEX by_x ON attempt (x)", INDEX.replace("by_x ", "")])
def test_an_index_that_is_built_concurrently_has_a_name(text: str) -> None:
    """By which an invalid one is found and dropped."""
    with pytest.raises(ValueError, match="step 8 has no CREATE INDEX CONCURRENTLY name ON"):
        _ = Step(8, text).index


def test_locks_are_told_by_table() -> None:
    """With the mode as PostgreSQL spells it."""
    step = Step(8, "-- locks: outbox ACCESS EXCLUSIVE, attempt SHARE ROW EXCLUSIVE\nSELECT 1")
    assert {"outbox": "ACCESS EXCLUSIVE", "attempt": "SHARE ROW EXCLUSIVE"} == step.locks


def test_a_schema_serves_what_every_step_on_the_way_serves() -> None:
    """A later step does not serve more."""
    steps = [Step(8, "-- serves from: 8\nSELECT 1"), Step(9, "SELECT 1")]
    assert [FIRST_NUMBER, 8, 8] == [oldest_served(steps[:count]) for count in range(3)]


def test_a_title_is_the_files_name(tmp_path: Path) -> None:
    """In words."""
    (tmp_path / "0008_who_was_first.sql").write_text("SELECT 1")
    assert ["who was first"] == [step.title for step in read_steps(tmp_path)]


def test_our_own_steps_are_numbered_from_the_first_release_on() -> None:
    """Two of one number: only one would be applied."""
    numbers = [step.number for step in own_steps()]
    assert sorted({*numbers}) == numbers
    assert all(number > FIRST_NUMBER for number in numbers)
    assert newest_number() == max([FIRST_NUMBER, *numbers]) == whole_schema(own_steps()).number


def test_our_own_steps_can_run_as_they_say() -> None:
    """One statement outside a transaction or in a batch; what takes away says from whom."""
    for step in own_steps():
        if step.way is Way.CONCURRENTLY:
            assert step.index
        if step.way is not Way.TRANSACTION:
            assert 1 == re.sub(r"--.*", "", step.statements).count(";")
        assert not unmarked(step), step.number


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE inbox DROP COLUMN x",
        "ALTER TABLE inbox RENAME COLUMN x TO y",
        "ALTER TABLE inbox ALTER COLUMN x TYPE bigint",
        "DROP FUNCTION lead_groups_1",
    ],
)
def test_a_step_that_takes_away_without_a_word_is_noticed(text: str) -> None:
    """The twin."""
    assert unmarked(Step(8, text))
    assert not unmarked(Step(8, f"-- serves from: 8\n{text}"))
