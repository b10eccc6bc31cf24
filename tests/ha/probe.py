"""The engine's own time: writes to every node directly, and notes which came through when.

An ideal client: it waits for no time-out of another node, and for nothing between two tries but a
moment. It is a process of its own, which the thousands of answers to the clients do not delay; the
monotonic clock is the same for all processes.

    python -m ha.probe NAME=URL ...
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import TYPE_CHECKING, Final, Self

import asyncpg

from stretto.postgres.driver_connection import watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ha.formation import Node

PAUSE_SECONDS: Final = 0.02
# A write that waits for a standby is begun anew; the standby ends the wait of the newest at once.
ANSWER_SECONDS_MAX: Final = 1.0
MOVED_SECONDS_MAX: Final = 300
IS_STANDBY: Final = "SELECT pg_is_in_recovery()"
WRITE: Final = "INSERT INTO ha.probe DEFAULT VALUES"


@dataclass(frozen=True, slots=True)
class Written:
    """A commit that a node has acknowledged, when it was begun and ended."""

    node: str
    began: float
    ended: float


@dataclass(slots=True)
class Probe:
    """The process, which runs as long as the `async with`, and what it has found."""

    nodes: Sequence[Node]
    written: list[Written] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None
    _reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ha.probe"),
            *(f"{node.name}={node.dsn()}" for node in self.nodes),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reading = asyncio.create_task(self._read(self._process.stdout), name="probe")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._reading is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def moved(self, old: Node, since: float) -> float:
        """Wait for a write through another node that was begun since then; return when it ended."""

        def first() -> float | None:
            recent = takewhile(lambda each: each.ended >= since, reversed(self.written))
            found = [w.ended for w in recent if w.node != old.name and w.began >= since]
            return min(found, default=None)

        moved_at = await until(first, MOVED_SECONDS_MAX)
        assert moved_at is not None
        return moved_at

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            node, began, ended = line.decode().split()
            self.written.append(Written(node, float(began), float(ended)))


async def ask(name: str, dsn: str) -> None:
    """Write to a node again and again, and print what it has acknowledged."""
    for _ in count():
        with suppress(*DRIVER_ERRORS):
            await _write(name, dsn)
        await asyncio.sleep(PAUSE_SECONDS)


async def _write(name: str, dsn: str) -> None:
    """Write as soon as the node is the primary, until something fails."""
    connection = await asyncpg.connect(dsn, timeout=ANSWER_SECONDS_MAX)
    try:
        for _ in count():
            with watchdog(connection, ANSWER_SECONDS_MAX):
                began = time.monotonic()
                if not await connection.fetchval(IS_STANDBY):
                    await connection.execute(WRITE)
                    sys.stdout.write(f"{name} {began} {time.monotonic()}\n")
                    sys.stdout.flush()
            await asyncio.sleep(PAUSE_SECONDS)
    finally:
        connection.terminate()


async def main(nodes: Sequence[str]) -> None:
    """Ask all nodes at the same time, until killed."""
    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            name, _, dsn = node.partition("=")
            tasks.create_task(ask(name, dsn), name=f"probe of {name}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
