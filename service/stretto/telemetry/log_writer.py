"""Writes log lines to stderr from a thread of its own, so that no reader of the log holds up the service.

A log is often a pipe. Once its reader stops reading and the pipe is full, a write waits until the
reader goes on. On the event loop everything else would wait with it: answers, health checks, the end.
So lines are formatted where they arise, and wait in a bounded queue for the thread. What finds no room
there is dropped and counted; a line says how many were, as soon as lines flow again.
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

# Each kind of event logs one line a second at most: minutes of a bad time, and a few megabytes.
LINES_MAX: Final = 1000
# For what still waits when the process ends; a pipe that nobody reads holds up the end no longer.
STOP_SECONDS: Final = 1.0


class DroppedLines:
    """How many lines of this process's log were dropped; used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0
        self.unreported = 0
        """Those that no line has told of yet."""

    def count(self) -> None:
        """Count one more."""
        with self._lock:
            self.total += 1
            self.unreported += 1

    def note_reported(self, lines: int) -> None:
        """Note that a line was written that tells of so many."""
        with self._lock:
            self.unreported -= lines


dropped_lines: Final = DroppedLines()


class LogWriter(logging.Handler):
    """A handler that never waits for its stream. A daemon thread writes: nothing waits for its end."""

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
        """Queue a record's line, or drop it where there is no room."""
        try:
            # Here, where the exception that it tells of is still the one that is handled.
            line = self.format(record)
        except Exception:  # noqa: BLE001 what cannot be logged must not end what is logged
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped.count()

    def close(self) -> None:
        """Wait a short while for what is queued; idempotent."""
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
        """Write a line; return whether the stream has taken it."""
        try:
            self._write_out(line + "\n")
        except OSError:
            # Nobody will read it: the pipe is broken, or the disk is full.
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
    """Return what writes to a stream, past its buffer where it has a file descriptor.

    A thread that waits in the buffer holds its lock, on which the end of the process would wait.
    """
    try:
        descriptor = stream.fileno()
    except OSError:
        return stream.write
    encoding = stream.encoding

    def write(text: str) -> None:
        rest = memoryview(text.encode(encoding, "backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:
                # Whoever shares it has made it so.
                select.select((), (descriptor,), ())

    return write
