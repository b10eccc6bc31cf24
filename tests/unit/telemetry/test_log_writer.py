"""The log is written by a thread of its own: no task waits for its reader."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
import warnings
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

import orjson
import pytest

from stretto.telemetry import log_writer
from stretto.telemetry.log_writer import STOP_SECONDS, DroppedLines, LogWriter
from stretto.telemetry.logs import configured_logging
from support.full_pipe import fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES_MAX = 3
DEADLINE_SECONDS = 30


class Pipe:
    """A log that is not read yet: it is full already."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self.filled = fill(self._writer)
        self.stream = os.fdopen(self._writer, "w")
        self.dropped = DroppedLines()
        self.log = LogWriter(self.stream, self.dropped, LINES_MAX)
        self.log.setFormatter(logging.Formatter("%(message)s %(lines)s", defaults={"lines": ""}))

    def say(self, message: str) -> None:
        """Log a message."""
        self.log.handle(logging.makeLogRecord({"msg": message}))

    def drain(self) -> None:
        """Read what it was full of."""
        while self.filled:
            self.filled -= len(os.read(self.reader, self.filled))

    def lines(self) -> list[str]:
        """Return all that was written, after the end."""
        self.log.close()
        return [line.strip() for line in os.read(self.reader, 4096).decode().splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe that is full, and a log into it."""
    pipe = Pipe()
    yield pipe
    with suppress(OSError):
        os.close(pipe.reader)
    # Now that no reader can come any more, the thread ends.
    pipe.log.close()
    pipe.stream.close()


def test_lines_that_find_no_room_are_dropped_and_reported(pipe: Pipe) -> None:
    """The thread has the first one or not yet: so many lines wait, or one more."""
    for number in range(10):
        pipe.say(f"line {number}")
    assert pipe.dropped.total in (10 - LINES_MAX, 10 - LINES_MAX - 1)
    dropped = pipe.dropped.total
    pipe.drain()
    *written, report = pipe.lines()
    assert written == sorted(written)
    assert 10 == len(written) + dropped
    assert f"log.lines_dropped {dropped}" == report
    assert 0 == pipe.dropped.unreported


def test_the_end_does_not_wait_for_a_reader(pipe: Pipe) -> None:
    """Nor does a second one."""
    for number in range(10):
        pipe.say(f"line {number}")
    started = time.monotonic()
    pipe.log.close()
    assert time.monotonic() - started < STOP_SECONDS + DEADLINE_SECONDS
    pipe.drain()
    assert "line 0" in pipe.lines()


def test_a_log_without_a_reader_costs_lines_and_no_more(pipe: Pipe) -> None:
    """The reader is gone for good: each write fails at once."""
    os.close(pipe.reader)
    for number in range(LINES_MAX):
        pipe.say(f"line {number}")
    pipe.log.close()
    assert LINES_MAX == pipe.dropped.total


def test_a_pipe_that_does_not_block_is_waited_for(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that shares it may have set it so."""
    write, refused = os.write, threading.Event()

    def write_noted(descriptor: int, data: bytes) -> int:
        try:
            return write(descriptor, data)
        except BlockingIOError:
            refused.set()
            raise

    monkeypatch.setattr(os, "write", write_noted)
    os.set_blocking(pipe.stream.fileno(), False)
    pipe.say("line 0")
    # Not before the thread has found the pipe full.
    assert refused.wait(DEADLINE_SECONDS)
    pipe.drain()
    assert ["line 0"] == pipe.lines()


def test_a_warning_is_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """JSON like any other: the driver warns so of a password file that it does not use."""
    with os.fdopen(os.dup(2), "w") as stream, warnings.catch_warnings():
        monkeypatch.setattr(sys, "stderr", stream)
        warnings.simplefilter("default")
        with configured_logging(level="info", as_json=True):
            warnings.warn("password file has group or world access", stacklevel=1)
    line = orjson.loads(capfd.readouterr().err)
    assert "warning" == line["level"]
    assert "password file has group or world access" in line["event"]


def test_a_line_behind_one_that_a_full_disk_has_cut_begins_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A collector reads each line by itself."""
    room = iter([5, 0])

    def write_to_a_full_disk(descriptor: int, data: memoryview) -> int:
        size = next(room, len(data))
        if not size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, data[:size])

    monkeypatch.setattr(log_writer, "os", SimpleNamespace(write=write_to_a_full_disk))
    with (tmp_path / "log").open("w") as stream:
        log = LogWriter(stream, DroppedLines(), LINES_MAX)
        log.setFormatter(logging.Formatter("%(message)s"))
        for message in ("first line", "second line"):
            log.handle(logging.makeLogRecord({"msg": message}))
        log.close()
    first, second, *_ = (tmp_path / "log").read_text().splitlines()
    assert ("first", "second line") == (first, second)
