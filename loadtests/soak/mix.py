"""The mix of a soak: requests at steady rates whatever the answers, and sessions that reconnect."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
import uuid
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from history import CREATED, UNANSWERED, Answer, Wish
from tokens import token_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from records import Journal

# Requests per second: 420 together.
RATES: Final = {"create": 130, "replay": 90, "same": 30, "lookup": 90, "list": 50, "ready": 2}
# Requests of one key that each "same" step sends at once.
SAME_AT_ONCE: Final = 2
USERS: Final = 400
MEMBERS_MAX: Final = 5
# Keys that may be looked up and sent again.
KEYS_REMEMBERED: Final = 5000
ANSWER_SECONDS_MAX: Final = 35.0
# The open loop is bounded: with more requests under way it would measure this program.
UNDER_WAY_MAX: Final = 2000
SESSION_SECONDS: Final = (2.0, 60.0)
SCENARIO: Final = "Soak"


@dataclass(slots=True)
class Mix:
    """All clients of a run."""

    url: str
    journal: Journal
    session: aiohttp.ClientSession
    requests: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    _sent: deque[Wish] = field(default_factory=lambda: deque(maxlen=KEYS_REMEMBERED))
    _under_way: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UNDER_WAY_MAX))

    async def run(self, seconds: float, sessions: int, scale: float) -> None:
        """Send requests at their rates for `seconds`, beside `sessions` live sessions."""
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "create": self._create,
            "replay": self._replay,
            "same": self._same,
            "lookup": self._look_up,
            "list": self._list,
            "ready": self._ask_ready,
        }
        await self._create()
        async with asyncio.TaskGroup() as tasks:
            staying = [
                tasks.create_task(self._stay(number), name=f"session {number}")
                for number in range(sessions)
            ]
            async with asyncio.TaskGroup() as loads:
                for name, step in steps.items():
                    loads.create_task(self._load(step, scale * RATES[name], seconds), name=name)
            for task in staying:
                task.cancel()

    async def _load(self, step: Callable[[], Awaitable[None]], rate: float, seconds: float) -> None:
        """Begin each step when it is due, whether or not earlier ones have ended."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in itertools.count():
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                async with self._under_way:
                    pass
                if time.monotonic() >= started + seconds:
                    return
                tasks.create_task(self._bounded(step))

    async def _bounded(self, step: Callable[[], Awaitable[None]]) -> None:
        async with self._under_way:
            await step()

    async def _create(self) -> None:
        wish = self._new_wish()
        # Without an answer it is unknown whether the request arrived.
        if await self._post("create", wish) == CREATED:
            self._sent.append(wish)

    async def _replay(self) -> None:
        await self._post("replay", random.choice(self._sent))

    async def _same(self) -> None:
        wish = self._new_wish()
        await asyncio.gather(*(self._post("same", wish) for _ in range(SAME_AT_ONCE)))

    async def _look_up(self) -> None:
        wish = random.choice(self._sent)
        await self._get("lookup", wish.owner, f"/v1/attempts/{wish.key}", wish.key)

    async def _list(self) -> None:
        wish = random.choice(self._sent)
        paths = (
            "/v1/groups?limit=20",
            f"/v1/groups/{wish.group_id}",
            f"/v1/groups/{wish.group_id}/members",
        )
        await self._get("list", wish.owner, random.choice(paths))

    async def _ask_ready(self) -> None:
        await self._get("ready", _user(), "/readyz")

    def _new_wish(self) -> Wish:
        members = tuple({_user() for _ in range(random.randint(0, MEMBERS_MAX))})
        wish = Wish(_user(), str(uuid.uuid4()), f"Team {random.randint(1, 1000)}", members)
        self.journal.begin(wish, SCENARIO)
        return wish

    async def _post(self, kind: str, wish: Wish) -> int:
        """Request the group; return the answer's status."""
        headers = {"Idempotency-Key": wish.key, "Content-Type": "application/json"}
        status, text, is_replay = await self._ask(
            *(kind, "POST", "/v1/groups", wish.owner), headers, json.dumps(wish.document).encode()
        )
        answer = Answer(time.time(), SCENARIO, kind, status, text, is_replay)
        self.journal.record(wish.owner, wish.key, answer)
        return status

    async def _get(self, kind: str, user: str, path: str, key: str = "") -> None:
        status, text, _ = await self._ask(kind, "GET", path, user, {}, None)
        if key:
            self.journal.record(user, key, Answer(time.time(), SCENARIO, kind, status, text))

    async def _ask(
        self, kind: str, method: str, path: str, user: str, fields: dict[str, str], body: Any
    ) -> tuple[int, str, bool]:
        """Send a request; count it, and its failure if it fails."""
        self.requests[kind] += 1
        headers = {"Authorization": f"Bearer {token_of(user)}", **fields}
        try:
            async with self.session.request(
                method, self.url + path, data=body, headers=headers
            ) as response:
                text = (await response.read()).decode()
                is_replay = response.headers.get("Idempotent-Replayed") == "true"
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            status, text, is_replay = UNANSWERED, type(error).__name__, False
        if status not in (200, CREATED):
            self._count_failure(kind, _code(status, text))
        return status, text, is_replay

    def _count_failure(self, kind: str, what: str) -> None:
        self.failures[kind] += 1
        self.problems[f"{kind} {what}"] += 1

    async def _stay(self, number: int) -> None:
        """Connect, leave and resume again and again, as a client does."""
        user, position = f"user-{number % USERS}", ""
        way = self._websocket if number % 2 else self._event_stream
        while True:
            self.requests["session"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(*SESSION_SECONDS)):
                    try:
                        async for latest in way(user, position):
                            position = latest
                    except (aiohttp.ClientError, OSError) as error:
                        what = getattr(error, "status", None) or type(error).__name__
                        self._count_failure("session", str(what))
                        # A client does not reconnect at once.
                        await asyncio.sleep(random.uniform(0.5, 1.0))

    async def _websocket(self, user: str, position: str) -> Any:
        headers = {"Authorization": f"Bearer {token_of(user)}"}
        params = {"since": position} if position else {}
        async with self.session.ws_connect(
            f"{self.url}/v1/events", params=params, headers=headers
        ) as socket:
            async for message in socket:
                yield json.loads(message.data)["position"]
            if socket.close_code not in (None, 1000):
                self._count_failure("session", f"closed {socket.close_code}")

    async def _event_stream(self, user: str, position: str) -> Any:
        headers = {
            "Authorization": f"Bearer {token_of(user)}",
            "Accept": "text/event-stream",
            **({"Last-Event-ID": position} if position else {}),
        }
        async with self.session.get(
            f"{self.url}/v1/events", headers=headers, timeout=aiohttp.ClientTimeout()
        ) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"id: "):
                    yield line[4:].decode().strip()
                elif line.startswith(b"event: close"):
                    self._count_failure("session", "closed")


def _user() -> str:
    return f"user-{random.randrange(USERS)}"


def _code(status: int, text: str) -> str:
    """Return the code of a problem document; without one, the error's name or the status."""
    if status == UNANSWERED:
        return text
    try:
        return f"{status} {json.loads(text).get('code')}"
    except ValueError:
        return str(status)
