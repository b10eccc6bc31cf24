"""Where commands write: results to stdout, messages for the operator to stderr."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, NoReturn

from rich.console import Console

from stretto.telemetry.log_writer import STOP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

# Texts of the database or the user are not markup.
stdout: Final = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
stderr: Final = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def write_lines(lines: Iterable[str]) -> None:
    """Write hundreds of thousands of lines of our own words: rich takes 60 µs for each.

    No text of the database or the user, which rich rids of control characters.
    """
    write = stdout.file.write
    for line in lines:
        write(f"{line}\n")


def say(line: str) -> None:
    """Write a message for the operator."""
    stderr.print(line)


def fail(message: str, exit_code: int) -> NoReturn:
    """Write why the command failed, and end the process; wait `STOP_SECONDS` for the reader."""
    if not has_said(f"stretto: {message}"):
        # The pipe is full and is not being read: the usual end would wait for it, and for its lock.
        os._exit(exit_code)
    raise SystemExit(exit_code)


def has_said(line: str) -> bool:
    """Write a message, and return whether it was written within `STOP_SECONDS`."""
    speaking = threading.Thread(target=stderr.print, args=(line,), daemon=True)
    speaking.start()
    speaking.join(STOP_SECONDS)
    return not speaking.is_alive()
