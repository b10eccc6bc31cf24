"""Notices that an embedded server has ended by itself: nothing starts it again while it is used."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# The server is no child of ours, or may be one of another process: the system reports no end.
POLL_SECONDS: Final = 1.0


@asynccontextmanager
async def watched_server(
    name: str, pid: int, log: Path, on_lost: Callable[[str], object]
) -> AsyncIterator[None]:
    """Watch a server while the context lasts; once it has ended, log that and call `on_lost`."""

    async def watch() -> None:
        while _is_alive(pid):  # noqa: ASYNC110 nothing here could set an event
            await asyncio.sleep(POLL_SECONDS)
        logger.error("embedded.ended", server=name, pid=pid, log=str(log))
        on_lost(f"{name} (process {pid}) has ended by itself; {log} may say why. Start again")

    watching = asyncio.create_task(watch(), name=f"watch of {name}")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie, whose parent does not ask for its end, has no command."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        # It has just ended, or this system has no /proc.
        return not Path("/proc/self").exists()
    except OSError:
        # It runs as another account, or we have no file left to look with.
        return True
