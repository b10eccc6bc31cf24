"""The embedded server's cluster: create it, start its server, stop it.

Everything here blocks, on programs that run for up to a minute, and requires that no other process
of ours does the same: the caller holds the lock of the place.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.start_errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.embedded.place import ServerPlace

# The user that owns the cluster, and our database in it.
NAME: Final = "stretto"
_MAJOR: Final = "18"
# A start may first have to recover from a crash.
START_SECONDS: Final = 60
_STOP_SECONDS: Final = 30
_LOG_LINES_SHOWN: Final = 10
# Exit code of `pg_ctl status`; any other failure says nothing about the server.
_NOT_RUNNING: Final = 3
# Another program may take the free port before the server does.
_PORT_TRIES: Final = 3


def prepare_cluster(place: ServerPlace) -> None:
    """Create the cluster if there is none; raises `EmbeddedError` if one exists, not ours."""
    if not place.cluster.exists():
        _initialise(place)
    _require_ours(place)


def start_server(place: ServerPlace, settings: Mapping[str, str]) -> None:
    """Start the server unless it runs, starts or stops already; raises `EmbeddedError`."""
    if _is_running(place):
        # Left running by an owner that was killed, perhaps while it started or stopped the server.
        return
    # The account itself opens this file, in the one folder that certainly belongs to it.
    log = place.cluster / "start.log"
    output = ""
    for _ in range(_PORT_TRIES):
        log.unlink(missing_ok=True)
        port = _free_port()
        options = {**settings, "port": str(port)}
        flags = ["-D", str(place.cluster)]
        flags += [f"-c{name}={value}" for name, value in options.items()]
        # pg_ctl has a shell start the server. It quotes the server's flags not at all, and the paths
        # of `-D` and `-l` only by double quotes: a path may have such a quote itself.
        code, output = place.run(
            "pg_ctl",
            *("start", "-w", "-t", str(START_SECONDS), "-l", _within_double_quotes(log)),
            *("-o", shlex.join(flags)),
            PGDATA=str(place.cluster),
        )
        if code == 0:
            return
        if _is_free(port):
            break
    reason = "\n  ".join([*output.splitlines()[-1:], *_log_tail(place)])
    message = f"PostgreSQL did not start in {place.cluster}:\n  {reason}"
    raise EmbeddedError(message)


def stop_server(place: ServerPlace) -> bool:
    """Stop the server, in order if possible, else at once; return whether it has stopped."""
    for mode in ("fast", "immediate"):
        if not _is_running(place):
            return True
        _pg_ctl(place, "stop", "-m", mode, "-w", "-t", str(_STOP_SECONDS))
    return not _is_running(place)


def _pg_ctl(place: ServerPlace, *arguments: str | Path) -> tuple[int, str]:
    return place.run("pg_ctl", "-D", place.cluster, *arguments)


def _within_double_quotes(path: Path) -> str:
    """Return a path as a shell reads it between double quotes."""
    return re.sub(r'(["$`\\])', r"\\\1", str(path))


def _initialise(place: ServerPlace) -> None:
    """Create the cluster in a draft folder, and rename the folder when it is complete."""
    for left_over in place.folder.glob("postgres.draft-*"):
        shutil.rmtree(left_over)
    draft = place.folder / f"postgres.draft-{os.getpid()}"
    draft.mkdir(mode=0o700)
    place.password.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(place.password, flags, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(24))
        file.flush()
        # initdb flushes its files too; a cluster that survives a crash without its password is
        # lost.
        os.fsync(file.fileno())
    for made in (draft, place.password):
        place.account.own(made)
    code, output = place.run(
        "initdb",
        *("-D", draft, "-U", NAME, "--pwfile", place.password),
        *("--auth", "scram-sha-256", "-E", "UTF8", "--no-instructions"),
        # The wheel has no ICU; the builtin provider sorts the same way on every system.
        *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C"),
    )
    if code != 0:
        shutil.rmtree(draft)
        message = f"initdb failed in {place.folder}:\n  {output.strip()}"
        raise EmbeddedError(message)
    draft.rename(place.cluster)


def _require_ours(place: ServerPlace) -> None:
    """Refuse a cluster without our password, or of another version, before anything touches it."""
    found = place.cluster / "PG_VERSION"
    if not found.is_file() or not place.password.is_file():
        message = (
            f"{place.cluster} was not made by stretto, or has lost its {place.password.name};"
            " move it away, or choose another STRETTO_DATA_DIR"
        )
        raise EmbeddedError(message)
    if (major := found.read_text().strip()) != _MAJOR:
        message = (
            f"{place.cluster} is of PostgreSQL {major}, ours is {_MAJOR}: dump it with its own"
            " programs, or choose another STRETTO_DATA_DIR"
        )
        raise EmbeddedError(message)


def _is_running(place: ServerPlace) -> bool:
    """Whether the server runs, starts or stops; removes a stale pid file.

    After a crash its pid may belong to another program, which pg_ctl would take for it and stop.
    """
    code, _ = _pg_ctl(place, "status")
    if code == _NOT_RUNNING:
        return False
    pid_file = place.cluster / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().splitlines()[0])
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, LookupError, ValueError):
        # It has just ended, or this system has no /proc: rely on pg_ctl.
        return pid_file.exists()
    # Its flags name the cluster. A server that is a zombie has no arguments.
    if os.fsencode(place.cluster) in arguments:
        return True
    pid_file.unlink(missing_ok=True)
    return False


def _log_tail(place: ServerPlace) -> list[str]:
    """Return the newest log's last lines, read as the account: a link gives it no more rights."""
    logs = [*place.cluster.glob("start.log"), *place.cluster.glob("log/*.log")]
    if not logs:
        return []
    newest = max(logs, key=lambda log: log.stat().st_mtime_ns)
    return place.account.run("tail", "-n", str(_LOG_LINES_SHOWN), newest).stdout.splitlines()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
