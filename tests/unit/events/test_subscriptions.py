"""A host's callbacks, on a log of the test's own: which events they get, and what their errors do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stretto.errors import Overloaded
from stretto.events import subscriptions as subscriptions_module
from stretto.events.hub import SessionHub
from stretto.events.log import PAGE_EVENTS, LogPage
from stretto.events.place import History, Present
from stretto.events.settings import HubSettings
from stretto.events.subscriptions import SUBSCRIPTIONS_MAX, Subscriber, Subscriptions
from stretto.events.tail import LogTail
from stretto.misuse import WrongEventLoop
from stretto.observations import PlaceLost, SubscriberFailed
from stretto.runtime.actor import TURN_STOP_SECONDS
from stretto.runtime.runner import Runner
from stretto.store_errors import Unreachable
from support.log_events import HISTORY, logged, place, present
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from stretto.domain import UserId
    from stretto.events.log import CommittedEvent, LoggedEvent
    from stretto.events.place import Place
    from stretto.events.subscriptions import OnEvent
    from stretto.observations import Observation

DEADLINE_SECONDS = 30


class ScriptedLog:
    """A log in memory, and the connection on which announcements are heard."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.start = 0
        self.now: Present | None = None
        """Instead of a log with one history."""
        self.reads = 0
        self.errors: list[Exception] = []
        self.on_announced: Callable[[], None] | None = None

    async def listen(self, on_announced: Callable[[], None]) -> None:
        self.on_announced = on_announced

    async def close(self) -> None:
        self.on_announced = None

    async def present(self) -> Place:
        return self._present().place

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        now = self._present()
        rows = [
            each for each in self.events if not begin.covers(each.history.number, each.position)
        ]
        is_full, rows = len(rows) >= events_max, rows[:events_max]
        after = now.place
        if is_full:
            after = now.after(begin, rows[-1].history, rows[-1].position)
        return LogPage(begin, rows, after, now, is_full)

    def _present(self) -> Present:
        if self.now is not None:
            return self.now
        end = self.events[-1].position + 1 if self.events else 1
        return present(end, start=self.start)


class World:
    """A log, and callbacks that note what they get."""

    def __init__(self) -> None:
        self.log = ScriptedLog()
        self.observed: list[Observation] = []
        self.got: list[int] = []

    async def note(self, event: CommittedEvent) -> None:
        """Be a host's callback."""
        self.got.append(event.event_id.int)

    def subscriber(self, on_event: OnEvent | None = None) -> Subscriber:
        """Return a subscriber at the present."""
        end = self.log.events[-1].position + 1 if self.log.events else 1
        return Subscriber(
            on_event or self.note,
            self.log,
            place(end),
            self.observed.append,
            lambda error, _: error,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Subscriptions, LogTail]]:
        """Run subscriptions and a tail, as a component does."""
        async with Runner(self.observed.append) as runner:
            hub = SessionHub(HubSettings(), lambda _: None)
            tail = LogTail(self.log, hub, self.observed.append)
            runner.start(tail)
            subscriptions = Subscriptions(
                self.log, tail, runner, self.observed.append, lambda error, _: error
            )
            yield subscriptions, tail
            await subscriptions.stop()


@pytest.fixture
def world() -> World:
    """A world of its own."""
    return World()


async def test_a_callback_gets_what_commits_from_now_on_in_order(world: World) -> None:
    """Nothing of before, each event once."""
    world.log.events = [logged(1)]
    subscriber = world.subscriber()
    assert 0 == await subscriber.run_once()
    world.log.events += [logged(2), logged(3)]
    await subscriber.run_once()
    await subscriber.run_once()
    assert [2, 3] == world.got


async def test_a_full_page_leaves_work(world: World) -> None:
    """The next page is read at once, and only after the last event of this one."""
    world.log.events = [logged(1)]
    subscriber = world.subscriber()
    world.log.events += [logged(number) for number in range(2, PAGE_EVENTS + 3)]
    assert PAGE_EVENTS == await subscriber.run_once()
    assert PAGE_EVENTS == len(world.got)
    assert 0 == await subscriber.run_once()
    assert [*range(2, PAGE_EVENTS + 3)] == world.got


@pytest.mark.parametrize(
    "error", [LookupError(), SystemExit(), KeyboardInterrupt(), GeneratorExit()]
)
async def test_a_call_that_raises_is_reported_and_the_next_event_comes(
    error: BaseException, world: World
) -> None:
    """Whatever it raises, and not again."""

    async def fail_once(event: CommittedEvent) -> None:
        await world.note(event)
        if len(world.got) == 1:
            raise error

    subscriber = world.subscriber(fail_once)
    world.log.events = [logged(1), logged(2)]
    await subscriber.run_once()
    assert [1, 2] == world.got
    (failed,) = world.observed
    assert isinstance(failed, SubscriberFailed)
    assert failed.cause.startswith("on_event raised ")
    assert failed.bug is not None


async def test_a_call_that_is_cancelled_from_within_is_a_failure(world: World) -> None:
    """The subscriber itself goes on."""

    async def cancel(event: CommittedEvent) -> None:
        await world.note(event)
        raise asyncio.CancelledError

    subscriber = world.subscriber(cancel)
    world.log.events = [logged(1), logged(2)]
    await subscriber.run_once()
    assert [1, 2] == world.got
    assert [SubscriberFailed("on_event was cancelled by something that it waited for")] * 2 == (
        world.observed
    )


async def test_a_call_that_hangs_is_cancelled_and_the_next_event_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported once, and what it still does is waited for: one call at a time."""
    monkeypatch.setattr(subscriptions_module, "CALL_SECONDS", 0.2)
    under_way = 0

    async def hang(event: CommittedEvent) -> None:
        nonlocal under_way
        under_way += 1
        assert 1 == under_way
        await world.note(event)
        try:
            if event.event_id.int == 1:
                await asyncio.Event().wait()
        finally:
            # Goes on after its cancellation.
            for _ in range(3):
                await asyncio.sleep(0)
            under_way -= 1

    subscriber = world.subscriber(hang)
    world.log.events = [logged(1), logged(2)]
    async with asyncio.timeout(DEADLINE_SECONDS):
        await subscriber.run_once()
    assert [1, 2] == world.got
    assert [SubscriberFailed("on_event took longer than 0.2 s")] == world.observed


async def test_a_page_that_fails_is_read_again(world: World) -> None:
    """From the same place."""
    subscriber = world.subscriber()
    world.log.events, world.log.errors = [logged(1)], [Unreachable("cut")]
    with pytest.raises(Unreachable):
        await subscriber.run_once()
    await subscriber.run_once()
    assert [1] == world.got


async def test_a_place_that_is_lost_is_reported_and_the_present_goes_on(world: World) -> None:
    """What the log no longer has cannot be given; the callback does not get all that is kept."""
    subscriber = world.subscriber()
    world.log.events, world.log.start = [logged(9)], 5
    assert 0 == await subscriber.run_once()
    assert [PlaceLost("subscriber")] == world.observed
    world.log.events.append(logged(10))
    await subscriber.run_once()
    assert [10] == world.got


async def test_a_history_that_a_failover_has_lost_costs_no_event(world: World) -> None:
    """It began after a restart, and the standby had not had that. Twin: the place before is lost too."""
    subscriber = world.subscriber()
    world.log.events = [logged(1)]
    await subscriber.run_once()
    lost, newest = History(2, "10571057"), History(2, "4e1e4e1e")

    def in_history(history: History, end: int, start: tuple[int, int] = (1, 0)) -> Present:
        return Present(history, end, (), {1: HISTORY.id, 2: history.id}, start)

    world.log.now = in_history(lost, 3)
    await subscriber.run_once()
    world.log.now = in_history(newest, 3)
    world.log.events.append(logged(2, history=newest))
    assert PAGE_EVENTS == await subscriber.run_once()
    await subscriber.run_once()
    assert ([1, 2], []) == (world.got, world.observed)

    world.log.now = in_history(lost, 3, (2, 3))
    assert PAGE_EVENTS == await subscriber.run_once()
    assert 0 == await subscriber.run_once()
    assert [PlaceLost("subscriber")] == world.observed


async def test_what_came_before_a_lost_history_on_the_same_page_does_not_come_again(
    world: World,
) -> None:
    """One event just before a restart and one just after are read together."""
    subscriber = world.subscriber()
    lost, newest = History(2, "10571057"), History(2, "4e1e4e1e")

    def in_history(history: History) -> Present:
        return Present(history, 4, (), {1: HISTORY.id, 2: history.id}, (1, 0))

    world.log.now = in_history(lost)
    world.log.events = [logged(1), logged(2), logged(3, history=lost)]
    await subscriber.run_once()
    world.log.now = in_history(newest)
    world.log.events = [logged(1), logged(2), logged(3, history=newest)]
    while await subscriber.run_once():
        pass
    assert ([1, 2, 3, 3], []) == (world.got, world.observed)


async def test_a_call_that_outlives_its_turn_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once would break the order. As after a host's cancellation, which the runner outlasts."""
    monkeypatch.setattr(subscriptions_module, "CALL_CANCEL_SECONDS", 0.0)
    begun, may_end = asyncio.Event(), asyncio.Event()
    ended: list[int] = []

    async def linger(event: CommittedEvent) -> None:
        begun.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        ended.append(event.event_id.int)

    subscriber = world.subscriber(linger)
    world.log.events = [logged(1), logged(2)]
    turn = asyncio.create_task(subscriber.run_once())
    await begun.wait()
    turn.cancel()
    await asyncio.wait({turn})
    begun.clear()
    turn = asyncio.create_task(subscriber.run_once())
    for _ in range(5):
        await asyncio.sleep(0)
    was_begun = begun.is_set()
    may_end.set()
    await turn
    assert (False, [1, 2]) == (was_begun, ended)


async def test_a_stop_ends_it_after_the_call_under_way(world: World) -> None:
    """Not after the page."""
    subscriber = world.subscriber()

    async def stop(event: CommittedEvent) -> None:
        await world.note(event)
        subscriber.stop()

    subscriber._on_event = stop
    world.log.events = [logged(1), logged(2)]
    await subscriber.run_once()
    assert [1] == world.got


async def test_a_turn_that_is_cancelled_leaves_the_rest_of_its_page_to_the_next(
    world: World,
) -> None:
    """As after a host's cancellation, which the runner outlasts."""
    in_call = asyncio.Event()

    async def wait_first(event: CommittedEvent) -> None:
        await world.note(event)
        if event.event_id.int == 1:
            in_call.set()
            await asyncio.Event().wait()

    subscriber = world.subscriber(wait_first)
    world.log.events = [logged(1), logged(2)]
    turn = asyncio.create_task(subscriber.run_once())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await in_call.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
    await subscriber.run_once()
    assert [1, 2] == world.got


async def test_a_slow_callback_delays_no_other_one(world: World) -> None:
    """Each subscription reads by itself."""
    go_on = asyncio.Event()
    slow: list[int] = []

    async def wait(event: CommittedEvent) -> None:
        slow.append(event.event_id.int)
        await go_on.wait()

    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):
        await subscriptions.begin(wait)
        await subscriptions.begin(world.note)
        world.log.events = [logged(1), logged(2)]
        subscriptions.wake()
        await until(lambda: world.got == [1, 2])
        assert [1] == slow
        go_on.set()
        await until(lambda: slow == [1, 2])


async def test_a_subscription_that_has_ended_gets_nothing(world: World) -> None:
    """To end it twice does no harm."""
    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):
        end = await subscriptions.begin(world.note)
        got: list[int] = []

        async def note(event: CommittedEvent) -> None:
            got.append(event.event_id.int)

        await subscriptions.begin(note)
        await end()
        await end()
        world.log.events = [logged(1)]
        subscriptions.wake()
        await until(lambda: got == [1])
    assert [] == world.got


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_whoever_ends_a_subscription_again_waits_for_its_end(
    world: World, *, is_cancelled: bool
) -> None:
    """Also where the first one has given up; the call under way may use what is closed afterwards."""
    in_call, go_on = asyncio.Event(), asyncio.Event()

    async def wait(event: CommittedEvent) -> None:
        in_call.set()
        await go_on.wait()
        await world.note(event)

    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):
        end = await subscriptions.begin(wait)
        world.log.events = [logged(1)]
        subscriptions.wake()
        await in_call.wait()
        first, second = asyncio.ensure_future(end()), asyncio.ensure_future(end())
        await asyncio.sleep(0)
        if is_cancelled:
            first.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (is_cancelled, False) == (first.done(), second.done())
        go_on.set()
        await second
        assert [1] == world.got
        await end()
        assert {} == subscriptions._endings


@pytest.mark.parametrize("is_awaited_in_a_task", [False, True])
async def test_a_callback_may_end_its_own_subscription(
    is_awaited_in_a_task: bool, world: World
) -> None:
    """It does not wait for itself; the call under way goes on, and no other follows."""
    is_over = asyncio.Event()

    async def end_it(event: CommittedEvent) -> None:
        await world.note(event)
        await (asyncio.wait_for(end(), DEADLINE_SECONDS) if is_awaited_in_a_task else end())
        is_over.set()

    async with asyncio.timeout(TURN_STOP_SECONDS / 2), world.opened() as (subscriptions, _):
        end = await subscriptions.begin(end_it)
        world.log.events = [logged(1), logged(2)]
        subscriptions.wake()
        await is_over.wait()
        await until(lambda: not subscriptions._endings)
        assert "subscriber" not in subscriptions._runner.up
    assert [1] == world.got
    assert [] == world.observed


async def test_a_task_of_an_earlier_call_waits_for_the_one_under_way(world: World) -> None:
    """Its end returns once nothing of the subscription runs any more."""
    go_on, is_second = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def end_later() -> None:
        await is_second.wait()
        await end()
        world.got.append(0)

    async def begin_task(event: CommittedEvent) -> None:
        await world.note(event)
        if event.event_id.int == 1:
            tasks.append(asyncio.create_task(end_later()))
            return
        is_second.set()
        await asyncio.sleep(0)
        await go_on.wait()
        world.got.append(3)

    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):
        end = await subscriptions.begin(begin_task)
        world.log.events = [logged(1), logged(2)]
        subscriptions.wake()
        await is_second.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await asyncio.gather(*await until(lambda: tasks))
    assert [1, 2, 3, 0] == world.got


async def test_it_is_ended_in_its_own_loop(world: World) -> None:
    """In another one, such as another thread's, the error says what to do."""
    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):
        end = await subscriptions.begin(world.note)
        with pytest.raises(WrongEventLoop, match="run_coroutine_threadsafe"):
            await asyncio.to_thread(lambda: asyncio.run(as_coroutine(end)))
        world.log.events = [logged(1)]
        subscriptions.wake()
        await until(lambda: world.got == [1])


async def as_coroutine(end: Callable[[], Awaitable[None]]) -> None:
    """Await it; `asyncio.run` takes coroutines alone."""
    await end()


async def test_announcements_are_heard_while_there_is_a_subscription(world: World) -> None:
    """Also without sessions; afterwards the connection is given back."""
    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, tail):
        tail.wake()
        end = await subscriptions.begin(world.note)
        announced = await until(lambda: world.log.on_announced)
        await until(lambda: world.log.reads)
        world.log.events = [logged(1)]
        assert announced is not None
        announced()
        await until(lambda: world.got == [1])
        await end()
        tail.wake()
        await until(lambda: world.log.on_announced is None)


async def test_there_is_a_bound_and_none_after_the_stop(world: World) -> None:
    """One that ends makes room."""
    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):
        ends = [await subscriptions.begin(world.note) for _ in range(SUBSCRIPTIONS_MAX)]
        with pytest.raises(Overloaded, match="at most 16"):
            await subscriptions.begin(world.note)
        await ends[0]()
        await subscriptions.begin(world.note)
        await subscriptions.stop()
        with pytest.raises(Overloaded, match="shutting down"):
            await subscriptions.begin(world.note)


async def test_a_stopped_component_says_so_though_its_log_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pool is closed: a caller would take the database for unavailable."""

    async def fail() -> None:
        raise Unreachable

    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):
        monkeypatch.setattr(world.log, "present", fail)
        with pytest.raises(Unreachable):
            await subscriptions.begin(world.note)
        await subscriptions.stop()
        with pytest.raises(Overloaded, match="shutting down"):
            await subscriptions.begin(world.note)


async def test_a_subscription_that_meets_the_stop_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never be stopped."""
    present = world.log.present
    async with asyncio.timeout(DEADLINE_SECONDS), world.opened() as (subscriptions, _):

        async def stop_meanwhile() -> Any:
            await subscriptions.stop()
            return await present()

        monkeypatch.setattr(world.log, "present", stop_meanwhile)
        with pytest.raises(Overloaded, match="shutting down"):
            await subscriptions.begin(world.note)


async def test_an_object_that_is_called_like_an_async_function_is_one(world: World) -> None:
    """Such as a function with arguments bound."""

    async def note(label: str, event: CommittedEvent) -> Any:
        await world.note(event)
        return label

    subscriber = world.subscriber(partial(note, "label"))
    world.log.events = [logged(1)]
    await subscriber.run_once()
    assert [1] == world.got
