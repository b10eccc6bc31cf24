"""Log events that repeat are logged once a second, with how many they were."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import pytest_asyncio
import structlog

from stretto.telemetry.log_folding import SECONDS_PER_LINE, LogFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    Log = structlog.stdlib.BoundLogger

NAME = "stretto.folded"


@pytest.fixture
def folder() -> LogFolder:
    """The folder under test."""
    return LogFolder()


@pytest.fixture
def log(folder: LogFolder) -> Log:
    """A logger that folds."""
    log: Log = structlog.wrap_logger(
        logging.getLogger(NAME),
        processors=[folder, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )
    return log


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[Any, ...]]]:
    """Returns what was logged so far: event, field `n` and how many each line stands for."""
    caplog.set_level(logging.INFO, NAME)

    def read() -> list[tuple[Any, ...]]:
        records = [vars(record) for record in caplog.records]
        return [(each["msg"], each.get("n"), each.get("folded")) for each in records]

    return read


@pytest_asyncio.fixture
async def end_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ends the seconds that have begun so far; no other time passes."""
    begun: list[Callable[[], None]] = []

    def call_later(seconds: float, close: Callable[[], None]) -> None:
        assert SECONDS_PER_LINE == seconds
        begun.append(close)

    def end() -> None:
        ended = begun[:]
        begun.clear()
        for close in ended:
            close()

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    return end


async def test_the_first_is_logged_at_once_and_the_others_are_counted(
    log: Log, folder: LogFolder, lines: Callable[[], Any]
) -> None:
    """The line for all of them is the last one's."""
    for n in range(1000):
        log.warning("failure", n=n)
    assert [("failure", 0, None)] == lines()
    folder.flush()
    assert [("failure", 0, None), ("failure", 999, 999)] == lines()
    folder.flush()
    assert 2 == len(lines())


async def test_every_second_has_its_line_as_long_as_it_goes_on(
    log: Log, lines: Callable[[], Any], end_second: Callable[[], None]
) -> None:
    """The last line is not lost, and a second of silence makes the next event a first one again."""
    expected: list[tuple[Any, ...]] = [("failure", 0, None)]
    log.warning("failure", n=0)
    for first in (10, 20, 30):
        for n in range(first, first + 3):
            log.warning("failure", n=n)
        assert expected == lines()
        end_second()
        expected.append(("failure", first + 2, 3))
        assert expected == lines()
    end_second()
    assert expected == lines()
    log.warning("failure", n=40)
    assert [*expected, ("failure", 40, None)] == lines()


async def test_a_second_from_before_a_flush_ends_no_other(
    log: Log, folder: LogFolder, lines: Callable[[], Any], end_second: Callable[[], None]
) -> None:
    """Its timer still runs, and has no line of its own any more."""
    log.warning("failure", n=0)
    log.warning("failure", n=1)
    folder.flush()
    log.warning("failure", n=2)
    end_second()
    assert [("failure", 0, None), ("failure", 1, 1), ("failure", 2, None)] == lines()


@pytest.mark.parametrize(
    "other",
    [
        {"event": "another"},
        {"actor": "sweeper"},
        {"kind": "Unreachable"},
        {"reason": "too_slow"},
        {"status": 500},
        {"worker": 1},
        {"exc_info": ValueError()},
    ],
    ids=str,
)
async def test_another_kind_is_logged_at_once(
    other: dict[str, Any], log: Log, lines: Callable[[], Any]
) -> None:
    """It says something new; what differs otherwise does not."""
    first: dict[str, Any] = {"event": "failure", "actor": "relay", "exc_info": None}
    for fields in (first, first | {"cause": "x"}, first | other, first | other):
        log.warning(**fields)
    assert ["failure", other.get("event", "failure")] == [line[0] for line in lines()]


async def test_another_level_is_another_kind(log: Log, lines: Callable[[], Any]) -> None:
    """An error never hides behind a warning."""
    log.warning("failure", n=0)
    log.error("failure", n=1)
    assert [0, 1] == [line[1] for line in lines()]


@pytest.mark.parametrize("row", ["event_id", "group_id"])
async def test_what_names_a_row_is_never_folded(
    row: str, log: Log, lines: Callable[[], Any]
) -> None:
    """Each of them is another row."""
    for n in range(3):
        log.error("failure", n=n, **{row: str(UUID(int=n))})
    assert [("failure", n, None) for n in range(3)] == lines()


async def test_what_names_rows_of_a_page_is_folded(
    log: Log, lines: Callable[[], Any], end_second: Callable[[], None]
) -> None:
    """Many clients may have the same page read, again and again."""
    for n in range(3):
        log.error("log.row_unreadable", n=n, actor="history reader", event_ids=(str(UUID(int=n)),))
    end_second()
    assert [("log.row_unreadable", 0, None), ("log.row_unreadable", 2, 2)] == lines()


async def test_a_folded_traceback_is_still_there_when_it_is_logged(
    log: Log, folder: LogFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception is not being handled any more by then."""
    for _ in range(2):
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            log.exception("crashed")
    folder.flush()
    for record in caplog.records:
        assert record.exc_info is not None
        assert ZeroDivisionError is record.exc_info[0]
    assert 2 == len(caplog.records)


def test_without_a_loop_nothing_is_folded(log: Log, lines: Callable[[], Any]) -> None:
    """No timer could end a second."""
    for n in range(3):
        log.warning("failure", n=n)
    assert [("failure", n, None) for n in range(3)] == lines()


def test_every_loop_begins_anew(log: Log, lines: Callable[[], Any]) -> None:
    """What one that has ended was counting holds up no line of the next."""

    async def say(n: int) -> None:
        log.warning("failure", n=n)

    for n in range(3):
        asyncio.run(say(n))
    assert [("failure", n, None) for n in range(3)] == lines()
