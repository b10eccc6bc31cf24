"""What workers and their supervisor say to each other: metrics, and that the other is alive.

Any worker may be scraped, and must answer for all of them. It asks the supervisor, which asks each
worker. The supervisor has all that a scrape has shown: a worker that crashes takes nothing of it
with it.

The socket between them is the worker's stdin. It ends with either process, however that ends: a
worker stops without its supervisor. A worker that is frozen does not end; it answers no ping.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stretto.errors import Overloaded
from stretto.runtime.channel import Channel
from stretto.telemetry.instance import InstanceMetrics, report
from stretto.telemetry.logs import logger
from stretto.telemetry.metrics import LogLines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from prometheus_client.core import Metric

    from stretto.runtime.stop import Stop

# A report takes milliseconds. A worker that takes longer is stuck: others must not be unseen for it.
REPORT_SECONDS: Final = 1.0
# Beyond that, the supervisor itself is stuck. Below the 10 s that Prometheus waits by default.
INSTANCE_SECONDS: Final = 5.0
# Between two pings of a worker. One costs each side some 20 µs.
PING_SECONDS: Final = 1.0
# A loop that answers no ping for so long is frozen: its process is stopped, or a call blocks it. The
# kernel goes on giving it its share of the new connections, whose clients wait. A loop that works
# stalls for less than a second, and for a few where the machine has far more work than processors:
# 10 s are a few times that, and no longer than most clients and load balancers wait.
FROZEN_SECONDS: Final = 10.0


class WorkersMetrics(Collector):
    """The supervisor's side: answers a worker that was scraped with the metrics of all."""

    def __init__(self) -> None:
        self.died = 0
        """Workers that have ended without being asked to."""
        self._instance = InstanceMetrics()
        self._reporting: dict[Channel, None] = {}
        """Workers that have said something: one that is starting cannot answer yet."""
        self._asking: set[Channel] = set()
        self._round: asyncio.Task[None] | None = None
        self._answered = 0
        """Workers that have reported in this round."""
        self._own = CollectorRegistry()
        self._own.register(self)
        self._own.register(LogLines())
        ProcessCollector(registry=self._own)

    @asynccontextmanager
    async def lifeline(self) -> AsyncIterator[tuple[socket.socket, Channel]]:
        """Provide a worker's stdin, and our end of it, as long as the worker runs."""
        ours, its = socket.socketpair()
        channel = Channel(self._take_question, self._take_report, self._end)
        with its:
            await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
            try:
                yield its, channel
            finally:
                channel.close()
                self._end(channel)

    def collect(self) -> Iterable[Metric]:
        """Return what the supervisor itself counts."""
        yield GaugeMetricFamily(
            "stretto_workers", "Worker processes that have reported.", value=self._answered
        )
        yield CounterMetricFamily(
            "stretto_workers_died_total",
            "Worker processes that ended without being asked to.",
            value=self.died,
        )

    def close(self) -> None:
        """Answer no more."""
        if self._round is not None:
            self._round.cancel()

    def _take_report(self, worker: Channel, reported: bytes) -> None:
        self._reporting[worker] = None
        self._instance.put(worker, reported)

    def _take_question(self, worker: Channel) -> None:
        self._asking.add(worker)
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._answer(), name="metrics of the workers")

    def _end(self, worker: Channel) -> None:
        self._reporting.pop(worker, None)
        self._asking.discard(worker)
        self._instance.end(worker)

    async def _answer(self) -> None:
        """Gather the reports and send the sum; workers that ask meanwhile get the next one."""
        while self._asking:
            asking, self._asking = self._asking, set()
            reports = {worker.ask(): worker for worker in self._reporting}
            if reports:
                await asyncio.wait(reports, timeout=REPORT_SECONDS)
            current = {
                worker for each, worker in reports.items() if each.done() and not each.cancelled()
            }
            self._answered = len(current)
            self._instance.put(self, report(self._own))
            whole = self._instance.exposition({self, *current})
            for worker in asking:
                worker.answer(whole)


async def frozen(
    worker: Channel,
    clock_seconds: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
) -> None:
    """Return once a worker that has begun answers no ping for `FROZEN_SECONDS`.

    If this process has not run in time itself, that says nothing of the worker: a machine that was
    suspended, or processes that were all stopped, go on in any order. Then the time begins anew.
    """
    # One that is starting has no loop yet, and takes no connections.
    await asyncio.wait((worker.ping(),))
    silent_seconds = 0.0
    while silent_seconds < FROZEN_SECONDS:
        ping, pinged_at = worker.ping(), clock_seconds()
        await pause(PING_SECONDS)
        seconds = clock_seconds() - pinged_at
        was_away = seconds > 2 * PING_SECONDS
        silent_seconds = 0.0 if ping.done() or was_away else silent_seconds + seconds


class Supervision:
    """A worker's side: reports its own metrics, and gets those of all."""

    def __init__(self, stop: Stop) -> None:
        self.channel = Channel(self._take_question, lambda *_: None, lambda _: self._end(stop))
        self._report: Callable[[], bytes] | None = None

    def join(self, report: Callable[[], bytes]) -> None:
        """Report from now on what this returns."""
        self._report = report
        self._take_question(self.channel)

    async def instance_metrics(self) -> bytes:
        """Return the metrics of all workers in Prometheus' text format; raises `Overloaded`.

        Those of this worker alone would be less than the last ones that were shown.
        """
        asked = self.channel.ask()
        await asyncio.wait((asked,), timeout=INSTANCE_SECONDS)
        if not asked.done() or asked.cancelled():
            raise Overloaded("The supervisor does not answer.", retry_after_seconds=1)
        return asked.result()

    def _take_question(self, channel: Channel) -> None:
        if self._report is not None:
            channel.answer(self._report())

    def close(self) -> None:
        """Report for the last time."""
        self._take_question(self.channel)
        self.channel.close()

    def _end(self, stop: Stop) -> None:
        """Begin the drain: a worker without its supervisor would serve for ever, unstoppable."""
        logger.warning("worker.orphaned")
        stop.take(signal.SIGTERM)


@asynccontextmanager
async def supervised(stop: Stop, lifeline: int) -> AsyncIterator[Supervision]:
    """Join the supervisor that holds the other end of this socket."""
    supervision = Supervision(stop)
    # A descriptor of its own: stdin stays open until the process ends.
    end = socket.socket(fileno=os.dup(lifeline))
    await asyncio.get_running_loop().create_unix_connection(lambda: supervision.channel, sock=end)
    try:
        yield supervision
    finally:
        supervision.close()
