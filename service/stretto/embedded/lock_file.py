"""Lock files: the process that holds the lock of one owns an embedded server, or alone serves it.

The kernel releases the lock when the process ends, also if it is killed.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from stretto.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@contextmanager
def sole_service(folder: Path) -> Iterator[None]:
    """Serve a data folder as the only process; raises `EmbeddedError` where another one does.

    A second service would lose its database as soon as the first one stops.
    """
    path = folder / "serve-lock"
    try:
        lock = open_lock_file(path)
    except OSError as error:
        message = f"{path} cannot be opened: {error}; choose another STRETTO_DATA_DIR"
        raise EmbeddedError(message) from error
    with lock:
        if not try_lock(lock):
            message = (
                f"`stretto serve` runs already on the data folder {folder}, as process"
                f" {lock.read().strip() or 'of another start'}: stop it, choose another"
                " STRETTO_DATA_DIR, or set STRETTO_DATABASE_URL for both"
            )
            raise EmbeddedError(message)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
