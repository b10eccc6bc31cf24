"""Runner: owns the task of every actor of a process.

It starts and stops the actors, waits between their turns, and restarts those that crash, or whose
task a host has cancelled. It knows nothing of what they do.

It is no `asyncio.TaskGroup`: that cancels all of its tasks when one fails, and waits for them
without a bound. Here a crash affects its actor alone, and a stop is bounded in time.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from stretto.kinds import is_a
from stretto.observations import ActorCrashed, ActorRestarted, UpkeepFailed
from stretto.runtime.actor import CANCEL_SECONDS, TryAgain
from stretto.runtime.cancelling import cancellations, is_cancelled, retrieve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from stretto.runtime.actor import Actor, Pace

    Report = Callable[[UpkeepFailed | ActorCrashed | ActorRestarted], object]
    Wait = Callable[[asyncio.Event, float], Awaitable[bool]]
    Resume = Callable[["Run", BaseException], bool]

# In a row: no turn completed in between, and each less than `ROW_SECONDS` after the one before. A
# request that meets a bug must not make the process unready, a loop of crashes must.
CRASHES_MAX: Final = 3
ROW_SECONDS: Final = 600.0
# An actor that waits for work completes no turn, so after so long without a crash it counts as running:
# a process that gets no requests because it is unready would never be ready again.
STABLE_SECONDS: Final = 30.0
# Cancellations from outside in a row: without a completed turn in between, and each less than
# `STABLE_SECONDS` after the one before. A host that cancels again and again waits for the end.
CANCELLATIONS_MAX: Final = 3


async def wait_until(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most so long; return whether it was set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


class Run:
    """One actor's turns, from its start to its end; tests replace `wait` and the clock."""

    def __init__(
        self,
        actor: Actor,
        report: Report,
        wait: Wait = wait_until,
        clock_seconds: Callable[[], float] = time.monotonic,
        resume: Resume = lambda *_: False,
    ) -> None:
        """Take what begins another task for this run after a cancellation, if it may go on."""
        self.actor = actor
        self._resume = resume
        self._report = report
        self._wait = wait
        self._clock_seconds = clock_seconds
        self.has_begun = False
        """Whether its newest task has: one that is cancelled before that closes nothing."""
        self._is_running = True
        self._failures = 0
        """In a row, crashes included."""
        self._crashes = 0
        self._cancellations = 0
        """In a row, from outside."""
        self._failed_at = self._crashed_at = self._cancelled_at = 0.0

    @property
    def is_up(self) -> bool:
        """Whether the actor runs: it is in a turn or rests, and not in a loop of crashes."""
        if self._crashes < CRASHES_MAX:
            return self._is_running
        return self._is_running and self._clock_seconds() - self._crashed_at >= STABLE_SECONDS

    async def turns(self, cancelled: BaseException | None = None) -> None:
        """Take turn after turn until the actor is stopped, or the task is cancelled."""
        self.has_begun = True
        actor, pace, task = self.actor, self.actor.pace, asyncio.current_task()
        is_resumed = False
        try:
            if cancelled is not None:
                await self._recover(cancelled)
            elif pace is not None and pace.rests_first:
                await self._rest(pace)
            while not actor.is_stopping:
                # Before the turn: a wake-up during it is for work that it may have missed.
                actor.woken.clear()
                since = cancellations()
                try:
                    done = await actor.run_once()
                except (KeyboardInterrupt, SystemExit):
                    # For the process: a signal's handler raises it anywhere.
                    raise
                except BaseException as error:
                    if is_cancelled(since) or asyncio.current_task() is not task:
                        # Another task or none: the coroutine is being closed, its loop is gone.
                        if is_a(error, (asyncio.CancelledError, GeneratorExit)):
                            raise
                        # A cancelled driver may raise an error of its own.
                        raise asyncio.CancelledError from error
                    # A `CancelledError` here is that of what the turn waited for.
                    await self._recover(error)
                else:
                    self._failures = self._crashes = self._cancellations = 0
                    if pace is not None and done < pace.full:
                        await self._rest(pace)
        except asyncio.CancelledError as error:
            # This task ends, as its canceller expects; another one may go on.
            is_resumed = self.resume(error)
            raise
        finally:
            self._is_running = False
            if not is_resumed:
                await actor.close()

    def resume(self, error: asyncio.CancelledError) -> bool:
        """Whether another task of this run goes on: after a cancellation from outside, not many."""
        if self.actor.is_stopping:
            return False
        now = self._clock_seconds()
        if now - self._cancelled_at >= STABLE_SECONDS:
            self._cancellations = 0
        self._cancellations, self._cancelled_at = self._cancellations + 1, now
        return self._cancellations <= CANCELLATIONS_MAX and self._resume(self, error)

    async def _rest(self, pace: Pace) -> None:
        seconds = pace.seconds * random.uniform(1 - pace.spread, 1 + pace.spread)
        if await self._wait(self.actor.woken, seconds) and pace.gather_seconds:
            await self._wait(self.actor.stopped, pace.gather_seconds)

    async def _recover(self, error: BaseException) -> None:
        """Report what ended a turn, then wait; wake-ups do not shorten this pause."""
        actor, now = self.actor, self._clock_seconds()
        before = self._failures if now - self._failed_at < STABLE_SECONDS else 0
        seconds = actor.backoff.seconds(before)
        self._failures, self._failed_at = before + 1, now
        is_crash = not (is_a(error, TryAgain) or is_a(error, actor.failures))
        if is_crash:
            self._crashes = self._crashes + 1 if now - self._crashed_at < ROW_SECONDS else 1
            self._crashed_at = now
            self._is_running = False
            self._report(ActorCrashed(actor.name, error))
        elif is_a(error, actor.failures):
            self._report(UpkeepFailed(actor.name, error))
        if not await self._wait(actor.stopped, seconds) and is_crash:
            self._is_running = True
            self._report(ActorRestarted(actor.name))


class Runner:
    """The actors of a process; the end of `async with` stops those that still run."""

    def __init__(
        self,
        report: Report,
        wait: Wait = wait_until,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._wait = wait
        self._clock_seconds = clock_seconds
        self._runs: dict[Actor, tuple[Run, asyncio.Task[None]]] = {}
        self._vital: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(*self._runs)

    def start(self, actor: Actor, *, is_vital: bool = False) -> None:
        """Run the actor until it is stopped; without a vital actor, requests cannot be answered."""
        assert actor not in self._runs, f"{actor.name} runs already"
        owner = asyncio.current_task()
        # Weak: the owner's frames refer to the runner.
        resume = partial(
            self._resume, weakref.ref(owner) if owner else lambda: None, cancellations()
        )
        self._begin(Run(actor, self._report, self._wait, self._clock_seconds, resume))
        if is_vital:
            self._vital.add(actor.name)

    def _begin(self, run: Run, cancelled: BaseException | None = None) -> None:
        run.has_begun = False
        task = asyncio.create_task(run.turns(cancelled), name=f"stretto {run.actor.name}")
        self._runs[run.actor] = run, task
        task.add_done_callback(partial(self._require_begun, run))

    def _require_begun(self, run: Run, task: asyncio.Task[None]) -> None:
        """Begin another task where one was cancelled before its first step: it has closed nothing."""
        is_newest = self._runs.get(run.actor) == (run, task)
        if is_newest and not run.has_begun and not run.resume(asyncio.CancelledError()):
            run.actor.stop()
            self._begin(run)

    def _resume(
        self,
        owner: Callable[[], asyncio.Task[object] | None],
        since: int,
        run: Run,
        error: BaseException,
    ) -> bool:
        """Go on in a new task after a cancellation from outside, unless all tasks are to end.

        An event loop that is closing cancels the task that has started the actor as well, or that
        has ended before. `since`: how many cancellations that task had counted when it did so.
        """
        task = owner()
        is_ending = task is None or task.done() or task.cancelling() > since
        if is_ending or run.actor not in self._runs:
            return False
        self._begin(run, error)
        return True

    async def stop(self, *actors: Actor) -> None:
        """Stop actors concurrently, in a bounded time; close those that never ran. Idempotent."""
        for actor in actors:
            actor.stop()
            if actor not in self._runs:
                # Takes no turn, and closes in a task of its own: it may hold a connection, and
                # what waits here may be cancelled any number of times.
                self._begin(Run(actor, self._report, self._wait, self._clock_seconds))
        runs = {task: run for run, task in map(self._runs.__getitem__, actors)}
        # If this is cancelled, the actors stay in `_runs`, and the runner's own end stops them.
        left = await _ended(runs)
        for task, run in runs.items():
            actor = run.actor
            if (newest := self._runs.get(actor)) and newest[1] is not task:
                # Cancelled from outside, before its first step.
                await self.stop(actor)
                continue
            error: BaseException | None = None
            if task in left:
                error = TimeoutError("it did not stop in time")
                task.add_done_callback(retrieve)
            elif not task.cancelled():
                error = task.exception()
            if self._runs.pop(actor, None) is not None and error is not None:
                self._report(ActorCrashed(actor.name, error))

    @asynccontextmanager
    async def running(self, actor: Actor) -> AsyncIterator[None]:
        """Run the actor while the context lasts."""
        self.start(actor)
        try:
            yield
        finally:
            await self.stop(actor)

    @property
    def up(self) -> Mapping[str, int]:
        """The number of running actors of each name, without those that were stopped."""
        up: Counter[str] = Counter()
        for actor, (run, _) in self._runs.items():
            up[actor.name] += run.is_up
        return up

    @property
    def down(self) -> list[str]:
        """The names of vital actors of which none runs."""
        up = self.up
        return sorted(name for name in self._vital if name in up and not up[name])


async def _ended(runs: Mapping[asyncio.Task[None], Run]) -> set[asyncio.Task[None]]:
    """Wait for the tasks to end; cancel those that take too long; return those that are left."""
    now = asyncio.get_running_loop().time
    cancel_at = {task: now() + run.actor.stop_seconds for task, run in runs.items()}
    give_up_at = max(cancel_at.values(), default=0.0) + CANCEL_SECONDS
    left = set(runs)
    while left and now() < give_up_at:
        for task in left:
            if cancel_at[task] <= now():
                if runs[task].has_begun:
                    task.cancel()
                # One that has not begun takes no turn: it closes its actor, and ends.
                cancel_at[task] = now() + runs[task].actor.cancel_again_seconds
        until = min(give_up_at, *(cancel_at[task] for task in left))
        _, left = await asyncio.wait(left, timeout=max(0.0, until - now()))
    return left
