"""The cause of a statement without an answer, where commits wait for a synchronous standby."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import asyncpg
import pytest

from stretto.creation.flight import public_error
from stretto.observations import Observation, StandbyAwaited, StandbyReached
from stretto.postgres import standby
from stretto.postgres.standby import (
    DETAIL,
    LATE_SECONDS,
    LOOK_SECONDS,
    StandbyWatch,
    waits_for_standby,
)
from stretto.store_errors import OutcomeUnknown, StoreError, Unreachable
from support.clock import Clock
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.postgres.driver_connection import Connection

DEADLINE_SECONDS = 30
NO_SECONDS = 0
# What the server says of a commit that waits: its statement has run for long, or it does not track that.
LONG, UNTRACKED = True, False


class Server:
    """Says whether a commit waits; may be gone, or frozen."""

    def __init__(self) -> None:
        self.is_waiting = True
        self.is_tracked = True
        self.error: StoreError | None = None
        self.is_frozen = False
        self.thawed = asyncio.Event()
        self.asked = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        self.asked += 1
        if self.error:
            raise self.error
        if self.is_frozen:
            await self.thawed.wait()
        yield cast("Connection", self)

    async def fetch(self, _: str) -> list[tuple[str, bool]]:
        return [("7", self.is_tracked)] if self.is_waiting else []


class World:
    """A watch, its server and clock, and what was observed."""

    def __init__(self) -> None:
        self.server = Server()
        self.clock = Clock()
        self.observed: list[Observation] = []
        self.doubted: list[object] = []
        self.watch = StandbyWatch(
            self.server.connection, self.observed.append, self.doubted.append, self.clock
        )

    async def explained(self, error: StoreError, seconds: float) -> StoreError:
        """Have a statement begin now, and end so much later with the error."""
        began = self.clock.now
        self.clock.now += seconds
        return await self.watch.explained(error, began)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks at the server without a pause between them."""
    monkeypatch.setattr(standby, "WAIT_SECONDS", NO_SECONDS)


@pytest.mark.parametrize(
    ("expected", "looks", "paused"),
    [
        (True, [{1: LONG, 2: LONG}, {2: LONG, 3: LONG}], [NO_SECONDS]),
        # Each commit waits for a standby that is there, and goes on.
        (False, [{1: LONG, 2: LONG}, {3: LONG}], [NO_SECONDS]),
        (False, [{1: LONG}, {}], [NO_SECONDS]),
        (False, [{}], []),
        # Where it is not known for how long a statement has run, it is seen to run for so long.
        (True, [{1: UNTRACKED}, {1: UNTRACKED}], [LATE_SECONDS]),
        (False, [{1: UNTRACKED}, {2: UNTRACKED}], [LATE_SECONDS]),
        # The pause was too short for those.
        (False, [{1: LONG, 2: UNTRACKED}, {2: UNTRACKED}], [NO_SECONDS]),
        (True, [{1: LONG, 2: UNTRACKED}, {1: LONG}], [NO_SECONDS]),
    ],
)
async def test_a_commit_that_has_only_begun_to_wait_says_nothing(
    expected: bool, looks: list[dict[int, bool]], paused: list[float]
) -> None:
    """Its statement may have run for long; the same commit still waits a moment later, or does not."""
    pauses: list[float] = []

    class Looked:
        async def fetch(self, _: str) -> list[tuple[int, bool]]:
            return [*looks.pop(0).items()]

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    assert expected == await waits_for_standby(cast("Connection", Looked()), pause)
    assert [] == looks
    assert paused == pauses


async def test_the_server_has_its_time_to_answer_on_top_of_the_longer_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it does not track since when statements run, that pause alone takes longer than its time."""
    monkeypatch.setattr(standby, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(standby, "LATE_SECONDS", 0.0)
    # So the pause is a minute longer than the short one, and over at once.
    monkeypatch.setattr(standby, "WAIT_SECONDS", -60.0)
    world = World()
    world.server.is_tracked = False
    explained = await world.explained(Unreachable(""), 6.0)
    assert StandbyAwaited.cause == str(explained)


@pytest.mark.parametrize("kind", [Unreachable, OutcomeUnknown])
async def test_the_error_and_the_answer_name_the_standby(kind: type[StoreError]) -> None:
    """What is known of the write stays the same; clients learn that reads are answered."""
    world = World()
    explained = await world.explained(kind("the connection broke"), 5.0)
    assert (kind, StandbyAwaited.cause) == (type(explained), str(explained))
    answer = public_error(explained)
    assert ("database_unavailable", DETAIL) == (answer.code, answer.detail)
    assert "The database did not answer" in public_error(kind("the connection broke")).detail


async def test_the_wait_is_reported_once_and_its_end_with_its_length() -> None:
    """From the statement that met it first to the first commit; the next wait is another one."""
    world = World()
    world.watch.note_commit()
    for _ in range(3):
        await world.explained(Unreachable(""), 6.0)
    world.watch.note_commit()
    world.watch.note_commit()
    assert [StandbyAwaited(), StandbyReached(18.0)] == world.observed
    await world.explained(Unreachable(""), 6.0)
    assert [StandbyAwaited()] == world.observed[2:]


async def test_no_more_is_written_while_a_commit_is_known_to_wait() -> None:
    """The server is asked once a second; where it does not say it, a write finds out."""
    world = World()
    await world.watch.require_reached()
    assert 0 == world.server.asked
    await world.explained(Unreachable(""), 6.0)
    assert 1 == world.server.asked
    for _ in range(3):
        with pytest.raises(Unreachable, match=StandbyAwaited.cause) as refused:
            await world.watch.require_reached()
        assert DETAIL == refused.value.detail
    assert 1 == world.server.asked
    world.clock.now += LOOK_SECONDS
    world.server.error = Unreachable("no connection is free")
    await world.watch.require_reached()
    world.clock.now += LOOK_SECONDS
    world.server.error = None
    with pytest.raises(Unreachable, match=StandbyAwaited.cause):
        await world.watch.require_reached()
    world.clock.now += LOOK_SECONDS
    world.server.is_waiting = False
    for _ in range(2):
        await world.watch.require_reached()
    assert 4 == world.server.asked
    # Not known yet: the next one may wait again.
    assert [StandbyAwaited()] == world.observed
    world.watch.note_commit()
    world.clock.now += LOOK_SECONDS
    await world.watch.require_reached()
    assert 4 == world.server.asked


async def test_while_a_commit_waits_the_server_may_take_longer_to_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that is far away. Else each next write would wait as well, and keep a process of the server's."""
    world = World()
    await world.explained(Unreachable(""), 6.0)
    monkeypatch.setattr(standby, "ASK_SECONDS", 0.0)
    world.clock.now += LOOK_SECONDS
    world.server.is_frozen = True
    writing = asyncio.create_task(world.watch.require_reached())
    await until(lambda: 2 == world.server.asked)
    world.server.thawed.set()
    with pytest.raises(Unreachable, match=StandbyAwaited.cause):
        await writing


async def test_a_server_whose_commits_wait_is_asked_over_a_new_connection_the_next_time() -> None:
    """Its standby may have replaced it. The twin is a server whose commits go through."""
    world = World()
    world.server.is_waiting = False
    await world.explained(Unreachable(""), 6.0)
    assert [] == world.doubted
    world.server.is_waiting = True
    await world.explained(Unreachable(""), 6.0)
    world.clock.now += LOOK_SECONDS
    with pytest.raises(Unreachable):
        await world.watch.require_reached()
    assert [world.server] * 2 == world.doubted


async def test_a_read_whose_wait_was_cancelled_names_the_standby_without_a_question() -> None:
    """The server has said that it waited. Twin: so has a commit that somebody cancels at once."""
    world = World()
    unsure = asyncpg.TransactionResolutionUnknownError("cancelling the wait")
    error = Unreachable("")
    began = world.clock.now
    assert error is await world.watch.explained(error, began, unsure)
    world.clock.now += 5.0
    assert [] == world.doubted
    explained = await world.watch.explained(error, began, unsure)
    assert (StandbyAwaited.cause, 0) == (str(explained), world.server.asked)
    assert [None] == world.doubted


async def test_another_cause_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the server does not say it: one that is gone, or frozen, is asked for a moment."""
    monkeypatch.setattr(standby, "ASK_SECONDS", 0.01)
    world = World()
    error = Unreachable("the connection broke")
    assert error is await world.explained(error, LATE_SECONDS / 2)
    assert 0 == world.server.asked
    world.server.is_waiting = False
    assert error is await world.explained(error, 5.0)
    world.server.is_frozen = True
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert error is await world.explained(error, 5.0)
    world.server.error = Unreachable("connection refused")
    assert error is await world.explained(error, 5.0)
    assert [] == world.observed
