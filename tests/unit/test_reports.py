"""What workers and their supervisor say to each other, over real sockets in one process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from stretto import reports
from stretto.errors import Overloaded
from stretto.observations import ReclaimTried
from stretto.reports import (
    FROZEN_SECONDS,
    PING_SECONDS,
    Supervision,
    WorkersMetrics,
    frozen,
    supervised,
)
from stretto.runtime.channel import Channel
from stretto.runtime.stop import Stop
from stretto.telemetry.metrics import Metrics
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WON = 'stretto_reclaims_total{result="won"}'
PONG = b"\xff\xff\xff\xfe"
PINGS_MAX = int(FROZEN_SECONDS / PING_SECONDS)


class Worker:
    """A worker that has won so many races, and has a session."""

    def __init__(self, supervision: Supervision, stop: Stop, count: int) -> None:
        self.supervision = supervision
        self.stop = stop
        self.metrics = Metrics()
        self.metrics.watch({"stretto_sessions": lambda: 1})
        self.count(count)

    def count(self, count: int) -> None:
        """Win so many more."""
        for _ in range(count):
            self.metrics.observe(ReclaimTried("won"))

    async def scrape(self) -> tuple[float, float, float]:
        """Return what this worker shows: races, sessions, workers."""
        text = (await self.supervision.instance_metrics()).decode()
        rows = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
        series = {name: float(value) for name, _, value in rows}
        return series[WON], series["stretto_sessions"], series["stretto_workers"]

    def hang(self) -> None:
        """Answer no question any more."""
        self.supervision._report = None

    def crash(self) -> None:
        """End without another word."""
        channel = self.supervision.channel
        channel._is_closed = True
        assert channel._transport is not None
        channel._transport.abort()


class Instance:
    """A supervisor and its workers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.supervisor = WorkersMetrics()
        self._stack = stack
        stack.callback(self.supervisor.close)

    async def start(self, count: int, *, joins: bool = True) -> Worker:
        """Start a worker."""
        stop = Stop(drain_seconds=0)
        lifeline = self.supervisor.lifeline()
        stdin, _ = await self._stack.enter_async_context(lifeline)
        joining = supervised(stop, stdin.fileno())
        supervision = await self._stack.enter_async_context(joining)
        stdin.close()
        worker, before = Worker(supervision, stop, count), self.workers
        if joins:
            supervision.join(worker.metrics.report)
            await until(lambda: self.workers > before)
        return worker

    @property
    def workers(self) -> int:
        """How many have reported and not ended."""
        return len(self.supervisor._reporting)


@pytest_asyncio.fixture
async def instance() -> AsyncIterator[Instance]:
    """A supervisor without workers."""
    async with AsyncExitStack() as stack:
        yield Instance(stack)


async def test_any_worker_answers_for_all(instance: Instance) -> None:
    """And for what each has done up to now."""
    first, second = await instance.start(2), await instance.start(3)
    assert (5, 2, 2) == await first.scrape() == await second.scrape()
    first.count(4)
    assert (9, 2, 2) == await second.scrape()


async def test_counters_outlive_the_worker_that_has_shown_them(instance: Instance) -> None:
    """As far as anyone has seen: what a crash takes with it was in no scrape."""
    first, second = await instance.start(2), await instance.start(3)
    first.count(10)
    assert (15, 2, 2) == await second.scrape()
    first.count(1)
    first.crash()
    await until(lambda: instance.workers == 1)
    assert (15, 1, 1) == await second.scrape()
    third = await instance.start(1)
    assert (16, 2, 2) == await third.scrape()


async def test_a_worker_that_ends_in_order_takes_nothing_with_it(instance: Instance) -> None:
    """Its last words are what it has counted since the last scrape."""
    first, second = await instance.start(2), await instance.start(3)
    first.count(10)
    first.supervision.close()
    await until(lambda: instance.workers == 1)
    assert (15, 1, 1) == await second.scrape()
    assert not first.stop.asked.is_set()


async def test_a_worker_that_hangs_keeps_its_counters_and_loses_its_gauges(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It delays a scrape by a bounded time, and is asked once."""
    monkeypatch.setattr(reports, "REPORT_SECONDS", 0.3)
    first, second = await instance.start(2), await instance.start(3)
    first.hang()
    first.count(10)
    async with asyncio.timeout(20):
        assert (5, 1, 1) == await second.scrape()
        assert (5, 1, 1) == await second.scrape()
    first.supervision.join(first.metrics.report)
    assert (15, 2, 2) == await second.scrape()


async def test_a_worker_that_is_starting_is_not_waited_for(instance: Instance) -> None:
    """It could not answer before its service is there."""
    first, starting = await instance.start(2), await instance.start(0, joins=False)
    assert (2, 1, 1) == await first.scrape()
    starting.supervision.join(lambda: b"[]")
    await until(lambda: instance.workers == 2)
    assert (2, 1, 2) == await first.scrape()


async def test_who_asks_during_a_round_gets_the_next_one(instance: Instance) -> None:
    """Its own numbers may not have been in the one that had begun."""
    first, second = await instance.start(2), await instance.start(3)
    scrapes: list[asyncio.Task[tuple[float, float, float]]] = []

    def report() -> bytes:
        if not scrapes:
            scrapes.append(asyncio.create_task(second.scrape()))
            second.supervision._report = second.metrics.report
        return first.metrics.report()

    first.supervision._report = report
    assert (5, 2, 2) == await first.scrape()
    assert [(5, 2, 2)] == await asyncio.gather(*scrapes)


async def test_without_the_supervisors_answer_a_worker_shows_nothing(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own numbers alone would be less than those that were shown before."""
    monkeypatch.setattr(reports, "INSTANCE_SECONDS", 0.05)
    worker = await instance.start(2)
    monkeypatch.setattr(instance.supervisor, "_answer", asyncio.Event().wait)
    with pytest.raises(Overloaded):
        await worker.scrape()
    instance.supervisor.close()


async def test_a_supervisor_shows_what_it_uses_and_whom_it_has_lost(instance: Instance) -> None:
    """It is a process of the instance, too."""
    worker = await instance.start(0)
    instance.supervisor.died = 3
    alone = worker.metrics.exposition().decode()
    text = (await worker.supervision.instance_metrics()).decode()
    assert "stretto_workers_died_total 3.0" in text.splitlines()
    assert memory(text) > 1.5 * memory(alone)


def memory(text: str) -> float:
    """Return the resident memory that is shown."""
    (line,) = (line for line in text.splitlines() if line.startswith("process_resident"))
    return float(line.split()[1])


async def test_a_worker_drains_once_its_supervisor_is_gone() -> None:
    """The end of the socket is a SIGTERM; until then nothing is asked. It serves no metrics then."""
    async with AsyncExitStack() as stack:
        supervisor = WorkersMetrics()
        holding = await stack.enter_async_context(AsyncExitStack())
        stdin, _ = await holding.enter_async_context(supervisor.lifeline())
        stop = Stop(drain_seconds=0)
        supervision = await stack.enter_async_context(supervised(stop, stdin.fileno()))
        stdin.close()
        supervision.join(Metrics().report)
        await until(lambda: supervisor._reporting)
        assert not stop.asked.is_set()
        await holding.aclose()
        async with asyncio.timeout(20):
            await stop.asked.wait()
        assert not stop.at_once.is_set()
        with pytest.raises(Overloaded):
            await supervision.instance_metrics()


class Watched(Channel):
    """A worker's channel, and the pauses between its pings: on a clock that they move."""

    def __init__(self, *, answers: int = 0, away: int | None = None) -> None:
        super().__init__(lambda _: None, lambda *_: None, lambda _: None)
        self.pauses = 0
        self._answers = answers
        self._away = away
        """After how many pauses the supervisor itself does not run for an hour."""
        self._seconds = 0.0

    def watch(self) -> asyncio.Task[None]:
        """Watch it; it answers so many pings."""
        return asyncio.create_task(frozen(self, lambda: self._seconds, self._pause))

    async def _pause(self, seconds: float) -> None:
        self.pauses += 1
        self._seconds += 3600 if self.pauses == self._away else seconds
        if self.pauses <= self._answers:
            self.data_received(PONG)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("expected", "worker"),
    [
        (PINGS_MAX, Watched()),
        (PINGS_MAX + 25, Watched(answers=25)),
        (PINGS_MAX + 7, Watched(away=7)),
    ],
    ids=["silent", "silent after some answers", "silent, also after the supervisor's own pause"],
)
async def test_a_worker_that_answers_no_ping_is_frozen(expected: int, worker: Watched) -> None:
    """Its time runs while the supervisor does: all may have been stopped, and go on in any order."""
    watching = worker.watch()
    await asyncio.sleep(0)
    worker.data_received(PONG)
    async with asyncio.timeout(20):
        await watching
    assert expected == worker.pauses


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_worker_that_has_not_begun_or_has_ended_is_not_frozen(has_ended: bool) -> None:
    """A process that starts or ends has no loop that could answer."""
    worker = Watched()
    if has_ended:
        worker.connection_lost(None)
    watching = worker.watch()
    for _ in range(10 * PINGS_MAX):
        await asyncio.sleep(0)
    assert not watching.done()
    assert has_ended == (worker.pauses > PINGS_MAX)
    watching.cancel()


async def test_a_worker_answers_pings_before_it_has_metrics(instance: Instance) -> None:
    """While it waits for its database, for example."""
    lifeline = instance.supervisor.lifeline()
    async with lifeline as (stdin, channel), asyncio.timeout(20):
        async with supervised(Stop(drain_seconds=0), stdin.fileno()):
            await channel.ping()
        stdin.close()
