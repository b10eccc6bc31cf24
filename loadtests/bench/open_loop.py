"""An open loop in its own process: clients arrive at a fixed rate, answered or not.

A request is sent when it is due, on any free connection. Its time counts from when it was due, so
that waiting for a slow service is included. A request without an answer in time is given up with
its connection. Clients that retry keep to the contract: the same key, after a growing pause, and
not before `Retry-After`.

The process reads its plan from the command line, opens connections, prints that it is ready, starts
on a line of input and prints its report; `arrivals` controls it.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson
import uvloop
from loadtests.bench.arrivals import Plan
from loadtests.bench.machinery import BODY

TICK_SECONDS = 0.005
OPENING_MAX = 100
# A client's patience, above the 10 s that the service makes it wait at most.
PATIENCE_SECONDS = 12.0
RETRY_SECONDS_MAX = 8.0
GIVE_UP_SECONDS = 0.5

_RETRY_AFTER = re.compile(rb"\r\nRetry-After: (\d+)\r\n")


@dataclass(slots=True)
class Request:
    """One client's request."""

    number: int
    due_at: float
    tries_left: int


@dataclass(slots=True)
class Tally:
    """Counts of the answers."""

    statuses: Counter[str] = field(default_factory=Counter)
    created_at: list[float] = field(default_factory=list)
    created_seconds: list[float] = field(default_factory=list)
    shed_seconds: list[float] = field(default_factory=list)
    sent: int = 0


class Connection(asyncio.Protocol):
    """Sends a request and waits for its answer, one at a time."""

    __slots__ = ("_rest", "generator", "request", "sent_at", "transport")

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.request: Request | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def send(self, request: Request, now: float) -> None:
        self.request, self.sent_at = request, now
        self.transport.write(self.generator.written(request))

    def data_received(self, data: bytes) -> None:
        # Every answer is one JSON object, and no other follows before the next request.
        if self._rest:
            data = self._rest + data
        if not data.endswith(b"}"):
            self._rest = data
            return
        self._rest = b""
        request, self.request = self.request, None
        assert request is not None
        self.generator.answered(self, request, data)

    def connection_lost(self, _: Exception | None) -> None:
        self.generator.lost(self)


class Generator:
    """Sends requests when they are due."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._loop = asyncio.get_running_loop()
        body = orjson.dumps(BODY)
        self._head = (
            f"POST /v1/groups HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {plan.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"Idempotency-Key: {plan.run}-"
        ).encode()
        self._tail = b"\r\n\r\n" + body
        url = urlsplit(plan.url)
        assert url.hostname
        assert url.port
        self._address = url.hostname, url.port
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening = 0
        self._waiting: deque[Request] = deque()
        self._is_over = False
        self._started = self._looked_at = 0.0

    def written(self, request: Request) -> bytes:
        return b"%b%d%b" % (self._head, request.number, self._tail)

    async def connect(self) -> None:
        """Open the connections."""
        while len(self._open) < self.plan.connections:
            some = min(OPENING_MAX, self.plan.connections - len(self._open))
            await asyncio.gather(*(self._connect() for _ in range(some)))

    async def run(self) -> dict[str, Any]:
        """Send requests until the time is over; return the report."""
        self._started = time.monotonic()
        until = self._started + self.plan.seconds
        if not self.plan.rate:
            for _ in range(len(self._idle)):
                self._next(self._started)
        while (now := time.monotonic()) < until:
            self._catch_up(now)
            await asyncio.sleep(TICK_SECONDS)
        self._is_over = True
        # Requests under way are answered or given up; no others are sent.
        while any(connection.request for connection in self._open):
            self._give_up(time.monotonic())
            await asyncio.sleep(TICK_SECONDS)
        return self._report()

    def _catch_up(self, now: float) -> None:
        if self.plan.rate:
            due = int((now - self._started) * self.plan.rate)
            while self.tally.sent < due:
                self._next(self._started + self.tally.sent / self.plan.rate)
            self._open_more()
        self._give_up(now)

    def _next(self, due_at: float) -> None:
        self._send(Request(self.tally.sent, due_at, self.plan.tries))
        self.tally.sent += 1

    def _send(self, request: Request) -> None:
        if self._idle:
            self._idle.pop().send(request, time.monotonic())
        else:
            self._waiting.append(request)

    def _open_more(self) -> None:
        room = self.plan.connections_max - len(self._open) - self._opening
        for _ in range(min(len(self._waiting) - self._opening, room, OPENING_MAX - self._opening)):
            self._opening += 1
            task = self._loop.create_task(self._connect_later())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _connect_later(self) -> None:
        try:
            await self._connect()
        finally:
            self._opening -= 1

    async def _connect(self) -> None:
        _, connection = await self._loop.create_connection(lambda: Connection(self), *self._address)
        self._open.add(connection)
        self._free(connection)

    def _free(self, connection: Connection) -> None:
        if self._waiting and not self._is_over:
            connection.send(self._waiting.popleft(), time.monotonic())
        else:
            self._idle.append(connection)

    def answered(self, connection: Connection, request: Request, answer: bytes) -> None:
        tally, now = self.tally, time.monotonic()
        status = answer[9:12]
        tally.statuses[status.decode()] += 1
        if status == b"201":
            tally.created_at.append(now - self._started)
            tally.created_seconds.append(now - request.due_at)
        else:
            if status == b"503":
                tally.shed_seconds.append(now - connection.sent_at)
            asked = _RETRY_AFTER.search(answer)
            self._retry(request, float(asked[1]) if asked else 0.0)
        self._free(connection)
        if not self.plan.rate and not self._is_over:
            self._next(now)

    def _retry(self, request: Request, asked_seconds: float = 0.0) -> None:
        request.tries_left -= 1
        if request.tries_left > 0 and not self._is_over:
            own = min(2.0 ** (self.plan.tries - request.tries_left - 1), RETRY_SECONDS_MAX)
            pause = max(own * random.uniform(0.5, 1.5), asked_seconds)
            self._loop.call_later(pause, self._send, request)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        request, connection.request = connection.request, None
        if request is not None:
            self.tally.statuses["lost"] += 1
            self._retry(request)

    def _give_up(self, now: float) -> None:
        if now < self._looked_at + GIVE_UP_SECONDS:
            return
        self._looked_at = now
        for connection in tuple(self._open):
            if connection.request is not None and now - connection.sent_at > PATIENCE_SECONDS:
                connection.transport.abort()

    def _report(self) -> dict[str, Any]:
        tally = self.tally
        by_second = Counter(int(at) for at in tally.created_at)
        return {
            "sent": tally.sent,
            "unsent": len(self._waiting),
            "statuses": dict(tally.statuses),
            "created_by_second": [by_second[n] for n in range(int(self.plan.seconds))],
            "created_ms": _percentiles(tally.created_seconds),
            "shed_ms": _percentiles(tally.shed_seconds),
        }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    seconds = sorted(seconds) or [0.0]
    return {
        name: seconds[min(len(seconds) - 1, int(len(seconds) * share))] * 1e3
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


async def main() -> None:
    """Execute the plan, then print the report."""
    generator = Generator(Plan(**orjson.loads(sys.argv[1])))
    await generator.connect()
    _say({"event": "ready"})
    await asyncio.to_thread(sys.stdin.readline)
    _say(await generator.run())
    # The parent process samples the service before the connections close.
    await asyncio.to_thread(sys.stdin.readline)


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(document).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())
