"""Runs named tests in a copy of the tree, for a bounded time, and says what came of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mutants.mutant import MutantInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mutants.mutant import Mutant
    from mutants.scratch import Scratch

# Of one test: one that waits for what a mutant prevents is as good as failed.
TEST_SECONDS_MAX = 60
# Of a trial whose process does not even answer to that.
TRIAL_SECONDS_MAX = 300
# For the tests' own servers to be stopped.
STOP_SECONDS = 20

_PASSED, _FAILED = 0, 1
_FAILING = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Noticed:
    """A test failed."""

    is_hang: bool


@dataclass(frozen=True, slots=True)
class Survived:
    """Every test passed."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Nothing can be said of the mutant, for this reason."""

    reason: str


Outcome = Noticed | Survived | Broken


async def try_mutant(copy: Scratch, mutant: Mutant) -> Outcome:
    """Return what the mutant's tests say about it."""
    try:
        with copy.applied(mutant):
            code = await _run_tests(copy, mutant.tests, "-x", seconds=TRIAL_SECONDS_MAX)
    except MutantInvalid as error:
        return Broken(str(error))
    match code:
        case None:
            return Noticed(is_hang=True)
        case 1:
            return Noticed(is_hang="from pytest-timeout" in copy.log.read_text(errors="replace"))
        case 0:
            return Survived()
        case _:
            return Broken(f"pytest exited with {code}:\n{_tail(copy)}")


async def failing(copy: Scratch, tests: Iterable[str]) -> list[str]:
    """Return which of the tests fail as things are; raises `MutantInvalid` if they cannot be run."""
    code = await _run_tests(copy, tests, seconds=None)
    if code not in (_PASSED, _FAILED):
        raise MutantInvalid(f"without any mutant pytest exited with {code}:\n{_tail(copy)}")
    return _FAILING.findall(copy.log.read_text(errors="replace"))


async def _run_tests(
    copy: Scratch, tests: Iterable[str], *options: str, seconds: float | None
) -> int | None:
    """Return pytest's exit code; nothing where the time was over."""
    tests = tuple(tests)
    # They need no database: nor do they wait for one.
    are_units = all(test.startswith("tests/unit/") for test in tests)
    alone = ("--noconftest",) if are_units else ()
    with copy.log.open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *(f"--timeout={TEST_SECONDS_MAX}", "--tb=short", "-rfE", *alone, *options, *tests),
            cwd=copy.tree,
            env=copy.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Have the tests stop what they have started; then nothing of the process may be left."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _tail(copy: Scratch) -> str:
    return "\n".join(copy.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
