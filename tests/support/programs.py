"""The programs of Debian that tests run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# Debian keeps servers where only root looks for programs, and PostgreSQL by its version.
_PATH = os.pathsep.join(
    (os.environ.get("PATH", ""), "/usr/sbin", *map(str, Path("/usr/lib/postgresql").glob("*/bin")))
)


def find_program(name: str) -> str | None:
    """Return where a program is, if it is installed."""
    return shutil.which(name, path=_PATH)
