"""An example as the program that its reader would start."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.environment import QUIET, environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
DEADLINE_SECONDS: Final = 60


@asynccontextmanager
async def started(
    example: str | Path, *arguments: str, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start an example; it is killed where it does not end by itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / example), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # In debug mode the framework also logs every request.
        env=environment(**QUIET, PYTHONUNBUFFERED="1", **settings),
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def output_of(example: str, *arguments: str, **settings: str) -> list[str]:
    """Run an example to its end, which must be a good one; return its lines."""
    async with started(example, *arguments, **settings) as process:
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode().splitlines()
