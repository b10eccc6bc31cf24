"""Workers that die are replaced, ever later; where none stays alive, the supervisor gives up."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from stretto.postgres.connecting import CONNECT_SECONDS
from stretto.provision import START_SECONDS
from stretto.runtime.stop import Stop
from stretto.start_errors import WorkersError
from stretto.supervisor import BACKOFF, FAILED_STARTS_MAX, YOUNG_SECONDS, Supervisor
from stretto.telemetry.logs import logger
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIES = (sys.executable, "-Sc", "raise SystemExit(3)")
# Of two, the one that makes the folder lives on until it is asked to stop.
ONE_LIVES = """
import os, sys, time
try: os.mkdir(sys.argv[1])
except FileExistsError: raise SystemExit(3)
time.sleep(60)
"""
# Serves on after SIGTERM, as one that drains; ends at SIGINT.
DRAINS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.mkdir(sys.argv[1]))
signal.signal(signal.SIGINT, lambda *_: sys.exit(os.path.exists(sys.argv[3]) or os.mkdir(sys.argv[4])))
os.mkdir(sys.argv[2])
while True: time.sleep(60)
"""
NEVER_ENDS = DRAINS.replace("sys.exit(", "bool(")
# Answers one ping of its supervisor, then stands still.
FREEZES = """
import os, signal, socket
supervisor = socket.socket(fileno=0)
supervisor.recv(4, socket.MSG_WAITALL)
supervisor.sendall(b"\\xff\\xff\\xff\\xfe")
os.kill(os.getpid(), signal.SIGSTOP)
"""


class Times:
    """A clock on which each start takes so long, the first longer, and every pause takes no time."""

    def __init__(
        self, stop: Stop, starts_max: int, start_seconds: float = 1.0, served_seconds: float = 0.0
    ) -> None:
        self.stop = stop
        self.starts_max = starts_max
        self.pauses: list[float] = []
        self._ticks: Iterator[float] = iter(
            n * start_seconds + (served_seconds if n else 0.0) for n in range(10**6)
        )

    def clock_seconds(self) -> float:
        return next(self._ticks)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= self.starts_max:
            self.stop.asked.set()


async def test_workers_that_die_at_every_start_are_given_up() -> None:
    """After a bounded number of starts, each later than the one before; the code is reported."""
    stop = Stop(drain_seconds=0)
    times = Times(stop, starts_max=100)
    supervisor = Supervisor(DIES, {}, stop, times.clock_seconds, times.pause)
    with pytest.raises(WorkersError, match="exit code 3"):
        await supervisor.run(1)
    longest = [BACKOFF.longest(n) for n in range(FAILED_STARTS_MAX - 1)]
    assert all(most / 2 <= s <= most for s, most in zip(times.pauses, longest, strict=True))


async def test_a_worker_that_has_served_is_replaced_at_once_and_for_ever() -> None:
    """Its death is no failed start."""
    stop = Stop(drain_seconds=0)
    times = Times(stop, starts_max=2 * FAILED_STARTS_MAX, start_seconds=YOUNG_SECONDS)
    await Supervisor(DIES, {}, stop, times.clock_seconds, times.pause).run(1)
    assert 2 * FAILED_STARTS_MAX == len(times.pauses)
    assert max(times.pauses) <= BACKOFF.seconds_first


async def test_workers_that_wait_in_vain_for_their_database_are_given_up() -> None:
    """As long as they may: none of them has served, however long its start has taken."""
    stop = Stop(drain_seconds=0)
    # One that does not answer, then an older schema; and the start itself, on a busy machine.
    longest = START_SECONDS + CONNECT_SECONDS + START_SECONDS + 5
    times = Times(stop, starts_max=100, start_seconds=longest)
    with pytest.raises(WorkersError):
        await Supervisor(DIES, {}, stop, times.clock_seconds, times.pause).run(1)


@pytest.mark.parametrize("exit_code", [3, 2, 1])
async def test_workers_that_have_served_are_started_until_their_database_is_back(
    exit_code: int, tmp_path: Path
) -> None:
    """They were killed in its outage, however long that takes; whatever else ends them is given up."""
    stop = Stop(drain_seconds=0)
    times = Times(stop, starts_max=3 * FAILED_STARTS_MAX, served_seconds=YOUNG_SECONDS)
    command = (sys.executable, "-Sc", f"raise SystemExit({exit_code})")
    supervisor = Supervisor(command, {}, stop, times.clock_seconds, times.pause)
    if exit_code != 1:
        await supervisor.run(1)
        assert BACKOFF.seconds_max / 2 <= times.pauses[-1] <= BACKOFF.seconds_max
    else:
        with pytest.raises(WorkersError, match="exit code 1"):
            await supervisor.run(1)


async def test_nothing_is_given_up_while_another_worker_serves(tmp_path: Path) -> None:
    """It is tried again and again, ever more seldom, and the one that serves is stopped at the end."""
    stop = Stop(drain_seconds=0)
    # Each look at the clock takes 10 s: a start that fails takes one of them, and is young.
    times = Times(stop, starts_max=2 * FAILED_STARTS_MAX, start_seconds=10)
    command = (sys.executable, "-Sc", ONE_LIVES, str(tmp_path / "taken"))
    await Supervisor(command, {}, stop, times.clock_seconds, times.pause).run(2)
    assert 2 * FAILED_STARTS_MAX == len(times.pauses)
    assert times.pauses[0] <= BACKOFF.seconds_first
    assert BACKOFF.seconds_max / 2 <= times.pauses[-1] <= BACKOFF.seconds_max


async def test_a_pause_ends_when_the_supervisor_is_stopped() -> None:
    """A service that is to end is not waited for half a minute."""
    stop = Stop(drain_seconds=0)

    async def pause(_: float) -> None:
        stop.asked.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(20):
        await Supervisor(DIES, {}, stop, pause=pause).run(1)


@pytest.mark.parametrize(
    ("expected", "end"),
    [
        (("info", "worker.ended", 0), "raise SystemExit(0)"),
        (("info", "worker.ended", -15), "import os; os.kill(os.getpid(), 15)"),
        (("error", "worker.died", 3), "raise SystemExit(3)"),
        (("error", "worker.died", -9), "import os; os.kill(os.getpid(), 9)"),
    ],
)
async def test_a_worker_that_was_asked_to_end_is_no_failure_and_is_replaced(
    expected: tuple[str, str, int], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill -TERM` is how an operator gets a fresh one; any other end is an error."""
    stop, logged = Stop(drain_seconds=0), []
    for level in ("info", "error"):

        def log(event: str, worker: int, exit_code: int, level: str = level) -> None:
            logged.append((level, event, exit_code))

        monkeypatch.setattr(logger, level, log)
    times = Times(stop, starts_max=2, start_seconds=YOUNG_SECONDS)
    command = (sys.executable, "-Sc", end)
    await Supervisor(command, {}, stop, times.clock_seconds, times.pause).run(1)
    assert [expected] * 2 == logged


async def test_a_worker_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system may have lacked a process for a moment; the other workers go on meanwhile."""
    start, logged = asyncio.create_subprocess_exec, list[tuple[str, str]]()
    lacking = [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))]

    async def start_if_possible(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        if lacking:
            raise lacking.pop()
        return await start(*arguments, **options)

    def log(event: str, **fields: object) -> None:
        logged.append((event, str(fields.get("cause", fields.get("exit_code")))))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_if_possible)
    monkeypatch.setattr(logger, "error", log)
    stop = Stop(drain_seconds=0)
    times = Times(stop, starts_max=2)
    await Supervisor(DIES, {}, stop, times.clock_seconds, times.pause).run(1)
    assert [("worker.not_started", os.strerror(errno.EAGAIN)), ("worker.died", "3")] == logged


async def test_workers_that_can_never_be_started_are_given_up() -> None:
    """In words, not with a traceback."""
    stop = Stop(drain_seconds=0)
    times = Times(stop, starts_max=100)
    command = ("/nonexistent/python",)
    with pytest.raises(WorkersError, match=os.strerror(errno.ENOENT)):
        await Supervisor(command, {}, stop, times.clock_seconds, times.pause).run(2)
    assert not stop.asked.is_set()


async def test_a_worker_that_is_frozen_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would never end by itself, and the kernel would go on giving it connections."""
    monkeypatch.setattr("stretto.reports.PING_SECONDS", 0.1)
    monkeypatch.setattr("stretto.reports.FROZEN_SECONDS", 0.3)
    logged: list[str] = []
    monkeypatch.setattr(logger, "error", lambda event, **_: logged.append(event))
    stop = Stop(drain_seconds=0)
    times = Times(stop, starts_max=2, start_seconds=YOUNG_SECONDS)
    command = (sys.executable, "-Sc", FREEZES)
    async with asyncio.timeout(20):
        await Supervisor(command, {}, stop, times.clock_seconds, times.pause).run(1)
    assert ["worker.frozen", "worker.died"] * 2 == logged


async def appeared(folder: Path) -> None:
    """Wait until a worker has made a folder."""
    await until(folder.exists)


async def test_workers_drain_as_long_as_their_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM is passed on and nothing more, until a second signal skips the rest of the drain."""
    monkeypatch.setattr("stretto.supervisor.STOP_SECONDS", 600)
    stop = Stop(drain_seconds=600)
    folders = (str(tmp_path / name) for name in ("drains", "runs", "skipped", "cut short"))
    command = (sys.executable, "-Sc", DRAINS, *folders)
    running = asyncio.create_task(Supervisor(command, {}, stop).run(1))
    await appeared(tmp_path / "runs")
    stop.take(signal.SIGTERM)
    await appeared(tmp_path / "drains")
    assert not running.done()
    (tmp_path / "skipped").mkdir()
    stop.take(signal.SIGINT)
    async with asyncio.timeout(20):
        await running
    assert not (tmp_path / "cut short").exists()


async def test_a_worker_that_ignores_everything_is_ended_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its drain, and the time that stopping may take."""
    monkeypatch.setattr("stretto.supervisor.STOP_SECONDS", 0.1)
    stop = Stop(drain_seconds=0)
    folders = (str(tmp_path / name) for name in ("drains", "runs", "skipped", "cut short"))
    command = (sys.executable, "-Sc", NEVER_ENDS, *folders)
    running = asyncio.create_task(Supervisor(command, {}, stop).run(1))
    await appeared(tmp_path / "runs")
    stop.take(signal.SIGINT)
    async with asyncio.timeout(20):
        await running
