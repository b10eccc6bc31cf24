"""A host's pool whose connections come back changed: what a reset of asyncpg's does not undo."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import asyncpg
import pytest

import stretto
from stretto.assembly.host_pool import require_database
from stretto.creation.deletion import Deletion
from stretto.domain import IdempotencyKey, group_id
from stretto.postgres import hosts_pool, writes
from stretto.postgres.connections import Database
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.driver_connection import OUR_TYPES, is_recoded
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.lanes import Lane
from stretto.postgres.migrate import grant
from stretto.postgres.queries import QUERIES
from stretto.postgres.sessions import is_changed
from stretto.store_errors import ReadCancelled
from support.database import login_role, seen_by
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from support.database import Connection

DEADLINE_SECONDS: Final = 60
# What a reset of asyncpg's undoes neither of.
OTHER_ROLE: Final = ("SET ROLE", "SET SESSION AUTHORIZATION")
ALICE: Final = "alice"
# Beside those of arrays, which follow their elements.
SCALARS: Final = (
    *("bool", "bytea", "name", "int8", "int4", "text", "tid"),
    *("json", "float8", "timestamptz", "uuid", "pg_lsn", "xid8"),
)


def team(key: str) -> stretto.NewGroup:
    """Return a group to create."""
    return stretto.NewGroup.parse(stretto.UserId(ALICE), {"name": key, "members": ["bob"]})


async def recode(connection: Any) -> None:
    """Do as a handler of a host's that would rather have texts."""
    await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")


def pool_for(url: str) -> asyncpg.Pool:
    """Return a host's pool, in which the connection that came last is given out first."""
    return asyncpg.create_pool(
        url, min_size=0, max_size=12, server_settings={"search_path": "stretto,public"}
    )


async def test_every_type_that_our_statements_use_is_looked_at(connection: Connection) -> None:
    """Its number is the same in every database; and a codec for it is noticed, and gone again."""
    numbers = await connection.fetchval(
        "SELECT array_agg(oid ORDER BY oid) FROM pg_type"
        " WHERE typname = ANY ($1) AND typnamespace = 'pg_catalog'::regnamespace",
        SCALARS,
    )
    assert numbers == [*OUR_TYPES]
    for name in SCALARS:
        assert not is_recoded(connection)
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=str, decoder=str, format="text"
        )
        assert is_recoded(connection), name
        await connection.reset_type_codec(name, schema="pg_catalog")


async def spoil(pool: asyncpg.Pool, sessions: int) -> None:
    """Have a host's handlers give back so many sessions with other codecs."""
    used = [await pool.acquire() for _ in range(sessions)]
    for each in used:
        await recode(each)
        await pool.release(each)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_session_with_other_codecs_is_replaced_before_it_is_used(
    is_guarded: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known without a statement."""
    if not is_guarded:
        monkeypatch.setattr(hosts_pool, "is_recoded", lambda _: False)
    async with pool_for(database_url) as pool, Database(database_url, pool=pool) as database:
        await spoil(pool, 3)
        connection = await database.acquire()
        assert is_guarded is not is_recoded(connection)
        assert isinstance(await connection.fetchval("SELECT gen_random_uuid()"), UUID) == is_guarded
        await database.release(connection)


async def end_writers_session(component: stretto.Component, connection: Connection) -> None:
    """End it as a failover would: the next one is the session of the pool that came back last."""
    (store,) = component._running.write_stores
    assert store._connection is not None
    pid = store._connection.get_server_pid()
    await connection.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)


async def test_a_lead_in_a_used_session_commits_no_group_without_the_hosts_rows(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not know its own tokens, and call the hook for none of its groups."""
    monkeypatch.setattr(hosts_pool, "CHANGED_MAX", 12)
    await connection.execute("CREATE TABLE public.counted (group_id uuid)")

    async def count(handle: Any, created: Sequence[tuple[Any, Any]]) -> None:
        rows = [(group.group_id,) for group, _ in created]
        await handle.executemany("INSERT INTO public.counted VALUES ($1)", rows)

    settings = stretto.ComponentSettings(writers=1)
    async with (
        pool_for(database_url) as pool,
        stretto.open_component(pool=pool, on_create=count, settings=settings) as component,
    ):
        await component.create("a", team("a"))
        await spoil(pool, 6)
        await end_writers_session(component, connection)
        for key in ("b", "c"):
            await component.create(key, team(key))
        lacking = await connection.fetchval(
            "SELECT count(*) FROM stretto.chat_group LEFT JOIN public.counted USING (group_id)"
            " WHERE counted.group_id IS NULL"
        )
        assert 0 == lacking


async def test_a_pool_that_gives_no_other_session_is_a_database_that_is_away(
    database_url: str,
) -> None:
    """The host's `init` has begun to set codecs: a few connections are tried, and it is said why."""
    callback = {"init": None}

    async def init(connection: Any) -> None:
        if callback["init"] is not None:
            await callback["init"](connection)

    async with (
        asyncpg.create_pool(
            database_url,
            min_size=0,
            max_size=8,
            init=init,
            server_settings={"search_path": "stretto"},
        ) as pool,
        stretto.open_component(
            pool=pool, settings=stretto.ComponentSettings(writers=1)
        ) as component,
    ):
        await component.create("a", team("a"))
        callback["init"] = recode  # type: ignore[assignment]
        await pool.expire_connections()
        with pytest.raises(stretto.Unreachable, match="a pool of its own"):
            await component._running.reads.groups.groups_of_member(stretto.UserId(ALICE), None, 9)
        callback["init"] = None
        groups = await component._running.reads.groups.groups_of_member(
            stretto.UserId(ALICE), None, 9
        )
        assert 1 == len(groups)


@asynccontextmanager
async def reader_role(connection: Connection) -> AsyncIterator[str]:
    """Make a role that may read all, and write nothing."""
    async with login_role(connection, f"reader_{uuid4().hex}") as role:
        await connection.execute(
            f"GRANT USAGE ON SCHEMA stretto TO {role};"
            f"GRANT SELECT ON ALL TABLES IN SCHEMA stretto TO {role};"
            f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {role}"
        )
        yield role


async def use(pool: asyncpg.Pool, sessions: int, statement: str) -> None:
    """Have a host's handlers send a statement in so many sessions at once, and give them back."""
    used = [await pool.acquire() for _ in range(sessions)]
    for each in used:
        await each.execute(statement)
        await pool.release(each)


@pytest.mark.parametrize("sessions", [1, 5])
@pytest.mark.parametrize("statement", OTHER_ROLE)
async def test_a_session_that_misses_our_tables_is_not_used_again(
    statement: str, sessions: int, database_url: str, role: str
) -> None:
    """A handler has left a role that may read nothing: it costs one read, and not each of them."""
    async with pool_for(database_url) as pool, Database(database_url, pool=pool) as database:
        await use(pool, sessions, f"{statement} {role}")
        groups, alice = PostgresGroupStore(database), stretto.UserId(ALICE)
        for _ in range(sessions):
            with pytest.raises(stretto.Unreachable, match=r"SQLSTATE 42(P01|501)"):
                await groups.groups_of_owner(alice, None, 9)
            assert database.is_misfit
        assert [] == await groups.groups_of_owner(alice, None, 9)
        assert not database.is_misfit


@pytest.mark.parametrize("statement", OTHER_ROLE)
async def test_a_session_whose_role_finds_none_of_our_tables_is_replaced_before_it_is_used(
    statement: str, role: str, database_url: str
) -> None:
    """A handler has left the role in it: no request fails, and each event comes."""
    heard: set[object] = set()

    async def hear(event: Any) -> None:
        heard.add(event.event_id)

    settings = stretto.ComponentSettings(writers=1)
    async with (
        pool_for(database_url) as pool,
        stretto.open_component(pool=pool, settings=settings) as component,
    ):
        await component.on_event(hear)
        for number in range(4):
            await use(pool, 3, f"{statement} {role}")
            answer = await component.create(str(number), team("a"))
            assert answer.group is not None
            assert "a" == (await component.group(answer.group.group_id)).name
        await until(lambda: 4 == len(heard))
        async with Database(pool=pool) as database:
            await require_database(database, is_hosts_pool=True)
            for lane in Lane:
                await use(pool, 3, f"{statement} {role}")
                async with database.connection(lane) as session:
                    assert 4 == await session.fetchval("SELECT count(*) FROM chat_group")


async def test_rights_that_are_taken_from_the_pools_own_role_cost_no_connection(
    database_url: str, connection: Connection
) -> None:
    """The next session would find no more. The role's name needs quotes, and is no other role's."""
    async with login_role(connection, f"App {uuid4().hex}") as role:
        await grant(connection, "stretto", [role])
        await connection.execute("REVOKE SELECT ON pg_settings FROM PUBLIC")
        async with pool_for(seen_by(role, database_url)) as pool, Database(pool=pool) as database:
            opened = await pool.fetchval("SELECT pg_backend_pid()")
            await require_database(database, is_hosts_pool=True)
            groups, alice = PostgresGroupStore(database), stretto.UserId(ALICE)
            await connection.execute(f'REVOKE USAGE ON SCHEMA stretto FROM "{role}"')
            for _ in range(3):
                with pytest.raises(stretto.Unreachable, match="SQLSTATE 42P01"):
                    await groups.groups_of_owner(alice, None, 9)
            await connection.execute(f'GRANT USAGE ON SCHEMA stretto TO "{role}"')
            assert [] == await groups.groups_of_owner(alice, None, 9)
            assert opened == await pool.fetchval("SELECT pg_backend_pid()")


@pytest.mark.parametrize(
    ("is_expected", "statement"),
    [
        (False, "SELECT 1"),
        (False, 'SET ROLE "{own}"'),
        (True, "SET ROLE {other}"),
        (True, "SET SESSION AUTHORIZATION {other}"),
        # It may do what its own role may, and has another one's settings.
        (True, 'SET SESSION AUTHORIZATION {other}; SET ROLE "{own}"'),
        (True, "CREATE TEMP TABLE copy (x integer)"),
        (True, "SET search_path TO public"),
    ],
)
async def test_a_session_is_changed_where_it_is_not_that_of_the_role_that_has_connected(
    is_expected: bool, statement: str, role: str, database_url: str, connection: Connection
) -> None:
    """Whatever the role is called."""
    async with login_role(connection, f"App {uuid4().hex}") as own:
        await connection.execute(f'ALTER ROLE "{own}" SUPERUSER; GRANT "{own}" TO {role}')
        session = await asyncpg.connect(seen_by(own, database_url))
        await session.execute(statement.format(own=own, other=role))
        found = await is_changed(session, asyncpg.UndefinedTableError("no"))
        await session.close()
        assert is_expected is found


async def test_a_session_that_lost_its_statements_is_not_used_again(database_url: str) -> None:
    """A handler has sent DEALLOCATE ALL: the driver goes on to use their names."""
    async with pool_for(database_url) as pool, Database(database_url, pool=pool) as database:
        groups, alice = PostgresGroupStore(database), stretto.UserId(ALICE)
        assert [] == await groups.groups_of_owner(alice, None, 9)
        await use(pool, 1, "DEALLOCATE ALL")
        # What looks at the session has lost its own statement too.
        assert [] == await groups.groups_of_owner(alice, None, 9)


async def test_a_session_that_lost_its_statements_while_it_was_used_is_not_used_again(
    database_url: str,
) -> None:
    """By a trigger of the operator's, or a handler behind a pooler."""
    async with Database(database_url) as database:
        groups, alice = PostgresGroupStore(database), stretto.UserId(ALICE)
        assert [] == await groups.groups_of_owner(alice, None, 9)

        async def lose_and_read() -> None:
            async with database.connection(Lane.GROUPS) as connection:
                await connection.execute("DEALLOCATE ALL")
                await connection.fetch(QUERIES["groups_of_owner"], alice, None, 9)

        with pytest.raises(stretto.Unreachable, match="SQLSTATE 26000"):
            await lose_and_read()
        assert [] == await groups.groups_of_owner(alice, None, 9)


async def test_a_session_that_may_not_delete_is_not_used_again(
    database_url: str, connection: Connection
) -> None:
    """A handler has left a role in it. The others of its batch are answered with it, and no later one."""
    async with (
        reader_role(connection) as role,
        pool_for(database_url) as pool,
        Database(database_url, pool=pool) as database,
    ):
        await use(pool, 1, f"SET ROLE {role}")
        store = PostgresDeletionStore(database)
        wanted = Deletion(
            group_id(stretto.UserId(ALICE), IdempotencyKey("k")), stretto.UserId(ALICE), None
        )

        async def fail_behind() -> None:
            async with store.deleting() as delete:
                with pytest.raises(ReadCancelled, match="SQLSTATE 42501"):
                    await delete(wanted, is_hasty=False)
                raise LookupError

        with pytest.raises(LookupError):
            await fail_behind()
        async with store.deleting() as delete:
            assert await delete(wanted, is_hasty=False) is None


@pytest.mark.parametrize(("path", "opened_in_all"), [("stretto", 1), ("elsewhere", 4)])
async def test_a_database_that_misses_our_tables_does_not_cost_a_connection_for_each_read(
    path: str, opened_in_all: int, database_url: str, connection: Connection
) -> None:
    """What `init` changes is seen once in each of the pool's sessions; then it is not their fault."""
    await connection.execute("ALTER TABLE stretto.chat_group RENAME TO other_group")
    opened: list[int] = []

    async def init(session: Any) -> None:
        opened.append(session.get_server_pid())
        await session.execute(f"SET search_path TO {path}")

    async def keep(_: object) -> None:
        """Leave what `init` has set."""

    pool = asyncpg.create_pool(
        database_url,
        min_size=0,
        max_size=3,
        init=init,
        reset=keep,
        server_settings={"search_path": "stretto"},
    )
    async with pool, Database(database_url, pool=pool) as database:
        for _ in range(9):
            with pytest.raises(stretto.Unreachable):
                await PostgresGroupStore(database).groups_of_owner(stretto.UserId(ALICE), None, 9)
    assert opened_in_all == len(opened)


async def test_a_writer_does_not_keep_a_session_that_may_not_write(
    database_url: str, connection: Connection
) -> None:
    """A handler has left a role in it: each such session costs a write at most."""
    settings = stretto.ComponentSettings(writers=1)
    async with (
        reader_role(connection) as role,
        pool_for(database_url) as pool,
        stretto.open_component(pool=pool, settings=settings) as component,
    ):
        await component.create("a", team("a"))
        await use(pool, 5, f"SET ROLE {role}")
        await end_writers_session(component, connection)
        failures = 0
        while True:
            try:
                answer = await component.create("b", team("b"))
            except stretto.DatabaseUnavailable:
                failures += 1
                assert failures <= 5
            else:
                break
        assert answer.group is not None


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_no_group_is_written_into_a_hosts_temporary_table(
    is_guarded: bool, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler has worked on a copy of a table, under its name: there a group would be lost."""
    if not is_guarded:
        monkeypatch.setattr(hosts_pool, "CHANGED_MAX", 1)
        monkeypatch.setattr(hosts_pool, "_violation", _nothing)
        monkeypatch.setattr(writes, "at_home", lambda statement, _: statement)
    settings = stretto.ComponentSettings(writers=1)
    async with (
        pool_for(database_url) as pool,
        stretto.open_component(pool=pool, settings=settings) as component,
    ):
        await component.create("a", team("a"))
        await use(pool, 3, "CREATE TEMP TABLE chat_group (LIKE stretto.chat_group INCLUDING ALL)")
        await end_writers_session(component, connection)
        answer = await component.create("b", team("b"))
        seen = await component._running.reads.groups.groups_of_member(
            stretto.UserId(ALICE), None, 9
        )
    assert answer.group is not None
    count = await connection.fetchval(
        "SELECT count(*) FROM stretto.chat_group WHERE group_id = $1", answer.group.group_id
    )
    assert is_guarded is (1 == count)
    assert (["b", "a"] == [each.name for each in seen]) is is_guarded


async def _nothing(_: object, **__: object) -> None:
    """Find nothing wrong."""


async def test_a_path_that_ends_with_temporary_tables_may_have_any(database_url: str) -> None:
    """PostgreSQL looks into them last then, and no session is replaced."""
    path = {"search_path": "stretto,public,pg_temp"}
    async with (
        asyncpg.create_pool(database_url, min_size=0, max_size=1, server_settings=path) as pool,
        Database(database_url, pool=pool) as database,
    ):
        await use(pool, 1, "CREATE TEMP TABLE chat_group (LIKE stretto.chat_group)")
        before = await pool.fetchval("SELECT pg_backend_pid()")
        groups = PostgresGroupStore(database)
        assert [] == await groups.groups_of_owner(stretto.UserId(ALICE), None, 9)
        assert before == await pool.fetchval("SELECT pg_backend_pid()")


async def test_a_pool_of_nothing_but_temporary_tables_is_refused_with_advice(
    database_url: str,
) -> None:
    """Its `init` makes one named like ours."""

    async def init(session: Any) -> None:
        await session.execute("CREATE TEMP TABLE attempt (x int)")

    async with asyncpg.create_pool(
        database_url, min_size=0, init=init, server_settings={"search_path": "stretto"}
    ) as pool:
        with pytest.raises(stretto.ConfigurationError, match=r"\(attempt\).*with pg_temp"):
            async with stretto.open_component(pool=pool):
                pass


async def test_a_session_that_fails_while_it_is_looked_at_is_given_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of one connection has it again at once."""

    async def fail(_: object, **__: object) -> None:
        raise ConnectionResetError

    async with (
        asyncpg.create_pool(
            database_url, min_size=0, max_size=1, server_settings={"search_path": "stretto"}
        ) as pool,
        Database(database_url, pool=pool) as database,
    ):
        with monkeypatch.context() as context:
            context.setattr(hosts_pool, "_violation", fail)
            with pytest.raises(stretto.Unreachable):
                await database.acquire()
        await database.release(await database.acquire())
