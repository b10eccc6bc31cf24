"""A replica that was cut off gets what it has missed in one rush; its sessions must live through it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from nats.aio.msg import Msg

from stretto.domain import UserId
from stretto.events.close_codes import CloseCode
from stretto.events.event import TURN_EVENTS, CommittedEvent
from stretto.events.hub import HubSettings, SessionHub
from stretto.events.positions import Origin, Position
from stretto.nats import receiver
from stretto.nats.receiver import Receiver

if TYPE_CHECKING:
    from stretto.events.session import Session

ALICE = UserId("alice")
EVENTS = 1024


def message(number: int) -> Msg:
    """Return a message of the stream as its consumer pushes it."""
    client: Any = None
    return Msg(client, "stretto.events", f"$JS.ACK.stream.consumer.1.{number}.{number}.1.0", b"{}")


@pytest.mark.parametrize(
    ("expected", "turn_events"), [(None, TURN_EVENTS), (CloseCode.TOO_SLOW, 10**9)]
)
async def test_a_rush_finds_nobody_too_slow_that_reads(
    expected: CloseCode | None, turn_events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client hands over what it has without a pause; without ours, queues would overflow."""
    monkeypatch.setattr(receiver, "TURN_EVENTS", turn_events)
    hub = SessionHub(Origin("0a1b2c3d"), HubSettings(), lambda _: None)
    heard: list[int] = []

    def take(_: Msg, number: int) -> None:
        hub.deliver(CommittedEvent(UUID(int=number), (ALICE,), b"{}", Position(number)))

    async def serve(session: Session) -> None:
        async with session.until_closed():
            while True:
                heard.extend(each.event_id.int for each in await session.take())

    link: Any = None
    one = Receiver(link, "stream", 1, take)
    with hub.session(ALICE, math.inf) as session:
        session.go_live()
        serving = asyncio.create_task(serve(session))
        for number in range(1, EVENTS + 1):
            await one._on_message(message(number))
        assert expected == session.close_code
        session.close(CloseCode.CLIENT_LEFT)
        await serving
    assert expected or list(range(1, EVENTS + 1)) == heard
