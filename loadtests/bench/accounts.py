"""CPU time of processes and of the machine, from the kernel's accounts in `/proc`.

A process's account includes its descendants, also those that have ended: the kernel adds the time
of a child to its parent's account when the parent has waited for it.
"""

from __future__ import annotations

import os
from asyncio import sleep
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.machinery import BenchError

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Processes seldom end; one that always does has children that end all the time.
READS_MAX = 100
REST_SECONDS = 0.5
# Of one processor: timers of an idle process use less.
REST_SHARE_MAX = 0.05
REST_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What all processors have done since the start of the machine, in ticks."""

    idle: int
    total: int

    @classmethod
    def now(cls, proc: Path = PROC) -> Machine:
        """Read the present account."""
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user and nice.
        ticks = [int(tick) for tick in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        return cls(ticks[3] + ticks[4], sum(ticks))

    def idle_share(self, later: Machine) -> float:
        """Return the idle share of all processors between this account and a later one."""
        return (later.idle - self.idle) / max(later.total - self.total, 1)


def children(pid: int, proc: Path = PROC) -> list[int]:
    """Return the pids of a process's children."""
    # The kernel lists them by the thread that has started them.
    lists = (proc / str(pid) / "task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]


def cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """Return the CPU time of a process and its descendants, running or ended."""
    for _ in range(READS_MAX):
        ticks = _ticks(pid, proc)
        if ticks is not None:
            return ticks / TICKS_PER_SECOND
    message = f"the children of process {pid} end too fast to be counted, or it has ended"
    raise BenchError(message)


def user_and_system(pid: int, proc: Path = PROC) -> tuple[float, float]:
    """Return the CPU time of one process by itself, in its own code and in the kernel."""
    user, system = _stat(pid, proc)[:2]
    return user / TICKS_PER_SECOND, system / TICKS_PER_SECOND


def _stat(pid: int, proc: Path) -> list[int]:
    """Return the ticks of a process: user, system, and both of the children that have ended."""
    # The program's name may contain blanks and brackets, so fields count from its end.
    line = (proc / str(pid) / "stat").read_text()
    return [int(ticks) for ticks in line.rpartition(")")[2].split()[11:15]]


def _ticks(pid: int, proc: Path) -> int | None:
    """Return the account in ticks, or None if a process has ended meanwhile.

    The children are listed before their parent's account is read, and read after it: a child that
    ends in between is missing, not counted twice, and a missing child is noticed.
    """
    try:
        descendants = children(pid, proc)
        ticks = sum(_stat(pid, proc))
    except (FileNotFoundError, ProcessLookupError):
        return None
    for child in descendants:
        below = _ticks(child, proc)
        if below is None:
            return None
        ticks += below
    return ticks


async def come_to_rest(pid: int) -> None:
    """Wait until a process has done what its load has left to do, such as events to relay.

    Raises `BenchError` if it does not come to rest.
    """
    used = cpu_seconds(pid)
    for _ in range(int(REST_SECONDS_MAX / REST_SECONDS)):
        await sleep(REST_SECONDS)
        before, used = used, cpu_seconds(pid)
        if used - before <= REST_SHARE_MAX * REST_SECONDS:
            return
    message = f"process {pid} does not come to rest within {REST_SECONDS_MAX:.0f} s"
    raise BenchError(message)
