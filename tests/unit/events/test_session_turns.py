"""How much all sessions of a process do in one turn of the event loop, and in which order."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from stretto.domain import UserId
from stretto.events import session as session_module
from stretto.events import session_turns
from stretto.events.close_codes import CloseCode
from stretto.events.hub import SessionHub
from stretto.events.settings import HubSettings
from support.log_events import deliver, logged, place
from support.loop_turns import counted_turns
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto.events.session import Session

USERS = [UserId(f"user-{number}") for number in range(20)]
SENDS_PER_TURN, ENDS_PER_TURN = 8, 4


class Clients:
    """Sessions whose clients read everything at once."""

    def __init__(self, stack: ExitStack, turn: Callable[[], int]) -> None:
        self.hub = SessionHub(HubSettings(), lambda _: None)
        self.hub.move(place(0))
        self.sent: list[tuple[str, int]] = []
        """To whom an event was sent, and in which turn of the loop."""
        self.numbers: dict[Session, list[int]] = {}
        self.ended: list[int] = []
        self.beats = 0
        self._stack, self._turn = stack, turn
        self._tasks: list[asyncio.Task[None]] = []
        stack.callback(lambda: [task.cancel() for task in self._tasks])

    def join(self, user: UserId, *, is_live: bool = True) -> Session:
        """Begin a session."""
        session = self._stack.enter_context(self.hub.session(user, 1e12))
        self.numbers[session] = []
        if is_live:
            session.go_live(place(0))
            self._tasks.append(asyncio.create_task(self._listen(session)))
        return session

    async def _listen(self, session: Session) -> None:
        async with session.until_closed():
            while True:
                events = await session.take(60)
                self.beats += not events
                for number, outgoing in enumerate(events):
                    if not session.may_send():
                        await session.turn(len(events) - number)
                    self.note(session.user)
                    self.numbers[session].append(outgoing.event.event_id.int)
        self.ended.append(self._turn())

    def note(self, user: str) -> None:
        """Note that an event is sent."""
        self.sent.append((user, self._turn()))

    async def catch_up(self, session: Session, events: int) -> None:
        """Send so many missed events."""
        for number in range(events):
            if not session.may_send():
                await session.turn(events - number)
            self.note(session.user)

    async def all_sent(self, events: int) -> None:
        """Wait until so many events were sent."""
        async with asyncio.timeout(20):
            await until(lambda: len(self.sent) >= events)

    @property
    def most(self) -> int:
        """The most that was sent in one turn of the loop."""
        return max(Counter(turn for _, turn in self.sent).values())


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clients]:
    """No sessions yet; a turn of the loop has few sends."""
    monkeypatch.setattr(session_turns, "SENDS_PER_TURN", SENDS_PER_TURN)
    monkeypatch.setattr(session_turns, "ENDS_PER_TURN", ENDS_PER_TURN)
    monkeypatch.setattr(session_module, "SENDS_AT_ONCE", 2)
    with counted_turns() as turn, ExitStack() as stack:
        yield Clients(stack, turn)


async def settle() -> None:
    """Let tasks begin to wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_event_for_many_sessions_is_sent_to_some_in_each_turn(clients: Clients) -> None:
    """To all of them in the end; what is granted at once and in turns may meet in one turn."""
    for user in USERS:
        for _ in range(4):
            clients.join(user)
    await settle()
    deliver(clients.hub, logged(1, *USERS))
    assert clients.hub.turns.live.is_behind
    await clients.all_sent(80)
    assert clients.most <= 2 * SENDS_PER_TURN
    assert all([1] == numbers for numbers in clients.numbers.values())


async def test_many_events_for_many_sessions_are_sent_in_order_and_in_turns(
    clients: Clients,
) -> None:
    """A session sends few of its own in a turn, however many are queued."""
    for user in USERS:
        clients.join(user)
    await settle()
    for number in range(1, 41):
        deliver(clients.hub, logged(number, *USERS))
    await clients.all_sent(800)
    assert clients.most <= 2 * SENDS_PER_TURN + 2
    assert all([*range(1, 41)] == numbers for numbers in clients.numbers.values())


async def test_users_take_turns(clients: Clients) -> None:
    """One with many sessions delays another's only one by little."""
    for _ in range(16):
        clients.join(USERS[0])
    await settle()
    clients.join(USERS[1])
    await settle()
    deliver(clients.hub, logged(1, USERS[0]))
    deliver(clients.hub, logged(2, USERS[1]))
    await clients.all_sent(17)
    order = [user for user, _ in clients.sent]
    assert order.index(USERS[1]) <= SENDS_PER_TURN + 1


async def test_missed_events_are_sent_in_turns_and_users_take_turns(clients: Clients) -> None:
    """A page of each; one who has missed a single event does not wait for the others' pages."""
    sessions = [clients.join(USERS[0], is_live=False) for _ in range(10)]
    short = clients.join(USERS[1], is_live=False)
    await asyncio.gather(
        *(clients.catch_up(each, 10) for each in sessions), clients.catch_up(short, 1)
    )
    assert 101 == len(clients.sent)
    assert clients.most <= 2 * SENDS_PER_TURN + 2
    order = [user for user, _ in clients.sent]
    assert order.index(USERS[1]) <= 2 * SENDS_PER_TURN


async def test_a_client_that_reads_again_waits_for_another_turn(clients: Clients) -> None:
    """A thousand may do so at once: what their last turn has left is no more theirs."""
    session = clients.join(USERS[0], is_live=False)
    await session.turn(2)
    assert session.may_send()
    await session.turn(2)
    await settle()
    assert not session.may_send()


async def test_what_catches_up_does_not_delay_what_is_live(clients: Clients) -> None:
    """The turns of the two are not the same."""
    sessions = [clients.join(user, is_live=False) for user in USERS]
    clients.join(UserId("live"))
    await settle()
    catching_up = asyncio.gather(*(clients.catch_up(each, 10) for each in sessions))
    await asyncio.sleep(0)
    assert clients.hub.turns.catching_up.is_behind
    deliver(clients.hub, logged(1, "live"))
    await catching_up
    order = [user for user, _ in clients.sent]
    assert order.index("live") <= 4 * SENDS_PER_TURN


async def test_sessions_that_are_closed_at_once_end_in_turns(clients: Clients) -> None:
    """Each has its code at once, and sends nothing from then on."""
    sessions = [clients.join(user) for user in USERS]
    await settle()
    for number in range(1, 5):
        deliver(clients.hub, logged(number, *USERS))
    clients.hub.interrupt()
    assert {CloseCode.EVENTS_MISSED} == {session.close_code for session in sessions}
    async with asyncio.timeout(20):
        await until(lambda: len(clients.ended) == len(USERS))
    assert max(Counter(clients.ended).values()) <= 2 * ENDS_PER_TURN
    assert [] == clients.sent


async def test_a_closed_session_gets_no_heartbeat_and_no_position(clients: Clients) -> None:
    """What was queued for it is gone: a position would pass over that."""
    for user in USERS:
        clients.join(user)
    await settle()
    clients.hub.mark_delivered()
    clients.hub.interrupt()
    for session in clients.numbers:
        session.hurry()
        assert session.position(clients.hub.delivered) is None
    async with asyncio.timeout(20):
        await until(lambda: len(clients.ended) == len(USERS))
    assert 0 == clients.beats


async def test_a_session_that_is_closed_while_it_sends_sends_no_more(clients: Clients) -> None:
    """Also where its end waits for a turn."""
    session = clients.join(USERS[0], is_live=False)
    sent: list[int] = []

    async def serve() -> None:
        async with session.until_closed():
            for number in range(10):
                if not session.may_send():
                    await session.turn(10 - number)
                sent.append(number)
                if number == 2:
                    session.close(CloseCode.TOKEN_ENDED)

    await asyncio.wait_for(serve(), 20)
    assert [0, 1, 2] == sent


async def test_heartbeats_that_are_due_at_once_are_sent_in_turns(clients: Clients) -> None:
    """Sessions that began together are silent for as long together."""
    for user in USERS:
        clients.join(user)
    await settle()
    for session in clients.numbers:
        session.hurry()
    assert clients.hub.turns.live.is_behind
    async with asyncio.timeout(20):
        await until(lambda: clients.beats == len(USERS))
