"""Who runs the embedded server: us, or an unprivileged account where we are root."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from stretto.errors import EmbeddedError

if TYPE_CHECKING:
    from pathlib import Path

_CANDIDATES: Final = ("postgres", "nobody")
# initdb and a start after a crash may take their time on a slow disk.
_PROGRAM_SECONDS_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this system that programs can be run as."""

    name: str
    uid: int
    gid: int

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, in a session of its own, where a terminal's Ctrl-C is not heard.

        Its output goes through a file: a server that it leaves behind would keep a pipe open.
        """
        is_other = self.uid != os.geteuid()
        with TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The present folder may be closed to the account.
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
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
        """Whether the account can reach and execute (or search) the path: tried, not computed."""
        return self.run("test", "-x", path).returncode == 0

    def own(self, path: Path) -> None:
        """Give the account what we have made, with all that is in it."""
        if self.uid == os.geteuid():
            return
        for place in (path, *path.rglob("*")):
            os.chown(place, self.uid, self.gid, follow_symlinks=False)


def server_account() -> Account:
    """Return the account that may run PostgreSQL, which refuses to run as root."""
    if os.geteuid() != 0:
        own = pwd.getpwuid(os.geteuid())
        return Account(own.pw_name, own.pw_uid, own.pw_gid)
    for name in _CANDIDATES:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise EmbeddedError(
        "PostgreSQL cannot run as root, and there is no account postgres or nobody;"
        " run stretto as another user, or set STRETTO_DATABASE_URL"
    )
