"""Row-level security: rows that a policy hides are an error, never an empty database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from stretto.domain import UserId
from stretto.events.place import History, Place
from stretto.postgres.connections import Database
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.migrate import PRIVILEGES, grant
from stretto.postgres.readiness import Readiness
from stretto.postgres.tail import PostgresTail
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Unreachable
from support.api_client import SECRET
from support.both_stores import write
from support.command_process import stretto
from support.database import seen_by
from support.pgbouncer import give_settings, running_pgbouncer, url_through

if TYPE_CHECKING:
    from support.database import Connection

ALICE: Final = UserId("alice")
# A view reads as its owner does.
TABLES: Final = [each for each in PRIVILEGES if each not in ("outbox_present", "outbox_server")]


async def hide(connection: Connection, *tables: str, verb: str = "ENABLE") -> None:
    """Hide the rows of our tables, of all without a name, from roles that do not own them."""
    for table in tables or TABLES:
        await connection.execute(f"ALTER TABLE {table} {verb} ROW LEVEL SECURITY")


@pytest_asyncio.fixture(autouse=True)
async def granted(role: str, connection: Connection) -> None:
    """The role has every right that it needs."""
    await grant(connection, "stretto", [role])


async def test_commands_refuse_a_database_whose_rows_are_hidden(
    role: str, role_url: str, database_url: str, connection: Connection
) -> None:
    """With what to do about it; the twins are a role that sees all, and one that may pass by policies."""
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        await store.claim_and_lead([write("k")])
        await store.close()
    # A violation that nothing reports while its rows are hidden.
    await connection.execute("ALTER TABLE outbox DISABLE TRIGGER ALL; DELETE FROM outbox")
    await hide(connection)
    for command in (("check",), ("serve",), ("attempt", "alice", "k")):
        code, output, errors = await stretto(*command, DATABASE_URL=role_url, JWT_SECRET=SECRET)
        assert (2, "") == (code, output)
        assert f"row-level security applies to the role {role} in attempt, attempt_trail" in errors
        assert f"ALTER ROLE {role} BYPASSRLS" in errors
    for url in (database_url, role_url):
        await connection.execute(f"ALTER ROLE {role} BYPASSRLS")
        code, output, _ = await stretto("check", DATABASE_URL=url)
        assert (1, True) == (code, "1 attempts, 1 groups, 0 events" in output)


async def test_a_start_and_a_running_service_notice_each_table(
    role_url: str, connection: Connection
) -> None:
    """Also with a policy that shows some rows; ready again once the table shows all."""
    async with Database(role_url) as database:
        readiness = Readiness(database, [PostgresWriteStore(database, lambda: None)])
        await readiness.check()
        for table in TABLES:
            await connection.execute(f"CREATE POLICY shown ON {table} USING (true)")
            await hide(connection, table)
            for check in (database.inspect, readiness.check):
                with pytest.raises(Unreachable, match=f"applies to the role .* in {table}:"):
                    await check()
            await hide(connection, table, verb="DISABLE")
            for check in (database.inspect, readiness.check):
                await check()


async def test_an_owner_from_whom_rows_are_hidden_is_refused_as_well(
    role: str, role_url: str, connection: Connection
) -> None:
    """The twin is an owner of tables with policies for others."""
    await connection.execute(f"ALTER TABLE chat_group OWNER TO {role}")
    await hide(connection, "chat_group")
    async with Database(role_url) as database:
        await database.inspect()
        await hide(connection, "chat_group", verb="FORCE")
        with pytest.raises(Unreachable, match="in chat_group: rows that a policy hides"):
            await database.inspect()
    owner = await connection.fetchval("SELECT current_user")
    await connection.execute(f"ALTER TABLE chat_group OWNER TO {owner}")


async def test_reads_fail_where_rows_are_hidden_meanwhile(
    role_url: str, connection: Connection
) -> None:
    """Before the service is found unready: of groups, and of the log, whose reader would go on."""
    async with Database(role_url) as database:
        writes = PostgresWriteStore(database, lambda: None)
        await writes.claim_and_lead([write("k")])
        tail = PostgresTail(database, uuid4())
        await tail.listen(lambda: None)
        logs = (tail, PostgresLogStore(database.upkeep))
        groups = PostgresGroupStore(database)
        present = await tail.present()
        begin = Place(History(present.history.number, present.history.id), 0, ())
        for log in logs:
            assert 1 == len((await log.page(begin, 10)).events)
        assert 1 == len(await groups.groups_of_owner(ALICE, None, 10))
        await hide(connection)
        for log in logs:
            with pytest.raises(Unreachable, match="affected by row-level security"):
                await log.page(begin, 10)
        with pytest.raises(Unreachable, match="affected by row-level security"):
            await groups.groups_of_owner(ALICE, None, 10)
        await tail.close()
        await writes.close()


async def test_a_hosts_own_policies_stay_in_force_where_its_code_runs(
    role: str, role_url: str, connection: Connection
) -> None:
    """A trigger of a write meets rows of the host's tables; the twins are reads of ours."""
    await connection.execute(
        f"""
        CREATE TABLE public.quota (owner text, left_over int);
        INSERT INTO public.quota VALUES ('alice', 3), ('bob', 5);
        ALTER TABLE public.quota ENABLE ROW LEVEL SECURITY;
        CREATE POLICY own ON public.quota USING (owner = 'alice');
        GRANT SELECT, UPDATE ON public.quota TO {role};
        CREATE FUNCTION public.use_quota() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            UPDATE public.quota SET left_over = left_over - 1; RETURN NEW;
        END$$;
        CREATE TRIGGER use_quota BEFORE INSERT ON chat_group
            FOR EACH ROW EXECUTE FUNCTION public.use_quota()"""
    )
    async with Database(role_url) as database:
        writes = PostgresWriteStore(database, lambda: None)
        await writes.claim_and_lead([write("k")])
        await writes.close()
        await database.ping()
        for lane in Lane:
            async with database.connection(lane) as session:
                hides = await session.fetchval("SHOW row_security")
                assert ("on" if lane in (Lane.FOLLOWERS, Lane.DELETIONS) else "off") == hides
    rows = await connection.fetch("SELECT left_over FROM public.quota ORDER BY owner")
    assert [2, 5] == [row["left_over"] for row in rows]


async def test_behind_pgbouncer_a_start_and_a_running_service_notice_it(
    server_url: str, database_url: str, role: str, role_url: str, connection: Connection
) -> None:
    """No setting of ours reaches the server there; the twin is without the policies."""
    with running_pgbouncer(role_url) as folder:
        await give_settings(server_url)
        async with Database(url_through(folder, server_url)) as database:
            await database.ping()
            await hide(connection, "attempt", "outbox")
            for check in (database.ping, database.inspect):
                with pytest.raises(Unreachable, match=f"to the role {role} in attempt, outbox:"):
                    await check()
            await hide(connection, "attempt", "outbox", verb="DISABLE")
            await database.ping()


async def test_a_hosts_pool_from_which_rows_are_hidden_is_refused(
    role: str, database_url: str, connection: Connection
) -> None:
    """Its settings are the host's, so the answer is one at the start."""
    settings = {"search_path": "stretto"}
    url = seen_by(role, database_url)
    async with asyncpg.create_pool(url, min_size=0, server_settings=settings) as pool:
        database = Database(pool=pool)
        await database.inspect()
        await hide(connection, "chat_group")
        with pytest.raises(Unreachable, match="row-level security applies to"):
            await database.inspect()
