"""Writes log lines to stderr from its own thread: an unread log must not block the service.

A log is often a pipe. If its reader stops and the pipe is full, a write blocks until the reader
goes on. On the event loop, answers, health checks and the stop would block with it. So a line is
formatted where it arises and waits in a bounded queue for the thread. A line that finds no room is
dropped and counted; when lines flow again, one says how many were dropped.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

# Each kind of event logs at most one line a second: this holds minutes of failures in a few
# megabytes.
LINES_MAX: Final = 1000
# The end of the process waits for queued lines, but no longer than this: the pipe may not be read.
STOP_SECONDS: Final = 1.0


class DroppedLines:
    """How many lines of this process's log were dropped. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0
        self.unreported = 0
        """Dropped, and not reported by a line yet."""

    def count(self) -> None:
        """Count a dropped line."""
        with self._lock:
            self.total += 1
            self.unreported += 1

    def note_reported(self, lines: int) -> None:
        """Note that a line has reported so many."""
        with self._lock:
            self.unreported -= lines


dropped_lines: Final = DroppedLines()


class LogWriter(logging.Handler):
    """A handler that never waits for its stream: a daemon thread writes, which no exit awaits."""

    def __init__(
        self, stream: TextIO, dropped: DroppedLines = dropped_lines, lines_max: int = LINES_MAX
    ) -> None:
        super().__init__()
        self._write_out = _writer_to(stream)
        self._dropped = dropped
        self._lines: queue.Queue[str | None] = queue.Queue(lines_max)
        self._thread = threading.Thread(target=self._write_lines, name="log writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line, or drop it if the queue is full."""
        try:
            # Here and not in the thread: the exception that it shows is still being handled.
            line = self.format(record)
        except Exception:  # noqa: BLE001 a record that cannot be logged must not end its caller
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped.count()

    def close(self) -> None:
        """Wait for queued lines, at most `STOP_SECONDS`. Idempotent."""
        if self._thread.is_alive():
            ends_at = time.monotonic() + STOP_SECONDS
            with suppress(queue.Full):
                self._lines.put(None, timeout=STOP_SECONDS)
            self._thread.join(max(0.0, ends_at - time.monotonic()))
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            if not self._write(line):
                self._dropped.count()
            elif self._lines.empty():
                self._report_dropped()
        self._report_dropped()

    def _write(self, line: str) -> bool:
        """Write a line; return whether the stream took it."""
        try:
            self._write_out(line + "\n")
        except OSError:
            # The pipe is broken, or the disk is full.
            return False
        return True

    def _report_dropped(self) -> None:
        lines = self._dropped.unreported
        if not lines:
            return
        record = logging.getLogger("stretto").makeRecord(
            *("stretto", logging.WARNING, __file__, 0, "log.lines_dropped", (), None),
            extra={"lines": lines},
        )
        if self._write(self.format(record)):
            self._dropped.note_reported(lines)


def _writer_to(stream: TextIO) -> Callable[[str], object]:
    """Return a function that writes to a stream, past its buffer if it has a file descriptor.

    A thread that blocks in the buffer holds its lock, and the end of the process would wait for
    that.
    """
    try:
        descriptor = stream.fileno()
    except OSError:
        return stream.write
    encoding = stream.encoding
    is_torn = False

    def write(text: str) -> None:
        nonlocal is_torn
        # A full disk may have cut the line before: this one would be a part of it.
        rest = memoryview(("\n" * is_torn + text).encode(encoding, "backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
                is_torn = bool(rest)
            except BlockingIOError:
                # Another process that shares the file has made it non-blocking.
                select.select((), (descriptor,), ())

    return write
