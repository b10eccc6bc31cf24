"""Turns in which a service in this process reads its clients: they begin when the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.http.front.reading_turns import ReadingTurns
from support.waiting import until

if TYPE_CHECKING:
    import pytest


class Turns:
    """The turns of a service, which begin when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[ReadingTurns] = []
        make = ReadingTurns.__init__

        def watched(turns: ReadingTurns) -> None:
            make(turns)
            self.all.append(turns)

        monkeypatch.setattr(ReadingTurns, "__init__", watched)
        monkeypatch.setattr(ReadingTurns, "_begin_later", lambda _: None)

    def spend(self, left: int = 0) -> None:
        """Have as much been read in this turn as one has, but for so many chunks."""
        self.all[0]._users.left = self.all[0]._others.left = left

    async def until_waits(self, count: int = 1) -> None:
        """Wait until so many connections wait."""
        await until(lambda: len(self.all[0]._places) == count)

    def begin(self) -> None:
        """Begin the next one."""
        self.all[0]._begin()
