"""The command `stretto` as a real process: its output, its errors and its exit code."""

from __future__ import annotations

import asyncio
import sys

from support.environment import QUIET, environment


async def started(*arguments: str, **settings: str) -> asyncio.subprocess.Process:
    """Start a command in a session of its own, as in a terminal of its own."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, **{f"STRETTO_{name}": value for name, value in settings.items()}),
        start_new_session=True,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """Return exit code, output and errors. No command may show a traceback."""
    try:
        output, errors = await process.communicate()
    finally:
        # A service that starts where it should not has to end with its test.
        if process.returncode is None:
            process.kill()
    assert b"Traceback" not in output + errors, errors.decode()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def stretto(*arguments: str, **settings: str) -> tuple[int, str, str]:
    """Run a command; return exit code, output and errors."""
    return await ended(await started(*arguments, **settings))
