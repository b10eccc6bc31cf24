"""The landed version and this one beside each other on one database, which is migrated meanwhile."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import aiohttp
import asyncpg

from stretto.postgres.migrate import migrate
from stretto.postgres.migration_steps import Step, newest_number, own_steps
from support.api_client import token_of
from support.database import groups, sound
from support.landed import landed_package, landed_stretto
from support.service_process import ServiceProcess, apis
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.api_client import Api
    from support.database import Connection

CLIENTS: Final = 6
# Of each client, on each version or pair of versions.
TURNS: Final = 8
NEWEST: Final = newest_number()
# One of each way that there is, on tables that every creation writes.
LATER: Final = [
    Step(
        NEWEST + 1,
        "ALTER TABLE chat_group ADD COLUMN topic text; ALTER TABLE outbox ADD COLUMN topic text;",
    ),
    Step(
        NEWEST + 2,
        """-- runs: in batches of chat_group
        WITH page AS (
            SELECT group_id FROM chat_group WHERE $1::text IS NULL OR group_id > $1::text::uuid
            ORDER BY group_id LIMIT $2
        ), filled AS (
            UPDATE chat_group SET topic = name FROM page WHERE chat_group.group_id = page.group_id
        )
        SELECT count(*) AS rows,
               (SELECT group_id FROM page ORDER BY group_id DESC LIMIT 1)::text AS position
        FROM page;
        """,
    ),
    Step(
        NEWEST + 3,
        "-- runs: concurrently\nCREATE INDEX CONCURRENTLY by_topic ON chat_group (topic);",
    ),
]


class Load:
    """Clients that never retry: each creates a group at one instance and asks for it at the next."""

    def __init__(self, *instances: Api) -> None:
        self.instances = instances
        self.failed: list[str] = []
        self.made: set[str] = set()
        self._turns = [0] * CLIENTS
        self._left = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask as long as the context lasts."""
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(self._run(number), name=f"client {number}")
            try:
                yield
            finally:
                self._left.set()

    async def turned(self, *instances: Api) -> None:
        """Have each client go through its turns at these instances; all others are left then."""
        self.instances = instances
        before = [*self._turns]
        await until(lambda: self.failed or min(map(int.__sub__, self._turns, before)) >= TURNS)
        assert [] == self.failed

    async def _run(self, number: int) -> None:
        while not self._left.is_set():
            turn = self._turns[number]
            here, there = (self.instances[(turn + each) % len(self.instances)] for each in (0, 1))
            key = f"{number}-{turn}"
            try:
                replies = [await here.create(key), await there.create(key)]
                listed = await there.get("/v1/groups?limit=1")
            except aiohttp.ClientError as error:
                self.failed.append(repr(error))
                return
            statuses = [reply.status for reply in (*replies, listed)]
            if statuses != [201, 201, 200] or replies[0].body != replies[1].body:
                self.failed.append(f"{statuses} {[reply.body for reply in replies]}")
            self.made.add(replies[0].json["group_id"])
            self._turns[number] += 1


@asynccontextmanager
async def member(api: Api) -> AsyncIterator[set[str]]:
    """Open a session of a member's; yields the groups that it hears of."""
    heard: set[str] = set()
    headers = {"Authorization": f"Bearer {token_of('bob')}"}
    async with api.session.ws_connect(f"{api.url}/v1/events", headers=headers) as session:
        assert "position" in await session.receive_json()

        async def listen() -> None:
            async for message in session:
                heard.add(message.json().get("event", {}).get("subject", ""))

        listening = asyncio.create_task(listen())
        yield heard
        listening.cancel()
        await asyncio.wait((listening,))


async def test_two_versions_serve_one_database_while_it_is_migrated(
    database_url: str, connection: Connection, folder: Path
) -> None:
    """No request fails at either, sessions of both hear of all groups, and both find it sound."""
    package, settings = landed_package(folder), {"DATABASE_URL": database_url}
    await connection.execute("DROP SCHEMA stretto CASCADE")
    assert 0 == (await landed_stretto(package, "migrate", database_url))[0]
    runner = await asyncpg.connect(database_url, server_settings={"lock_timeout": "1s"})
    async with AsyncExitStack() as stack:

        async def start(package: Path | None = None) -> tuple[ServiceProcess, Api, set[str]]:
            service = await stack.enter_async_context(ServiceProcess(settings, package))
            (api,) = await stack.enter_async_context(apis(service))
            return service, api, await stack.enter_async_context(member(api))

        old, old_api, old_heard = await start(package)
        load = Load(old_api)
        async with load.running():
            await load.turned(old_api)
            assert [step.number for step in own_steps()] == await migrate(runner, "stretto")
            # An instance of the version before may have to start again meanwhile.
            (_, new_api, new_heard), (again, again_api, _) = await asyncio.gather(
                start(), start(package)
            )
            assert b'"schema.newer"' in b"".join(again.log)
            # What had been committed before this session is known by then.
            await load.turned(old_api)
            before_new = {*load.made}
            await load.turned(old_api, new_api)
            changes = [*own_steps(), *LATER]
            assert [step.number for step in LATER] == await migrate(runner, "stretto", changes)
            await load.turned(old_api, new_api, again_api)
            made = {*load.made}
            await until(lambda: made <= old_heard and made - before_new <= new_heard)
            await load.turned(new_api)
            old.signal(signal.SIGTERM)
            assert 0 == await old.exited()
            await load.turned(new_api)
    await runner.close()
    assert len(load.made) == await groups(connection)
    assert [] == load.failed
    assert await sound(connection)
    code, output, _ = await landed_stretto(package, "check", database_url)
    assert (0, "no violations\n") == (code, output[-len("no violations\n") :])
