"""Clients that arrive at a fixed rate: their plan, and the process that executes it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson
from loadtests.bench.machinery import BenchError, python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The load to send."""

    url: str
    token: str
    rate: float
    """Requests per second; 0: a closed loop over `connections`, in which no request waits."""
    seconds: float
    connections: int = 256
    """Opened before the first request."""
    connections_max: int = 9_000
    """Further ones are opened as needed; beyond this, requests wait for a free one."""
    tries: int = 1
    """How often a client sends its request at most, if the answer allows a retry."""
    run: str
    """Prefix of every key."""


class Arrivals:
    """Controls the process of a plan."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def start(self) -> None:
        """Start the clients."""
        self._stdin.write(b"go\n")

    async def report(self) -> dict[str, Any]:
        """Return the report, once every request is answered or given up."""
        line = await self._stdout.readline()
        if not line:
            raise BenchError("the clients ended without a report")
        report: dict[str, Any] = orjson.loads(line)
        return report


@asynccontextmanager
async def arrivals(plan: Plan) -> AsyncIterator[Arrivals]:
    """Run a plan's process, with open connections, until the context ends."""
    process = await asyncio.create_subprocess_exec(
        *python("-m", "loadtests.bench.open_loop", orjson.dumps(asdict(plan)).decode()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield Arrivals(process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
