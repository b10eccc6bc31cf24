"""What the tests of the embedded servers share: processes that own one, and quick settings."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

import stretto
from support.environment import QUIET, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

IS_ROOT = os.geteuid() == 0
# Losing data is no risk here, and two cores have more to do.
FAST = {"fsync": "off", "shared_buffers": "16MB"}


def said(line: str) -> None:
    """Take a notice that no test asks for."""


async def ask(dsn: str, statement: str = "SELECT 1") -> object:
    """Return the first value that a statement yields, over a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


@contextmanager
def running_owner(program: str, data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a program that opens a server and owns it; yields it with the server's process id.

    It says the id, and whether it owns the server, and closes it when its input ends.
    """
    service = Path(stretto.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", program, data_dir],
        env=environment(**QUIET, PYTHONPATH=str(service)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            pid, owned = process.stdout.readline().split()
            assert owned == "True"
            yield process, int(pid)
        finally:
            if process.poll() is None:
                process.kill()
