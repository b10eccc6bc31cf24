"""Programs of a host's, run in a Python of their own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import stretto
from support.environment import QUIET, environment

_SERVICE: Final = Path(stretto.__file__).parents[1]


async def run_program(program: str, *arguments: str, seconds: float) -> tuple[int, bytes, bytes]:
    """Run a program; return its exit code, output and errors. It is killed after so many seconds."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, PYTHONPATH=str(_SERVICE)),
    )
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output, errors
