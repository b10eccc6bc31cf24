"""The methods of `docs/which-method.md`: the SQL of each, and replicas that run it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import asyncpg

from support.waiting import until

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator
    from contextlib import AsyncExitStack

    from support.database import Connection


class Method:
    """The SQL of a method: what makes its tables, a creation, and a look at what exists."""

    def __init__(self, rooms: str, section: str) -> None:
        (block,) = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
        creation, _, self.look = block.partition("-- Nothing came back")
        statements = re.findall(r"\S.*?;$", creation, re.DOTALL | re.MULTILINE)
        self.tables = rooms + "".join(each for each in statements if each.startswith("CREATE"))
        self.creation = [each for each in statements if not each.startswith("CREATE")]


class Replica:
    """A process that creates the room of one key, statement by statement."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._values: dict[str, Any] = {
            "id": uuid4(),
            "derived_id": uuid5(uuid5(NAMESPACE_URL, "alice"), "k"),
            "owner": "alice",
            "key": "k",
            "name": "Team",
            "fingerprint": b"of the body",
            "document": "{}",
        }

    async def run(self, statement: str) -> list[asyncpg.Record]:
        """Run a statement as the page shows it, with values for its names."""
        names = [*dict.fromkeys(re.findall(r"(?<!:):(\w+)", statement))]

        def number(found: re.Match[str]) -> str:
            return f"${names.index(found[1]) + 1}"

        return await self._connection.fetch(
            re.sub(r"(?<!:):(\w+)", number, statement), *(self._values[name] for name in names)
        )

    async def steps(self, statements: list[str]) -> AsyncGenerator[None]:
        """Create the room; go on after each statement, as a program does that reads its result."""
        for statement in statements:
            rows = await self.run(statement)
            yield
            has_found = statement.startswith("SELECT id") and bool(rows)
            if has_found or ("RETURNING request_key;" in " ".join(statement.split()) and not rows):
                if statements[-1] == "COMMIT;":
                    await self.run("ROLLBACK;")
                return

    async def create(self, statements: list[str]) -> None:
        """Create the room, without a pause."""
        async for _ in self.steps(statements):
            pass

    def die(self) -> None:
        """Lose the connection, as a process that is killed does."""
        self._connection.terminate()


class Place:
    """A schema of the methods' own, and the replicas that use it."""

    def __init__(self, connection: Connection, url: str, stack: AsyncExitStack) -> None:
        self.connection = connection
        self._url = url
        self._stack = stack

    async def replica(self) -> Replica:
        """Open one."""
        connection = await asyncpg.connect(self._url, server_settings={"search_path": "method"})
        self._stack.callback(connection.terminate)
        return Replica(connection)

    async def renew(self, tables: str) -> None:
        """Make the tables of a method, and of no other."""
        await self.connection.execute(
            "DROP SCHEMA IF EXISTS method CASCADE; CREATE SCHEMA method; SET search_path = method"
        )
        await self.connection.execute(tables)

    async def rooms(self) -> int:
        """Count the rooms."""
        count: int = await self.connection.fetchval("SELECT count(*) FROM room")
        return count

    async def sweep(self) -> None:
        """Delete every record of a request."""
        for table in ("request", "answer"):
            if await self.connection.fetchval("SELECT to_regclass($1)", table):
                await self.connection.execute(f"DELETE FROM {table}")

    async def end_leases(self) -> None:
        """Have the minute pass, for a method that has one."""
        if await self.connection.fetchval(
            "SELECT count(*) FROM information_schema.columns"
            " WHERE table_schema = 'method' AND column_name = 'since'"
        ):
            await self.connection.execute("UPDATE request SET since = since - interval '1 hour'")

    async def until_done_or_waiting(self, task: asyncio.Future[Any]) -> None:
        """Wait until a replica has done its step, or waits for another one's lock."""

        async def is_so() -> bool:
            return task.done() or await self.connection.fetchval(
                "SELECT count(*) > 0 FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )

        await until(is_so)
