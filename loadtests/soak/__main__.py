"""`make soak MINUTES=`: a service under a steady mix for a given time; exits with 1 on a miss.

It runs one process of `stretto serve` with an embedded PostgreSQL, and samples its memory all the
time. Afterwards it checks the answers to the clients and the whole database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import aiohttp
import uvloop
from checker import check_folder
from records import JOURNALS, Journal
from service import own_service
from tokens import SECRET_VARIABLE, token_of

from soak.figures import Figures, Sample, table
from soak.mix import ANSWER_SECONDS_MAX, Mix

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSIONS: Final = 200
SAMPLE_SECONDS: Final = 2.0
PROGRESS_SECONDS: Final = 30.0
# Caches fill and connections open in this time; the memory at its end is the start value.
WARM_UP_SHARE: Final = 0.1
WARM_UP_SECONDS_MAX: Final = 120.0
# After the last session has ended: the collector runs by the clock (`COLLECT_SECONDS`).
REST_SECONDS_MAX: Final = 60.0
# More lines than a run should ever log.
LOG_LINES_MAX: Final = 1_000_000
BUSY_LOOP: Final = "while True: pass"


def main() -> int:
    """Return the exit code."""
    given = _options()
    histories = given.folder / "histories"
    histories.mkdir(parents=True, exist_ok=True)
    for old in histories.glob(JOURNALS):
        old.unlink()
    with own_service(LOG_LINES_MAX) as service:
        os.environ[SECRET_VARIABLE] = service.secret
        journal = Journal(histories)
        with ExitStack() as stack:
            if given.busy:
                stack.enter_context(_busy_processors())
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(_soak(service.url, service.pid, journal, given))
        journal.close()
        figures.read_log(tuple(service.log))
        verdicts = {
            "the checker": check_folder(histories, service.url, token_of),
            "stretto check": service.check_database(),
        }
    missed = [
        *figures.misses(),
        *(f"{name} fails" for name, right in verdicts.items() if not right),
    ]
    document = {**figures.document(), "is_busy": given.busy, "misses": missed}
    (given.folder / "figures.json").write_text(json.dumps(document, indent=1))
    sys.stdout.write(f"{table(figures)}\nfigures: {given.folder / 'figures.json'}\n")
    sys.stdout.write(f"MISSED: {'; '.join(missed)}\n" if missed else "passed\n")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--scale", type=float, default=1.0, help="load factor: 1 is 420 a second")
    parser.add_argument("--busy", action="store_true", help="keep all processors busy")
    parser.add_argument("--folder", type=Path, default=Path(".soak"), help="for all files")
    return parser.parse_args()


async def _soak(url: str, pid: int, journal: Journal, given: argparse.Namespace) -> Figures:
    """Load the service and sample it; sample it once more after a rest."""
    seconds = 60 * given.minutes
    samples: list[Sample] = []
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX),
    ) as session:
        mix = Mix(url, journal, session)
        sampling = asyncio.create_task(_sample(pid, samples, mix), name="samples")
        await mix.run(seconds, round(given.scale * SESSIONS), given.scale)
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
    await asyncio.sleep(min(REST_SECONDS_MAX, seconds / 10))
    warm_seconds = min(WARM_UP_SECONDS_MAX, WARM_UP_SHARE * seconds)
    start = [sample.mib for sample in samples if sample.seconds <= warm_seconds]
    return Figures(
        samples, median(start), _resident_mib(pid), mix.requests, mix.failures, mix.problems
    )


async def _sample(pid: int, samples: list[Sample], mix: Mix) -> None:
    """Sample the service's memory at intervals, and print progress."""
    started = printed_at = time.monotonic()
    while True:
        now = time.monotonic()
        samples.append(Sample(now - started, _resident_mib(pid)))
        if now - printed_at >= PROGRESS_SECONDS:
            printed_at = now
            sys.stdout.write(
                f"{(now - started) / 60:5.1f} min: {samples[-1].mib:6.1f} MiB,"
                f" {mix.requests.total()} requests, {mix.failures.total()} failed\n"
            )
            sys.stdout.flush()
        await asyncio.sleep(SAMPLE_SECONDS)


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def _busy_processors() -> Iterator[None]:
    """Keep every processor busy with another process of the same priority."""
    command = [sys.executable, "-c", BUSY_LOOP]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
