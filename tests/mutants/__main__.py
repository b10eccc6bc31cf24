"""Tries every mutant on a copy of the tree: is there a test that notices?

Exits with 1 if one could not be tried, if one that has no reason survives, or if fewer than 95 % are
noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from mutants.mutant import Mutant, MutantInvalid, faults, read_mutants
from mutants.report import Report
from mutants.scratch import scratch
from mutants.trial import Broken, failing, try_mutant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mutants.scratch import Scratch

# As many as most machines of ours have cores.
WORKERS = 2
# What a shell says of a program that Ctrl-C has ended.
STOPPED = 130


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="a list, a mutant (list:number), part of a file")
    parser.add_argument("--list", action="store_true", help="name them and try none")
    parser.add_argument("--workers", type=int, default=WORKERS, help="copies of the tree")
    given = parser.parse_args()
    try:
        mutants = [mutant for mutant in read_mutants() if mutant.is_wanted(given.only)]
    except MutantInvalid as error:
        parser.error(str(error))
    if not mutants:
        parser.error(f"there is no mutant that {given.only} names")
    if given.list:
        sys.stdout.writelines(f"{each.name} {each.file}: {each.why}\n" for each in mutants)
        return 0
    report = Report(len(mutants), sys.stdout)
    # A run in the background is made to ignore it, and so would be the tests that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(_try_all(mutants, given.workers, report))
    except (KeyboardInterrupt, asyncio.CancelledError):
        report.say("stopped")
        return STOPPED
    except MutantInvalid as error:
        report.say(str(error))
        return 1
    return 0 if report.conclude() else 1


async def _try_all(mutants: Sequence[Mutant], workers: int, report: Report) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    sound = []
    for mutant in mutants:
        wrong = "; ".join(faults(mutant))
        if wrong:
            report.note(mutant, Broken(wrong), 0)
        else:
            sound.append(mutant)
    async with AsyncExitStack() as stack:
        copies = [await stack.enter_async_context(scratch()) for _ in range(workers)]
        already = await _failing_already(copies, sound, report)
        waiting = iter(sound)
        async with asyncio.TaskGroup() as group:
            for copy in copies:
                group.create_task(_try_each(copy, waiting, already, report))


async def _failing_already(
    copies: Sequence[Scratch], mutants: Sequence[Mutant], report: Report
) -> frozenset[str]:
    """Return the tests that fail without any mutant: what they notice is worth nothing.

    Raises `MutantInvalid` where they cannot even be run.
    """
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    report.say(f"{len(tests)} tests without any mutant")
    started = time.monotonic()
    # Each copy gets whole files: what is slow in a test is often made once for its module.
    files = sorted({test.partition("::")[0] for test in tests})
    runs = []
    for number, copy in enumerate(copies):
        own = set(files[number :: len(copies)])
        shared = [test for test in tests if test.partition("::")[0] in own]
        if shared:
            runs.append(failing(copy, shared))
    failed = frozenset(itertools.chain.from_iterable(await asyncio.gather(*runs)))
    report.say(f"{len(failed)} of them fail, {time.monotonic() - started:.0f} s")
    for test in sorted(failed):
        report.say(f"  {test}")
    return failed


async def _try_each(
    copy: Scratch, waiting: Iterator[Mutant], already: frozenset[str], report: Report
) -> None:
    for mutant in waiting:
        started = time.monotonic()
        spoilt = [test for test in mutant.tests if _fails_already(test, already)]
        if spoilt:
            outcome = Broken(f"fails without it: {', '.join(spoilt)}")
            report.note(mutant, outcome, 0)
            continue
        report.note(mutant, await try_mutant(copy, mutant), time.monotonic() - started)


def _fails_already(test: str, already: frozenset[str]) -> bool:
    """Return whether a failing test is the named one, or one of the named file or folder."""
    name = test.partition("[")[0]
    return any(failed == name or failed.startswith((f"{name}::", f"{name}/")) for failed in already)


if __name__ == "__main__":
    sys.exit(main())
