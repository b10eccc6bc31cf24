"""Where a run's servers live: pg_auto_failover's programs, an account that may run them, folders."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.embedded.account import server_account

if TYPE_CHECKING:
    from typing import Any

    from stretto.embedded.account import Account

EXTENSIONS: Final = "*/lib/pgautofailover.so"
MISSING: Final = (
    "make ha needs pg_auto_failover with its PostgreSQL; on Debian:"
    " apt-get install --no-install-recommends pg-auto-failover-cli postgresql-15-auto-failover"
)


class ProgramsMissing(Exception):
    """The programs of pg_auto_failover are not installed."""


@dataclass(frozen=True, slots=True)
class Place:
    """The programs, the account, and the folders of data and of logs."""

    pg_autoctl: str
    pg_ctl: Path
    account: Account
    folder: Path
    logs: Path

    @property
    def environment(self) -> dict[str, str]:
        """What `pg_autoctl` and all below it get: nothing of the user's own."""
        return {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            # Decides the encoding of a new cluster.
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_DATA_HOME": str(self.folder / "share"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            # The distribution's folder for sockets belongs to its own account.
            "PGHOST": str(self.folder / "run"),
            "PG_REGRESS_SOCK_DIR": str(self.folder / "run"),
        }

    async def spawn(self, *arguments: str, log: Path) -> asyncio.subprocess.Process:
        """Start `pg_autoctl` in a session of its own, which a terminal's Ctrl-C does not reach."""
        account: dict[str, Any] = {}
        if self.account.uid != os.geteuid():
            account = {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *(self.pg_autoctl, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                cwd="/",
                env=self.environment,
                start_new_session=True,
                **account,
            )


def make_place(folder: Path, logs: Path, installed: Path = Path("/usr/lib/postgresql")) -> Place:
    """Prepare a new folder for the servers; raises `ProgramsMissing`."""
    extensions = sorted(installed.glob(EXTENSIONS))
    pg_autoctl = shutil.which("pg_autoctl")
    if not extensions or pg_autoctl is None:
        raise ProgramsMissing(MISSING)
    account = server_account()
    for name in ("config", "share", "run"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    account.own(folder)
    pg_ctl = extensions[-1].parents[1] / "bin" / "pg_ctl"
    return Place(pg_autoctl, pg_ctl, account, folder, logs)
