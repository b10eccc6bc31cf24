"""The lock file of an embedded server: the process that holds its lock owns the server.

The kernel releases the lock when the process ends, also if it is killed.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pathlib import Path


def open_lock_file(path: Path) -> TextIO:
    """Open the file, or create it, without locking it; raises `OSError`."""
    # The folder may belong to another account, which must not redirect root by a symbolic link.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "r+")


def try_lock(lock: TextIO) -> bool:
    """Take the lock, unless it is ours already; return False if another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
