"""What the migrations make of the first schema: the newest one, and with the locks that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from stretto.postgres.migrate import migrate
from stretto.postgres.migration_steps import FIRST_NUMBER, Step, Way, own_steps
from support.database import connect
from support.implicit_casts import SETS
from support.landed import landed_file

if TYPE_CHECKING:
    from support.database import Connection

# Everything that a schema is made of, in words; columns may stand in another order.
CATALOG = """
    WITH own AS (SELECT oid, relname FROM pg_class WHERE relnamespace = 'stretto'::regnamespace)
    SELECT format('column %s.%s %s %s %s', relname, attname, format_type(atttypid, atttypmod),
                  attnotnull, pg_get_expr(adbin, adrelid))
    FROM own JOIN pg_attribute ON attrelid = own.oid AND attnum > 0 AND NOT attisdropped
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    UNION ALL
    SELECT format('constraint %s %s %s', relname, conname, pg_get_constraintdef(pg_constraint.oid))
    FROM pg_constraint JOIN own ON own.oid = conrelid
    UNION ALL
    SELECT format('index %s %s', pg_get_indexdef(indexrelid), indisvalid)
    FROM pg_index JOIN own ON own.oid = indrelid
    UNION ALL
    SELECT format('trigger %s', pg_get_triggerdef(pg_trigger.oid))
    FROM pg_trigger JOIN own ON own.oid = tgrelid WHERE NOT tgisinternal
    UNION ALL
    SELECT format('relation %s %s %s %s', relname, relkind, reloptions,
                  CASE relkind WHEN 'v' THEN pg_get_viewdef(pg_class.oid) END)
    FROM pg_class JOIN own USING (oid, relname)
    UNION ALL
    SELECT format('routine %s', pg_get_functiondef(oid))
    FROM pg_proc WHERE pronamespace = 'stretto'::regnamespace
    UNION ALL
    -- Which versions a database has had is its own.
    SELECT format('rows of outbox_slot %s', array_agg((slot, number) ORDER BY slot))
    FROM stretto.outbox_slot"""
# What a statement of the service may wait for: it reads and writes rows. A lock on a partition is one
# on its table.
BLOCKING = """
    SELECT DISTINCT coalesce(parent.relname, pg_class.relname) AS name,
           upper(regexp_replace(replace(mode, 'Lock', ''), '(?<=[a-z])(?=[A-Z])', ' ', 'g')) AS mode
    FROM pg_locks JOIN pg_class ON pg_class.oid = relation
    LEFT JOIN pg_inherits ON inhrelid = pg_class.oid
    LEFT JOIN pg_class AS parent ON parent.oid = inhparent
    WHERE pid = pg_backend_pid() AND pg_class.relkind IN ('r', 'p')
      AND pg_class.relname = ANY ($1)
      AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock',
                       'ShareUpdateExclusiveLock')"""
TABLES = """SELECT relname FROM pg_class
            WHERE relnamespace = 'stretto'::regnamespace AND relkind IN ('r', 'p')"""
STRENGTH = ["", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"]
TRANSACTIONS = [step for step in own_steps() if step.way is Way.TRANSACTION]


@pytest_asyncio.fixture
async def first(connection: Connection) -> Connection:
    """A database that has the schema of the first number."""
    await connection.execute("DROP SCHEMA stretto CASCADE; CREATE SCHEMA stretto")
    await connection.execute(landed_file("schema.sql"))
    await connection.execute(
        "INSERT INTO schema_version (number, checksum) VALUES ($1, 'then')", FIRST_NUMBER
    )
    return connection


async def catalog(connection: Connection) -> set[str]:
    """Return what the schema is made of."""
    return {row[0] for row in await connection.fetch(CATALOG)}


async def locks_taken(connection: Connection, step: Step) -> dict[str, str]:
    """Run a step, and return the locks on tables that were there before, the strongest of each."""
    tables = [row[0] for row in await connection.fetch(TABLES)]
    async with connection.transaction():
        await connection.execute(step.statements)
        found: dict[str, str] = {}
        for name, mode in await connection.fetch(BLOCKING, tables):
            found[name] = max(found.get(name, ""), mode, key=STRENGTH.index)
    return found


async def test_a_migrated_database_equals_a_new_one(first: Connection) -> None:
    """Columns, constraints, indexes, triggers, routines, views and storage options."""
    assert [step.number for step in own_steps()] == await migrate(first, "stretto")
    migrated = await catalog(first)
    await first.execute("DROP SCHEMA stretto CASCADE")
    await migrate(first, "stretto")
    assert await catalog(first) == migrated


@pytest.mark.parametrize("casts", SETS.values(), ids=SETS)
async def test_casts_that_are_implicit_hold_up_no_step(
    first: Connection, casts: str, database_url: str
) -> None:
    """Nor does what the steps make have two meanings with them."""
    await first.execute(casts)
    another = await connect(database_url)
    assert [step.number for step in own_steps()] == await migrate(another, "stretto")
    assert await another.fetchval("SELECT require_whole_log_1()")
    await another.close()


async def test_a_difference_to_a_new_one_is_noticed(connection: Connection) -> None:
    """The twin, for each kind of thing."""
    whole = await catalog(connection)
    for change in (
        "ALTER TABLE inbox ADD COLUMN x text",
        "ALTER TABLE inbox DROP CONSTRAINT inbox_pkey",
        "CREATE INDEX by_time ON inbox (received_at)",
        "ALTER TABLE attempt RESET (fillfactor)",
        "DROP TRIGGER attempt_settled_is_final ON attempt",
        "DROP PROCEDURE claim_and_lead_1",
    ):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(change)
        assert whole != await catalog(connection), change
        await transaction.rollback()


async def test_every_step_takes_the_locks_that_its_header_names(first: Connection) -> None:
    """An operator reads them in `stretto migrate --plan`."""
    taken = {step.number: await locks_taken(first, step) for step in TRANSACTIONS}
    assert {step.number: step.locks for step in TRANSACTIONS} == taken


async def test_a_lock_that_no_header_names_is_noticed(connection: Connection) -> None:
    """The twin; what the step itself has made is waited for by none."""
    step = Step(99, "CREATE TABLE x (); CREATE INDEX y ON inbox (received_at); LOCK outbox_0")
    assert {"inbox": "SHARE", "outbox": "ACCESS EXCLUSIVE"} == await locks_taken(connection, step)
