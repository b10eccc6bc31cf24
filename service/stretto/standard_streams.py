"""Standard streams that take every text: a closed one is opened, empty; a full stdout is reported.

Without it Python has no `sys.stderr`, and the next file or connection takes the free number: what a
child process writes to its stderr would go to the database.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def open_missing() -> None:
    """Open what is closed of stdin, stdout and stderr, before anything else takes their numbers."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8", errors="backslashreplace")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)
            if stream.fileno() == descriptor:
                os.set_inheritable(descriptor, True)  # noqa: FBT003 it has no name


def escape_what_cannot_be_written() -> None:
    """Have stdout escape characters that its encoding lacks, as stderr does: no traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class OutputLost(OSError):
    """stdout does not take what is printed, such as on a full disk."""


def report_lost_output() -> None:
    """Have stdout raise `OutputLost`, which differs from what a file or a connection raises."""
    for name in ("write", "flush"):
        setattr(sys.stdout, name, _raising_output_lost(getattr(sys.stdout, name)))


def ignore_lost_messages() -> None:
    """Have stderr raise nothing: a message without a reader must not end what it is about.

    Without it rich would end the process where the reader of a pipe has gone.
    """
    for name in ("write", "flush"):
        setattr(sys.stderr, name, _ignoring_os_errors(getattr(sys.stderr, name)))


def drop_output() -> None:
    """Drop what stdout has not taken: it would fail the exit of the process as well."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def _raising_output_lost(method: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        try:
            return method(*arguments)
        except BrokenPipeError:
            # Its reader has seen enough: no error. The command goes on to its end, and its exit code
            # is that of what it has found or done.
            drop_output()
            return method(*arguments)
        except OSError as error:
            raise OutputLost(error.errno, error.strerror) from error

    return call


def _ignoring_os_errors(method: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        try:
            return method(*arguments)
        except OSError:
            return None

    return call
