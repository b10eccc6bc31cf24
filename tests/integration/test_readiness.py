"""Ready means able to write: whatever keeps writers away turns it red; no write need mend it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg
import pytest

from stretto.domain import UserId
from stretto.postgres.connecting import READ_ONLY
from stretto.postgres.connections import Database
from stretto.postgres.driver_connection import terminate
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.lanes import Lane
from stretto.postgres.migrate import grant
from stretto.postgres.pooler import split_pooler
from stretto.postgres.readiness import PROBE_SECONDS, Readiness
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Misconfigured, Unreachable
from support.both_stores import write
from support.clock import Clock
from support.database import END_OURS, set_read_only
from support.frozen_server import Frozen
from support.pgbouncer import give_settings, reconnect, running_pgbouncer, url_through

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection


@asynccontextmanager
async def closed(connection: Connection, server_url: str) -> AsyncIterator[None]:
    """Have the database take no connection any more; those that it has live on."""
    name = await connection.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(server_url.replace(f"/{name}", "/postgres"))
    await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
    try:
        yield
    finally:
        await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
        await admin.close()


async def test_a_read_only_database_is_not_ready_until_it_takes_writes(
    database_url: str, connection: Connection
) -> None:
    """Neither to be read, nor to be written; a client's write is not needed for it to recover."""
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store])
        await store.open()
        await readiness.check()
        await set_read_only(connection, is_read_only=True)
        await connection.execute(END_OURS)
        for _ in range(2):
            with pytest.raises(Unreachable):
                await readiness.check()
        with pytest.raises(Unreachable, match=READ_ONLY):
            await database.acquire()
        await set_read_only(connection, is_read_only=False)
        await readiness.check()
        await store.close()


async def test_a_health_check_is_one_statement(database_url: str, server_url: str) -> None:
    """Also behind a pooler: of a database whose every answer comes late, one comes in time."""
    await give_settings(server_url)
    for url in (database_url, f"{server_url}&pgbouncer=true"):
        asked: list[str] = []
        async with Database(url) as database:
            async with database.connection(Lane.PROBE) as session:
                session.add_query_logger(lambda record, asked=asked: asked.append(record.query))
            await database.ping()
        assert 1 == len(asked)


async def test_behind_pgbouncer_a_health_check_finds_a_server_that_refuses_writes(
    server_url: str,
) -> None:
    """A session that was opened before shows it."""
    await give_settings(server_url)
    async with Database(f"{server_url}&pgbouncer=true") as database:
        await database.ping()
        async with database.connection(Lane.PROBE) as session:
            await session.execute("SET default_transaction_read_only = on")
        with pytest.raises(Unreachable, match=READ_ONLY):
            await database.ping()
        await database.ping()


async def test_a_session_that_has_become_read_only_is_given_up(database_url: str) -> None:
    """Another one may lead to a server that takes writes."""
    async with Database(database_url) as database:
        readiness = Readiness(database, [])
        async with database.connection(Lane.PROBE) as reader:
            await reader.execute("SET default_transaction_read_only = on")
        with pytest.raises(Unreachable, match=READ_ONLY):
            await readiness.check()
        await Readiness(database, [PostgresWriteStore(database, lambda: None)]).check()


async def test_while_a_server_refuses_writes_requests_get_nothing_of_a_hosts_pool(
    database_url: str,
) -> None:
    """Its sessions are not cut: they are the host's. The twin is a read before a look has shown it."""

    async def keep(_: object) -> None:
        """Reset nothing."""

    async with (
        asyncpg.create_pool(
            database_url,
            min_size=1,
            max_size=1,
            server_settings={"search_path": "stretto"},
            reset=keep,
        ) as pool,
        Database(pool=pool) as database,
    ):
        groups = PostgresGroupStore(database)
        async with pool.acquire() as session:
            await session.execute("SET default_transaction_read_only = on")
        await groups.groups_of_owner(UserId("alice"), None, 1)
        with pytest.raises(Unreachable, match=READ_ONLY):
            await database.ping()
        with pytest.raises(Unreachable, match=READ_ONLY):
            await groups.groups_of_owner(UserId("alice"), None, 1)
        await database.ping()
        await groups.groups_of_owner(UserId("alice"), None, 1)


async def test_writers_that_reach_nothing_are_known_until_a_connection_can_be_had(
    database_url: str, server_url: str, connection: Connection
) -> None:
    """Reads go on meanwhile; the database is asked once a second, however often we are."""
    clock = Clock()
    async with Database(database_url) as database:
        stores = [PostgresWriteStore(database, lambda: None) for _ in range(2)]
        readiness = Readiness(database, stores, clock)
        await readiness.check()
        async with closed(connection, server_url):
            for store in stores:
                # One writer that is well is enough.
                await readiness.check()
                with pytest.raises(Unreachable):
                    await store.claim([])
            with pytest.raises(Unreachable, match="not currently accepting connections"):
                await readiness.check()
        clock.now += PROBE_SECONDS / 2
        with pytest.raises(Unreachable, match="not currently accepting connections"):
            await readiness.check()
        clock.now += PROBE_SECONDS / 2
        await readiness.check()
        assert [False, False] == [store.is_cut_off for store in stores]
        async with database.connection(Lane.PROBE) as reader:
            assert 1 == await reader.fetchval("SELECT 1")


@asynccontextmanager
async def writing(database: Database) -> AsyncIterator[tuple[PostgresWriteStore, Readiness]]:
    """A writer that has its connection, and the readiness of its process."""
    store = PostgresWriteStore(database, lambda: None)
    await store.open()
    try:
        yield store, Readiness(database, [store])
    finally:
        await store.close()


LANES = [Lane.LOOKS, Lane.FOLLOWERS, Lane.DELETIONS, Lane.GROUPS, Lane.HISTORY]


async def fail_to_read(database: Database, lane: Lane) -> None:
    """Meet what keeps a lane from its first connection."""
    with pytest.raises(Unreachable):
        async with database.connection(lane):
            pass


@pytest.mark.parametrize("lane", LANES)
async def test_readers_that_reach_nothing_are_known_until_a_connection_can_be_had(
    lane: Lane, database_url: str, server_url: str, connection: Connection
) -> None:
    """Health checks go on over the connection that they have."""
    clock = Clock()
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store], clock)
        await readiness.check()
        async with closed(connection, server_url):
            await readiness.check()
            await fail_to_read(database, lane)
            for _ in range(2):
                with pytest.raises(Unreachable, match="not currently accepting connections"):
                    await readiness.check()
        clock.now += PROBE_SECONDS
        await readiness.check()
        assert not database.cut_offs.is_any_serving(is_writing=False)
        await store.close()


@pytest.mark.parametrize("lane", LANES)
async def test_what_the_server_refuses_to_readers_makes_no_writer_unready(
    lane: Lane, database_url: str, server_url: str, connection: Connection
) -> None:
    """It refuses it to the other instances too: none would be left for creations."""
    async with Database(database_url) as database, writing(database) as (store, readiness):
        await readiness.check()
        async with closed(connection, server_url):
            await fail_to_read(database, lane)
            await readiness.check()
            async with database.connection(Lane.PROBE) as probing:
                terminate(probing)
            # Health checks have none either.
            await readiness.check()
            await store.claim([])
            # Without the writer's, nothing is served.
            await store.close()
            with pytest.raises(Unreachable, match="not currently accepting connections"):
                await readiness.check()


async def test_behind_pgbouncer_its_limit_of_clients_makes_no_writer_unready(
    server_url: str, connection: Connection
) -> None:
    """It has the code of a way to the server that is lost, and is another one's as well."""
    with running_pgbouncer(server_url, "max_client_conn = 3") as folder:
        await give_settings(server_url)
        await connection.close()
        url = url_through(folder, server_url)
        async with Database(url) as database, writing(database) as (store, readiness):
            await readiness.check()
            neighbour = await asyncpg.connect(split_pooler(url)[0])
            await fail_to_read(database, Lane.GROUPS)
            await readiness.check()
            await store.claim([])
            await neighbour.close()


async def test_a_server_that_refuses_its_first_connections_makes_unready(
    database_url: str, server_url: str, connection: Connection
) -> None:
    """No writer has one either."""
    async with Database(database_url) as database, closed(connection, server_url):
        with pytest.raises(Unreachable, match="not currently accepting connections"):
            await Readiness(database, [PostgresWriteStore(database, lambda: None)]).check()


async def test_readers_without_a_way_to_the_server_make_unready_though_a_writer_has_one(
    database_url: str,
) -> None:
    """It may be this machine's: other instances have one."""
    async with (
        Frozen(database_url).running() as way,
        Database(way.url) as database,
        writing(database) as (store, readiness),
    ):
        await readiness.check()
        way.refuse()
        await fail_to_read(database, Lane.GROUPS)
        await store.claim([])
        with pytest.raises(Unreachable):
            await readiness.check()


async def test_health_checks_that_fail_over_their_connection_count_whatever_was_refused_before(
    database_url: str, server_url: str, connection: Connection
) -> None:
    """The twin: the server has answered them since."""
    async with Database(database_url) as database, writing(database) as (_, readiness):
        async with closed(connection, server_url):
            # The first health check has no connection yet.
            await readiness.check()
        await readiness.check()
        await connection.execute("ALTER TABLE stretto.attempt RENAME TO lost")
        with pytest.raises(Unreachable):
            await readiness.check()


async def test_readers_that_are_only_busy_are_ready(
    database_url: str, server_url: str, connection: Connection
) -> None:
    """With a connection that works, one more that cannot be had makes them slower; nor does upkeep count."""
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store])
        await readiness.check()
        async with database.connection(Lane.GROUPS), closed(connection, server_url):
            for lane in (Lane.GROUPS, Lane.UPKEEP):
                await fail_to_read(database, lane)
            await readiness.check()
        await store.close()


async def test_after_a_read_that_the_schema_refused_the_schema_is_asked(
    role: str, role_url: str, connection: Connection
) -> None:
    """Not ready until the right is there again; a read that succeeds makes ready at once."""
    await grant(connection, "stretto", [role])
    clock = Clock()
    async with Database(role_url) as database:
        groups = PostgresGroupStore(database)
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store], clock)
        await store.open()
        for mends in ("probe", "read"):
            clock.now += PROBE_SECONDS
            await groups.groups_of_owner(UserId("alice"), None, 1)
            await connection.execute(f"REVOKE SELECT ON chat_group FROM {role}")
            await readiness.check()
            with pytest.raises(Unreachable):
                await groups.groups_of_owner(UserId("alice"), None, 1)
            for _ in range(2):
                with pytest.raises(Unreachable, match="lacks rights on the tables chat_group"):
                    await readiness.check()
            await connection.execute(f"GRANT SELECT ON chat_group TO {role}")
            if mends == "probe":
                clock.now += PROBE_SECONDS
            else:
                await groups.groups_of_owner(UserId("alice"), None, 1)
            await readiness.check()
            assert not database.is_misfit
        await store.close()


async def test_a_writer_that_connects_again_is_no_longer_cut_off(
    database_url: str, server_url: str, connection: Connection
) -> None:
    """By its own next statement."""
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        async with closed(connection, server_url):
            with pytest.raises(Unreachable):
                await store.claim([])
        assert store.is_cut_off
        await store.claim([])
        assert not store.is_cut_off
        await store.close()


async def test_behind_pgbouncer_what_it_reported_once_does_not_count(
    server_url: str, connection: Connection
) -> None:
    """The server itself is asked, at every connection."""
    with running_pgbouncer(server_url) as folder:
        await give_settings(server_url)
        async with Database(url_through(folder, server_url)) as database:
            store = PostgresWriteStore(database, lambda: None)
            readiness = Readiness(database, [store])
            await readiness.check()
            for is_read_only in (True, False):
                await set_read_only(connection, is_read_only=is_read_only)
                await reconnect(folder)
                if is_read_only:
                    with pytest.raises(Unreachable, match=READ_ONLY):
                        await readiness.check()
                    with pytest.raises(Unreachable, match=READ_ONLY):
                        await database.acquire()
                else:
                    await readiness.check()
                    await store.claim([])
            await store.close()


async def test_behind_pgbouncer_a_server_that_once_refused_writes_is_asked_again(
    server_url: str, connection: Connection
) -> None:
    """PgBouncer greets clients with what its first connection met, until an operator steps in."""
    # It looks at each connection before it is used: one that has just ended is replaced.
    with running_pgbouncer(server_url, "server_check_delay = 0") as folder:
        await give_settings(server_url)
        async with Database(url_through(folder, server_url)) as database:
            await set_read_only(connection, is_read_only=True)
            with pytest.raises(Unreachable, match=READ_ONLY):
                await database.acquire()
            await set_read_only(connection, is_read_only=False)
            await connection.execute(END_OURS)
            await database.release(await database.acquire())


@pytest.mark.parametrize(
    ("change", "undo", "refusal"),
    [
        pytest.param(
            "REVOKE INSERT ON chat_group FROM {role}",
            "GRANT INSERT ON chat_group TO {role}",
            "lacks rights on the tables chat_group; run",
            id="right",
        ),
        pytest.param(
            "ALTER TABLE conversation RENAME TO elsewhere",
            "ALTER TABLE elsewhere RENAME TO conversation",
            "the schema lacks the tables conversation",
            id="table",
        ),
        pytest.param(
            "ALTER TABLE chat_group RENAME COLUMN name TO title",
            "ALTER TABLE chat_group RENAME COLUMN title TO name",
            'column "name" of relation "chat_group" does not exist',
            id="column",
        ),
    ],
)
async def test_after_a_write_that_the_schema_refused_the_schema_is_asked(
    change: str, undo: str, refusal: str, role: str, role_url: str, connection: Connection
) -> None:
    """Not ready until the writers' statements can be done; no client's write is needed for that."""
    await grant(connection, "stretto", [role])
    clock = Clock()
    async with Database(role_url) as database:
        stores = [PostgresWriteStore(database, lambda: None) for _ in range(2)]
        readiness = Readiness(database, stores, clock)
        await readiness.check()
        await connection.execute(change.format(role=role))
        with pytest.raises(Misconfigured):
            await stores[0].lead([])
        for _ in range(2):
            # A claim needs less, and succeeds meanwhile where our tables are all there.
            with suppress(Misconfigured):
                await stores[0].claim([])
            with pytest.raises(Unreachable, match=refusal):
                await readiness.check()
        await connection.execute(undo.format(role=role))
        clock.now += PROBE_SECONDS
        await readiness.check()
        assert not stores[0].is_misfit
        for store in stores:
            await store.close()


async def test_what_one_owners_trigger_meets_again_and_again_makes_nobody_else_wait(
    database_url: str, connection: Connection
) -> None:
    """A probe has just shown that others are served; anyone may ask."""
    async with Database(database_url) as database:
        store, clock = PostgresWriteStore(database, lambda: None), Clock()
        readiness = Readiness(database, [store], clock)
        await store.open()
        for _ in range(3):
            store.is_misfit = True
            await readiness.check()
            # The next write of that owner.
            store.is_misfit = True
            await readiness.check()
            clock.now += PROBE_SECONDS
        await connection.execute("ALTER TABLE chat_group RENAME TO elsewhere")
        store.is_misfit = True
        # The second comes while the first one's probe is under way.
        for error in await asyncio.gather(
            readiness.check(), readiness.check(), return_exceptions=True
        ):
            assert isinstance(error, Unreachable)
        await store.close()


async def test_a_write_that_succeeds_again_makes_ready_at_once(
    database_url: str, connection: Connection
) -> None:
    """No probe is needed then."""
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store], Clock())
        await connection.execute("ALTER TABLE chat_group RENAME TO elsewhere")
        with pytest.raises(Misconfigured):
            await store.lead([])
        with pytest.raises(Unreachable):
            await readiness.check()
        await connection.execute("ALTER TABLE elsewhere RENAME TO chat_group")
        # An empty batch shows nothing.
        await store.lead([])
        with pytest.raises(Unreachable):
            await readiness.check()
        await store.claim_and_lead([write("k")])
        await readiness.check()
        await store.close()


MEETS_NO_TABLE = """
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN INSERT INTO audit_log VALUES (NEW.group_id); RETURN NEW; END$$;
"""


@pytest.mark.parametrize("has_led", [False, True])
@pytest.mark.parametrize(
    ("change", "undo", "refusal"),
    [
        pytest.param(
            MEETS_NO_TABLE
            + "CREATE TRIGGER audit BEFORE INSERT ON chat_group"
            + " FOR EACH ROW EXECUTE FUNCTION audit()",
            "DROP TRIGGER audit ON chat_group",
            'relation "audit_log" does not exist',
            id="trigger",
        ),
        pytest.param(
            MEETS_NO_TABLE
            + "CREATE CONSTRAINT TRIGGER audit AFTER INSERT ON chat_group"
            + " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit()",
            "DROP TRIGGER audit ON chat_group",
            'relation "audit_log" does not exist',
            id="deferred trigger",
        ),
        pytest.param(
            "ALTER TABLE outbox DETACH PARTITION outbox_0",
            "ALTER TABLE outbox ATTACH PARTITION outbox_0 FOR VALUES IN (0)",
            "detached from outbox: outbox_0;",
            id="partition",
        ),
    ],
)
async def test_what_only_rows_meet_keeps_unready_until_a_group_can_be_written(
    change: str,
    undo: str,
    refusal: str,
    database_url: str,
    connection: Connection,
    *,
    has_led: bool,
) -> None:
    """Empty batches go through meanwhile; the probe writes a group, and nothing of it is left."""
    clock = Clock()
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store], clock)
        if has_led:
            await store.claim_and_lead([write("before")])
        await connection.execute(change)
        with pytest.raises(Misconfigured):
            await store.claim_and_lead([write("k")])
        for _ in range(3):
            clock.now += PROBE_SECONDS
            with pytest.raises(Unreachable, match=refusal):
                await readiness.check()
        await connection.execute(undo)
        clock.now += PROBE_SECONDS
        await readiness.check()
        assert int(has_led) == await connection.fetchval("SELECT count(*) FROM outbox")
        assert int(has_led) + 1 == await connection.fetchval("SELECT count(*) FROM attempt")
        await store.close()


@pytest.mark.parametrize("state", ["P0001", "42501"])
async def test_what_is_refused_to_one_owner_keeps_no_replica_unready(
    state: str, database_url: str, connection: Connection
) -> None:
    """The probe writes for an owner whose group went through; a veto of that one counts as success."""
    await connection.execute(
        f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN
                IF {"true" if state == "P0001" else "NEW.owner_id <> 'alice'"} THEN
                    RAISE EXCEPTION 'no' USING ERRCODE = '{state}';
                END IF;
                RETURN NEW;
            END$$"""
    )
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store], Clock())
        await store.claim_and_lead([write("k")])
        await connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON chat_group"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        store.is_misfit = True
        await readiness.check()
        assert not store.is_misfit
        await store.close()


async def test_a_history_that_is_lost_is_named(database_url: str, connection: Connection) -> None:
    """A writer that connects cannot serve; it is no bug, and a connection alone does not mend it."""
    clock = Clock()
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store], clock)
        await connection.execute("CREATE TABLE kept AS TABLE outbox_history")
        await connection.execute("TRUNCATE outbox_history")
        for _ in range(2):
            clock.now += PROBE_SECONDS
            with pytest.raises(Misconfigured, match="outbox_history"):
                await store.claim([])
            with pytest.raises(Unreachable, match="outbox_history has lost its rows"):
                await readiness.check()
        await connection.execute("INSERT INTO outbox_history TABLE kept")
        clock.now += PROBE_SECONDS
        await readiness.check()
        await store.close()


async def test_commits_that_are_no_longer_flushed_make_unready(database_url: str) -> None:
    """A server that is reloaded switches its living sessions over; the next health check says so."""
    async with Database(database_url) as database:
        readiness = Readiness(database, [PostgresWriteStore(database, lambda: None)])
        for value in ("on", "off", "local"):
            async with database.connection(Lane.PROBE) as reader:
                await reader.execute(f"SET synchronous_commit = {value}")
            if value == "off":
                with pytest.raises(Unreachable, match="SET synchronous_commit = 'on'"):
                    await readiness.check()
            # The next one asks another session, which has what is set for the role by now.
            await readiness.check()


async def test_a_session_that_is_not_warned_of_unsure_commits_makes_unready(
    database_url: str, connection: Connection
) -> None:
    """A role's setting does not count for ours; what a trigger has set since does."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET client_min_messages = error")
    async with Database(database_url) as database:
        readiness = Readiness(database, [PostgresWriteStore(database, lambda: None)])
        await readiness.check()
        async with database.connection(Lane.PROBE) as reader:
            await reader.execute("SET client_min_messages = error")
        with pytest.raises(Unreachable, match="SET client_min_messages = 'notice'"):
            await readiness.check()


@pytest.mark.parametrize("durability", ["off", "local"])
async def test_a_writer_takes_no_connection_whose_commits_are_not_flushed(
    durability: str, database_url: str, connection: Connection
) -> None:
    """A role's setting is that of new sessions: health checks go on with an old one."""
    clock = Clock()
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    async with Database(database_url) as database:
        store = PostgresWriteStore(database, lambda: None)
        readiness = Readiness(database, [store], clock)
        await store.open()
        await readiness.check()
        await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {durability}")
        await store.claim([])
        await readiness.check()
        await store.close()
        if durability == "local":
            await store.claim([])
            await readiness.check()
        else:
            for _ in range(2):
                clock.now += PROBE_SECONDS
                with pytest.raises(Misconfigured, match="synchronous_commit is off"):
                    await store.claim([])
                with pytest.raises(Unreachable, match="SET synchronous_commit = 'on'"):
                    await readiness.check()
            await connection.execute(f"ALTER DATABASE {name} RESET synchronous_commit")
            clock.now += PROBE_SECONDS
            await readiness.check()
            await store.claim([])
        await store.close()


async def test_behind_pgbouncer_commits_that_are_no_longer_flushed_make_unready(
    server_url: str, connection: Connection
) -> None:
    """The role's setting is asked for with the others; the twin waits for no standby."""
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    with running_pgbouncer(server_url) as folder:
        await give_settings(server_url)
        async with Database(url_through(folder, server_url)) as database:
            store = PostgresWriteStore(database, lambda: None)
            readiness = Readiness(database, [store])
            for value in ("off", "local"):
                await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {value}")
                await reconnect(folder)
                if value == "off":
                    with pytest.raises(Unreachable, match=r"commit = 'on', and then RECONNECT"):
                        await readiness.check()
                    with pytest.raises(Misconfigured, match="synchronous_commit is off"):
                        await store.claim([])
                else:
                    store.is_misfit = False
                    await readiness.check()
                    await store.claim([])
            await store.close()
