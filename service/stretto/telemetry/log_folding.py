"""Folds log events that repeat: one line a second for each kind, with the number of events.

A failure repeats with every request. A line for each would fill the disk that the database may
need, and hide the one line that says something new. So the first event of a kind is logged at once.
Those of the next second are counted, and the last of them is logged for all. The kinds are few: the
program names them, never a client.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from structlog import DropEvent

from stretto.telemetry.log_records import as_record

if TYPE_CHECKING:
    import logging

    from structlog.typing import EventDict

SECONDS_PER_LINE: Final = 1.0
# Fields that distinguish the kinds of an event; all others may differ within a kind.
_KIND_FIELDS: Final = ("actor", "kind", "reason", "status", "worker")
# An event that names a row happens once: each is new.
_ROW_FIELDS: Final = frozenset({"event_id", "group_id"})


@dataclass(slots=True)
class _Window:
    """A second in which an event of this kind has been logged."""

    log: logging.Logger
    level: str
    folded: int = 0
    """Events counted instead of logged."""
    event: EventDict | None = None
    """The last one of them."""

    def write(self) -> None:
        """Log the last event for all that were counted."""
        if self.event is not None:
            event = {**self.event, "folded": self.folded}
            getattr(self.log, self.level)(**as_record(self.log, self.level, event))


class LogFolder:
    """A processor of structlog. Without an event loop, which ends seconds, it folds nothing."""

    def __init__(self) -> None:
        # Each loop has its own timers; the windows of a loop go with it.
        self._windows: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[tuple[object, ...], _Window]
        ] = WeakKeyDictionary()

    def __call__(self, log: logging.Logger, level: str, event: EventDict) -> EventDict:
        """Return an event, or count it and raise `DropEvent`."""
        loop = _running_loop()
        if loop is None or not _ROW_FIELDS.isdisjoint(event):
            return event
        if event.get("exc_info") is True:
            # When it is logged, the exception is no longer being handled.
            event["exc_info"] = sys.exc_info()[1]
        kind = _kind(level, event)
        window = self._windows.setdefault(loop, {}).get(kind)
        if window is None:
            self._open(loop, kind, _Window(log, level))
            return event
        window.folded += 1
        window.event = event
        raise DropEvent

    def flush(self) -> None:
        """Log what has been counted: the end of the loop would lose it."""
        windows = self._windows.pop(asyncio.get_running_loop(), {})
        for window in windows.values():
            window.write()
        # Their timers still run, and must find no window.
        windows.clear()

    def _open(
        self, loop: asyncio.AbstractEventLoop, kind: tuple[object, ...], window: _Window
    ) -> None:
        windows = self._windows.setdefault(loop, {})
        windows[kind] = window

        def close() -> None:
            if windows.get(kind) is not window:
                return
            del windows[kind]
            if window.folded:
                window.write()
                self._open(loop, kind, _Window(window.log, window.level))

        loop.call_later(SECONDS_PER_LINE, close)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _kind(level: str, event: EventDict) -> tuple[object, ...]:
    error = event.get("exc_info")
    return (level, event["event"], type(error), *map(event.get, _KIND_FIELDS))
