"""Clients of a chaos run: they create, repeat, misuse, hang up, look up and delete, and note it all."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiohttp
import jwt

from chaos.history import AGAIN, Key
from chaos.world import POISON
from support.api_client import SECRET

if TYPE_CHECKING:
    import random

    from chaos.history import History, Operation

CLIENTS: Final = 8
OWNERS: Final = 12
# The clock of the services jumps by a day at most.
TOKEN_SECONDS: Final = 3 * 24 * 3600
ANSWER_SECONDS_MAX: Final = 20
# Some clients hang up soon after they have sent their request.
CUT_SECONDS: Final = (0.0, 0.03)
PAUSE_SECONDS: Final = 0.15
# Of the deletions, so many come together with another request for their group.
AGAIN_RATIO: Final = 0.5
# Of these a client picks the one that it sends again.
KEYS_REMEMBERED: Final = 30
# Of a run's tens of thousands of keys, one at least settles in this time.
PROGRESS_SECONDS_MAX: Final = 60
SETTLED_AT_ONCE: Final = 32


class Serving(Protocol):
    """The services that are asked."""

    def urls(self) -> list[str]:
        """Return where they are now."""


@dataclass(slots=True)
class Clients:
    """All clients of a run; `random` makes the same choices again from the same seed."""

    world: Serving
    history: History
    random: random.Random
    session: aiohttp.ClientSession
    count: int = CLIENTS
    _sent: list[tuple[Key, dict[str, Any]]] = field(default_factory=list)
    _made: int = 0

    async def run(self) -> None:
        """Send requests until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.count):
                tasks.create_task(self._client(), name=f"client {number}")

    async def _client(self) -> None:
        steps = {
            self._new: 10,
            self._again: 6,
            self._hurry: 3,
            self._look_up: 4,
            self._misuse: 2,
            self._poison: 1,
            # Few: what is deleted shows less of what happens to groups.
            self._delete: 1,
        }
        while True:
            (step,) = self.random.choices([*steps], [*steps.values()])
            await step()
            await asyncio.sleep(self.random.uniform(0, PAUSE_SECONDS))

    async def _new(self) -> None:
        await self.create(*self._new_wish())

    async def _again(self) -> None:
        await self.create(*self._earlier())

    async def _hurry(self) -> None:
        """The same request several times at once, to both services."""
        wish = self._new_wish()
        await asyncio.gather(*(self.create(*wish) for _ in range(4)))

    async def _look_up(self) -> None:
        key, _ = self._earlier()
        operation = self.history.invoke("lookup", key)
        await self._ask(operation, "GET", f"/v1/attempts/{key.key}")

    async def _delete(self) -> None:
        """The group of a key, which is often sent again meanwhile."""
        key, body = self._earlier()
        operation = self.history.invoke("delete", key)
        deleting = self._ask(operation, "DELETE", f"/v1/groups/{key.group_id}")
        if self.random.random() < AGAIN_RATIO:
            await asyncio.gather(deleting, self.create(key, body))
        else:
            await deleting

    async def _poison(self) -> None:
        """What is refused once is refused for ever, even where that was forgotten."""
        key, body = self._new_wish()
        body["name"] = POISON
        await self.create(key, body)

    async def _misuse(self) -> None:
        """Another body under a known key, or a request that is refused before it claims."""
        key, body = self._earlier()
        match self.random.randrange(3):
            case 0:
                await self.create(key, {**body, "description": "another"})
            case 1:
                await self.create(self._new_key(), {"name": ""})
            case _:
                await self.create(self._new_key(), body, token="no token")

    def _new_key(self) -> Key:
        self._made += 1
        return Key(f"owner-{self.random.randrange(OWNERS)}", f"key-{self._made}")

    def _new_wish(self) -> tuple[Key, dict[str, Any]]:
        members = self.random.sample(range(1000), self.random.randint(0, 20))
        body = {
            "name": f"Team {self.random.randrange(100)}",
            "description": self.random.choice((None, "for us")),
            "members": [f"user-{number}" for number in members],
        }
        wish = self._new_key(), {name: value for name, value in body.items() if value is not None}
        self._sent.append(wish)
        return wish

    def _earlier(self) -> tuple[Key, dict[str, Any]]:
        if not self._sent:
            return self._new_wish()
        return self.random.choice(self._sent[-KEYS_REMEMBERED:])

    async def create(
        self, key: Key, body: dict[str, Any], *, token: str = "", patient: bool = False
    ) -> Operation:
        """Post a group."""
        operation = self.history.invoke("create", key, body)
        headers = {"Idempotency-Key": key.key, **({"Authorization": token} if token else {})}
        await self._ask(
            operation, "POST", "/v1/groups", patient=patient, headers=headers, json=body
        )
        return operation

    async def _ask(
        self, operation: Operation, method: str, path: str, *, patient: bool = False, **options: Any
    ) -> None:
        url = self.random.choice(self.world.urls())
        cut = not patient and self.random.random() < 0.1
        seconds = self.random.uniform(*CUT_SECONDS) if cut else ANSWER_SECONDS_MAX
        headers = {"Authorization": f"Bearer {token_of(operation.key.owner)}"}
        headers |= options.pop("headers", {})
        try:
            async with (
                asyncio.timeout(seconds),
                self.session.request(method, url + path, headers=headers, **options) as response,
            ):
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.history.unknown(operation, type(error).__name__)
        else:
            how = response.headers.get("Idempotency-Status", "")
            self.history.answer(operation, response.status, how, text)

    async def settle(self) -> list[Key]:
        """Send every request that may have had an effect again; return what is still open."""
        bodies: dict[Key, dict[str, Any]] = {}
        for operation in self.history.operations:
            if operation.do == "create" and operation.status not in (400, 401):
                assert operation.body is not None
                bodies.setdefault(operation.key, operation.body)
        still_open = dict.fromkeys(bodies)
        turns = asyncio.Semaphore(SETTLED_AT_ONCE)

        async def settle(key: Key) -> None:
            async with turns:
                operation = await self.create(key, bodies[key], patient=True)
                while operation.status is None or operation.status in AGAIN:
                    operation = await self.create(key, bodies[key], patient=True)
                del still_open[key]
                patience.reschedule(asyncio.get_running_loop().time() + PROGRESS_SECONDS_MAX)

        try:
            async with (
                asyncio.timeout(PROGRESS_SECONDS_MAX) as patience,
                asyncio.TaskGroup() as tasks,
            ):
                for key in bodies:
                    tasks.create_task(settle(key))
        except TimeoutError:
            pass
        return list(still_open)


def token_of(owner: str) -> str:
    """Return a token that is valid whatever the service's clock says."""
    claims = {"sub": owner, "exp": int(time.time()) + TOKEN_SECONDS}
    return jwt.encode(claims, SECRET, algorithm="HS256")
