"""The hub and its sessions, without any I/O."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.domain import UserId
from stretto.errors import Overloaded, RateLimited
from stretto.events import local_bus
from stretto.events.close_codes import CloseCode
from stretto.events.event import TURN_EVENTS, CommittedEvent
from stretto.events.hub import SESSION_SECONDS_MAX, HubSettings, SessionHub
from stretto.events.local_bus import LocalBus
from stretto.events.outgoing import OutgoingEvent
from stretto.events.positions import Origin, Position
from stretto.observations import EventDelivered, SessionEnded
from stretto.runtime.runner import Runner
from support.clock import Clock
from support.waiting import until

if TYPE_CHECKING:
    from stretto.events.session import Session
    from stretto.observations import Observation

ALICE, BOB = UserId("alice"), UserId("bob")
ORIGIN = Origin("0a1b2c3d")
EVENTS_MAX = 3


def event(number: int, *recipients: str) -> CommittedEvent:
    """Return an event of these users; alice's, where nobody is named."""
    return CommittedEvent(UUID(int=number), recipients or (ALICE,), b"{}", Position(number))


def ids(outgoing: object) -> list[int]:
    """Return the numbers of events."""
    assert isinstance(outgoing, tuple)
    return [each.event_id.int for each in outgoing]


def test_sessions_that_have_missed_events_are_sent_to_resume(told: list[Observation]) -> None:
    """All that are there; the hub goes on, and those who come back are told again."""
    hub = SessionHub(ORIGIN, HubSettings(), told.append)
    with hub.session(ALICE, math.inf) as first, hub.session(BOB, math.inf) as second:
        hub.interrupt()
        assert CloseCode.EVENTS_MISSED == first.close_code == second.close_code
    with hub.session(ALICE, math.inf) as again:
        assert again.close_code is None


@pytest.fixture
def clock() -> Clock:
    """What the hub takes for the time."""
    return Clock()


@pytest.fixture
def told() -> list[Observation]:
    """What the hub has told its observer."""
    return []


@pytest.fixture
def hub(clock: Clock, told: list[Observation]) -> SessionHub:
    """A hub whose sessions are soon too slow."""
    settings = HubSettings(sessions_max=4, sessions_per_user=2, session_events_max=EVENTS_MAX)
    return SessionHub(ORIGIN, settings, told.append, clock)


async def test_an_event_is_told_to_every_session_of_its_recipients(
    hub: SessionHub, told: list[Observation]
) -> None:
    """And counted once for each."""
    with (
        hub.session(ALICE, 2000) as first,
        hub.session(ALICE, 2000) as second,
        hub.session(BOB, 2000) as third,
    ):
        hub.deliver(event(1, ALICE, "nobody"))
        hub.deliver(event(2, ALICE, BOB))
        assert [1, 2] == ids(await first.take()) == ids(await second.take())
        assert [2] == ids(await third.take())
    assert [EventDelivered(2), EventDelivered(3)] == told[:2]
    assert len(hub) == 0


async def test_an_event_is_encoded_once_for_each_way(hub: SessionHub) -> None:
    """However many sessions it goes to."""
    encoded = []

    def encode(outgoing: OutgoingEvent) -> bytes:
        encoded.append(outgoing.position)
        return b"text"

    with hub.session(ALICE, 2000) as first, hub.session(ALICE, 2000) as second:
        hub.deliver(event(7))
        for session in (first, second):
            (outgoing,) = await session.take()
            assert outgoing.encoded(encode) == b"text"
    assert encoded == ["7.0a1b2c3d"]


async def test_a_session_whose_queue_is_full_is_closed_and_others_go_on(hub: SessionHub) -> None:
    """Its queue is dropped; nobody has waited for it."""
    with hub.session(ALICE, 2000) as slow, hub.session(ALICE, 2000) as quick:
        assert slow.go_live()
        assert quick.go_live()
        for number in range(EVENTS_MAX):
            hub.deliver(event(number))
        assert ([0, 1, 2], None) == (ids(await quick.take()), slow.close_code)
        hub.deliver(event(EVENTS_MAX))
        assert (CloseCode.TOO_SLOW, 0) == (slow.close_code, len(slow))
        assert [EVENTS_MAX] == ids(await quick.take())
        assert quick.close_code is None


@pytest.mark.parametrize(
    ("code", "waiting", "events_max"),
    [(CloseCode.TOO_SLOW, 0, EVENTS_MAX), (None, 5000, 10**9)],
    ids=["bounded", "without the bound"],
)
async def test_a_session_that_never_reads_holds_no_more_than_its_queue(
    told: list[Observation], code: CloseCode | None, waiting: int, events_max: int
) -> None:
    """Without the bound it would hold all that it was ever to be told."""
    hub = SessionHub(ORIGIN, HubSettings(session_events_max=events_max), told.append)
    with hub.session(ALICE, math.inf) as mute:
        mute.go_live()
        for number in range(5000):
            hub.deliver(event(number))
            assert len(mute) <= events_max
        assert (code, waiting) == (mute.close_code, len(mute))


async def test_a_session_that_replays_forgets_what_its_queue_cannot_hold(hub: SessionHub) -> None:
    """It goes live once history was read after that; the next overflow is its client's fault."""
    with hub.session(ALICE, 2000) as session:
        for number in range(EVENTS_MAX + 1):
            hub.deliver(event(number))
        assert (None, 1) == (session.close_code, len(session))
        assert [False, True] == [session.go_live(), session.go_live()]
        for number in range(EVENTS_MAX):
            hub.deliver(event(100 + number))
        assert CloseCode.TOO_SLOW == session.close_code


@pytest.mark.parametrize(
    ("expected", "turn_events"), [(None, TURN_EVENTS), (CloseCode.TOO_SLOW, 10**9)]
)
async def test_a_burst_finds_nobody_too_slow_that_reads(
    expected: CloseCode | None,
    turn_events: int,
    told: list[Observation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bus lets sessions take their share; without its turns it would run them over."""
    monkeypatch.setattr(local_bus, "TURN_EVENTS", turn_events)
    hub = SessionHub(ORIGIN, HubSettings(), told.append)
    taken: list[int] = []

    async def serve(session: Session) -> None:
        async with session.until_closed():
            while True:
                taken.extend(ids(await session.take()))

    with hub.session(ALICE, math.inf) as session:
        session.go_live()
        serving = asyncio.create_task(serve(session))
        await LocalBus(hub.deliver).publish([event(number) for number in range(1000)])
        assert expected == session.close_code
        session.close(CloseCode.CLIENT_LEFT)
        await serving
    assert expected or list(range(960)) == taken[:960]


async def test_an_event_that_nobody_hears_is_not_counted(
    hub: SessionHub, told: list[Observation]
) -> None:
    """What is delivered is delivered to a session."""
    hub.deliver(event(1))
    assert [] == told


async def test_an_event_that_comes_twice_waits_once(hub: SessionHub) -> None:
    """And takes no other one's place."""
    with hub.session(ALICE, 2000) as session:
        for _ in range(EVENTS_MAX + 1):
            hub.deliver(event(1))
        assert [1] == ids(await session.take())


async def test_an_event_that_comes_twice_to_a_full_queue_closes_nothing(hub: SessionHub) -> None:
    """It is the only one for which there is room: its own."""
    with hub.session(ALICE, 2000) as session:
        assert session.go_live()
        for number in (*range(EVENTS_MAX), 0):
            hub.deliver(event(number))
        assert session.close_code is None
        assert list(range(EVENTS_MAX)) == ids(await session.take())


async def test_what_was_replayed_is_not_told_again(hub: SessionHub) -> None:
    """Whether it had come before or comes after; once it has, it may come again."""
    with hub.session(ALICE, 2000) as session:
        hub.deliver(event(1))
        for number in (1, 2, 3):
            outgoing = OutgoingEvent(event(number), ORIGIN)
            session.note_sent(outgoing, is_under_way=number < 3)
        hub.deliver(event(2))
        hub.deliver(event(4))
        assert [4] == ids(await session.take())
        hub.deliver(event(2))
        assert [2] == ids(await session.take())


async def test_limits_of_sessions_are_kept(hub: SessionHub) -> None:
    """By user and by process; who leaves makes room."""
    with ExitStack() as stack:
        for user in (ALICE, ALICE, BOB):
            stack.enter_context(hub.session(user, 2000))
        with pytest.raises(RateLimited) as limited, hub.session(ALICE, 2000):
            pass
        assert limited.value.retry_after_seconds
        with hub.session(BOB, 2000):
            with pytest.raises(Overloaded), hub.session(UserId("carol"), 2000):
                pass
            assert len(hub) == 4
        with hub.session(UserId("carol"), 2000):
            assert len(hub) == 4
    assert len(hub) == 0
    assert not hub._sessions


async def test_a_session_ends_with_its_token(hub: SessionHub, clock: Clock) -> None:
    """And not a second earlier."""
    with hub.session(ALICE, 1010) as short, hub.session(BOB, 1011) as long:
        clock.now = 1009.9
        assert await hub.run_once() == 0
        clock.now = 1010
        assert await hub.run_once() == 1
        assert (CloseCode.TOKEN_ENDED, None) == (short.close_code, long.close_code)


async def test_a_session_whose_token_has_no_end_ends_nevertheless(
    hub: SessionHub, clock: Clock
) -> None:
    """After a day it has to show the token again."""
    with hub.session(ALICE, math.inf) as session:
        clock.now += SESSION_SECONDS_MAX - 1
        assert (0, None) == (await hub.run_once(), session.close_code)
        clock.now += 1
        assert (1, CloseCode.TOKEN_ENDED) == (await hub.run_once(), session.close_code)


async def test_closing_interrupts_whatever_a_session_awaits(
    hub: SessionHub, told: list[Observation]
) -> None:
    """A client that takes nothing, too; the first reason counts."""
    with hub.session(ALICE, 2000) as session:
        asyncio.get_running_loop().call_soon(session.close, CloseCode.TOO_SLOW)
        async with session.until_closed():
            await asyncio.Event().wait()
        session.close(CloseCode.GOING_AWAY)
        hub.deliver(event(1))
        assert (CloseCode.TOO_SLOW, 0) == (session.close_code, len(session))
    assert SessionEnded(CloseCode.TOO_SLOW) in told


async def test_a_time_out_of_its_own_is_not_taken_for_the_end(hub: SessionHub) -> None:
    """It goes to whoever has set it."""
    with hub.session(ALICE, 2000) as session:
        with pytest.raises(TimeoutError):
            async with session.until_closed():
                raise TimeoutError
        assert session.close_code is None


async def test_the_hub_stops_when_all_have_gone(hub: SessionHub) -> None:
    """It sends them away, waits for them, and takes nobody any more."""
    left = asyncio.Event()

    async def serve() -> None:
        with hub.session(ALICE, 2000) as session:
            async with session.until_closed():
                await session.take()
            assert session.close_code == CloseCode.GOING_AWAY
        left.set()

    async with asyncio.TaskGroup() as tasks:
        async with Runner(lambda _: None).running(hub):
            tasks.create_task(serve())
            await until(lambda: len(hub))
        assert left.is_set()
    with pytest.raises(Overloaded), hub.session(ALICE, 2000):
        pass


async def test_the_hub_stops_in_time_although_somebody_stays(
    hub: SessionHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process must be able to end."""
    monkeypatch.setattr("stretto.events.hub.STOP_SECONDS", 0.01)
    with hub.session(ALICE, 2000):
        async with Runner(lambda _: None).running(hub):
            pass
        assert len(hub) == 1
