"""Supervisor: keeps worker processes running until it is asked to stop or they cannot start.

A worker that dies, or that an operator ends, is replaced, after a pause that grows while it dies
young. One that is frozen, such as by SIGSTOP or a call that blocks its loop, is killed first: it
would keep its share of the port. One that the system cannot start is tried again like one that has
died young. Where all workers keep dying young, another start would not help: the supervisor ends
with an error. But once one has served, they are started until the database serves them again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from stretto.reports import FROZEN_SECONDS, WorkersMetrics, frozen
from stretto.runtime.backoff import Backoff
from stretto.start_errors import EXIT_UNFIT, EXIT_UNREACHED, WorkersError
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from stretto.runtime.channel import Channel
    from stretto.runtime.stop import Stop

# After its drain, a worker stops within 10 s by itself.
STOP_SECONDS: Final = 15.0
# One that lived longer has served. A worker that waits in vain ends before: up to 15 s for a database that
# does not answer, 12 s for its migration, and more than ten of its own start on a busy machine.
YOUNG_SECONDS: Final = 45.0
BACKOFF: Final = Backoff(1.0, 30.0)
# Failures in a row of one worker while no other serves: 15 s of pauses, and the starts themselves.
FAILED_STARTS_MAX: Final = 5
# The exit codes after SIGTERM, the second where it came before the worker could handle it. A young
# worker that ends so still counts as a failed start: workers that end at once serve no request,
# whatever the reason.
ENDED_AS_ASKED: Final = (0, -signal.SIGTERM)


class Supervisor:
    """Runs one command in several processes until asked to stop; clock and pause are for tests."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stop: Stop,
        clock_seconds: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self._command = command
        self._environment = environment
        self._stop = stop
        self._clock_seconds = clock_seconds
        self._pause = pause
        self._started_at: dict[int, float] = {}
        """When each worker that runs was started."""
        self._has_served = False
        """Whether a worker has ended that was not young any more."""
        self._metrics = WorkersMetrics()

    async def run(self, workers: int) -> None:
        """Keep this many workers running until stopped; raises `WorkersError`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(workers):
                    tasks.create_task(self._keep_running(number), name=f"worker {number}")
        except* WorkersError as errors:
            raise errors.exceptions[0] from None
        finally:
            self._metrics.close()

    async def _keep_running(self, number: int) -> None:
        failed_starts = 0
        while not self._stop.asked.is_set():
            self._started_at[number] = self._clock_seconds()
            exit_code, lacking = None, ""
            try:
                exit_code = await self._run_once(number)
            except OSError as error:
                # No memory, process or file is left for it, perhaps for a moment. Others serve on.
                lacking = error.strerror or str(error)
            if self._stop.asked.is_set():
                return
            if lacking:
                logger.error("worker.not_started", worker=number, cause=lacking)
            elif exit_code in ENDED_AS_ASKED:
                # An operator has ended it, to have it replaced.
                logger.info("worker.ended", worker=number, exit_code=exit_code)
            else:
                logger.error("worker.died", worker=number, exit_code=exit_code)
                self._metrics.died += 1
            is_young = self._is_young(number)
            failed_starts = failed_starts + 1 if is_young else 0
            self._has_served |= not is_young
            del self._started_at[number]
            # Their settings are still those with which one has served: it is the database.
            is_outage = self._has_served and exit_code in (EXIT_UNREACHED, EXIT_UNFIT)
            is_over = failed_starts >= FAILED_STARTS_MAX and not is_outage
            if is_over and all(map(self._is_young, self._started_at)):
                message = (
                    "the workers keep ending at their start, the last one with"
                    f" {lacking or f'exit code {exit_code}'}; their own messages are above"
                )
                raise WorkersError(message)
            await self._pause_unless_stopped(BACKOFF.seconds(max(0, failed_starts - 1)))

    def _is_young(self, number: int) -> bool:
        return self._clock_seconds() - self._started_at[number] < YOUNG_SECONDS

    async def _run_once(self, number: int) -> int | None:
        """Run one worker to its end; `_end` bounds how long a stop takes.

        Raises `OSError` if it cannot be started.
        """
        async with self._metrics.lifeline() as (stdin, channel):
            worker = await asyncio.create_subprocess_exec(
                *self._command, stdin=stdin.fileno(), env=self._environment
            )
            # The worker has the only other end now.
            stdin.close()
            ended = asyncio.create_task(worker.wait(), name=f"end of worker {number}")
            watching = asyncio.create_task(
                self._kill_frozen(number, worker, channel), name=f"watch of worker {number}"
            )
            try:
                await self._first_of(ended)
            finally:
                watching.cancel()
                # Asked to stop, or given up because of the others.
                await self._end(worker)
        return worker.returncode

    async def _kill_frozen(
        self, number: int, worker: asyncio.subprocess.Process, channel: Channel
    ) -> None:
        """Kill a worker once it is frozen, unless it has ended."""
        await frozen(channel)
        if worker.returncode is None:
            logger.error("worker.frozen", worker=number, seconds=FROZEN_SECONDS)
            worker.kill()

    async def _pause_unless_stopped(self, seconds: float) -> None:
        pausing = asyncio.create_task(self._pause(seconds), name="pause before a worker")
        try:
            await self._first_of(pausing)
        finally:
            pausing.cancel()

    async def _first_of(self, other: asyncio.Future[Any]) -> None:
        """Wait until the other is done, or the supervisor is asked to stop."""
        stop = asyncio.create_task(self._stop.asked.wait(), name="stop of the workers")
        try:
            await asyncio.wait((other, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()

    async def _end(self, worker: asyncio.subprocess.Process) -> None:
        """Pass the stop on; end the worker by force where it takes too long."""
        try:
            if self._stop.asked.is_set() and worker.returncode is None:
                worker.send_signal(signal.SIGTERM)
                await self._drained(worker)
            if worker.returncode is None:
                # Skips the rest of a drain; a worker that is stopping already ignores it.
                worker.send_signal(signal.SIGINT)
            async with asyncio.timeout(STOP_SECONDS):
                await worker.wait()
        except TimeoutError:
            worker.kill()
            await worker.wait()
        except asyncio.CancelledError:
            if worker.returncode is None:
                worker.kill()
            raise

    async def _drained(self, worker: asyncio.subprocess.Process) -> None:
        """Wait until the worker has ended, or the drain is over or skipped."""
        draining = asyncio.create_task(self._stop.drain(), name="drain of a worker")
        ended = asyncio.create_task(worker.wait(), name="end of a draining worker")
        try:
            await asyncio.wait((draining, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
            ended.cancel()
