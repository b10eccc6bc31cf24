"""The environment of the processes that tests start."""

from __future__ import annotations

import os
from typing import Final

# In asyncio's debug mode a busy machine makes a process log what takes long, beside what it prints.
QUIET: Final = {"PYTHONASYNCIODEBUG": ""}


def environment(**variables: str) -> dict[str, str]:
    """Return our own with these variables, without stretto's settings."""
    return {name: value for name, value in os.environ.items() if "STRETTO_" not in name} | variables
