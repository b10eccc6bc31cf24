"""A worker that stands still: its share of the port is not lost for longer than a bound."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from stretto.runtime.stop import Stop
from stretto.server import _reserved_port
from stretto.supervisor import Supervisor
from support.api_client import SECRET, Api
from support.environment import environment
from support.waiting import until

if TYPE_CHECKING:
    import pytest

DEADLINE_SECONDS = 60
CONNECTIONS = 20


async def test_connections_of_a_frozen_worker_go_to_another_one_after_a_bound(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives a stopped process its share of the port for as long as it exists."""
    # Longer than a healthy worker stalls at its start on a busy machine.
    monkeypatch.setattr("stretto.reports.FROZEN_SECONDS", 5.0)
    monkeypatch.setattr("stretto.reports.PING_SECONDS", 0.2)
    stop = Stop(drain_seconds=0)
    command = (sys.executable, "-m", "stretto", "serve", "--share-port")
    with _reserved_port("127.0.0.1", 0) as port:
        variables = environment(
            STRETTO_DATABASE_URL=database_url,
            STRETTO_JWT_SECRET=SECRET,
            STRETTO_PORT=str(port),
            STRETTO_DRAIN_SECONDS="0",
        )
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        ):
            running = asyncio.create_task(Supervisor(command, variables, stop).run(2))
            try:
                api = Api(session, f"http://127.0.0.1:{port}")
                await until(lambda: both_report(api))
                frozen, *_ = before = workers()
                os.kill(frozen, signal.SIGSTOP)
                await until(lambda: frozen not in workers())
                await until(lambda: both_report(api))
                assert {201} == {
                    (await api.create(f"k{number}")).status for number in range(CONNECTIONS)
                }
                assert {*before[1:]} < {*workers()}
            finally:
                stop.take(signal.SIGINT)
                await running


async def both_report(api: Api) -> bool:
    """Whether a scrape is answered, for two workers."""
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(1):
            text = (await api.get("/metrics", user=None)).body.decode()
        return "stretto_workers 2.0" in text.splitlines()
    return False


def workers() -> list[int]:
    """Return the ids of this process's workers."""
    pid = os.getpid()
    children = [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [child for child in children if is_worker(child)]


def is_worker(pid: int) -> bool:
    """Whether a process is a worker that has not ended."""
    with suppress(OSError):
        return b"--share-port" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
