from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.actors.sender import WebhookSender
from stretto.protocol.ports import ActorCrashed, Unreachable, UpkeepTrouble, WebhookTried
from stretto.protocol.webhooks import Answered, Delivery

if TYPE_CHECKING:
    from collections.abc import Collection

    from stretto.protocol.ports import Event
    from stretto.protocol.webhooks import Answer, PutOff

ONE = Delivery(UUID(int=1), b"{}", 0, 3.0)
DEADLINE_SECONDS = 10


class ScriptedStore:
    """A store with one delivery, whose statements fail as the test says."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.due = [ONE]
        self.sent: list[UUID] = []
        self.others: list[PutOff] = []
        self.settled = asyncio.Event()

    def _fail(self, name: str) -> None:
        if error := self.errors.pop(name, None):
            raise error

    async def open(self) -> None:
        raise AssertionError

    async def enrol(self, events_max: int) -> int:
        return 0

    async def take(self, deliveries_max: int, lease_seconds: float) -> list[Delivery]:
        self._fail("take")
        taken, self.due = self.due, []
        return taken

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> None:
        self._fail("settle")
        self.sent += sent
        self.others += put_off
        self.settled.set()

    async def pause(self, seconds: float) -> None:
        raise AssertionError

    async def disable(self) -> bool:
        raise AssertionError


class ScriptedEndpoint:
    """Answers, or fails as an endpoint must not."""

    def __init__(self, answer: Answer | Exception) -> None:
        self.answer = answer

    async def send(self, event_id: UUID, body: bytes) -> Answer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("expected", "name", "error"),
    [
        (UpkeepTrouble, "take", Unreachable()),
        (ActorCrashed, "take", ZeroDivisionError()),
        (UpkeepTrouble, "settle", Unreachable()),
        (ActorCrashed, "settle", ZeroDivisionError()),
    ],
)
async def test_no_error_of_the_store_ends_the_sending(
    expected: type[Event], name: str, error: Exception
) -> None:
    """It is told, and what was answered is settled at a later turn, and counted once."""
    store, told = ScriptedStore(**{name: error}), list["Event"]()
    sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), told.append)
    running = asyncio.create_task(sender.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.settled.wait()
        sender.stop()
        await running
    assert [ONE.event_id] == store.sent
    assert [expected, WebhookTried] == [type(event) for event in told]


async def test_a_fault_in_the_sending_fails_the_delivery_alone() -> None:
    """It is told, and counts as a try: it must not come again and again."""
    store, told = ScriptedStore(), list["Event"]()
    sender = WebhookSender(store, ScriptedEndpoint(ZeroDivisionError()), told.append)
    await sender.run_once()
    assert 3.0 == sender.lag_seconds
    await sender.answered()
    await sender.run_once()
    assert 0.0 == sender.lag_seconds
    (put,) = store.others
    assert (ONE.event_id, True) == (put.event_id, put.is_try)
    assert [ActorCrashed, WebhookTried] == [type(event) for event in told]


async def test_an_error_while_stopping_is_no_error() -> None:
    """The leases end by themselves."""
    store = ScriptedStore(settle=Unreachable())
    sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), lambda _: None)
    await sender.run_once()
    sender.stop()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await sender.run()
    assert [] == store.sent
