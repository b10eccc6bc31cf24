"""Which checks are answered in which turn of the event loop, and what all that wait share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from stretto.http.front.health_checks import CHECKS_SENT_PER_TURN, HealthChecks
from stretto.runtime.shared import Shared
from stretto.store_errors import Unreachable
from stretto.telemetry.request_context import CURRENT_REQUEST, RequestContext
from support.waiting import until

if TYPE_CHECKING:
    from stretto.http.service import Service

LIVE, READY = "/livez", "/readyz"


class Database:
    """What is asked whether it is there."""

    def __init__(self) -> None:
        self.asked_by: list[RequestContext | None] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def ping(self) -> None:
        self.asked_by.append(CURRENT_REQUEST.get())
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error


class World:
    """Health checks of a service, and the order of their answers."""

    def __init__(self) -> None:
        self.database = Database()
        self.service = SimpleNamespace(
            draining=asyncio.Event(),
            creator=SimpleNamespace(is_stopping=False),
            runner=SimpleNamespace(down=[], up={}),
            authenticator=SimpleNamespace(has_keys=lambda: True),
            reads=self.database,
            database_asked=Shared(),
        )
        self.checks = HealthChecks(cast("Service", self.service))
        self.statuses: list[int] = []
        self.order: list[Client] = []

    def ask(self, path: str, count: int) -> list[Client]:
        """Have so many clients ask."""
        clients = [Client(self) for _ in range(count)]
        for client in clients:
            self.checks.ask(client, path, client.context)
        return clients

    async def answered(self, count: int) -> list[int]:
        """Wait for so many answers in all."""
        await until(lambda: len(self.statuses) >= count)
        return self.statuses


class Client:
    """A connection that has asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.context = RequestContext()

    def send_check(self, status: int, answer: bytes) -> None:
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert CURRENT_REQUEST.get() is None
        self.world.statuses.append(status)
        self.world.order.append(self)


@pytest.fixture
async def world() -> World:
    """A service that is ready once its database answers."""
    return World()


async def test_so_many_checks_are_answered_in_a_turn_the_first_ones_first(world: World) -> None:
    """Other work of the loop has its turn in between."""
    clients = world.ask(LIVE, 2 * CHECKS_SENT_PER_TURN + 1)
    counts = []
    for _ in range(3):
        await asyncio.sleep(0)
        counts.append(len(world.order))
    assert [CHECKS_SENT_PER_TURN, 2 * CHECKS_SENT_PER_TURN, len(clients)] == counts
    assert clients == world.order


async def test_one_question_to_the_database_is_for_all_that_have_asked_before(
    world: World,
) -> None:
    """In however many turns of the loop; the question names the first of them in the log."""
    first = world.ask(READY, 3)
    await until(lambda: world.database.asked_by)
    behind = []
    for _ in range(3):
        behind += world.ask(READY, 2)
        await asyncio.sleep(0)
    assert [first[0].context] == world.database.asked_by
    assert 2 == len(world.checks._askings)
    world.database.may_answer.set()
    assert [200] * 9 == await world.answered(9)
    assert [first[0].context, behind[0].context] == world.database.asked_by
    assert first + behind == world.order
    assert not world.checks._askings


async def test_a_check_that_needs_no_database_waits_for_none(world: World) -> None:
    """While the database is silent, `/livez` is answered, and a service that drains says so."""
    world.ask(READY, 1)
    await until(lambda: world.database.asked_by)
    world.ask(LIVE, 1)
    assert [200] == await world.answered(1)
    world.service.draining.set()
    world.ask(READY, 1)
    assert [200, 503] == await world.answered(2)
    assert 1 == len(world.database.asked_by)


@pytest.mark.parametrize(
    ("error", "status"), [(Unreachable("x"), 503), (RuntimeError("ours"), 500)], ids=["away", "bug"]
)
async def test_an_error_is_the_answer_of_all_that_have_waited(
    error: Exception, status: int, world: World
) -> None:
    """It is logged once."""
    world.database.error = error
    world.database.may_answer.set()
    world.ask(READY, 3)
    assert [status] * 3 == await world.answered(3)


async def test_who_waits_for_a_task_that_a_host_cancels_is_answered(world: World) -> None:
    """As at the end of `asyncio.run`."""
    world.ask(READY, 2)
    await until(lambda: world.database.asked_by)
    (asked,) = world.checks._askings
    asked.cancel()
    assert [503, 503] == await world.answered(2)


async def test_a_client_that_is_gone_is_forgotten_wherever_it_waits(world: World) -> None:
    """For its turn, for the next question, or for the answer to one."""
    (waiting, gone) = world.ask(READY, 2)
    await until(lambda: world.database.asked_by)
    new, due = world.ask(READY, 1), world.ask(LIVE, 1)
    for client in (gone, *new, *due):
        world.checks.forget(client)
    world.database.may_answer.set()
    assert [200] == await world.answered(1)
    assert [waiting] == world.order
    await until(lambda: not world.checks._askings)
    assert not world.checks._due
