"""Sessions that lead to the tables of another deployment in the same database: nothing goes there."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from stretto.assembly.host_pool import require_database
from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.deletion import Deletion
from stretto.domain import NewGroup, UserId
from stretto.errors import DatabaseUnavailable
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.connections import Database
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.migrate import grant, migrate
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Misconfigured, ReadCancelled, Unreachable
from support.both_stores import write
from support.database import groups, login_role
from support.pgbouncer import give_settings, reconnect, running_pgbouncer, url_through
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from stretto.creation.ports import Write
    from stretto.events.log import CommittedEvent
    from support.database import Connection

ALICE: Final = UserId("alice")
SETTINGS: Final = ComponentSettings(writers=1)
HOME: Final = "stretto,public"
SCHEMA_OF: Final = (
    "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = 'attempt'::regclass"
)


@pytest_asyncio.fixture(autouse=True)
async def neighbour(connection: Connection, role: str) -> AsyncIterator[str]:
    """A role of another deployment, which has the schema public; our role may become it."""
    async with login_role(connection, f"web_{uuid4().hex}") as other:
        await migrate(connection, "public")
        await grant(connection, "public", [other])
        await grant(connection, "stretto", [role])
        await connection.execute(f"GRANT {other} TO {role}")
        yield other


def pool_of(url: str, path: str | None = HOME, **options: Any) -> asyncpg.Pool:
    """Return a host's pool, in which the connection that came last is given out first."""
    settings = {} if path is None else {"search_path": path}
    return asyncpg.create_pool(url, min_size=0, max_size=9, server_settings=settings, **options)


async def leave_role(pool: asyncpg.Pool, role: str, sessions: int = 3) -> None:
    """Have a host's handlers leave the role in so many sessions."""
    used = [await pool.acquire() for _ in range(sessions)]
    for each in used:
        await each.execute(f"SET ROLE {role}")
        await pool.release(each)


def team(key: str) -> NewGroup:
    """Return a group to create."""
    return NewGroup.parse(ALICE, {"name": key, "members": ["bob"]})


async def groups_of_neighbour(connection: Connection) -> int:
    """Count the groups of the other deployment."""
    count: int = await connection.fetchval("SELECT count(*) FROM public.chat_group")
    return count


class Bus:
    """Notes what is published."""

    def __init__(self) -> None:
        self.event_ids: list[object] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[Any, str]:
        """Note which events have come."""
        self.event_ids += [event.event_id for event in events]
        return {}


async def test_a_session_whose_role_may_not_use_our_schema_is_replaced_before_it_is_used(
    neighbour: str, role_url: str, connection: Connection
) -> None:
    """PostgreSQL passes over the schema: the next one of the path is the other deployment's."""
    bus = Bus()
    async with (
        pool_of(role_url) as pool,
        open_component(pool=pool, settings=SETTINGS, bus=bus) as component,
    ):
        for number in range(4):
            await leave_role(pool, neighbour)
            answer = await component.create(str(number), team("a"))
            assert "a" == (await component.group(answer.group.group_id)).name
        await until(lambda: 4 == len(bus.event_ids))
    assert (4, 0) == (await groups(connection), await groups_of_neighbour(connection))


async def test_every_lane_and_what_keeps_a_session_lead_to_where_the_pool_led_at_the_start(
    neighbour: str, role_url: str
) -> None:
    """The twin is a session that is not looked at."""
    async with pool_of(role_url) as pool, Database(pool=pool) as database:
        await require_database(database, is_hosts_pool=True)
        for lane in Lane:
            await leave_role(pool, neighbour)
            async with database.connection(lane) as session:
                assert "stretto" == await session.fetchval(SCHEMA_OF)
        await leave_role(pool, neighbour)
        assert "public" == await pool.fetchval(SCHEMA_OF)
        session = await database.acquire()
        found = await session.fetchval(SCHEMA_OF)
        await database.release(session)
        assert "stretto" == found


async def test_a_routine_that_is_found_before_ours_costs_the_session(
    role_url: str, connection: Connection
) -> None:
    """As much as a table: it may be another deployment's. No table is there."""
    path = '"$user",stretto'
    async with pool_of(role_url, path) as pool, Database(pool=pool) as database:
        await require_database(database, is_hosts_pool=True)
        user = await pool.fetchval("SELECT quote_ident(current_user)")
        await connection.execute(
            f"CREATE SCHEMA {user}; GRANT USAGE ON SCHEMA {user} TO {user};"
            f" CREATE FUNCTION {user}.delete_group_1(uuid, text, uuid, text)"
            " RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        )
        with pytest.raises(Unreachable, match=f"tables in {user}"):
            async with database.connection(Lane.GROUPS):
                pass
        await connection.execute(f"DROP SCHEMA {user} CASCADE")
        await database.ping()


@pytest.mark.parametrize("sessions", [1, 3])
async def test_a_start_in_a_used_session_does_not_take_its_tables_for_ours(
    sessions: int, neighbour: str, role_url: str, connection: Connection
) -> None:
    """A handler came first. Each session that is left of it is replaced later."""
    async with pool_of(role_url) as pool:
        await leave_role(pool, neighbour, sessions)
        async with open_component(pool=pool, settings=SETTINGS) as component:
            await component.create("a", team("a"))
    assert (1, 0) == (await groups(connection), await groups_of_neighbour(connection))


async def test_a_role_that_the_pool_itself_sets_leads_to_its_tables(
    neighbour: str, role_url: str, connection: Connection
) -> None:
    """Each session has it: it is no handler's."""

    async def init(session: Any) -> None:
        await session.execute(f"SET ROLE {neighbour}")

    async with pool_of(role_url, init=init) as pool:
        async with open_component(pool=pool, settings=SETTINGS) as component:
            await component.create("a", team("a"))
        async with Database(pool=pool) as database:
            await require_database(database, is_hosts_pool=True)
            assert "public" == database.home
    assert (0, 1) == (await groups(connection), await groups_of_neighbour(connection))


async def test_a_path_that_an_operator_changes_under_a_component_is_an_error_until_it_is_set_back(
    role: str, role_url: str, connection: Connection
) -> None:
    """It says what is wrong, and what to do."""
    database_name = await connection.fetchval("SELECT quote_ident(current_database())")
    alter = f"ALTER ROLE {role} IN DATABASE {database_name} SET search_path = "
    await connection.execute(f"{alter} stretto; GRANT USAGE ON SCHEMA stretto TO {role}")
    await grant(connection, "public", [role])
    async with (
        pool_of(role_url, None) as pool,
        open_component(pool=pool, settings=SETTINGS) as component,
    ):
        await component.create("a", team("a"))
        await connection.execute(f"{alter} public")
        await connection.fetch(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = $1", role
        )
        with pytest.raises(DatabaseUnavailable):
            await component.create("b", team("b"))
        database = Database(pool=pool)
        database.home = "stretto"
        with pytest.raises(Unreachable, match=rf"leads to tables in public.* in stretto.*{role}"):
            await database.ping()
        await connection.execute(f"{alter} stretto")
        await component.create("b", team("b"))
    assert (2, 0) == (await groups(connection), await groups_of_neighbour(connection))


async def test_tables_that_are_made_anew_under_a_component_are_served(
    role_url: str, role: str, connection: Connection
) -> None:
    """As by a restore: the schema counts, and neither its number nor a table's."""
    async with pool_of(role_url) as pool, Database(pool=pool) as database:
        await require_database(database, is_hosts_pool=True)
        await connection.execute("DROP SCHEMA stretto CASCADE")
        await migrate(connection, "stretto")
        await grant(connection, "stretto", [role])
        await database.ping()
        store = PostgresWriteStore(database, lambda: None)
        assert 1 == len(await store.claim_and_lead([write("k")]))
        await store.close()


async def _claim_and_lead(store: PostgresWriteStore, ours: Write) -> object:
    return await store.claim_and_lead([ours])


async def _claim(store: PostgresWriteStore, ours: Write) -> object:
    return await store.claim([ours])


async def _lead(store: PostgresWriteStore, ours: Write) -> object:
    return await store.lead([ours])


async def _hook(*_: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("send", "hook"), [(_claim_and_lead, None), (_claim, None), (_lead, None), (_lead, _hook)]
)
async def test_a_writer_that_keeps_its_session_writes_nothing_elsewhere(
    send: Any, hook: Any, role: str, role_url: str, connection: Connection
) -> None:
    """Our schema is taken from its role: PostgreSQL passes over it from then on, without an error."""
    await grant(connection, "public", [role])
    ours = write("k")
    async with (
        pool_of(role_url) as pool,
        Database(pool=pool) as database,
        AsyncExitStack() as stack,
    ):
        await require_database(database, is_hosts_pool=True)
        store = PostgresWriteStore(database, lambda: None, hook)
        stack.push_async_callback(store.close)
        await store.open()
        await connection.execute(f"REVOKE USAGE ON SCHEMA stretto FROM {role}")
        with pytest.raises((Misconfigured, Unreachable)):
            await send(store, ours)
        await connection.execute(f"GRANT USAGE ON SCHEMA stretto TO {role}")
        await store.claim([ours])
        assert {ours.claim_token} == await store.lead([ours])
    assert [] == await connection.fetch("SELECT FROM public.attempt")


@asynccontextmanager
async def behind_pgbouncer(
    server_url: str, *, is_hosts_pool: bool
) -> AsyncIterator[tuple[Any, Database]]:
    """Run one; yield its folder, and connections through it."""
    with running_pgbouncer(server_url) as folder:
        await give_settings(server_url)
        url, pool = url_through(folder, server_url), None
        async with AsyncExitStack() as stack:
            if is_hosts_pool:
                url = url.removesuffix("&pgbouncer=true")
                pool = await stack.enter_async_context(
                    asyncpg.create_pool(url, min_size=0, max_size=4, statement_cache_size=0)
                )
            database = await stack.enter_async_context(Database(url, pool=pool))
            if is_hosts_pool:
                # As the start finds out.
                database.is_shared, database.home = True, "stretto"
            yield folder, database


@pytest.mark.parametrize("is_hosts_pool", [False, True], ids=["own", "pool"])
async def test_behind_pgbouncer_neither_writes_nor_what_requests_and_the_bus_read_are_led_elsewhere(
    is_hosts_pool: bool, server_url: str, connection: Connection
) -> None:
    """Each transaction may have another session, so the statements themselves find out."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    ours = write("k")
    async with (
        behind_pgbouncer(server_url, is_hosts_pool=is_hosts_pool) as (folder, database),
        # A host's pool waits for the connections that are kept.
        AsyncExitStack() as stack,
    ):
        store = PostgresWriteStore(database, lambda: None)
        stack.push_async_callback(store.close)
        looks = PostgresAttemptStore(database)
        log = PostgresLogStore(partial(database.connection, Lane.HISTORY), database.home)
        place = (await log.page(await log.present(), 1)).place
        await store.open()
        await looks.look(ours.group_id, 1.0, ALICE)
        await connection.execute(f"ALTER DATABASE {name} SET search_path = public")
        await reconnect(folder)
        with pytest.raises(Misconfigured, match="leads to tables of another schema"):
            await store.claim_and_lead([ours])
        with pytest.raises(Unreachable, match="leads to tables"):
            await looks.look(ours.group_id, 1.0, ALICE)
        for read in (log.page, log.deletions):
            with pytest.raises(Unreachable, match="leads to tables"):
                await read(place, 10)
        with pytest.raises((ReadCancelled, Unreachable), match="leads to tables"):
            async with PostgresDeletionStore(database).deleting() as delete:
                await delete(Deletion(ours.group_id, ALICE, None), is_hasty=False)
    assert [] == await connection.fetch("SELECT FROM public.attempt")
