"""Standard streams that take every text: a closed one is opened, empty; a full one is reported.

Without it Python has no `sys.stderr`, and the next file or connection takes the free number: what a
child process writes to its stderr would go to the database.
"""

from __future__ import annotations

import io
import os
import sys


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


def has_lost_output() -> bool:
    """Whether stdout does not take what was printed; drops that, so that the exit does not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return True
    return False
