"""Says which process owns an embedded server: the one that holds the lock on its file.

The kernel lets go of the lock when the process ends, however that happens.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pathlib import Path


def open_lock_file(path: Path) -> TextIO:
    """Open the file, made if need be, without locking it; raises `OSError`."""
    # The folder may be another account's, who must not be able to lead root elsewhere by a link.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "r+")


def try_lock(lock: TextIO) -> bool:
    """Take the lock, or find that it is ours already; False where another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
