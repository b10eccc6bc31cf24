"""A log that is not read: the service goes on without it, and ends in time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from support.api_client import SECRET, connected_api
from support.environment import environment
from support.full_pipe import fill

SECONDS_MAX = 30


async def started(reader: int, services: int) -> str:
    """Read a log until so many processes serve; return where."""

    def read() -> dict[str, Any]:
        with os.fdopen(os.dup(reader), "rb") as log:
            lines = (line for line in log if b'"service.started"' in line)
            found: list[dict[str, Any]] = [orjson.loads(next(lines)) for _ in range(services)]
        return found[-1]

    line = await asyncio.to_thread(read)
    return f"http://127.0.0.1:{line['port']}"


async def answer_to_garbage(url: str) -> bytes:
    """Send what is no request: it is logged."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(b"GARBAGE\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_log_that_is_not_read_holds_nothing_up(database_url: str, workers: int) -> None:
    """Neither an answer nor the end, of a process and of a supervisor with its workers."""
    reader, writer = os.pipe()
    settings = {
        "STRETTO_DATABASE_URL": database_url,
        "STRETTO_JWT_SECRET": SECRET,
        "STRETTO_PORT": "0",
        "STRETTO_WORKERS": str(workers),
        "STRETTO_DRAIN_SECONDS": "0",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", "serve"), stderr=writer, env=environment(**settings)
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            url = await started(reader, workers)
        fill(writer)
        async with asyncio.timeout(SECONDS_MAX), connected_api(url) as api:
            for _ in range(4 * workers):
                assert (await answer_to_garbage(url)).startswith(b"HTTP/1.1 400 ")
            assert 200 == (await api.get("/livez", user=None)).status
            assert 201 == (await api.create("key")).status
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS_MAX):
            assert 0 == await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reader)
        os.close(writer)
