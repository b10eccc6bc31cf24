"""The programs that tests run: those of Debian, and what `make clients` installs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

# An environment of its own: the generators of clients need other versions than the service.
CLIENTS: Final = Path(__file__).parents[2] / ".venv-clients"
# Debian keeps servers where only root looks for programs, and PostgreSQL by its version.
_PATH = os.pathsep.join(
    (
        os.environ.get("PATH", ""),
        "/usr/sbin",
        *map(str, Path("/usr/lib/postgresql").glob("*/bin")),
        *(str(CLIENTS / folder) for folder in ("bin", "node_modules/.bin")),
    )
)


def find_program(name: str) -> str | None:
    """Return where a program is, if it is installed."""
    return shutil.which(name, path=_PATH)
