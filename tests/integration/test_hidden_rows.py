"""Row-level security: rows that a policy hides are an error, never an empty database."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

import stretto
from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.deletion import Deletion
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import DatabaseUnavailable
from stretto.events.place import History, Place
from stretto.observations import Observation, UpkeepFailed
from stretto.postgres.connections import Database
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.lanes import WRITING, Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.migrate import PRIVILEGES, grant
from stretto.postgres.pooler import split_pooler
from stretto.postgres.queries import QUERIES
from stretto.postgres.readiness import Readiness
from stretto.postgres.retention import sweep
from stretto.postgres.settings import Retention
from stretto.postgres.tail import PostgresTail
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Misconfigured, Unreachable
from stretto.webhook.store import PostgresWebhookStore
from support.api_client import SECRET
from support.both_stores import write
from support.changed_groups import TEAM, UNCHANGED, changed, changes, seen
from support.command_process import stretto as run_command
from support.database import connect, seen_by
from support.pgbouncer import give_settings, running_pgbouncer, url_through
from support.waiting import until
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from stretto.assembly.component import Component
    from stretto.events.log import CommittedEvent
    from support.database import Connection

ALICE: Final = UserId("alice")
SETTINGS: Final = ComponentSettings(writers=1)
# A view reads as its owner does.
TABLES: Final = [each for each in PRIVILEGES if each not in ("outbox_present", "outbox_server")]


@asynccontextmanager
async def database_of(url: str, *, is_hosts_pool: bool) -> AsyncIterator[Database]:
    """Open connections of our own, or over a host's pool."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(hosts_pool(url)) if is_hosts_pool else None
        yield await stack.enter_async_context(Database(url, pool=pool))


def hosts_pool(url: str, **options: Any) -> asyncpg.Pool:
    """Return a host's pool, in which the connection that came last is given out first."""
    path = {"search_path": "stretto,public"}
    return asyncpg.create_pool(url, min_size=0, max_size=12, server_settings=path, **options)


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
        code, output, errors = await run_command(*command, DATABASE_URL=role_url, JWT_SECRET=SECRET)
        assert (2, "") == (code, output)
        assert f"row-level security applies to the role {role} in attempt, attempt_trail" in errors
        assert f"ALTER ROLE {role} BYPASSRLS" in errors
    for url in (database_url, role_url):
        await connection.execute(f"ALTER ROLE {role} BYPASSRLS")
        code, output, _ = await run_command("check", DATABASE_URL=url)
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


@pytest.mark.parametrize("is_hosts_pool", [False, True], ids=["own", "pool"])
async def test_reads_fail_where_rows_are_hidden_meanwhile(
    is_hosts_pool: bool, role_url: str, connection: Connection
) -> None:
    """Before the service is found unready: of groups, and of the log, whose reader would go on."""
    async with (
        database_of(role_url, is_hosts_pool=is_hosts_pool) as database,
        # A host's pool waits for the connections that are kept.
        AsyncExitStack() as stack,
    ):
        writes = PostgresWriteStore(database, lambda: None)
        stack.push_async_callback(writes.close)
        await writes.claim_and_lead([write("k")])
        tail = PostgresTail(database, uuid4())
        stack.push_async_callback(tail.close)
        await tail.listen(lambda: None)
        logs = (tail, PostgresLogStore(database.upkeep))
        groups = PostgresGroupStore(database)
        present = await tail.present()
        begin = Place(History(present.history.number, present.history.id), 0, ())
        for log in logs:
            assert 1 == len((await log.page(begin, 10)).events)
        assert 1 == len(await groups.groups_of_owner(ALICE, None, 10))
        await hide(connection)
        # The tail keeps its connection.
        with pytest.raises(Unreachable, match="affected by row-level security"):
            await tail.page(begin, 10)
        with pytest.raises(Unreachable, match="row-level security applies"):
            await logs[1].page(begin, 10)
        error = "row-level security applies" if is_hosts_pool else "affected by row-level security"
        with pytest.raises(Unreachable, match=error):
            await groups.groups_of_owner(ALICE, None, 10)


@pytest.mark.parametrize("is_hosts_pool", [False, True], ids=["own", "pool"])
async def test_a_hosts_own_policies_stay_in_force_where_its_code_runs(
    is_hosts_pool: bool, role: str, role_url: str, connection: Connection
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
    async with database_of(role_url, is_hosts_pool=is_hosts_pool) as database:
        writes = PostgresWriteStore(database, lambda: None)
        await writes.claim_and_lead([write("k")])
        await writes.close()
        await database.ping()
        for lane in Lane:
            async with database.connection(lane) as session:
                hides = await session.fetchval("SHOW row_security")
                assert ("on" if lane in WRITING else "off") == hides
    rows = await connection.fetch("SELECT left_over FROM public.quota ORDER BY owner")
    assert [2, 5] == [row["left_over"] for row in rows]


@pytest.mark.parametrize("is_hosts_pool", [False, True], ids=["own", "pool"])
async def test_upkeep_runs_triggers_that_use_a_table_with_policies(
    is_hosts_pool: bool, role: str, role_url: str, connection: Connection
) -> None:
    """Of the tables that the webhook and the sweep write."""
    await connection.execute(
        f"""
        CREATE TABLE public.seen (name text);
        ALTER TABLE public.seen ENABLE ROW LEVEL SECURITY;
        CREATE POLICY own ON public.seen USING (name <> 'outbox_reader');
        CREATE POLICY new ON public.seen FOR INSERT WITH CHECK (true);
        GRANT SELECT, INSERT, DELETE ON public.seen TO {role};
        CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            DELETE FROM public.seen WHERE name = TG_TABLE_NAME;
            INSERT INTO public.seen VALUES (TG_TABLE_NAME); RETURN NULL;
        END$$"""
    )
    written = ("attempt", "outbox_delivery", "outbox_reader")
    async with (
        database_of(role_url, is_hosts_pool=is_hosts_pool) as database,
        AsyncExitStack() as stack,
    ):
        writes = PostgresWriteStore(database, lambda: None)
        stack.push_async_callback(writes.close)
        webhook = PostgresWebhookStore(database, URL_DIGEST)
        await webhook.open()
        await writes.claim_and_lead([write("k")])
        for table in written:
            await connection.execute(
                f"CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON {table}"
                " FOR EACH ROW EXECUTE FUNCTION public.see()"
            )
        assert 1 == await webhook.enrol(10)
        (taken,) = await webhook.take(1, 60)
        await webhook.settle([taken.event.event_id], [])
        later = datetime.now(UTC) + timedelta(days=31)
        deleted = await sweep(database.upkeep, Retention(30, 60), later, lambda *_: None)
        assert 1 == deleted["attempt"]
    # The policy has hidden one from the trigger itself.
    names = {row["name"] for row in await connection.fetch("SELECT name FROM public.seen")}
    assert {*written} == names


@pytest.mark.parametrize(
    ("table", "statement", "arguments"),
    [
        (
            "outbox",
            "enrol",
            ([1], ["1"], [uuid4()], 1, "", "", 1, "1:1:", "", None, URL_DIGEST, "one"),
        ),
        ("outbox", "refuse_events", ([1], ["1"], [uuid4()], 1.0, None)),
        ("outbox", "sweepable_slots", (7, None, 1.0)),
        ("outbox_reader", "sweepable_slots", (7, None, 1.0)),
        ("outbox_reader", "sweep_deliveries", ((0, 0), (1, 0), 30, None)),
        ("history_start", "empty_slot", (1, "1:1:")),
        *(
            (table, *asked)
            for table in ("outbox_reader", "outbox_history")
            for asked in (
                ("lease_bus", (uuid4(), 5.0, None)),
                ("webhook_place", (URL_DIGEST,)),
                ("reader_place", ("bus",)),
            )
        ),
    ],
)
async def test_upkeep_that_would_lose_events_over_hidden_rows_fails(
    table: str, statement: str, arguments: tuple[object, ...], role_url: str, connection: Connection
) -> None:
    """By itself: the policies may come within a turn. The twin is without them."""
    settings = {"search_path": "stretto"}
    async with asyncpg.create_pool(role_url, min_size=0, server_settings=settings) as pool:
        await pool.execute(QUERIES["open_webhook"], URL_DIGEST)
        await connection.execute(
            "INSERT INTO outbox_history (number, id, server_started_at, table_id)"
            " VALUES (1, 'one', clock_timestamp(), '')"
        )
        await pool.fetch(QUERIES[statement], *arguments)
        await connection.execute(f"CREATE POLICY shown ON {table} USING (true)")
        await hide(connection, table)
        with pytest.raises(asyncpg.PostgresError, match=f"row-level security applies to {table}"):
            await pool.fetch(QUERIES[statement], *arguments)


@pytest.mark.parametrize("is_hosts_pool", [False, True], ids=["own", "pool"])
async def test_behind_pgbouncer_a_start_and_a_running_service_notice_it(
    is_hosts_pool: bool,
    server_url: str,
    database_url: str,
    role: str,
    role_url: str,
    connection: Connection,
) -> None:
    """No setting of ours reaches the server there; the twin is without the policies."""
    with running_pgbouncer(role_url) as folder:
        await give_settings(server_url)
        async with AsyncExitStack() as stack:
            url, pool = url_through(folder, server_url), None
            if is_hosts_pool:
                pool = await stack.enter_async_context(pool_through(url))
            database = await stack.enter_async_context(Database(url, pool=pool))
            database.is_shared = True
            tail = PostgresTail(database, uuid4())
            stack.push_async_callback(tail.close)
            await tail.listen(lambda: None)
            await database.ping()
            place = await tail.present()
            await tail.page(place, 10)
            await hide(connection, "attempt", "outbox")
            for check in (database.ping, database.inspect):
                with pytest.raises(Unreachable, match=f"to the role {role} in attempt, outbox:"):
                    await check()
            # Over a connection that is kept it is noticed by the statement itself.
            for read in (tail.page, tail.deletions):
                with pytest.raises(Unreachable, match=f"to the role {role} in outbox:"):
                    await read(place, 10)
            await hide(connection, "attempt", "outbox", verb="DISABLE")
            await database.ping()
            await tail.listen(lambda: None)
            await tail.page(place, 10)
            # A session of the pooler's is not ours alone.
            async with database.connection(Lane.GROUPS) as session:
                assert "on" == await session.fetchval("SHOW row_security")


def pool_through(url: str) -> asyncpg.Pool:
    """Return a host's pool behind PgBouncer."""
    through, _ = split_pooler(url)
    return asyncpg.create_pool(through, min_size=0, max_size=4, statement_cache_size=0)


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


class Bus:
    """Notes what is published."""

    def __init__(self) -> None:
        self.event_ids: list[object] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[Any, str]:
        """Note which events have come."""
        self.event_ids += [event.event_id for event in events]
        return {}


def team(key: str) -> NewGroup:
    """Return a group to create."""
    return NewGroup.parse(ALICE, {"name": key, "members": ["bob"]})


async def test_over_a_hosts_pool_no_event_is_passed_over_while_rows_are_hidden(
    role: str, role_url: str, connection: Connection
) -> None:
    """Switched on under a running component: bus and `on_event` wait, and reads fail, until it is off."""
    failing: set[str] = set()
    bus, heard = Bus(), []

    def observe(observation: Observation) -> None:
        if isinstance(observation, UpkeepFailed):
            failing.add(observation.actor)

    async def hear(event: CommittedEvent) -> None:
        heard.append(event.event_id)

    async with (
        hosts_pool(role_url) as pool,
        open_component(pool=pool, settings=SETTINGS, bus=bus, observe=observe) as component,
    ):
        await component.on_event(hear)
        await component.create("a", team("a"))
        await until(lambda: 1 == len(bus.event_ids) == len(heard))
        await hide(connection, "outbox", "chat_group")
        for table in ("outbox", "chat_group"):
            await connection.execute(
                f"CREATE POLICY own ON {table} FOR SELECT TO {role} USING (false);"
                f"CREATE POLICY new ON {table} FOR INSERT TO {role} WITH CHECK (true)"
            )
        answer = await component.create("b", team("b"))
        await until(lambda: {"relay", "subscriber"} <= failing)
        with pytest.raises(DatabaseUnavailable):
            await component.group(answer.group.group_id)
        await hide(connection, "outbox", "chat_group", verb="DISABLE")
        await until(lambda: 2 == len(bus.event_ids) == len(heard))
        assert "b" == (await component.group(answer.group.group_id)).name


@pytest.mark.parametrize("statement", ["SET ROLE", "SET SESSION AUTHORIZATION"])
async def test_a_session_whose_role_does_not_see_all_rows_is_replaced_before_it_is_used(
    statement: str, role: str, database_url: str, connection: Connection
) -> None:
    """A handler has left the role in it: also for what keeps its connection."""
    bus = Bus()
    await hide(connection)
    async with (
        hosts_pool(database_url) as pool,
        open_component(pool=pool, settings=SETTINGS, bus=bus) as component,
    ):
        await component.create("a", team("a"))
        await until(lambda: 1 == len(bus.event_ids))
        for number in range(5):
            await leave_in_sessions(pool, f"{statement} {role}")
            answer = await component.create(str(number), team("a"))
            assert "a" == (await component.group(answer.group.group_id)).name
        # One may come twice: the session that moved the relay's place may have been one of these.
        await until(lambda: 6 == len({*bus.event_ids}))
        database = Database(pool=pool)
        for lane in Lane:
            await leave_in_sessions(pool, f"{statement} {role}")
            async with database.connection(lane) as session:
                assert 6 == await session.fetchval("SELECT count(*) FROM chat_group")
        await leave_in_sessions(pool, f"{statement} {role}")
        session = await database.acquire()
        assert 6 == await session.fetchval("SELECT count(*) FROM chat_group")
        await database.release(session)


async def leave_in_sessions(pool: asyncpg.Pool, statement: str) -> None:
    """Have a host's handlers send it in three sessions, and give them back."""
    used = [await pool.acquire() for _ in range(3)]
    for each in used:
        await each.execute(statement)
        await pool.release(each)


async def test_sessions_are_not_replaced_where_the_pools_own_role_does_not_see_all_rows(
    role: str, role_url: str, connection: Connection
) -> None:
    """The next one would be no better: the host would lose all of its connections."""
    async with hosts_pool(role_url) as pool, Database(pool=pool) as database:
        await database.ping()
        process = await pool.fetchval("SELECT pg_backend_pid()")
        await hide(connection, "outbox")
        for lane in Lane:
            with pytest.raises(Unreachable, match=f"to the role {role} in outbox:"):
                async with database.connection(lane):
                    pass
        with pytest.raises(Unreachable, match="ALTER TABLE"):
            await database.acquire()
        assert process == await pool.fetchval("SELECT pg_backend_pid()")
        assert "on" == await pool.fetchval("SHOW row_security")


async def test_a_pool_whose_init_sets_a_role_that_does_not_see_all_rows_gives_an_error(
    role: str, database_url: str, connection: Connection
) -> None:
    """It says which role that is, after a few connections."""

    async def init(session: Any) -> None:
        await session.execute(f"SET ROLE {role}")

    await hide(connection, "outbox")
    async with hosts_pool(database_url, init=init) as pool, Database(pool=pool) as database:
        with pytest.raises(Unreachable, match=rf"SET ROLE.*, and .* the role {role} in outbox:"):
            await database.inspect()


@pytest.mark.parametrize("is_hosts_pool", [False, True], ids=["own", "pool"])
async def test_a_creation_that_meets_hidden_rows_is_not_refused_for_good(
    is_hosts_pool: bool, role_url: str, connection: Connection
) -> None:
    """Policies let its rows in, and then hide them from our own trigger: the key creates its group later."""
    async with (
        database_of(role_url, is_hosts_pool=is_hosts_pool) as database,
        AsyncExitStack() as stack,
    ):
        store = PostgresWriteStore(database, lambda: None)
        stack.push_async_callback(store.close)
        await store.open()
        await connection.execute("CREATE POLICY new ON conversation FOR INSERT WITH CHECK (true)")
        await hide(connection, "conversation")
        ours = write("k")
        with pytest.raises(Misconfigured, match="conversation_member_has_conversation"):
            await store.claim_and_lead([ours])
        await hide(connection, "conversation", verb="DISABLE")
        assert {ours.claim_token} == await store.lead([ours])


@pytest.mark.parametrize("policy", ["false", "true"], ids=["none", "some"])
@pytest.mark.parametrize("table", ["attempt", "chat_group", "conversation_member"])
async def test_a_deletion_from_which_rows_are_hidden_is_an_error(
    table: str, policy: str, role: str, role_url: str, connection: Connection
) -> None:
    """A group would look as if it did not exist, an attempt would stay; the twin is without the policies."""
    async with open_component(role_url, settings=SETTINGS) as component:
        group = (await component.create("k", team("k"))).group.group_id
    async with Database(role_url) as database:
        store = PostgresDeletionStore(database)

        async def delete() -> bool | None:
            async with store.deleting() as delete:
                return await delete(Deletion(group, ALICE, None), is_hasty=False)

        await connection.execute(f"CREATE POLICY own ON {table} USING ({policy})")
        await hide(connection, table)
        with pytest.raises(Unreachable, match=f"to the role {role} in {table}:"):
            await delete()
        await hide(connection, table, verb="DISABLE")
        assert await delete()


@pytest.mark.parametrize(
    "table", ["chat_group", "conversation", "conversation_member", "outbox_history", "outbox_slot"]
)
async def test_a_hosts_connection_from_which_rows_are_hidden_changes_nothing(
    table: str, role: str, role_url: str, connection: Connection, component: Component
) -> None:
    """Members it does not see would get no event; the twins are a role that passes by policies, and an owner."""
    made = await component.creator.create(IdempotencyKey("k"), TEAM)
    group = made.group.group_id
    await connection.execute(f"CREATE POLICY shown ON {table} USING (true)")
    await hide(connection, table)
    host = await connect(role_url)
    calls: tuple[tuple[Any, dict[str, Any]], ...] = (
        (stretto.rename_group, {"name": "Crew"}),
        (stretto.add_members, {"roles": {"dave": "member"}}),
        (stretto.remove_members, {"users": ["bob"]}),
        (stretto.set_role, {"user": "carol", "role": "member"}),
        (stretto.delete_group, {}),
    )
    words = f"applies to the role {role} in {table}:"
    for change, arguments in calls:
        with pytest.raises(stretto.ConfigurationError, match=words):
            await changed(host, change, group, **arguments)
    with pytest.raises(stretto.ConfigurationError, match=words):
        await stretto.delete_group(host, group)
    owner = await connection.fetchval("SELECT current_user")
    await connection.execute(f"ALTER TABLE {table} OWNER TO {role}")
    await hide(connection, table, verb="FORCE")
    with pytest.raises(stretto.ConfigurationError, match=words):
        await stretto.delete_group(host, group)
    assert UNCHANGED == await seen(connection, group)
    assert [] == await changes(connection)
    await hide(connection, table, verb="NO FORCE")
    for change, arguments in calls[:2]:
        assert await changed(host, change, group, **arguments)
    await connection.execute(f"ALTER TABLE {table} OWNER TO {owner}; ALTER ROLE {role} BYPASSRLS")
    await grant(connection, "stretto", [role])
    for change, arguments in calls[2:]:
        assert await changed(host, change, group, **arguments)
    await host.close()


async def test_a_hosts_connection_from_which_attempts_are_hidden_deletes_nothing(
    role: str, role_url: str, connection: Connection, component: Component
) -> None:
    """The attempt would stay; the twins are a change, which touches none, and a deletion without the policies."""
    made = await component.creator.create(IdempotencyKey("k"), TEAM)
    group = made.group.group_id
    await connection.execute("CREATE POLICY shown ON attempt USING (false)")
    await hide(connection, "attempt")
    host = await connect(role_url)
    words = f"applies to the role {role} in attempt:"
    with pytest.raises(stretto.ConfigurationError, match=words):
        await changed(host, stretto.delete_group, group)
    with pytest.raises(stretto.ConfigurationError, match=words):
        await stretto.delete_group(host, group)
    assert UNCHANGED == await seen(connection, group)
    assert [] == await changes(connection)
    assert await changed(host, stretto.rename_group, group, name="Crew")
    assert 1 == await connection.fetchval("SELECT count(*) FROM attempt")
    await hide(connection, "attempt", verb="DISABLE")
    assert await stretto.delete_group(host, group)
    assert 0 == await connection.fetchval("SELECT count(*) FROM attempt")
    await host.close()


@pytest.mark.parametrize(
    ("statement", "arguments", "tables"),
    [
        ("lock_group", ("a", ["a", None], True, 7), set()),
        # Of a group that is not there its routine reads less.
        ("delete_group", (uuid4(),), {"attempt"}),
    ],
    ids=["change", "deletion"],
)
async def test_no_policies_are_switched_on_between_the_look_of_a_change_and_the_change(
    statement: str, arguments: tuple[object, ...], tables: set[str], connection: Connection
) -> None:
    """The look locks each table, so the operator's statement waits."""
    read = {"chat_group", "conversation", "conversation_member", "outbox_history", "outbox_slot"}
    async with connection.transaction():
        await connection.fetch(QUERIES[statement], uuid4(), *arguments)
        locked = await connection.fetch(
            "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid()"
        )
    assert read | tables <= {row[0] for row in locked}
