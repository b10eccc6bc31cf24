"""The programs of Debian that tests run."""

from __future__ import annotations

import os
import shutil

# Debian keeps servers where only root looks for programs.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


def find_program(name: str) -> str | None:
    """Return where a program is, if it is installed."""
    return shutil.which(name, path=_PATH)
