"""A user with too many sessions: those whose clients have left are found by heartbeats, soon."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from stretto.domain import UserId
from stretto.errors import RateLimited
from stretto.events.hub import HEARTBEATS, SessionHub
from stretto.events.settings import HubSettings
from support.log_events import deliver, logged, numbers
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.session import Session

ALICE, BOB = UserId("alice"), UserId("bob")
PER_USER = 2


class Client:
    """Takes what a session has for it, and counts the times when that is nothing: heartbeats."""

    def __init__(self, session: Session) -> None:
        self.heartbeats = 0
        self.events: list[OutgoingEvent] = []
        self.session = session

    async def stay(self) -> None:
        """Take for as long as the session is there."""
        while True:
            events = await self.session.take()
            self.events += events
            self.heartbeats += not events


@pytest.fixture
def hub() -> SessionHub:
    """A hub in which a user has too many sessions soon."""
    return SessionHub(HubSettings(sessions_per_user=PER_USER), lambda _: None)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What ends all sessions."""
    with ExitStack() as stack:
        yield stack


async def joined(hub: SessionHub, stack: ExitStack, user: UserId) -> list[Client]:
    """Open as many sessions as a user may have, each with a client."""
    clients = [Client(stack.enter_context(hub.session(user, 1e12))) for _ in range(PER_USER)]
    for client in clients:
        task = asyncio.create_task(client.stay(), name="client")
        stack.callback(task.cancel)
    await asyncio.sleep(0)
    return clients


def refuse(hub: SessionHub, user: UserId) -> None:
    """Ask for one session too many."""
    with pytest.raises(RateLimited), hub.session(user, 1e12):
        pass


async def turns(hub: SessionHub, count: int) -> None:
    """Take turns, and let the clients take what they have brought."""
    for _ in range(count):
        await hub.run_once()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_who_asks_for_too_many_has_heartbeats_sent_to_all_of_its_own(
    hub: SessionHub, stack: ExitStack
) -> None:
    """Two of them, whatever else it asks for meanwhile; no other user's clients get any."""
    ours, others = await joined(hub, stack, ALICE), await joined(hub, stack, BOB)
    for _ in range(10):
        refuse(hub, ALICE)
    await turns(hub, HEARTBEATS + 3)
    assert [HEARTBEATS] * PER_USER == [client.heartbeats for client in ours]
    assert [0] * PER_USER == [client.heartbeats for client in others]


async def test_a_heartbeat_costs_no_event(hub: SessionHub, stack: ExitStack) -> None:
    """What comes in the same turn is taken as ever."""
    clients = await joined(hub, stack, ALICE)
    refuse(hub, ALICE)
    deliver(hub, logged(1, ALICE))
    await turns(hub, 1)
    deliver(hub, logged(2, ALICE))
    await until(lambda: all([1, 2] == numbers(client.events) for client in clients))


async def test_a_turn_sends_few_heartbeats(
    hub: SessionHub, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many users have too many sessions: those take turns."""
    monkeypatch.setattr("stretto.events.hub.HEARTBEATS_PER_TURN", 1)
    ours, others = await joined(hub, stack, ALICE), await joined(hub, stack, BOB)
    refuse(hub, ALICE)
    refuse(hub, BOB)
    found = []
    for _ in range(5):
        await turns(hub, 1)
        found.append((ours[0].heartbeats, others[0].heartbeats))
    assert [(1, 0), (1, 1), (2, 1), (2, 2), (2, 2)] == found


async def test_nothing_is_kept_of_a_user_who_has_left(hub: SessionHub) -> None:
    """Neither its name nor a count."""
    with ExitStack() as stack:
        await joined(hub, stack, ALICE)
        refuse(hub, ALICE)
    await turns(hub, 1)
    assert not hub._crowded
