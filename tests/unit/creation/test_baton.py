"""One writer at a time takes what is queued; another where the first waits for the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from stretto.creation import baton as baton_module
from stretto.creation.baton import IDLE_SHARE, WINDOW_SECONDS, Baton
from stretto.creation.ports import Write, WriteResult
from stretto.domain import NewGroup, UserId
from stretto.errors import Overloaded
from stretto.runtime.mailbox import Mailbox
from support.waiting import until

if TYPE_CHECKING:
    from stretto.creation.ports import WriteRequest

# A baton that is not passed on must not hang the suite.
DEADLINE_SECONDS = 20
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team"})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take as long for a turn as a batch may take; tests of that time set it."""
    monkeypatch.setattr(baton_module, "BATCH_SECONDS_MAX", 600)


class World:
    """Two writers at one baton, and the clocks: a window has passed whenever one is taken."""

    def __init__(self, *, busy_share: float) -> None:
        self.mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
        self.busy_share = busy_share
        self._seconds = self._busy_seconds = 0.0
        self.baton = Baton(self.mailbox, lambda: self._busy_seconds, lambda: self._seconds)

    def advance(self, seconds: float = WINDOW_SECONDS) -> None:
        """Have time pass, a share of which the loop has work."""
        self._seconds += seconds
        self._busy_seconds += self.busy_share * seconds

    def ask(self, number: int) -> None:
        """Queue a write."""
        self.mailbox.ask(Write(UUID(int=number), uuid4(), uuid4(), TEAM, b"f" * 16, False))

    def taking(self, writer: str) -> asyncio.Task[list[int]]:
        """Have a writer take what is queued, a window after the last one."""
        self.advance()
        return asyncio.create_task(self._take(writer))

    async def _take(self, writer: str) -> list[int]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            batch: list[WriteRequest] = await self.baton.take(writer, 10, lambda _: 0, 0)
        return [request.message.group_id.int for request in batch]


async def test_the_holder_takes_batch_after_batch() -> None:
    """Also when another waits: nothing is handed over while the loop works."""
    world = World(busy_share=1)
    world.ask(1)
    assert [1] == await world.taking("first")
    second = world.taking("second")
    for number in (2, 3):
        world.ask(number)
        await asyncio.sleep(0)
        world.baton.rest("first")
        assert [number] == await world.taking("first")
    assert not second.done()
    second.cancel()


async def test_what_arrives_meanwhile_is_left_to_the_holder() -> None:
    """It would be split into batches of one."""
    world = World(busy_share=1)
    world.ask(1)
    assert [1] == await world.taking("first")
    second = world.taking("second")
    for number in (2, 3):
        world.ask(number)
    await asyncio.sleep(0)
    assert not second.done()
    world.baton.rest("first")
    assert [2, 3] == await world.taking("first")
    second.cancel()


async def test_a_process_that_idles_although_requests_wait_has_another_writer_take_them() -> None:
    """The database is far away, or its disk is slow."""
    world = World(busy_share=0)
    world.ask(1)
    assert [1] == await world.taking("first")
    second = world.taking("second")
    world.ask(2)
    assert [2] == await second
    # The first one's batch is written: the baton is the other's.
    world.baton.rest("first")
    first = world.taking("first")
    await asyncio.sleep(0)
    assert not first.done()
    world.ask(3)
    assert [3] == await first


async def test_a_batch_that_hangs_keeps_no_other_waiting_however_busy_the_loop_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock or a frozen server; other requests keep the loop at work."""
    monkeypatch.setattr(baton_module, "BATCH_SECONDS_MAX", 0.1)
    world = World(busy_share=1)
    loop = asyncio.get_running_loop()
    # The batch's time counts from when it is taken.
    began = loop.time()
    world.ask(1)
    assert [1] == await world.taking("first")
    second = world.taking("second")
    world.ask(2)
    assert [2] == await second
    assert 0.1 <= loop.time() - began


@pytest.mark.parametrize(
    ("idle_share", "hands_over"), [(IDLE_SHARE + 0.01, True), (IDLE_SHARE - 0.01, False)]
)
async def test_the_share_of_idle_time_decides(idle_share: float, hands_over: bool) -> None:
    """As measured: below it one writer creates more than two, above it two create more."""
    world = World(busy_share=1 - idle_share)
    world.ask(1)
    assert [1] == await world.taking("first")
    second = world.taking("second")
    world.ask(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert second.done() is hands_over
    second.cancel()


async def test_only_the_last_window_counts() -> None:
    """A process that was idle all night is busy in the morning."""
    world = World(busy_share=0)
    world.advance(3600)
    world.ask(1)
    assert [1] == await world.taking("first")
    world.busy_share = 1
    world.ask(2)
    assert [2] == await world.taking("second")
    first = world.taking("first")
    world.ask(3)
    await asyncio.sleep(0)
    assert not first.done()
    first.cancel()


async def test_a_holder_that_rests_keeps_the_baton(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for requests, not for the database."""
    monkeypatch.setattr(baton_module, "BATCH_SECONDS_MAX", 0.5)
    world = World(busy_share=1)
    world.ask(1)
    assert [1] == await world.taking("first")
    world.baton.rest("first")
    second = world.taking("second")
    await asyncio.sleep(1.0)
    world.ask(2)
    await asyncio.sleep(0)
    assert not second.done()
    second.cancel()


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_writer_that_leaves_while_it_waits_keeps_nothing(is_granted: bool) -> None:
    """Whether it was its turn already or not: the next one has it."""
    world = World(busy_share=1)
    world.ask(1)
    assert [1] == await world.taking("first")
    leaving, second = world.taking("leaving"), world.taking("second")
    await asyncio.sleep(0)
    if is_granted:
        world.baton.pass_on("first")
    leaving.cancel()
    await asyncio.wait([leaving])
    world.baton.pass_on("leaving" if is_granted else "first")
    world.ask(2)
    assert [2] == await second


async def test_passing_on_what_one_has_not_is_nothing() -> None:
    """A writer that stops gives back what it has."""
    world = World(busy_share=1)
    world.ask(1)
    assert [1] == await world.taking("first")
    world.baton.pass_on("second")
    second = world.taking("second")
    world.ask(2)
    world.baton.rest("first")
    assert [2] == await world.taking("first")
    world.baton.pass_on("first")
    world.ask(3)
    assert [3] == await second
    await until(second.done)


async def test_the_last_writer_that_leaves_closes_the_mailbox() -> None:
    """Writes would wait in vain; while another writer is left, it takes them."""
    world = World(busy_share=1)
    for writer in ("first", "second"):
        world.baton.join(writer)
    world.baton.leave("first")
    world.ask(1)
    assert [1] == await world.taking("second")
    world.ask(2)
    world.baton.leave("second")
    world.baton.leave("second")
    assert 0 == len(world.mailbox)
    with pytest.raises(Overloaded):
        world.ask(3)
