"""Lock files: which process owns an embedded server, which ones use it, which one serves it.

The kernel releases a lock when its process ends, also if it is killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from stretto.start_errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Another process that has just left closes its files: some microseconds.
_LEAVE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.01


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


class ServerLocks:
    """A process's locks of one server: its owner alone starts it, and the last user stops it.

    So an owner that ends takes the server from no other process.
    """

    def __init__(self, owner: TextIO, users: TextIO) -> None:
        self._owner = owner
        self._users = users

    def try_use(self) -> bool:
        """Use the server from now on; return False while its last user stops it."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def try_own(self) -> bool:
        """Own the server, unless another process does."""
        return try_lock(self._owner)

    def leave(self) -> bool:
        """Use the server no longer; return whether it has to be stopped: no process uses it.

        Until the files are closed, no other process can use or own it then.
        """
        fcntl.flock(self._users, fcntl.LOCK_UN)
        if not try_lock(self._users):
            return False
        # Its owner may be just leaving: it found this process among the users, and stops nothing.
        deadline = time.monotonic() + _LEAVE_SECONDS
        while not self.try_own():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True


@contextmanager
def server_locks(path: Path) -> Iterator[ServerLocks]:
    """Open the locks of a server; raises `EmbeddedError`."""
    with ExitStack() as stack:
        try:
            owner = stack.enter_context(open_lock_file(path))
            users = stack.enter_context(open_lock_file(path.with_name(f"{path.name}-users")))
        except OSError as error:
            message = f"{path} cannot be opened: {error}; choose another STRETTO_DATA_DIR"
            raise EmbeddedError(message) from error
        yield ServerLocks(owner, users)


@contextmanager
def sole_service(folder: Path) -> Iterator[None]:
    """Serve a data folder as the only process; raises `EmbeddedError` where another one does.

    Two services on one folder are most often one that was forgotten.
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
