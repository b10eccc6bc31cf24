"""Questions that share a statement, with a store of the test's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.errors import InternalError, Overloaded
from stretto.runtime.batch_reader import WAITING_MAX, BatchReader
from stretto.runtime.runner import Run
from stretto.store_errors import ReadCancelled, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_MAX = 4


class Store:
    """Answers a number with its double; tests may have it fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.errors: list[Exception] = []
        self.slow: set[int] = set()

    async def read(self, questions: Sequence[int]) -> list[int]:
        self.batches.append(list(questions))
        if self.errors:
            raise self.errors.pop(0)
        if self.slow & set(questions):
            raise ReadCancelled("QueryCanceledError")
        return [2 * question for question in questions]


class World:
    """A reader, its store, and those who ask."""

    def __init__(self) -> None:
        self.store = Store()
        self.reader = BatchReader(
            "reader of numbers", self.store.read, share_of=lambda _: None, batch_max=BATCH_MAX
        )

    async def ask(self, *questions: int) -> list[asyncio.Task[int]]:
        """Have tasks ask these; return them when all have asked."""
        tasks = [asyncio.create_task(self.reader.ask(question)) for question in questions]
        await asyncio.sleep(0)
        return tasks


@pytest.fixture
def world() -> World:
    """A world of its own."""
    return World()


async def test_a_statement_is_bounded_by_what_its_questions_weigh() -> None:
    """One alone may be heavier."""
    store = Store()
    reader = BatchReader(
        "reader of numbers",
        store.read,
        share_of=lambda _: None,
        batch_max=BATCH_MAX,
        weigh=lambda question: question,
        weight_max=5,
    )
    tasks = [asyncio.create_task(reader.ask(question)) for question in (9, 1, 4, 1, 1)]
    await asyncio.sleep(0)
    assert [1, 2, 2] == [await reader.run_once() for _ in range(3)]
    assert [[9], [1, 4], [1, 1]] == store.batches
    assert [18, 2, 8, 2, 2] == [await task for task in tasks]


async def test_what_has_arrived_shares_a_statement(world: World) -> None:
    """Each gets the answer to its own question, up to a bound."""
    asked = await world.ask(1, 2, 3, 4, 5)
    assert BATCH_MAX == await world.reader.run_once()
    assert 1 == await world.reader.run_once()
    assert [2, 4, 6, 8, 10] == await asyncio.gather(*asked)
    assert [[1, 2, 3, 4], [5]] == world.store.batches


async def test_who_has_left_is_not_read_for(world: World) -> None:
    """A client that hangs up costs nothing any more."""
    left, stayed = await world.ask(1, 2)
    left.cancel()
    await asyncio.sleep(0)
    await world.reader.run_once()
    assert 4 == await stayed
    (gone,) = await world.ask(3)
    gone.cancel()
    await asyncio.sleep(0)
    assert 1 == await world.reader.run_once()
    assert [[2]] == world.store.batches


async def test_more_than_can_wait_are_rejected_at_once(world: World) -> None:
    """With the advice when to come again; those before them are answered."""
    asked = await world.ask(*range(WAITING_MAX))
    with pytest.raises(Overloaded) as rejected:
        await world.reader.ask(WAITING_MAX)
    assert rejected.value.retry_after_seconds == 1
    for _ in range(WAITING_MAX // BATCH_MAX):
        await world.reader.run_once()
    assert [2 * n for n in range(WAITING_MAX)] == await asyncio.gather(*asked)


async def test_a_question_that_takes_too_long_fails_alone(world: World) -> None:
    """The server has cancelled the statement of all: each is read by itself."""
    world.store.slow = {2}
    asked = await world.ask(1, 2, 3)
    assert 3 == await world.reader.run_once()
    one, two, three = await asyncio.gather(*asked, return_exceptions=True)
    assert (2, 6) == (one, three)
    assert isinstance(two, ReadCancelled)
    assert [[1, 2, 3], [1], [2], [3]] == world.store.batches


async def test_where_the_database_is_gone_all_who_wait_are_answered(world: World) -> None:
    """One batch after the other would wait for the same time-out; who comes later is read for again."""
    world.store.errors = [Unreachable("gone")]
    asked = await world.ask(*range(2 * BATCH_MAX))
    await world.reader.run_once()
    failed = await asyncio.gather(*asked, return_exceptions=True)
    assert [Unreachable] * 2 * BATCH_MAX == [type(each) for each in failed]
    assert 1 == len(world.store.batches)
    (later,) = await world.ask(7)
    await world.reader.run_once()
    assert 14 == await later


async def test_a_bug_is_raised_and_fails_its_batch_alone(world: World) -> None:
    """The next batch is read; reporting it is the runner's part."""
    world.store.errors = [KeyError("bug")]
    asked = await world.ask(*range(BATCH_MAX + 1))
    with pytest.raises(KeyError):
        await world.reader.run_once()
    await world.reader.run_once()
    *failed, later = await asyncio.gather(*asked, return_exceptions=True)
    assert [InternalError] * BATCH_MAX == [type(each) for each in failed]
    assert 2 * BATCH_MAX == later


async def test_a_reader_that_stops_leaves_no_request_waiting(world: World) -> None:
    """Neither those in its batch nor those behind it, nor who comes later."""
    asked = await world.ask(*range(BATCH_MAX + 1))
    hanging = asyncio.Event()

    async def hang(_: Sequence[int]) -> list[int]:
        hanging.set()
        await asyncio.Event().wait()
        raise AssertionError

    world.reader._read = hang
    running = asyncio.create_task(Run(world.reader, lambda _: None).turns())
    await hanging.wait()
    world.reader.stop()
    running.cancel()
    failed = await asyncio.gather(*asked, return_exceptions=True)
    assert [Overloaded] * (BATCH_MAX + 1) == [type(each) for each in failed]
    with pytest.raises(Overloaded):
        await world.reader.ask(1)
    await asyncio.gather(running, return_exceptions=True)


async def test_a_reader_that_has_ended_unasked_answers_at_once(world: World) -> None:
    """Its task may be cancelled again and again: it was not stopped, and no turn follows."""
    waiting = asyncio.create_task(world.reader.ask(1))
    await asyncio.sleep(0)
    await world.reader.close()
    for question in (waiting, world.reader.ask(2)):
        with pytest.raises(Overloaded):
            await question
