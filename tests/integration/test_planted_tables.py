"""Tables with the names of ours that appear in a schema before ours, under a session that is kept or shared."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import asyncpg
import pytest

import stretto
from stretto.creation.deletion import Deletion
from stretto.domain import IdempotencyKey, UserId
from stretto.errors import Failure
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.connections import Database
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES, at_home
from stretto.postgres.rehearsal import rehearse
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import StoreError
from support.both_stores import write
from support.changed_groups import TEAM, UNCHANGED, changed, changes, seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from stretto.assembly.component import Component
    from stretto.creation.ports import Write
    from stretto.events.place import Place
    from support.database import Connection

ALICE: Final = UserId("alice")
PATH: Final = "app,stretto"
# With which groups are written, read and deleted.
TABLES: Final = (
    *("attempt", "chat_group", "conversation", "conversation_member", "history_start", "outbox"),
    *("outbox_history", "outbox_present", "outbox_server", "outbox_slot"),
)
LED_ELSEWHERE: Final = 'leads to tables of another schema than "?stretto'
CHANGES: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (
    (stretto.rename_group, {"name": "Crew"}),
    (stretto.add_members, {"roles": {"dave": "member"}}),
    (stretto.remove_members, {"users": ["bob"]}),
    (stretto.set_role, {"user": "carol", "role": "member"}),
    (stretto.delete_group, {}),
)


class UnseenDatabase(Database):
    """Looks at no session before its use: as where the table comes behind the look."""

    async def acquire(self, **_: Any) -> Any:
        """Return any session of the pool."""
        assert self._host_pool is not None
        return await self._host_pool.acquire()


async def _hook(*_: object) -> None:
    """Do nothing."""


class Senders(NamedTuple):
    """What sends our statements."""

    database: Database
    writes: PostgresWriteStore
    hooked: PostgresWriteStore
    attempts: PostgresAttemptStore
    log: PostgresLogStore
    place: Place

    async def delete(self, ours: Write) -> None:
        """Delete a group."""
        async with PostgresDeletionStore(self.database).deleting() as delete:
            await delete(Deletion(ours.group_id, ALICE, None), is_hasty=False)


SENDS: Final[dict[str, Callable[[Senders, Write], Awaitable[object]]]] = {
    "claim_and_lead": lambda to, ours: to.writes.claim_and_lead([ours]),
    "claim": lambda to, ours: to.writes.claim([ours]),
    "lead": lambda to, ours: to.writes.lead([ours]),
    "lead_before_hook": lambda to, ours: to.hooked.lead([ours]),
    "unlocked": lambda to, ours: to.writes.unlocked([ours]),
    "fail": lambda to, ours: to.writes.fail(ours, Failure("no", "No.")),
    "look": lambda to, ours: to.attempts.look(ours.group_id, 1.0, ALICE),
    "heal": lambda to, ours: to.attempts.heal(ours.group_id),
    "reclaim": lambda to, ours: to.attempts.reclaim(ours.group_id, ours.claim_token, uuid4(), 0.0),
    "deletion": lambda to, ours: to.delete(ours),
    "page": lambda to, _: to.log.page(to.place, 10),
    "deletions": lambda to, _: to.log.deletions(to.place, 10),
    "rehearsal": lambda to, _: rehearse(to.database, None),
}


@pytest.fixture
async def app(connection: Connection) -> None:
    """A schema of the host's."""
    await connection.execute("CREATE SCHEMA app")


async def plant(connection: Connection, table: str) -> None:
    """Make a table of the host's with the columns of ours."""
    await connection.execute(f"CREATE TABLE app.{table} (LIKE stretto.{table})")


@asynccontextmanager
async def closing(store: PostgresWriteStore) -> AsyncIterator[PostgresWriteStore]:
    """Release the store's connection at the end, for which a pool would wait."""
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def senders_over(url: str) -> AsyncIterator[Senders]:
    """Open what sends our statements, over a host's pool."""
    async with (
        asyncpg.create_pool(url, min_size=0, server_settings={"search_path": PATH}) as pool,
        UnseenDatabase(pool=pool) as database,
    ):
        database.home = "stretto"
        log = PostgresLogStore(partial(database.connection, Lane.HISTORY), database.home)
        writes = PostgresWriteStore(database, lambda: None)
        hooked = PostgresWriteStore(database, lambda: None, _hook)
        attempts = PostgresAttemptStore(database)
        async with closing(writes), closing(hooked):
            yield Senders(database, writes, hooked, attempts, log, await log.present())


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("name", SENDS)
async def test_a_table_of_any_of_our_names_under_a_session_has_the_statement_fail(
    name: str, database_url: str, connection: Connection
) -> None:
    """A host's own conversation, say. Nothing is written in either schema; the twin is without it."""
    ours, send = write("k"), SENDS[name]
    async with senders_over(database_url) as senders:
        await send(senders, write("before"))
        before = await connection.fetchval("SELECT count(*) FROM attempt")
        for table in TABLES:
            await plant(connection, table)
            with pytest.raises(StoreError, match=LED_ELSEWHERE):
                await send(senders, ours)
            assert 0 == await connection.fetchval(f"SELECT count(*) FROM app.{table}")
            await connection.execute(f"DROP TABLE app.{table}")
        assert before == await connection.fetchval("SELECT count(*) FROM attempt")
        await send(senders, ours)


@pytest.mark.usefixtures("app")
async def test_a_table_of_ours_that_is_gone_has_no_later_schema_take_its_place(
    database_url: str, connection: Connection
) -> None:
    """As while a backup is restored."""
    await plant(connection, "outbox_slot")
    path = {"search_path": "stretto,app"}
    async with (
        asyncpg.create_pool(database_url, min_size=0, server_settings=path) as pool,
        UnseenDatabase(pool=pool) as database,
    ):
        database.home = "stretto"
        async with closing(PostgresWriteStore(database, lambda: None)) as store:
            await store.open()
            await connection.execute("ALTER TABLE stretto.outbox_slot RENAME TO away")
            with pytest.raises(StoreError, match=LED_ELSEWHERE):
                await store.claim_and_lead([write("k")])


@pytest.mark.usefixtures("app")
async def test_a_routine_that_is_found_before_ours_does_not_answer(
    database_url: str, connection: Connection
) -> None:
    """The twin calls it by its short name."""
    await plant(connection, "conversation")
    await connection.execute(
        """CREATE FUNCTION app.require_home_1(home text, value text) RETURNS text
           LANGUAGE sql AS 'SELECT value'"""
    )
    async with senders_over(database_url) as senders:
        with pytest.raises(StoreError, match=LED_ELSEWHERE):
            await senders.writes.claim([write("k")])
    short = at_home(QUERIES["look"], "stretto").replace("stretto.require_home_1", "require_home_1")
    session = await asyncpg.connect(database_url, server_settings={"search_path": PATH})
    assert [] == await session.fetch(short, [], [], None)
    await session.close()


@pytest.fixture
async def group(component: Component) -> Any:
    """A group of alice's, with bob, and carol as an admin."""
    return (await component.creator.create(IdempotencyKey("k"), TEAM)).group.group_id


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "planted",
    [
        *(f"CREATE TABLE app.{table} (LIKE stretto.{table})" for table in TABLES),
        """CREATE TABLE app.conversation (LIKE stretto.conversation);
           CREATE FUNCTION app.require_home_1(home text, value text) RETURNS text
           LANGUAGE sql AS 'SELECT value'""",
        """CREATE FUNCTION app.delete_group_1(uuid, text, uuid, text) RETURNS boolean
           LANGUAGE sql AS 'SELECT true';
           CREATE FUNCTION app.present_history_1() RETURNS integer LANGUAGE sql AS 'SELECT 0'""",
    ],
)
async def test_a_hosts_connection_that_leads_to_two_schemas_changes_nothing(
    planted: str, group: Any, database_url: str, connection: Connection
) -> None:
    """The twin is the same connection without what was planted."""
    host = await asyncpg.connect(database_url, server_settings={"search_path": PATH})
    await connection.execute(planted)
    for change, arguments in CHANGES:
        with pytest.raises(stretto.ConfigurationError, match="all in one schema"):
            await changed(host, change, group, **arguments)
    assert UNCHANGED == await seen(connection, group)
    assert [] == await changes(connection)
    await connection.execute("DROP SCHEMA app CASCADE")
    for change, arguments in CHANGES:
        assert await changed(host, change, group, **arguments)
    await host.close()
