"""A logger whose own failure reaches nobody.

Filters and handlers are the host's, and some of them raise: a filter that reads a request's context
variable finds none in an actor's task. What is logged is said in passing, in the middle of a write or
of an answer, and neither may end with it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_LEVELS: Final = frozenset(
    {"debug", "info", "warning", "error", "critical", "exception", "fatal", "log", "warn"}
)


class SafeLogger:
    """The standard library's logger; each kind of failure is told once, on stderr."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._failures: set[type[BaseException]] = set()

    def __getattr__(self, name: str) -> Any:
        """Return the logger's own, made safe where it logs."""
        found = getattr(self._log, name)
        return partial(self._call, found) if name in _LEVELS else found

    def _call(self, log: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            log(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit):
            # A signal's, for the process.
            raise
        except BaseException as error:  # noqa: BLE001 a cancellation as well: nothing is awaited here
            self._tell(type(error))

    def _tell(self, kind: type[BaseException]) -> None:
        if kind in self._failures:
            return
        self._failures.add(kind)
        # A process without a terminal may have none.
        with suppress(Exception):
            sys.stderr.write(
                f"stretto: logging has raised {kind.__name__}; mend the filters and handlers of the"
                f" logger {self._log.name!r} and of those above it\n"
            )
