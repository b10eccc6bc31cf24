"""The runner, with actors of the test's own: turns, rests, failures, crashes, and every kind of stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import pytest

from stretto.observations import ActorCrashed, ActorRestarted, UpkeepFailed
from stretto.runtime import runner as runner_module
from stretto.runtime.actor import Actor, Pace, TryAgain
from stretto.runtime.backoff import Backoff
from stretto.runtime.runner import (
    CANCELLATIONS_MAX,
    CRASHES_MAX,
    ROW_SECONDS,
    STABLE_SECONDS,
    Run,
    Runner,
)
from support.cancellations import leave_one_behind
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_SECONDS = 30
HOUR = 3600.0


class Away(Exception):
    """What the world may do to an actor."""


class Scripted(Actor):
    """Does in each turn what comes next in its script; without one it waits for its end."""

    failures = (Away,)
    backoff = Backoff(1.0, 8.0)

    def __init__(self, *script: object, pace: Pace | None = None, name: str = "scripted") -> None:
        super().__init__(name)
        self.pace = pace
        self.script = list(script)
        self.turns = 0
        self.closed = 0
        self.idle = asyncio.Event()

    async def run_once(self) -> int:
        self.turns += 1
        if not self.script:
            self.idle.set()
            await asyncio.Event().wait()
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        if callable(step):
            step()
            return 0
        assert isinstance(step, int)
        return step

    async def close(self) -> None:
        self.closed += 1


class World:
    """A runner whose clock is a number, and whose waits end at once or when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reports: list[object] = []
        self.waits: list[tuple[str, float]] = []
        self.gate: asyncio.Event | None = None
        """Where there is one, a wait lasts until it opens, or until its event comes."""
        self.waiting = asyncio.Event()
        self.on_wait: Callable[[], object] = lambda: None
        self.runner = Runner(self.reports.append, self.wait, lambda: self.now)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        actor = next(each for each in self.runner._runs if event in (each.woken, each.stopped))
        self.waits.append(("woken" if event is actor.woken else "stopped", seconds))
        self.waiting.set()
        self.on_wait()
        if self.gate is not None and not event.is_set():
            tasks = [asyncio.create_task(each.wait()) for each in (event, self.gate)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        if not event.is_set():
            self.now += seconds
        return event.is_set()

    @property
    def kinds(self) -> list[type]:
        """The kinds of what was reported."""
        return [type(report) for report in self.reports]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of its own, whose jitter draws the longest."""
    monkeypatch.setattr("random.uniform", lambda _, high: high)
    return World()


async def until_idle(actor: Scripted) -> None:
    """Wait until the actor's script is at its end."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        await actor.idle.wait()


async def test_an_actor_runs_in_a_task_with_its_name_until_it_is_stopped(world: World) -> None:
    """And is closed once, whatever it was doing."""
    actor = Scripted(1, 1, 1)
    world.runner.start(actor)
    await until_idle(actor)
    assert "stretto scripted" in {task.get_name() for task in asyncio.all_tasks()}
    assert {"scripted": 1} == world.runner.up
    await world.runner.stop(actor)
    assert (4, 1) == (actor.turns, actor.closed)
    assert {} == world.runner.up
    assert [] == world.reports
    assert "stretto scripted" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_crash_is_reported_and_the_actor_restarted_after_its_back_off(
    world: World,
) -> None:
    """Later and later while it keeps crashing; anew at first after a turn that came to its end."""
    error = ZeroDivisionError()
    actor = Scripted(error, KeyError(), 1, KeyError())
    world.runner.start(actor)
    await until_idle(actor)
    assert [ActorCrashed, ActorRestarted] * 3 == world.kinds
    assert ActorCrashed("scripted", error) == world.reports[0]
    assert [("stopped", 1.0), ("stopped", 2.0), ("stopped", 1.0)] == world.waits
    await world.runner.stop(actor)


async def test_an_error_that_cannot_be_read_is_a_crash_as_any_other(world: World) -> None:
    """The bus of a host may raise it: even its class raises."""

    class Unreadable(Exception):
        def __getattribute__(self, _: str) -> NoReturn:
            raise KeyError

    actor = Scripted(Unreadable())
    world.runner.start(actor)
    await until_idle(actor)
    assert [ActorCrashed, ActorRestarted] == world.kinds
    await world.runner.stop(actor)


async def test_a_failure_is_reported_and_is_no_crash(world: World) -> None:
    """The world's failures are reported as such; what the actor has reported itself is not."""
    actor = Scripted(Away(), TryAgain(), Away())
    states: list[bool] = []
    world.on_wait = lambda: states.append(world.runner.up["scripted"] == 1)
    world.runner.start(actor, is_vital=True)
    await until_idle(actor)
    assert [UpkeepFailed, UpkeepFailed] == world.kinds
    assert [1.0, 2.0, 4.0] == [seconds for _, seconds in world.waits]
    assert [True] * 3 == states
    await world.runner.stop(actor)


async def test_an_actor_is_down_from_its_crash_to_its_restart(world: World) -> None:
    """One crash is over with its pause, although no turn has come to its end yet."""
    actor = Scripted(KeyError())
    world.gate = asyncio.Event()
    world.runner.start(actor, is_vital=True)
    await world.waiting.wait()
    assert (["scripted"], {"scripted": 0}) == (world.runner.down, world.runner.up)
    world.gate.set()
    await until_idle(actor)
    assert ([], {"scripted": 1}) == (world.runner.down, world.runner.up)
    await world.runner.stop(actor)


async def test_a_loop_of_crashes_stays_red_until_a_turn_has_come_to_its_end(world: World) -> None:
    """Or until there has been none for a while: what waits for requests may get none while it is red."""
    actor = Scripted(*[KeyError()] * CRASHES_MAX)
    world.runner.start(actor, is_vital=True)
    await until_idle(actor)
    crashed_at = world.now - world.waits[-1][1]
    assert ["scripted"] == world.runner.down
    world.now = crashed_at + STABLE_SECONDS - 0.1
    assert ["scripted"] == world.runner.down
    world.now = crashed_at + STABLE_SECONDS
    assert [] == world.runner.down
    await world.runner.stop(actor)
    done = Scripted(*[KeyError()] * CRASHES_MAX, 1, name="done")
    world.runner.start(done, is_vital=True)
    await until_idle(done)
    assert [] == world.runner.down
    await world.runner.stop(done)


@pytest.mark.parametrize(
    ("is_down", "pause_longest", "seconds"),
    [(False, 1.0, ROW_SECONDS), (True, 1.0, ROW_SECONDS - 1), (True, 8.0, STABLE_SECONDS - 1)],
)
async def test_crashes_far_apart_do_not_add_up(
    is_down: bool, pause_longest: float, seconds: float, world: World
) -> None:
    """Where an actor waits for requests, no turn is completed between them; the twin's are in a row."""
    at = iter([n * seconds for n in range(2 * CRASHES_MAX)])

    def crash() -> None:
        world.now = next(at)
        raise KeyError

    actor = Scripted(*[crash] * (2 * CRASHES_MAX))
    world.runner.start(actor, is_vital=True)
    await until_idle(actor)
    assert is_down is (world.runner.down == ["scripted"])
    assert pause_longest == max(seconds for _, seconds in world.waits)
    await world.runner.stop(actor)


async def test_crashes_far_apart_do_not_add_up_for_failures_between_them(world: World) -> None:
    """They make no row of the crashes."""
    steps = [Away(), KeyError()] * CRASHES_MAX

    def step() -> None:
        world.now += 0.7 * ROW_SECONDS
        raise steps.pop(0)

    actor = Scripted(*[step] * len(steps))
    world.runner.start(actor, is_vital=True)
    await until_idle(actor)
    assert [] == world.runner.down
    await world.runner.stop(actor)


async def test_of_siblings_one_that_runs_is_enough(world: World) -> None:
    """Two writers share their work; and what is not vital is only counted."""
    world.gate = asyncio.Event()
    crashed, sibling = Scripted(KeyError(), name="writer"), Scripted(name="writer")
    relay = Scripted(KeyError(), name="relay")
    world.runner.start(relay)
    for each in (crashed, sibling):
        world.runner.start(each, is_vital=True)
    await until_idle(sibling)
    assert ({"relay": 0, "writer": 1}, []) == (world.runner.up, world.runner.down)
    await world.runner.stop(crashed, sibling, relay)


async def cancelled(world: World, actor: Scripted) -> None:
    """Cancel the actor's task as a host may, and wait for its end."""
    await until_idle(actor)
    actor.idle.clear()
    task = world.runner._runs[actor][1]
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("is_at_rest", [False, True])
async def test_an_actor_whose_task_a_host_cancels_goes_on_in_another(
    is_at_rest: bool, world: World
) -> None:
    """After a back-off, in a turn or at rest; the host waits for the first task without hanging."""
    world.gate = asyncio.Event()
    actor = Scripted(0, pace=Pace(seconds=HOUR)) if is_at_rest else Scripted()
    world.runner.start(actor, is_vital=True)
    await (world.waiting if is_at_rest else actor.idle).wait()
    world.waiting.clear()
    actor.idle.clear()
    first = world.runner._runs[actor][1]
    first.cancel()
    await asyncio.wait([first])
    await world.waiting.wait()
    assert first.cancelled()
    assert (["scripted"], 0) == (world.runner.down, actor.closed)
    assert ("stopped", 1.0) == world.waits[-1]
    world.gate.set()
    await until_idle(actor)
    assert first is not world.runner._runs[actor][1]
    assert ([], 0) == (world.runner.down, actor.closed)
    assert [ActorCrashed, ActorRestarted] == world.kinds
    await world.runner.stop(actor)
    assert 1 == actor.closed


async def test_an_actor_that_is_cancelled_again_and_again_is_down(world: World) -> None:
    """It is closed: a host that repeats it wants its end. Cancellations far apart do not add up."""
    actor = Scripted()
    world.runner.start(actor, is_vital=True)
    for _ in range(CANCELLATIONS_MAX):
        await cancelled(world, actor)
    await until_idle(actor)
    world.now += STABLE_SECONDS
    for _ in range(CANCELLATIONS_MAX):
        await until_idle(actor)
        await cancelled(world, actor)
    assert 0 == actor.closed
    await cancelled(world, actor)
    assert (["scripted"], 1) == (world.runner.down, actor.closed)
    await world.runner.stop(actor)
    assert [] == world.runner.down


async def test_a_completed_turn_between_cancellations_ends_the_row(world: World) -> None:
    """Strays that come seldom beside work that goes on are no end that a host wants."""
    actor = Scripted()
    world.runner.start(actor)
    for _ in range(CANCELLATIONS_MAX + 2):
        actor.script = [1]
        await cancelled(world, actor)
    assert {"scripted": 1} == world.runner.up
    assert 0 == actor.closed


@pytest.mark.parametrize("end", ["ended", "cancelled", "cancelled, and not ended yet"])
async def test_an_actor_ends_with_the_task_that_has_started_it(end: str, world: World) -> None:
    """A loop that closes cancels all tasks, and waits for them."""
    actor, over, cleaned_up = Scripted(), asyncio.Event(), asyncio.Event()

    async def own() -> None:
        world.runner.start(actor)
        try:
            await over.wait()
        finally:
            await cleaned_up.wait()

    owner = asyncio.create_task(own())
    await until_idle(actor)
    if not end.endswith("yet"):
        cleaned_up.set()
    if end == "ended":
        over.set()
        await owner
    else:
        owner.cancel()
    await cancelled(world, actor)
    assert ([], 1) == (world.kinds, actor.closed)
    assert 0 == world.runner.up["scripted"]
    cleaned_up.set()


async def test_cancellations_that_its_owner_has_outlived_are_not_counted(world: World) -> None:
    """A host's main task may have caught the error of a `TaskGroup` once."""
    actor, over = Scripted(), asyncio.Event()

    async def own() -> None:
        await leave_one_behind()
        world.runner.start(actor)
        await over.wait()

    owner = asyncio.create_task(own())
    await cancelled(world, actor)
    await until_idle(actor)
    assert {"scripted": 1} == world.runner.up
    over.set()
    await owner
    await world.runner.stop(actor)


async def test_cancellations_of_earlier_turns_are_not_counted(world: World) -> None:
    """What fails then is a failure, and not the end of its task."""

    class Leaving(Scripted):
        async def run_once(self) -> int:
            if not self.turns:
                await leave_one_behind()
            return await super().run_once()

    actor = Leaving(1, Away())
    world.runner.start(actor)
    first = world.runner._runs[actor][1]
    await until_idle(actor)
    assert ([UpkeepFailed], False) == (world.kinds, first.done())
    await world.runner.stop(actor)


class Fault(BaseException):
    """No `Exception`, and none that ends a process."""


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, Fault])
async def test_a_cancellation_of_what_an_actor_waits_for_is_a_crash(
    error: type[BaseException], world: World
) -> None:
    """The actor was not cancelled, and it must not be gone; nor with any other such error."""
    actor = Scripted(error(), 1)
    world.runner.start(actor)
    _, task = world.runner._runs[actor]
    await until_idle(actor)
    assert [ActorCrashed, ActorRestarted] == world.kinds
    # Not in another task, as after a cancellation from outside: only a few of those are borne.
    assert task is world.runner._runs[actor][1]
    await world.runner.stop(actor)


def test_a_coroutine_that_is_closed_is_no_crash() -> None:
    """Its loop has gone, and nothing can be waited for any more."""
    reports: list[object] = []
    actor = Scripted()
    turns = Run(actor, reports.append).turns()
    loop = asyncio.new_event_loop()
    task = loop.create_task(turns)
    loop.run_until_complete(actor.idle.wait())
    turns.close()
    assert ([], 1) == (reports, actor.closed)
    task.cancel()
    with pytest.raises(RuntimeError):
        loop.run_until_complete(task)
    loop.close()


async def test_what_a_cancelled_turn_raises_is_no_crash(world: World) -> None:
    """Drivers raise errors of their own where they are cancelled."""

    class Translating(Scripted):
        async def run_once(self) -> int:
            try:
                return await super().run_once()
            except asyncio.CancelledError:
                raise ConnectionError from None

    actor = Translating()
    world.runner.start(actor)
    await until_idle(actor)
    await world.runner.stop(actor)
    assert ([], 1) == (world.reports, actor.closed)


async def test_between_turns_an_actor_rests_unless_there_is_more_to_do(world: World) -> None:
    """As long as its pace says; after a wake-up it waits for others."""
    actor = Scripted(8, 7, 0, pace=Pace(seconds=HOUR, gather_seconds=2.0, full=8))
    woken: list[str] = []

    def on_wait() -> None:
        if len(world.waits) == 2:
            woken.append("now")
            actor.wake()

    world.on_wait = on_wait
    world.runner.start(actor)
    await until_idle(actor)
    assert [("woken", HOUR), ("woken", HOUR), ("stopped", 2.0)] == world.waits
    await world.runner.stop(actor)


async def test_a_rest_is_spread_and_may_come_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that replicas take turns."""
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    monkeypatch.setattr("random.uniform", draw)
    actor = Scripted(pace=Pace(seconds=100, spread=0.25, rests_first=True))
    turns: list[int] = []
    world.on_wait = lambda: turns.append(actor.turns)
    world.runner.start(actor)
    await until_idle(actor)
    assert ([("woken", 75.0)], [(0.75, 1.25)], [0]) == (world.waits, drawn, turns)
    await world.runner.stop(actor)


async def test_a_wake_up_during_a_turn_leads_to_another_turn(world: World) -> None:
    """What it is about may be newer than what the turn has taken."""
    world.gate = asyncio.Event()
    actor = Scripted(pace=Pace(seconds=HOUR))
    actor.script.append(actor.wake)
    world.runner.start(actor)
    await until_idle(actor)
    assert [("woken", HOUR)] == world.waits
    await world.runner.stop(actor)


async def test_a_wake_up_does_not_shorten_a_back_off_but_a_stop_ends_it(world: World) -> None:
    """Each creation would otherwise ask a bus that is away."""
    world.gate = asyncio.Event()
    actor = Scripted(Away(), pace=Pace(seconds=HOUR))
    world.runner.start(actor)
    await world.waiting.wait()
    for _ in range(5):
        actor.wake()
        await asyncio.sleep(0)
    assert 1 == actor.turns
    async with asyncio.timeout(DEADLINE_SECONDS):
        await world.runner.stop(actor)
    assert (1, 1) == (actor.turns, actor.closed)


async def test_a_stop_during_the_back_off_of_a_crash_restarts_nothing(world: World) -> None:
    """It ends at once."""
    world.gate = asyncio.Event()
    actor = Scripted(KeyError(), pace=Pace(seconds=HOUR))
    world.runner.start(actor)
    await world.waiting.wait()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await world.runner.stop(actor)
    assert ([ActorCrashed], 1, 1) == (world.kinds, actor.turns, actor.closed)


async def test_a_stop_before_the_start_is_a_stop(world: World) -> None:
    """What the actor holds is let go of, and a start that follows begins no turn."""
    actor = Scripted(1)
    await world.runner.stop(actor)
    assert 1 == actor.closed
    world.runner.start(actor)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await world.runner._runs[actor][1]
    assert 0 == actor.turns
    await world.runner.stop(actor)


async def test_a_stop_that_is_cancelled_again_and_again_closes_all(world: World) -> None:
    """Whether an actor has begun or was never started: a writer's store opens before its task."""
    started, never_started = actors = Scripted(), Scripted()
    world.runner.start(started)
    task = asyncio.create_task(world.runner.stop(*actors))
    async with asyncio.timeout(DEADLINE_SECONDS):
        # Its first step stops them; each other one meets a cancellation.
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        await until(lambda: started.closed and never_started.closed)
    assert (True, 0) == (task.cancelled(), never_started.turns)


async def test_an_actor_without_time_to_stop_closes_in_its_own_task(world: World) -> None:
    """Before its first step, too: a task that is cancelled by then needs another one to close."""
    actor = Scripted()
    assert 0.0 == actor.stop_seconds
    world.runner.start(actor)
    task = world.runner._runs[actor][1]
    async with asyncio.timeout(DEADLINE_SECONDS):
        await world.runner.stop(actor)
    assert (False, 1, 0) == (task.cancelled(), actor.closed, actor.turns)


@pytest.mark.parametrize("is_over", [False, True])
async def test_an_actor_that_is_cancelled_before_its_first_step_is_not_forgotten(
    is_over: bool, world: World
) -> None:
    """It goes on in another task; where its owner has ended too, that task closes it."""
    actor = Scripted()

    async def own() -> None:
        world.runner.start(actor)
        world.runner._runs[actor][1].cancel()
        await asyncio.sleep(0 if is_over else HOUR)

    owner = asyncio.create_task(own())
    if is_over:
        await owner
        async with asyncio.timeout(DEADLINE_SECONDS):
            await until(lambda: actor.closed)
        assert ([], 0) == (world.kinds, actor.turns)
    else:
        await until_idle(actor)
        assert [ActorCrashed, ActorRestarted] == world.kinds
    await world.runner.stop(actor)
    assert (1, int(not is_over)) == (actor.closed, actor.turns)
    owner.cancel()


async def test_a_stop_closes_actors_whose_tasks_were_cancelled_before_their_first_step(
    world: World,
) -> None:
    """A loop that closes cancels all tasks, that of the stop as well."""
    actor = Scripted()
    world.runner.start(actor)
    task = world.runner._runs[actor][1]
    task.cancel()
    await world.runner.stop(actor)
    assert (True, 1, 0) == (task.cancelled(), actor.closed, actor.turns)
    assert {} == world.runner.up


async def test_a_stop_may_come_twice_and_side_by_side(world: World) -> None:
    """Whichever stops first, both wait for the end."""
    actor = Scripted()
    world.runner.start(actor)
    await until_idle(actor)
    await asyncio.gather(world.runner.stop(actor), world.runner.stop(actor))
    await world.runner.stop(actor)
    assert actor.closed
    assert [] == world.reports


async def test_a_turn_that_is_under_way_may_end_at_a_stop(world: World) -> None:
    """It is not cancelled, where the actor's turns are short."""
    go_on = asyncio.Event()
    ended = False

    class Slow(Scripted):
        async def run_once(self) -> int:
            nonlocal ended
            self.idle.set()
            await go_on.wait()
            ended = True
            return 0

    actor = Slow(pace=Pace(seconds=HOUR))
    world.runner.start(actor)
    await until_idle(actor)
    asyncio.get_running_loop().call_soon(go_on.set)
    await world.runner.stop(actor)
    assert ended


@pytest.mark.parametrize("swallowed", [0, 1, 1_000_000])
async def test_a_stop_that_hangs_is_bounded(
    world: World, swallowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cancels again where that is swallowed; in the end it goes on without the actor, and says so."""
    monkeypatch.setattr(runner_module, "CANCEL_SECONDS", 1.0)
    release = asyncio.Event()

    class Stubborn(Scripted):
        cancel_again_seconds = 0.01
        left = swallowed

        async def run_once(self) -> int:
            self.idle.set()
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    if not self.left:
                        raise
                    self.left -= 1
            return 0

    actor = Stubborn()
    world.runner.start(actor)
    await until_idle(actor)
    task = world.runner._runs[actor][1]
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await world.runner.stop(actor)
        assert (swallowed < 10) == task.done()
        assert [ActorCrashed] * (swallowed > 10) == world.kinds
    finally:
        # Or the loop itself would wait for its end.
        release.set()
        await asyncio.wait([task])


async def test_a_bug_as_an_actor_closes_is_reported_and_hinders_no_other(world: World) -> None:
    """Once, however many stop it."""

    class Clinging(Scripted):
        async def close(self) -> None:
            raise KeyError

    clinging, other = Clinging(), Scripted()
    for actor in (clinging, other):
        world.runner.start(actor)
        await until_idle(actor)
    await asyncio.gather(world.runner.stop(clinging, other), world.runner.stop(clinging))
    assert ([ActorCrashed], 1) == (world.kinds, other.closed)


async def test_the_runners_end_stops_what_still_runs(world: World) -> None:
    """Also where the block has raised."""
    actors = [Scripted() for _ in range(3)]

    async def run() -> None:
        async with world.runner:
            for actor in actors:
                world.runner.start(actor)
            await until_idle(actors[-1])
            raise Away

    with pytest.raises(Away):
        await run()
    assert [1, 1, 1] == [actor.closed for actor in actors]


async def test_an_actor_runs_for_as_long_as_its_context(world: World) -> None:
    """And is stopped at its end."""
    actor = Scripted()
    async with world.runner.running(actor):
        await until_idle(actor)
    assert ({}, 1) == (world.runner.up, actor.closed)


async def test_turns_of_an_actor_without_a_pace_take_no_rest() -> None:
    """It waits for its work in the turn itself: nothing stands between two batches."""

    async def wait(_: asyncio.Event, seconds: float) -> bool:
        raise AssertionError(seconds)

    actor = Scripted(*range(100))
    task = asyncio.create_task(Run(actor, lambda _: None, wait).turns())
    # One step of the loop: no turn has given the loop away.
    await asyncio.sleep(0)
    assert 101 == actor.turns
    task.cancel()
    await asyncio.wait([task])
