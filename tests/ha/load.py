"""New creations at a steady rate, each by the client that stretto ships, which retries as documented.

A try goes to either replica, as behind a load balancer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
import orjson

from chaos.clients import OWNERS, token_of
from chaos.history import CREATED, Key
from stretto.client import StrettoClient
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from chaos.clients import Serving
    from chaos.history import History

# In a second. An outage of a minute leaves some hundreds that wait, each of which comes again every
# second: as many as this program takes without being late itself.
RATE: Final = 5
LAG_LOOK_SECONDS: Final = 0.02
MEMBERS_MAX: Final = 5
# Longer than any outage: what is not acknowledged by then counts as lost time, and fails the run.
PATIENCE_SECONDS: Final = 300
RESUMED_SECONDS_MAX: Final = 60


@dataclass(slots=True)
class Load:
    """All creations of a run."""

    replicas: Serving
    history: History
    session: aiohttp.ClientSession
    created: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each replica has acknowledged a creation."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """When each creation was begun and acknowledged, by its client."""
    lags: list[tuple[float, float]] = field(default_factory=list)
    """When this program's own event loop was late, and by how much."""
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Begin creations until `stop`, then wait for those that have no answer yet."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                if self._left.is_set():
                    return
                tasks.create_task(self._create(number), name=f"creation {number}")

    async def watch(self) -> None:
        """Note how late this program is itself, until cancelled."""
        for _ in count():
            due = time.monotonic() + LAG_LOOK_SECONDS
            await asyncio.sleep(LAG_LOOK_SECONDS)
            self.lags.append((due, time.monotonic() - due))

    def stop(self) -> None:
        """Begin no other creation."""
        self._left.set()

    async def resumed(self, since: float) -> None:
        """Wait until each replica has acknowledged a creation since then."""

        def have_resumed() -> bool:
            newest = [self.created[url][-1:] for url in self.replicas.urls()]
            return all(times and times[0] >= since for times in newest)

        await until(have_resumed, RESUMED_SECONDS_MAX)

    async def _create(self, number: int) -> None:
        began = time.monotonic()
        key = Key(f"owner-{number % OWNERS}", f"key-{number}")
        members = [f"user-{each}" for each in random.sample(range(1000), MEMBERS_MAX)]
        # The client needs no more of a session than this.
        session = cast("aiohttp.ClientSession", _Notebook(self, key))
        client = StrettoClient(session, "", token_of(key.owner))
        await client.create_group("Team", members, key=key.key, timeout_seconds=PATIENCE_SECONDS)
        self.waits.append((began, time.monotonic()))


@dataclass(slots=True)
class _Notebook:
    """In the place of a client's session: sends each try to a replica, and notes what came of it."""

    load: Load
    key: Key

    @asynccontextmanager
    async def request(
        self, method: str, path: str, *, data: bytes, **options: Any
    ) -> AsyncIterator[_Copy]:
        url = random.choice(self.load.replicas.urls())
        history = self.load.history
        operation = history.invoke("create", self.key, orjson.loads(data))
        try:
            sent = self.load.session.request(method, url + path, data=data, **options)
            async with sent as response:
                copy = _Copy(response.status, response.headers, response.ok, await response.read())
                how = response.headers.get("Idempotency-Status", "")
                history.answer(operation, response.status, how, copy.body.decode())
                if response.status == CREATED:
                    self.load.created[url].append(time.monotonic())
                yield copy
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if operation.status is None:
                history.unknown(operation, type(error).__name__)
            raise


@dataclass(frozen=True, slots=True)
class _Copy:
    """An answer that was read to be noted, for a client that reads it once more."""

    status: int
    headers: Mapping[str, str]
    ok: bool
    body: bytes

    @property
    def content(self) -> _Copy:
        """Its stream."""
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the body, in one piece."""
        yield self.body
