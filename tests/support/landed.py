"""The revision that the newest schema follows on: its files, and its code to run beside ours."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from support.command_process import ended
from support.environment import QUIET, environment

ROOT = Path(__file__).parents[2]
# Its schema is number 7, the first. Once there is a release, this is the last one's commit.
REVISION: Final = "f9e5ecb"


def landed_file(name: str) -> str:
    """Return the text of a file as it was then."""
    return _git("show", f"{REVISION}:{name}").decode()


def landed_package(folder: Path) -> Path:
    """Write the package of then into a folder; return what PYTHONPATH must name."""
    with tarfile.open(
        fileobj=io.BytesIO(_git("archive", REVISION, "service", "schema.sql"))
    ) as tar:
        tar.extractall(folder, filter="data")
    return folder / "service"


async def landed_stretto(package: Path, command: str, url: str) -> tuple[int, str, str]:
    """Run a command of then on a database; return exit code, output and errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, PYTHONPATH=str(package), STRETTO_DATABASE_URL=url),
    )
    return await ended(process)


def is_here() -> bool:
    """Whether the history of our checkout has the revision; a shallow clone's has not."""
    there = ("git", "-C", ROOT, "cat-file", "-e", f"{REVISION}^{{commit}}")
    return subprocess.run(there, capture_output=True, check=False).returncode == 0


def _git(*arguments: str) -> bytes:
    return subprocess.run(("git", "-C", ROOT, *arguments), capture_output=True, check=True).stdout
