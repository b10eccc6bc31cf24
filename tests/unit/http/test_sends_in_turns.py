"""Sends of sessions over HTTP: few in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from aiohttp import web

from stretto.domain import UserId
from stretto.events.hub import SessionHub
from stretto.events.log import CommittedEvent, LoggedEvent
from stretto.events.outgoing import OutgoingEvent
from stretto.events.session import SENDS_AT_ONCE
from stretto.events.session_turns import SENDS_PER_TURN
from stretto.events.settings import HubSettings
from stretto.http.few_frames import QuietWebSocket
from stretto.http.routes.events import (
    READ_BYTES_PER_SECOND,
    READ_ON_SECONDS,
    _read_on_seconds,
    _serve,
)
from support.log_events import HISTORY, deliver, logged, place
from support.loop_turns import counted_turns
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.events.catch_up import CatchUp
    from stretto.events.session import Session

SESSIONS, EVENTS = 40, 50


class Stream:
    """A stream whose client reads everything at once."""

    silence_seconds = 60.0

    def __init__(self, sends: list[int], turn: Callable[[], int]) -> None:
        self._sends, self._turn = sends, turn

    async def send_position(self, position: str) -> None: ...

    async def send(self, outgoing: OutgoingEvent) -> None:
        self._sends.append(self._turn())


class Missed:
    """A catch-up of one page."""

    position = "position"
    is_resumption = True

    def __init__(self, session: Session, events: int) -> None:
        self._session = session
        self._pages = [[OutgoingEvent(logged(n), "") for n in range(1, events + 1)]]

    async def next(self) -> list[OutgoingEvent] | None:
        if self._pages:
            return self._pages.pop()
        assert self._session.go_live(place(0))
        return None


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_turn_of_the_loop_has_few_sends(is_live: bool) -> None:
    """Of many events to many sessions, live ones and missed ones."""
    hub = SessionHub(HubSettings(), lambda _: None)
    sends: list[int] = []
    with ExitStack() as stack, counted_turns() as turn:
        tasks: list[asyncio.Task[None]] = []
        for number in range(SESSIONS):
            session = stack.enter_context(hub.session(UserId(f"user-{number}"), 1e12))
            missed = cast("CatchUp", Missed(session, 0 if is_live else EVENTS))
            stream = cast("Any", Stream(sends, turn))
            tasks.append(asyncio.create_task(_serve(stream, session, missed, hub)))
        await asyncio.sleep(0)
        if is_live:
            users = [f"user-{number}" for number in range(SESSIONS)]
            for number in range(1, EVENTS + 1):
                deliver(hub, logged(number, *users))
        await until(lambda: len(sends) == SESSIONS * EVENTS)
        hub.stop()
        await asyncio.gather(*tasks)
    most = max(Counter(sends).values())
    assert most <= 2 * (SENDS_PER_TURN + SENDS_AT_ONCE)


def test_a_large_event_may_take_its_time() -> None:
    """It comes over a slow link as well, which would else have it begun again and again."""
    large = CommittedEvent(UUID(int=1), ("alice",), b"x" * READ_BYTES_PER_SECOND * 30)
    outgoing = OutgoingEvent(LoggedEvent(large, HISTORY, 1), "")
    assert READ_ON_SECONDS + 30 == _read_on_seconds(outgoing)
    assert READ_ON_SECONDS + 1 > _read_on_seconds(OutgoingEvent(logged(1), ""))


async def test_pings_are_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aiohttp rounds their time to a second: those of many sessions are due at once."""
    pings: list[int] = []
    waiting: list[Callable[[], int]] = []
    monkeypatch.setattr(web.WebSocketResponse, "_send_heartbeat", lambda _: pings.append(1))
    response = QuietWebSocket()
    response.in_turn = waiting.append
    response._send_heartbeat()
    assert [] == pings
    assert (1, [1]) == (waiting[0](), pings)
    monkeypatch.setattr(response, "_closed", True)
    assert (0, [1]) == (waiting[0](), pings)
