"""The hub and its sessions, without any I/O."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from stretto.domain import UserId
from stretto.errors import Overloaded, RateLimited
from stretto.events.close_codes import CloseCode
from stretto.events.hub import SESSION_SECONDS_MAX, SessionHub
from stretto.events.settings import HubSettings
from stretto.observations import EventDelivered, SessionEnded, SessionFellBehind
from stretto.runtime.runner import Runner
from stretto.store_errors import Unreachable
from support.clock import Clock
from support.log_events import deliver, logged, numbers, place
from support.waiting import until

if TYPE_CHECKING:
    from stretto.events.outgoing import OutgoingEvent
    from stretto.observations import Observation

ALICE, BOB = UserId("alice"), UserId("bob")
EVENTS_MAX = 3


def test_sessions_that_have_missed_events_are_sent_to_resume(observed: list[Observation]) -> None:
    """All that are there; the hub goes on, and those that come back are sent again."""
    hub = SessionHub(HubSettings(), observed.append)
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
def observed() -> list[Observation]:
    """What the hub has reported to its observer."""
    return []


@pytest.fixture
def hub(clock: Clock, observed: list[Observation]) -> SessionHub:
    """A hub whose sessions are soon too slow."""
    settings = HubSettings(sessions_max=4, sessions_per_user=2, session_events_max=EVENTS_MAX)
    return SessionHub(settings, observed.append, clock)


async def test_an_event_is_sent_to_every_session_of_its_recipients(
    hub: SessionHub, observed: list[Observation]
) -> None:
    """And counted once for each."""
    with (
        hub.session(ALICE, 2000) as first,
        hub.session(ALICE, 2000) as second,
        hub.session(BOB, 2000) as third,
    ):
        deliver(hub, logged(1, ALICE, "nobody"))
        deliver(hub, logged(2, ALICE, BOB))
        assert [1, 2] == numbers(await first.take()) == numbers(await second.take())
        assert [2] == numbers(await third.take())
    assert [EventDelivered(2), EventDelivered(3)] == observed[:2]
    assert len(hub) == 0


async def test_an_event_is_encoded_once_for_each_way(hub: SessionHub) -> None:
    """However many sessions it goes to."""
    encoded = []

    def encode(outgoing: OutgoingEvent) -> bytes:
        encoded.append(outgoing.position)
        return b"text"

    with hub.session(ALICE, 2000) as first, hub.session(ALICE, 2000) as second:
        deliver(hub, logged(7))
        for session in (first, second):
            (outgoing,) = await session.take()
            assert outgoing.encoded(encode) == b"text"
    assert encoded == ["8.1-0a1b2c3d"]


async def test_a_session_whose_queue_is_full_falls_behind_and_others_go_on(
    hub: SessionHub, observed: list[Observation]
) -> None:
    """Its queue is dropped; nothing has waited for it."""
    with hub.session(ALICE, 2000) as slow, hub.session(ALICE, 2000) as quick:
        assert slow.go_live(place(0))
        assert quick.go_live(place(0))
        for number in range(EVENTS_MAX):
            deliver(hub, logged(number))
        assert ([0, 1, 2], False) == (numbers(await quick.take()), slow.is_behind)
        deliver(hub, logged(EVENTS_MAX))
        assert (True, 1) == (slow.is_behind, len(slow))
        assert [EVENTS_MAX] == numbers(await quick.take())
        assert not quick.is_behind
        hub.fall_back(slow)
        assert (SessionFellBehind(), False) == (observed[-1], slow.is_behind)


@pytest.mark.parametrize(
    ("code", "waiting", "events_max"),
    [(CloseCode.TOO_SLOW, 0, EVENTS_MAX), (None, 5000, 10**9)],
    ids=["bounded", "without the bound"],
)
async def test_a_session_that_never_reads_holds_no_more_than_its_queue(
    observed: list[Observation], code: CloseCode | None, waiting: int, events_max: int
) -> None:
    """Without the bound it would hold all that it was ever to be sent."""
    hub = SessionHub(HubSettings(session_events_max=events_max), observed.append)
    with hub.session(ALICE, math.inf) as mute:
        mute.go_live(place(0))
        deliver(hub, logged(5000))
        # The one that its client does not take.
        assert [5000] == numbers(await mute.take())
        for number in range(5000):
            deliver(hub, logged(number))
            assert len(mute) <= events_max
        assert (code, waiting) == (mute.close_code, len(mute))


async def test_a_session_that_catches_up_forgets_what_its_queue_cannot_hold(
    hub: SessionHub,
) -> None:
    """It goes live once the log was read after that; with the next overflow it is behind."""
    with hub.session(ALICE, 2000) as session:
        for number in range(EVENTS_MAX + 1):
            deliver(hub, logged(number))
        assert (None, 1) == (session.close_code, len(session))
        assert [False, True] == [session.go_live(place(3)), session.go_live(place(4))]
        for number in range(EVENTS_MAX + 1):
            deliver(hub, logged(100 + number))
        assert session.is_behind


async def test_a_session_waits_until_the_log_is_followed(hub: SessionHub) -> None:
    """The first one wakes the tail; who joins a hub that has a place goes on at once."""
    woken: list[str] = []
    hub.on_join = lambda: woken.append("tail")
    with hub.session(ALICE, 2000):
        waiting = [asyncio.create_task(hub.followed()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        hub.move(place(7))
        assert [place(7)] * 2 == await asyncio.gather(*waiting)
        hub.move(place(8))
        with hub.session(BOB, 2000):
            assert place(8) == await hub.followed()
    assert ["tail"] == woken


@pytest.mark.parametrize("is_stopping", [True, False])
async def test_a_log_that_cannot_be_read_is_not_waited_for_without_end(
    hub: SessionHub, monkeypatch: pytest.MonkeyPatch, is_stopping: bool
) -> None:
    """The client gets an error and comes again; a stop ends the wait."""
    monkeypatch.setattr("stretto.events.hub.FOLLOW_SECONDS", 1000 if is_stopping else 0.01)
    with hub.session(ALICE, 2000):
        if is_stopping:
            asyncio.get_running_loop().call_soon(hub.stop)
        with pytest.raises(Overloaded if is_stopping else Unreachable):
            await hub.followed()


async def test_an_event_without_a_session_is_not_counted(
    hub: SessionHub, observed: list[Observation]
) -> None:
    """What is delivered is delivered to a session."""
    deliver(hub, logged(1))
    assert [] == observed


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


async def test_a_session_ends_with_the_key_of_its_token(hub: SessionHub) -> None:
    """And with no other: its user's other sessions go on, and those whose key is not known."""
    with (
        hub.session(ALICE, 2000, "old") as old,
        hub.session(ALICE, 2000, "new") as new,
        hub.session(BOB, 2000) as unknown,
    ):
        hub.withdraw(("older", "old"))
        assert (CloseCode.TOKEN_ENDED, None, None) == (
            old.close_code,
            new.close_code,
            unknown.close_code,
        )


async def test_a_turn_looks_at_the_keys_while_there_are_sessions(hub: SessionHub) -> None:
    """Their tokens do not come again; without sessions there is nothing to end."""
    ticks: list[None] = []
    hub.on_tick = lambda: ticks.append(None)
    await hub.run_once()
    assert not ticks
    with hub.session(ALICE, 2000):
        await hub.run_once()
    assert len(ticks) == 1


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
    hub: SessionHub, observed: list[Observation]
) -> None:
    """A client that takes nothing, too; the first reason counts."""
    with hub.session(ALICE, 2000) as session:
        asyncio.get_running_loop().call_soon(session.close, CloseCode.TOO_SLOW)
        async with session.until_closed():
            await asyncio.Event().wait()
        session.close(CloseCode.GOING_AWAY)
        deliver(hub, logged(1))
        assert (CloseCode.TOO_SLOW, 0) == (session.close_code, len(session))
    assert SessionEnded(CloseCode.TOO_SLOW) in observed


async def test_a_time_out_of_its_own_is_not_taken_for_the_end(hub: SessionHub) -> None:
    """It goes to the callback that was set."""
    with hub.session(ALICE, 2000) as session:
        with pytest.raises(TimeoutError):
            async with session.until_closed():
                raise TimeoutError
        assert session.close_code is None


async def test_the_hub_stops_when_all_have_gone(hub: SessionHub) -> None:
    """It sends them away, waits for them, and accepts no other."""
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


async def test_the_hub_stops_in_time_although_a_session_stays(
    hub: SessionHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process must be able to end."""
    monkeypatch.setattr("stretto.events.hub.STOP_SECONDS", 0.01)
    with hub.session(ALICE, 2000):
        async with Runner(lambda _: None).running(hub):
            pass
        async with asyncio.timeout(20):
            await hub.close()
        assert len(hub) == 1
