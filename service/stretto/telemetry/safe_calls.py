"""Calls of a host's code that telemetry makes, and whose failure must reach nothing else.

A host's observer, filters and handlers may raise: a filter that reads a request's context variable
finds none in an actor's task. They are called in the middle of a write or of an answer, and neither
may end with them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_LEVELS: Final = frozenset(
    {"debug", "info", "warning", "error", "critical", "exception", "fatal", "log", "warn"}
)


def never_raising(
    call: Callable[..., object], report: Callable[..., object]
) -> Callable[..., None]:
    """Return the call as one that does not raise: `report` gets the error and the arguments.

    Not even `SystemExit` or `KeyboardInterrupt`, which would end the event loop, and the host with
    it. Ctrl-C ends it as before: `asyncio.run` cancels the main task, and the loop's handlers of
    signals run between its callbacks.
    """

    def call_safely(*args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 cancellations too: nothing is awaited
            report(error, *args)

    return call_safely


class SafeLogger:
    """The standard library's logger; each type of failure is reported once, on stderr."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._failures: set[type[BaseException]] = set()

    def __getattr__(self, name: str) -> Any:
        """Return the logger's own attribute, made safe where it logs."""
        found = getattr(self._log, name)
        return never_raising(found, self._report) if name in _LEVELS else found

    def _report(self, error: BaseException, *_: object) -> None:
        kind = type(error)
        if kind in self._failures:
            return
        self._failures.add(kind)
        # A process without a terminal may have no stderr.
        with suppress(Exception):
            sys.stderr.write(
                f"stretto: logging has raised {kind.__name__}; mend the filters and handlers"
                f" of the logger {self._log.name!r} and of those above it\n"
            )
