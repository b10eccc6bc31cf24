"""One `pg_autoctl`: the monitor's or a node's, with the PostgreSQL that it keeps running."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from chaos.server import is_alive
from support.waiting import until

if TYPE_CHECKING:
    import asyncio

    from ha.place import Place

# A fast stop waits for a checkpoint.
STOP_SECONDS: Final = 60
LOG_SHOWN_CHARACTERS: Final = 2000


class KeeperError(Exception):
    """A `pg_autoctl` has failed; the message has the end of its log."""


class Keeper:
    """All its processes can be killed, frozen and stopped; none outlives the `async with`."""

    def __init__(self, place: Place, name: str, port: int) -> None:
        self.place = place
        self.name = name
        self.port = port
        self.data = place.folder / name / "data"
        self.log = place.logs / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def run(self, command: str, *arguments: str, **options: str) -> None:
        """Run a command for this data folder to its end; raises `KeeperError`."""
        process = await self._begin(command, *arguments, **options)
        if await process.wait() != 0:
            tail = self.log.read_text(errors="replace")[-LOG_SHOWN_CHARACTERS:]
            raise KeeperError(f"pg_autoctl {command} of {self.name}:\n{tail}")

    async def start(self) -> None:
        """Keep the server running."""
        await self._begin("run")

    async def _begin(
        self, command: str, *arguments: str, **options: str
    ) -> asyncio.subprocess.Process:
        given = [f"--{name}={value}" for name, value in {"pgdata": self.data, **options}.items()]
        self._process = await self.place.spawn(*command.split(), *given, *arguments, log=self.log)
        return self._process

    async def stop(self) -> None:
        """Stop in order; what does not end in time is killed."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        process = self._process
        with suppress(TimeoutError):
            await until(lambda: process.returncode is not None, STOP_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        """Kill all its processes at once."""
        if self._process is None or self._process.returncode is not None:
            return
        killed = _stopped(self._process.pid)
        _signal(killed, signal.SIGKILL)
        await self._process.wait()
        await until(lambda: not any(map(is_alive, killed)), STOP_SECONDS)
        # Its id may be another program's soon, which must not be taken for the server.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def freeze(self) -> list[int]:
        """Stop all its processes where they are; return them, to be continued."""
        assert self._process is not None
        return _stopped(self._process.pid)

    def thaw(self, frozen: list[int]) -> None:
        """Continue processes that were frozen."""
        _signal(frozen, signal.SIGCONT)


def _stopped(pid: int) -> list[int]:
    """Stop a process and all below it, from the top, so that none starts another meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(below for child in children for below in _stopped(int(child)))]


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
