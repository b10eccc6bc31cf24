"""The tail of the log, with a log of the test's own: what reaches the hub, and when."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from stretto.domain import UserId
from stretto.events import session as session_module
from stretto.events import session_turns
from stretto.events import tail as tail_module
from stretto.events.close_codes import CloseCode
from stretto.events.hub import SessionHub
from stretto.events.log import PAGE_EVENTS, LogPage
from stretto.events.place import Place
from stretto.events.session_turns import SessionTurns
from stretto.events.settings import HubSettings
from stretto.events.tail import BURST_EVENTS, Announcer, LogTail
from stretto.observations import PlaceLost
from stretto.runtime.runner import Run
from stretto.store_errors import Unreachable
from support.log_events import logged, numbers, place, present
from support.loop_turns import counted_turns
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.events.log import LoggedEvent
    from stretto.events.place import Present
    from stretto.events.session import Session
    from stretto.observations import Observation

ALICE = UserId("alice")
DEADLINE_SECONDS = 60


class ScriptedLog:
    """A log in memory and its connection; tests may do something in between."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.running: tuple[int, ...] = ()
        self.start = 0
        self.reads = 0
        self.errors: list[Exception] = []
        self.on_announced: Callable[[], None] | None = None
        self.before_page: Callable[[], object] = lambda: None

    @property
    def is_open(self) -> bool:
        return self.on_announced is not None

    async def listen(self, on_announced: Callable[[], None]) -> None:
        if self.on_announced is None:
            self.on_announced = on_announced

    async def close(self) -> None:
        self.on_announced = None

    async def present(self) -> Place:
        return self._present().place

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        assert (users, self.is_open) == (None, True)
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        now = self._present()
        rows = [each for each in self.events if not begin.covers(1, each.position)]
        is_full, rows = len(rows) >= events_max, rows[:events_max]
        after = now.place
        if is_full:
            after = now.after(begin, rows[-1].history, rows[-1].position)
        self.before_page()
        return LogPage(begin, rows, after, now, is_full)

    def _present(self) -> Present:
        self.events.sort(key=lambda each: each.position)
        end = self.events[-1].position + 1 if self.events else 1
        return present(end, *self.running, start=self.start)


class World:
    """A tail on a scripted log, and its hub."""

    def __init__(self, **settings: int) -> None:
        self.observed: list[Observation] = []
        self.log = ScriptedLog()
        self.hub = SessionHub(HubSettings(**settings), lambda _: None)
        self.tail = LogTail(self.log, self.hub, self.observed.append)

    def session(self, stack: ExitStack) -> Session:
        """Have alice join."""
        return stack.enter_context(self.hub.session(ALICE, math.inf))


@pytest.fixture
def world() -> World:
    """A world of its own."""
    return World()


async def test_what_commits_after_a_session_joined_is_delivered_in_order(world: World) -> None:
    """From the present on, each event once."""
    world.log.events = [logged(1), logged(2)]
    with ExitStack() as stack:
        session = world.session(stack)
        assert 0 == await world.tail.run_once()
        assert place(3) == world.hub.place
        world.log.events += [logged(4), logged(3)]
        assert 0 == await world.tail.run_once()
        assert [3, 4] == numbers(await session.take())
        assert 0 == await world.tail.run_once()
        assert 0 == len(session)


async def test_an_event_that_commits_late_is_delivered(world: World) -> None:
    """Its transaction ran when later ones had ended."""
    with ExitStack() as stack:
        session = world.session(stack)
        await world.tail.run_once()
        world.log.events, world.log.running = [logged(2)], (1,)
        await world.tail.run_once()
        world.log.events.append(logged(1))
        world.log.running = ()
        await world.tail.run_once()
        taken = await session.take()
        assert [2, 1] == numbers(taken)
        assert [place(3, 1), place(3)] == [Place.parse(each.position) for each in taken]


async def test_without_sessions_nothing_is_read_and_no_connection_is_held(world: World) -> None:
    """From the first one's coming to the last one's going."""
    assert 0 == await world.tail.run_once()
    assert not world.log.is_open
    with ExitStack() as stack:
        world.session(stack)
        await world.tail.run_once()
        assert world.log.is_open
    world.log.events.append(logged(1))
    await world.tail.run_once()
    assert (False, 0, None) == (world.log.is_open, world.log.reads, world.hub.place)
    with ExitStack() as stack:
        session = world.session(stack)
        await world.tail.run_once()
        await world.tail.run_once()
        assert 0 == len(session)
        assert place(2) == world.hub.place


async def test_an_announcement_wakes_the_tail_and_others_that_need_it() -> None:
    """The others also without sessions."""
    woken: list[str] = []
    world = World()
    world.tail = LogTail(
        world.log, world.hub, world.observed.append, others=[lambda: woken.append("relay")]
    )
    await world.tail.run_once()
    assert world.log.on_announced is not None
    world.log.on_announced()
    assert world.tail.woken.is_set()
    assert ["relay"] == woken
    assert (0, None) == (world.log.reads, world.hub.place)
    await world.tail.close()
    assert not world.log.is_open


async def test_a_page_that_fails_is_read_again_over_another_connection(world: World) -> None:
    """From the same place: nothing is passed over, and no session ends."""
    with ExitStack() as stack:
        session = world.session(stack)
        await world.tail.run_once()
        world.log.events = [logged(1)]
        world.log.errors = [Unreachable("cut")]
        with pytest.raises(Unreachable):
            await world.tail.run_once()
        assert not world.log.is_open
        await world.tail.run_once()
        assert [1] == numbers(await session.take())
        assert session.close_code is None


async def test_a_place_that_is_lost_sends_all_sessions_to_resume(world: World) -> None:
    """The tail goes on with those that come then."""
    with ExitStack() as stack:
        world.log.events = [logged(1)]
        session = world.session(stack)
        await world.tail.run_once()
        world.log.events, world.log.start = [logged(9)], 5
        await world.tail.run_once()
        assert CloseCode.EVENTS_MISSED == session.close_code
        assert [PlaceLost("log tail")] == world.observed
        again = world.session(stack)
        world.log.events.append(logged(10))
        await world.tail.run_once()
        assert [10] == numbers(await again.take())


async def test_a_full_page_is_followed_by_the_next_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn says that work is left."""
    monkeypatch.setattr(tail_module, "PAGE_EVENTS", 3)
    with ExitStack() as stack:
        session = world.session(stack)
        await world.tail.run_once()
        world.log.events = [logged(n) for n in range(1, 6)]
        assert [3, 0] == [await world.tail.run_once() for _ in range(2)]
        assert [1, 2, 3, 4, 5] == numbers(await session.take())
    assert PAGE_EVENTS == world.tail.pace.full if world.tail.pace else False


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_session_that_joins_during_a_delivery_begins_behind_its_page(
    world: World, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Its position says what it is certain to get; with the place before the page, it would not."""
    if not is_guarded:
        real = world.hub.move
        monkeypatch.setattr(
            world.hub, "move", lambda to: real(to if world.hub.place is None else place(1))
        )
    monkeypatch.setattr(tail_module, "BURST_EVENTS", 2)
    joined: list[Session] = []
    with ExitStack() as stack:
        world.session(stack)
        await world.tail.run_once()
        world.log.events = [logged(n) for n in range(1, 5)]
        reading = asyncio.create_task(world.tail.run_once())
        await asyncio.sleep(0)
        joined.append(world.session(stack))
        followed = await world.hub.followed()
        await reading
        assert joined[0].go_live(followed)
        world.log.events.append(logged(5))
        await world.tail.run_once()
        got = numbers(await joined[0].take())
        owed = [n for n in range(1, 6) if not followed.covers(1, n)]
        assert is_guarded == (owed == got)


async def test_a_page_counts_as_delivered_once_its_last_event_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, though the tail's place lies behind it; nor after a turn that was cancelled."""
    monkeypatch.setattr(tail_module, "BURST_EVENTS", 2)
    with ExitStack() as stack:
        world.session(stack)
        await world.tail.run_once()
        assert place(1) == world.hub.delivered
        world.log.events = [logged(n) for n in range(1, 6)]
        reading = asyncio.create_task(world.tail.run_once())
        await asyncio.sleep(0)
        assert (place(6), place(1)) == (world.hub.place, world.hub.delivered)
        reading.cancel()
        await asyncio.wait([reading])
        assert place(1) == world.hub.delivered
        await world.tail.run_once()
        assert place(6) == world.hub.delivered


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_cancelled_delivery_goes_on_where_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """A host may cancel any task; another one goes on, and delivers the rest of the page first."""
    monkeypatch.setattr(tail_module, "BURST_EVENTS", 2)
    with ExitStack() as stack:
        session = world.session(stack)
        await world.tail.run_once()
        world.log.events = [logged(n) for n in range(1, 6)]
        reading = asyncio.create_task(world.tail.run_once())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert 2 == len(session)
        if not is_guarded:
            world.tail._undelivered.clear()
        await world.tail.run_once()
        assert is_guarded == ([1, 2, 3, 4, 5] == numbers(await session.take()))


@pytest.mark.parametrize(("is_behind", "turn_events"), [(False, BURST_EVENTS), (True, 10**9)])
async def test_a_burst_leaves_no_session_behind_whose_client_reads(
    world: World,
    is_behind: bool,
    turn_events: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tail lets sessions take their share; without its turns it would run them over."""
    monkeypatch.setattr(tail_module, "BURST_EVENTS", turn_events)
    if turn_events != BURST_EVENTS:
        monkeypatch.setattr(SessionHub, "session_events_max", turn_events)
    monkeypatch.setattr(tail_module, "PAGE_EVENTS", 1001)
    taken: list[int] = []

    async def serve(session: Session) -> None:
        async with session.until_closed():
            while True:
                taken.extend(numbers(await session.take()))

    with ExitStack() as stack:
        session = world.session(stack)
        await world.tail.run_once()
        assert session.go_live(place(0))
        serving = asyncio.create_task(serve(session))
        world.log.events = [logged(number) for number in range(1, 1001)]
        await world.tail.run_once()
        assert is_behind == session.is_behind
        session.close(CloseCode.CLIENT_LEFT)
        await serving
    assert is_behind or list(range(1, 901)) == taken[:900]


async def test_a_burst_is_no_longer_than_a_sessions_queue() -> None:
    """Where fewer events may wait for a session than are queued at once elsewhere."""
    world = World(session_events_max=2)
    with ExitStack() as stack:
        session = world.session(stack)
        await world.tail.run_once()
        assert session.go_live(place(0))
        taken: list[int] = []

        async def serve() -> None:
            async with session.until_closed():
                while True:
                    taken.extend(numbers(await session.take()))

        serving = asyncio.create_task(serve())
        world.log.events = [logged(number) for number in range(1, 8)]
        await world.tail.run_once()
        assert not session.is_behind
        session.close(CloseCode.CLIENT_LEFT)
        await serving
    assert [1, 2, 3, 4, 5, 6] == taken[:6]


async def test_events_for_many_sessions_are_queued_in_several_turns_of_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted are sessions times events; few events for few sessions are queued at once."""
    monkeypatch.setattr(tail_module, "QUEUED_PER_TURN", 8)
    queued: list[int] = []
    with ExitStack() as stack, counted_turns() as turn:
        world.session(stack)
        await world.tail.run_once()
        real = world.hub.deliver

        def deliver(*event: Any) -> int:
            sessions = real(*event)
            queued.extend([turn()] * sessions)
            return sessions

        monkeypatch.setattr(world.hub, "deliver", deliver)
        world.log.events = [logged(number) for number in range(1, 4)]
        await world.tail.run_once()
        assert (3, 1) == (len(queued), len({*queued}))
        queued.clear()
        for _ in range(4):
            world.session(stack)
        world.log.events += [logged(number) for number in range(4, 14)]
        await world.tail.run_once()
    assert 50 == len(queued)
    assert 10 == max(queued.count(number) for number in queued)


async def test_a_burst_waits_for_sessions_that_wait_for_a_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their queues would overflow, though their clients read."""
    monkeypatch.setattr(tail_module, "BURST_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(session_turns, "SENDS_PER_TURN", 4)
    monkeypatch.setattr(session_module, "SENDS_AT_ONCE", 4)
    world.hub.turns = SessionTurns()
    got: dict[Session, list[int]] = {}

    async def serve(session: Session) -> None:
        async with session.until_closed():
            while True:
                events = await session.take()
                for number, outgoing in enumerate(events):
                    if not session.may_send():
                        await session.turn(len(events) - number)
                    got.setdefault(session, []).extend(numbers([outgoing]))

    with ExitStack() as stack:
        sessions = [world.session(stack) for _ in range(16)]
        await world.tail.run_once()
        serving = [asyncio.create_task(serve(session)) for session in sessions]
        for session in sessions:
            assert session.go_live(place(0))
        # Several pages: the last events of each are still to be sent when the next one has come.
        for end in range(100, 701, 100):
            world.log.events = [logged(number) for number in range(1, end)]
            await world.tail.run_once()
        assert not any(session.is_behind for session in sessions)
        for session in sessions:
            session.close(CloseCode.CLIENT_LEFT)
        await asyncio.gather(*serving)


async def test_a_burst_that_sessions_cannot_send_delays_the_others_for_a_bounded_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail goes on; they are behind."""
    monkeypatch.setattr(tail_module, "BURST_SECONDS", 0.01)
    monkeypatch.setattr(session_turns, "SENDS_PER_TURN", 0)
    world.hub.turns = SessionTurns()
    with ExitStack() as stack:
        crowd = world.session(stack)
        await world.tail.run_once()
        assert crowd.go_live(place(0))
        taking = asyncio.create_task(crowd.take())
        await asyncio.sleep(0)
        world.log.events = [logged(number) for number in range(1, 1001)]
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await world.tail.run_once():
                pass
        assert crowd.is_behind
        taking.cancel()
        await asyncio.wait({taking})


async def test_a_burst_of_many_pages_is_waited_for_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time counts from when the tail was at the present, also over a hundred pages."""
    waited_until: set[float] = set()
    real = world.hub.sent

    async def sent(until: float) -> None:
        waited_until.add(until)
        await real(0)

    monkeypatch.setattr(world.hub, "sent", sent)
    with ExitStack() as stack:
        world.session(stack)
        await world.tail.run_once()
        world.log.events = [logged(number) for number in range(1, 1000)]
        while await world.tail.run_once():
            assert len(waited_until) == 1


async def test_an_announcer_announces_when_it_is_woken_and_again_if_that_fails() -> None:
    """Not at its start: others have looked by then."""
    announced: list[int] = []
    errors: list[Exception] = [Unreachable("cut")]

    async def announce() -> None:
        announced.append(1)
        if errors:
            raise errors.pop()

    announcer = Announcer(announce)
    running = asyncio.create_task(Run(announcer, lambda _: None).turns())
    await asyncio.sleep(0)
    assert [] == announced
    announcer.wake()
    async with asyncio.timeout(20):
        await until(lambda: len(announced) == 2)
    announcer.stop()
    await running
