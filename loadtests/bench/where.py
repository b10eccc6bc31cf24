"""`python -m loadtests.bench.where`: which code uses the service's CPU time.

py-spy samples the process's main thread, C code included. A sample counts for its innermost frame
that is known: a room of stretto, or a library. Each sample stops the process for a moment, and calls
of the kernel seem to take longer than they do: their share comes from the process's own account, and
their samples are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from loadtests.bench.__main__ import DATA_DIR, SERVER
from loadtests.bench.accounts import user_and_system
from loadtests.bench.bench import OWNER, Bench
from loadtests.bench.machinery import SECRET, output_of, wrk
from rich.console import Console
from rich.table import Table

from stretto.embedded.postgres import embedded_postgres
from stretto.http.tokens.making import make_token

if TYPE_CHECKING:
    from collections.abc import Iterable

LOADS = (("new", 128), ("replay", 64))
RATE = 200
WARM_SECONDS = 2.0
MAIN_THREAD = "MainThread"
KERNEL = "kernel"

# A frame is "function (file:line)"; the first pattern that fits gives its name.
_KNOWN = (
    (re.compile(r"^(sendmsg|sendto|send|writev|write|recvfrom|recv|read|epoll_\w+) "), KERNEL),
    (re.compile(r"\(stretto/(\w+)(?:/\w+)*(?:\.py)?:"), "stretto: {0}"),
    (re.compile(r"\b(asyncpg|orjson|msgspec|aiohttp|uvloop)\b"), "{0}"),
    (re.compile(r"\(asyncio/"), "asyncio"),
)


def code_of(stack: str) -> str:
    """Return what the innermost known frame of a stack, `outermost;…;innermost`, belongs to."""
    for frame in reversed(stack.split(";")):
        for pattern, name in _KNOWN:
            if found := pattern.search(frame):
                return name.format(*found.groups())
    return "other"


def by_code(lines: Iterable[str]) -> Counter[str]:
    """Count the main thread's samples of py-spy's raw form: `thread;frame;…;frame count`."""
    samples: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if MAIN_THREAD in stack.split(";", 1)[0]:
            samples[code_of(stack)] += int(count)
    return samples


async def measured(bench: Bench, mode: str, connections: int) -> tuple[Counter[str], float]:
    """Run a load; return the service's samples, and the kernel's share of its time."""
    token = make_token(SECRET, OWNER, lifetime_seconds=3600)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "stacks")
        async with bench.database() as (dsn, _), bench.service(dsn) as (pid, port):

            async def load(seconds: float) -> None:
                url = f"http://127.0.0.1:{port}"
                await wrk(url, mode, connections=connections, seconds=seconds, token=token)

            await load(WARM_SECONDS)
            before = user_and_system(pid)
            await load(bench.seconds)
            user, system = (
                now - then for now, then in zip(user_and_system(pid), before, strict=True)
            )
            spy = output_of(
                *("py-spy", "record", "--pid", str(pid), "--rate", str(RATE), "--native"),
                *("--threads", "--format", "raw", "--output", str(file)),
                *("--duration", str(round(bench.seconds))),
            )
            await asyncio.gather(load(bench.seconds + 1), spy)
        return by_code(file.read_text().splitlines()), system / (user + system)


async def run(seconds: float) -> None:
    """Sample each load; print the shares."""
    console = Console(highlight=False, width=100)
    async with embedded_postgres(DATA_DIR, notify=console.print, settings=SERVER) as server:
        for mode, connections in LOADS:
            samples, system = await measured(Bench(server, seconds), mode, connections)
            del samples[KERNEL]
            title = f"{mode}, {connections} connections: {system:.2f} is the kernel's"
            table = Table("code", "share of the rest", title=title)
            for code, count in samples.most_common():
                table.add_row(code, f"{count / samples.total():.3f}")
            console.print(table)


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.where", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each load lasts")
    arguments = parser.parse_args()
    for program, advice in (("wrk", "apt-get install wrk"), ("py-spy", "pip install py-spy")):
        if shutil.which(program) is None:
            sys.exit(f"this needs {program} ({advice})")
    asyncio.run(run(arguments.seconds))


if __name__ == "__main__":
    main()
