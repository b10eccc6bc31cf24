"""A real `stretto serve` process, to be killed, stopped and continued by its own id."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import orjson

from support.api_client import SECRET, connected_api
from support.environment import environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import TypeAlias

    from support.api_client import Api

    StartService: TypeAlias = Callable[..., Awaitable["ServiceProcess"]]

STOP_SECONDS = 120


class ServiceProcess:
    """Started with settings (names without their prefix); `url` is known once it serves.

    The code is ours, or that of another `package`: the folder that PYTHONPATH must name.
    """

    def __init__(self, settings: Mapping[str, str], package: Path | None = None) -> None:
        given = {"PORT": "0", "JWT_SECRET": SECRET, "LEASE_SECONDS": "0.5", "DRAIN_SECONDS": "0"}
        given |= settings
        self._environment = environment(
            **{f"STRETTO_{name}": value for name, value in given.items()}
        )
        if package is not None:
            self._environment["PYTHONPATH"] = str(package)
        self.log: list[bytes] = []
        self._has_logged = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stretto", "serve"),
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            # Its workers are ended with it.
            start_new_session=True,
        )
        assert self.process.stderr is not None
        while True:
            line = await self.process.stderr.readline()
            assert line, b"".join(self.log).decode()
            self.log.append(line)
            if b'"service.started"' in line:
                self.url = f"http://127.0.0.1:{orjson.loads(line)['port']}"
                break
        self._reading = asyncio.create_task(self._read(self.process.stderr))
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.exited()
        await self._reading

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this very process."""
        self.process.send_signal(number)

    def workers(self) -> list[int]:
        """Return the ids of its workers that run now."""
        pid = self.process.pid
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    async def exited(self) -> int:
        """Wait for the end; return the exit code."""
        async with asyncio.timeout(STOP_SECONDS):
            return await self.process.wait()

    async def workers_ended(self) -> None:
        """Wait until no process is left that could write to the log."""
        async with asyncio.timeout(STOP_SECONDS):
            await asyncio.shield(self._reading)

    async def logged(self, event: bytes, times: int = 1) -> None:
        """Wait until an event has been logged so often."""
        await self.until(lambda: b"".join(self.log).count(b'"%b"' % event) >= times)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that a line of the log has brought about."""
        async with asyncio.timeout(STOP_SECONDS):
            while not holds():
                self._has_logged.clear()
                await self._has_logged.wait()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.log.append(line)
            self._has_logged.set()


@asynccontextmanager
async def service_starter(database_url: str) -> AsyncIterator[StartService]:
    """Start as many processes on a database as are asked for; settings are keyword arguments."""
    async with AsyncExitStack() as stack:

        async def start(**settings: str) -> ServiceProcess:
            service = ServiceProcess({"DATABASE_URL": database_url, **settings})
            return await stack.enter_async_context(service)

        yield start


@asynccontextmanager
async def apis(*services: ServiceProcess) -> AsyncIterator[list[Api]]:
    """Open a client for each service."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected_api(s.url)) for s in services]
