"""Tools of the parts: processes, load generators and their output."""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

HERE = Path(__file__).parent
SECRET = "a secret for benchmarks that is long enough"
BODY = {"name": "Team standup", "members": ["alice7", "bob12", "carol3"]}

_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, slots=True)
class Measure:
    """One part in one round: times in milliseconds, other figures by name."""

    per_second: float
    p50_ms: float
    p99_ms: float
    count: int = 0
    """Answered requests, or committed transactions."""
    more: dict[str, float] = field(default_factory=dict)


class BenchError(Exception):
    """A part went wrong: its figures mean nothing."""


async def output_of(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return what it printed; raises `BenchError` if it failed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
    )
    printed, _ = await process.communicate()
    text = printed.decode()
    if process.returncode != 0:
        message = f"{command[0]} ended with {process.returncode}:\n{text}"
        raise BenchError(message)
    return text


@asynccontextmanager
async def serving(*command: str | Path, ready: bytes, env: Mapping[str, str]) -> AsyncIterator[Any]:
    """Run a server while the context lasts; yields its process and the JSON of its ready line."""
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, env=env
    )
    assert process.stderr is not None
    seen = b""
    try:
        while ready not in seen:
            seen = await process.stderr.readline()
            if not seen:
                message = f"{command} ended before it served"
                raise BenchError(message)
        drain = asyncio.ensure_future(process.stderr.read())
        yield process, orjson.loads(seen)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
    await drain


async def wrk(  # noqa: PLR0913 each of them is a flag of the program
    url: str,
    mode: str,
    *,
    connections: int,
    seconds: float,
    token: str,
    non_2xx: float = 0.0,
    pause_ms: float = 0.0,
    requests: int = 0,
) -> Measure:
    """Load a URL for some seconds, or until so many `requests` are sent and a few more.

    The share of answers other than 2xx must be `non_2xx`, within a fifth.
    """
    printed = await output_of(
        *("wrk", "--threads", "1", "--connections", str(connections)),
        *("--duration", f"{seconds:g}s", "--timeout", "20s", "--latency"),
        *("--script", HERE / "requests.lua", url, "--", mode, token, orjson.dumps(BODY).decode()),
        *(f"{pause_ms:.0f}", str(requests)),
    )
    answers = int(_found(r"(\d+) requests in", printed))
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
    share = int(refused[1]) / answers if refused else 0.0
    if "Socket errors" in printed or not 0.8 * non_2xx <= share <= 1.2 * non_2xx:
        message = f"{mode} at {connections} connections went wrong:\n{printed}"
        raise BenchError(message)
    return Measure(
        float(_found(r"Requests/sec:\s+([\d.]+)", printed)),
        _milliseconds(r"50%\s+([\d.]+)(us|ms|s)", printed),
        _milliseconds(r"99%\s+([\d.]+)(us|ms|s)", printed),
        answers,
    )


async def pgbench(
    program: Path,
    dsn: str,
    script: str,
    *,
    clients: int,
    seconds: float = 0.0,
    transactions: int = 0,
) -> Measure:
    """Run a script of prepared statements from `clients` connections.

    It runs for some seconds, or this number of times from each.
    """
    length = ("--transactions", transactions) if transactions else ("--time", round(seconds))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "script.sql")
        file.write_text(script)
        printed = await output_of(
            *(program, "--no-vacuum", "--protocol", "prepared", "--file", file),
            *("--client", str(clients), *map(str, length), "--log"),
            *("--log-prefix", str(Path(folder, "times")), dsn),
        )
        microseconds = sorted(
            int(line.split()[2])
            for log in Path(folder).glob("times*")
            for line in log.read_text().splitlines()
        )
    return Measure(
        float(_found(r"tps = ([\d.]+)", printed)),
        statistics.median(microseconds) / 1e3,
        microseconds[len(microseconds) * 99 // 100] / 1e3,
        int(_found(r"transactions actually processed: (\d+)", printed)),
    )


def resident_mib(pid: int) -> float:
    """Return a process's resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(_found(r"VmRSS:\s+(\d+) kB", status)) / 1024


def python(*arguments: str) -> tuple[str, ...]:
    """Return a command for this Python."""
    return sys.executable, *arguments


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        message = f"there is no {pattern!r} in:\n{text}"
        raise BenchError(message)
    return match[1]


def _milliseconds(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    if match is None:
        message = f"there is no {pattern!r} in:\n{text}"
        raise BenchError(message)
    return float(match[1]) * _UNITS[match[2]]
