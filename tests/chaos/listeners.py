"""Clients of live events: they stay, are cut off, cut themselves off, and resume where they were."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import aiohttp
import orjson

from chaos.clients import OWNERS, token_of
from chaos.listening import Received

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable
    from typing import Any, TypeAlias

    from chaos.clients import Serving
    from chaos.history import History
    from chaos.listening import Listening

    # A position, and the event that came with it.
    _Message: TypeAlias = tuple[str, Any]

POSITION_LOST: Final = 4410
# A stopped service opens no session until it goes on.
OPEN_SECONDS_MAX: Final = 5
# Half of the clients end their sessions by themselves after so long.
LEAVE_SECONDS: Final = (0.0, 3.0)
RESUME_SECONDS: Final = 0.05
# Of all positions that were sent, so many are resumed at in the end.
RESUMPTIONS: Final = 100
# Without any news for so long, a client in the end gets none.
PROGRESS_SECONDS_MAX: Final = 20


@dataclass(slots=True)
class Listeners:
    """One client for each owner of groups: of every event, one recipient listens."""

    world: Serving
    history: History
    random: random.Random
    session: aiohttp.ClientSession
    resumptions_max: int = RESUMPTIONS
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(OWNERS):
                listening = self.history.listen(f"owner-{number}")
                tasks.create_task(self._stay(listening), name=f"listener {number}")

    async def begun(self) -> None:
        """Wait until every client has a position: from then on, every event is due."""
        await self._until(
            lambda: [each.began is None for each in self._roots()] == [False] * OWNERS
        )

    async def settle(self, due: dict[str, set[str]]) -> None:
        """Wait until every client has the ids that are due to its user, or gets nothing more."""
        with suppress(TimeoutError):
            await self._until(lambda: all(due[each.user] <= each.known for each in self._roots()))

    async def resume(self) -> None:
        """Resume at positions of the whole run, each by a client of its own, until the present."""
        places = [(each, position) for each in self._roots() for position in each.positions]
        for parent, position in self.random.sample(places, min(self.resumptions_max, len(places))):
            listening = self.history.listen(parent.user, parent.number, position)
            for _ in range(10):
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(PROGRESS_SECONDS_MAX):
                        if await self._once(listening, until_present=True) or listening.lost:
                            break

    def _roots(self) -> list[Listening]:
        return self.history.listenings[:OWNERS]

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            async with asyncio.timeout(PROGRESS_SECONDS_MAX):
                await self._changed.wait()

    async def _stay(self, listening: Listening) -> None:
        leave = LEAVE_SECONDS if listening.number % 4 < 2 else None
        for _ in itertools.count():
            seconds = self.random.uniform(*leave) if leave else None
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._once(listening)
            await asyncio.sleep(self.random.uniform(0, RESUME_SECONDS))

    async def _once(self, listening: Listening, *, until_present: bool = False) -> bool:
        """Be connected for one session, over either way; return whether it came to the present."""
        url = self.random.choice(self.world.urls()) + "/v1/events"
        messages = self._websocket if listening.number % 2 else self._stream
        alone = 0
        resumes = bool(listening.position)
        async with asyncio.timeout(OPEN_SECONDS_MAX) as opening:
            async for position, document in messages(listening, url):
                opening.reschedule(None)
                if document is None:
                    self.history.place(listening, position)
                    alone += 1
                else:
                    self.history.hear(listening, position, Received.of(document))
                self._changed.set()
                # The first message repeats the position of a client that resumes.
                if until_present and alone > resumes:
                    return True
        return False

    async def _websocket(self, listening: Listening, url: str) -> AsyncIterator[_Message]:
        params = {"since": listening.position} if listening.position else {}
        headers = {"Authorization": f"Bearer {token_of(listening.user)}"}
        async with self.session.ws_connect(url, params=params, headers=headers) as socket:
            async for message in socket:
                document = orjson.loads(message.data)
                yield document["position"], document.get("event")
            self._close(listening, socket.close_code)

    async def _stream(self, listening: Listening, url: str) -> AsyncIterator[_Message]:
        headers = {
            "Accept": "text/event-stream",
            "Authorization": f"Bearer {token_of(listening.user)}",
        }
        if listening.position:
            headers["Last-Event-ID"] = listening.position
        async with self.session.get(url, headers=headers) as response:
            response.raise_for_status()
            fields: dict[str, str] = {}
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(":")
                if line != b"\n":
                    fields[name] = value.removeprefix(" ")
                    continue
                data: Any = orjson.loads(fields["data"]) if "data" in fields else None
                if fields.get("event") == "close":
                    self._close(listening, data["code"])
                elif "id" in fields:
                    yield fields["id"], data
                fields = {}

    def _close(self, listening: Listening, code: int | None) -> None:
        if code == POSITION_LOST:
            self.history.lose_position(listening)
            self._changed.set()
