"""The account that runs the embedded server: our own, or an unprivileged one if we are root."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from stretto.start_errors import EmbeddedError

if TYPE_CHECKING:
    from pathlib import Path

_CANDIDATES: Final = ("postgres", "nobody")
# initdb, or a start after a crash, can take this long on a slow disk.
_PROGRAM_SECONDS_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this system as which programs can run."""

    name: str
    uid: int
    gid: int

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, in its own session, which a terminal's Ctrl-C does not reach.

        Its output goes to a file: a server that it leaves running would keep a pipe open.
        """
        is_other = self.uid != os.geteuid()
        with TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The account may have no access to the current folder.
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **variables},
                start_new_session=True,
                user=self.uid if is_other else None,
                group=self.gid if is_other else None,
                extra_groups=[] if is_other else None,
                timeout=_PROGRAM_SECONDS_MAX,
                check=False,
            )
            output.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, output.read())

    def may_enter(self, path: Path) -> bool:
        """Whether the account can reach and execute (or search) the path. Tried, not computed."""
        return self.run("test", "-x", path).returncode == 0

    def own(self, path: Path) -> None:
        """Make the account the owner of a path that we have made, and of all that is in it."""
        if self.uid == os.geteuid():
            return
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.gid, follow_symlinks=False)


def server_account() -> Account:
    """Return the account that may run PostgreSQL, which refuses to run as root."""
    if os.geteuid() != 0:
        try:
            own = pwd.getpwuid(os.geteuid())
        except KeyError:
            message = (
                f"PostgreSQL runs only as a user that the system knows by name, and {os.geteuid()} is"
                " none (/etc/passwd); run stretto as another user, or set STRETTO_DATABASE_URL"
            )
            raise EmbeddedError(message) from None
        return Account(own.pw_name, own.pw_uid, own.pw_gid)
    for name in _CANDIDATES:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise EmbeddedError(
        "PostgreSQL cannot run as root, and there is no account `postgres` or `nobody`;"
        " run stretto as another user, or set STRETTO_DATABASE_URL"
    )
