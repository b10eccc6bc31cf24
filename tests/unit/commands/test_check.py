"""What `stretto check` says of what it has found."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
import typer

from stretto.commands import check as check_command
from stretto.commands.console import stdout
from stretto.postgres.check import VIOLATIONS_MAX, CheckReport, Violation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


VIOLATION = Violation(UUID(int=1), "group without its event")


def found(report: CheckReport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command find this, without a database."""

    @asynccontextmanager
    async def connected(*_: object, **__: object) -> AsyncIterator[None]:
        yield

    async def check_database(*_: object) -> CheckReport:
        return report

    monkeypatch.setattr(check_command, "connected", connected)
    monkeypatch.setattr(check_command, "check_database", check_database)


@pytest.mark.parametrize(
    ("cut_kinds", "said"),
    [
        ([], "1 violations"),
        (
            ["groups", "events"],
            f"more than 1 violations; of groups, events only the first {VIOLATIONS_MAX} are listed",
        ),
    ],
)
def test_the_last_line_says_of_which_kinds_there_are_more(
    cut_kinds: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A list that ends at the bound does not pass for all there are."""
    found(CheckReport(5, 6, 7, [VIOLATION], cut_kinds), monkeypatch)
    with pytest.raises(typer.Exit):
        check_command.check()
    assert [
        f"{UUID(int=1)}: group without its event",
        f"5 attempts, 6 groups, 7 events: {said}",
    ] == capsys.readouterr().out.splitlines()


def test_hundreds_of_thousands_of_violations_are_not_printed_one_by_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By rich, which took 18 s for 300,000: it prints the last line alone."""
    printed: list[str] = []
    found(CheckReport(5, 6, 7, [VIOLATION] * 3, []), monkeypatch)
    monkeypatch.setattr(stdout, "print", printed.append)
    with pytest.raises(typer.Exit):
        check_command.check()
    assert [f"{UUID(int=1)}: group without its event"] * 3 == capsys.readouterr().out.splitlines()
    assert ["5 attempts, 6 groups, 7 events: 3 violations"] == printed
