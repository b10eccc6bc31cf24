"""What `stretto size` prints, against a database that the real writer has filled."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_OID, uuid5

import orjson
import pytest
import pytest_asyncio

from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.embedded.postgres import embedded_postgres
from stretto.postgres.connections import Database
from stretto.postgres.migrate import migrate
from stretto.postgres.sizing import DAY_SECONDS, Demand, image_bytes, tables, wal_bytes
from stretto.targets.delivery import Delivery, PutOff
from stretto.webhook.rules import RETRY_SECONDS
from stretto.webhook.sender import ENROLLED_MAX
from stretto.webhook.slots import UNDER_WAY_MAX
from stretto.webhook.store import PostgresWebhookStore
from support.command_process import stretto
from support.database import connect, groups
from support.embedded_servers import FAST, said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

    from stretto.assembly.component import Component
    from support.database import Connection

# Pages of an index that is filled at random split nearly together while there are few: its fill swings
# between a half and all. Here it is near its mean.
GROUPS: Final = 6_600
MEMBERS: Final = 5
AT_ONCE: Final = 64
# Of them in a checkpoint's time: enough to change a good part of the pages.
CHECKPOINTED: Final = 300
ROUNDS: Final = 3
FEW_GROUPS: Final = 1_500
TOLERANCE: Final = 0.15
# Failed tries of each event: the sizes no longer change then.
TRIES: Final = 3
URL_DIGEST: Final = bytes(32)
NAME: Final = "a name of 20 letters"
SIZES = """
    SELECT coalesce(parent.relname, pg_class.relname) AS name,
           sum(pg_table_size(pg_class.oid))::float AS heap_bytes,
           sum(pg_indexes_size(pg_class.oid))::float AS index_bytes,
           sum(pg_total_relation_size(pg_class.oid))::float AS bytes
    FROM pg_class
    LEFT JOIN pg_inherits ON inhrelid = pg_class.oid
    LEFT JOIN pg_class AS parent ON parent.oid = inhparent
    WHERE pg_class.relnamespace = 'stretto'::regnamespace AND pg_class.relkind = 'r'
    GROUP BY 1"""
WAL = """SELECT sum(wal_bytes)::float FROM pg_stat_statements
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""


@pytest_asyncio.fixture
async def server_url() -> AsyncIterator[str]:
    """A database on a server of its own: on the tests' server each one that is dropped checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_postgres(Path(folder, "data"), notify=said, settings=FAST) as server:
            connection = await connect(server.dsn)
            await migrate(connection, "stretto")
            await connection.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")
            await connection.close()
            yield server.dsn


async def fill(component: Component, numbers: range, at_once: int = AT_ONCE) -> None:
    """Create groups, so many at once; each user is in one of them."""
    left = iter(numbers)

    async def create() -> None:
        for number in left:
            owner, *members = (user_id(number, each) for each in range(MEMBERS))
            group = NewGroup.parse(UserId(owner), {"name": NAME, "members": members})
            await component.creator.create(IdempotencyKey(f"k{number}"), group)

    await asyncio.gather(*(create() for _ in range(at_once)))


def user_id(number: int, member: int) -> str:
    """Return an id of 36 characters, in no order."""
    return str(uuid5(NAMESPACE_OID, f"{number}/{member}"))


async def sizes(connection: Connection) -> dict[str, asyncpg.Record]:
    """Return the sizes of the tables."""
    return {row["name"]: row for row in await connection.fetch(SIZES)}


def filled(count: int, at_once: int) -> Demand:
    """Return what has made so many groups, so many at once: the rate is any that makes such batches."""
    rate = 1e6
    days = count / rate / DAY_SECONDS
    return Demand(rate=rate, members=MEMBERS, after_days=days, batch_max=at_once)


def put_off(delivery: Delivery, seconds: float) -> PutOff:
    """Return what becomes of a delivery whose try has failed."""
    return PutOff(delivery.event.event_id, seconds, is_try=True)


def deviation(expected: float, measured: float) -> float:
    """Return by what share the expected differs from what was measured."""
    return abs(expected / measured - 1)


async def test_formulas_are_near_what_the_writer_makes(
    component: Component, connection: Connection
) -> None:
    """Every table and its indexes, and the WAL of a creation."""
    before = await connection.fetchval(WAL)
    await fill(component, range(GROUPS))
    logged = (await connection.fetchval(WAL) - before) / GROUPS
    demand = filled(GROUPS, AT_ONCE)
    measured = await sizes(connection)
    found = {
        f"{table.name} {kind}": deviation(getattr(table, kind), measured[table.name][kind])
        for table in tables(demand)
        # Without a row, it lacks the maps that any other has.
        if table.rows
        for kind in ("heap_bytes", "index_bytes", "bytes")
    }
    found["WAL"] = deviation(wal_bytes(demand), logged)
    # Other tests' transactions on the same server can only add to it.
    rounds = []
    for begin in range(GROUPS, GROUPS + ROUNDS * CHECKPOINTED, CHECKPOINTED):
        before = await connection.fetchval(WAL)
        await connection.execute("CHECKPOINT")
        await fill(component, range(begin, begin + CHECKPOINTED))
        rounds.append((await connection.fetchval(WAL) - before) / CHECKPOINTED)
    logged = min(rounds)
    whole = wal_bytes(demand) + image_bytes(demand, CHECKPOINTED / demand.rate)
    found["WAL after a checkpoint"] = deviation(whole, logged)
    assert {} == {name: off for name, off in found.items() if off > TOLERANCE}
    assert GROUPS + ROUNDS * CHECKPOINTED == await groups(connection)


async def test_small_batches_leave_attempts_more_room(
    component: Component, connection: Connection
) -> None:
    """An attempt is settled while its page still takes others; how many is a matter of timing."""
    await fill(component, range(FEW_GROUPS), at_once=8)
    table = tables(filled(FEW_GROUPS, at_once=8))[0]
    measured = (await sizes(connection))["attempt"]
    assert (FEW_GROUPS, "attempt") == (round(table.rows), table.name)
    assert deviation(table.heap_bytes, measured["heap_bytes"]) <= 2 * TOLERANCE


async def test_deliveries_wait_in_as_much_space_as_is_told(
    component: Component, connection: Connection, server_url: str
) -> None:
    """Every event waits for an endpoint that has failed some tries; as seldom vacuumed as by itself."""
    now = datetime.now(UTC)
    async with Database(server_url) as database:
        store = PostgresWebhookStore(database, URL_DIGEST, lambda: now)
        await store.open()
        await fill(component, range(FEW_GROUPS))
        while await store.enrol(ENROLLED_MAX):
            pass
        for seconds in RETRY_SECONDS[:TRIES]:
            now += timedelta(seconds=2 * seconds)
            tried = 0
            while taken := await store.take(UNDER_WAY_MAX, 0.001):
                pause = [seconds * (1 + number / 100) for number in range(len(taken))]
                await store.settle([], list(map(put_off, taken, pause)))
                tried += len(taken)
                if tried // UNDER_WAY_MAX % 4 == 0:
                    await connection.execute("VACUUM outbox_delivery")
            assert tried == FEW_GROUPS
    demand = replace(filled(FEW_GROUPS, AT_ONCE), outage_days=1)
    table = next(each for each in tables(demand) if each.name == "outbox_delivery")
    measured = (await sizes(connection))["outbox_delivery"]
    found = {
        kind: deviation(getattr(table, kind), measured[kind])
        for kind in ("heap_bytes", "index_bytes", "bytes")
    }
    # The indexes have a few dozen pages.
    found["index_bytes"] /= 2
    assert {} == {kind: off for kind, off in found.items() if off > TOLERANCE}
    assert 0 == next(each.rows for each in tables(Demand(rate=1)) if each.name == table.name)


async def test_every_table_that_grows_with_creations_is_told(
    component: Component, connection: Connection
) -> None:
    """A table that a migration adds and a creation fills is missing in the sizes otherwise."""
    owner = UserId("alice")
    await component.creator.create(
        IdempotencyKey("k"), NewGroup.parse(owner, {"name": NAME, "members": []})
    )
    names = await sizes(connection)
    grown = {name for name in names if await connection.fetchval(f"SELECT count(*) FROM {name}")}
    # Of these a database has so many rows as it has readers, histories, slots and versions.
    few = {"history_start", "outbox_history", "outbox_reader", "outbox_slot", "schema_version"}
    # Without a webhook no event waits for one.
    without = {"outbox_delivery"}
    assert {table.name for table in tables(Demand(rate=1))} - without == grown - few


async def test_the_command_prints_both_ways() -> None:
    """For people and for programs; the settings give what no option does."""
    options = ("size", "--rate", "200", "--retention", "30d", "--instances", "3")
    code, shown, _ = await stretto(*options, WORKERS="2", EVENT_RETENTION_DAYS="1")
    assert code == 0
    assert "attempts of 30 and events of 1 days" in shown
    printed = orjson.loads((await stretto(*options, "--json", WORKERS="2"))[1])
    assert 518_400_000 == printed["tables"]["attempt"]["rows"]
    assert 17_280_000 == printed["tables"]["outbox_delivery"]["rows"]
    assert 3 * 2 * 18 == printed["connections"]
    sizes = printed["tables"].values()
    assert printed["bytes"] == pytest.approx(
        sum(each["table_bytes"] + each["index_bytes"] for each in sizes)
    )


@pytest.mark.parametrize("days", ["0", "-1", "2y", "30 d", "d"])
async def test_a_retention_that_is_no_number_of_days_is_a_usage_error(days: str) -> None:
    """Exit 2, with the text."""
    code, _, errors = await stretto("size", "--rate", "1", f"--retention={days}")
    assert (2, f"stretto: '{days}' is no number of days, such as 30d\n") == (code, errors)


@pytest.mark.parametrize(
    "option", ["--rate=1e308", "--rate=nan", "--rate=inf", "--instances=99999"]
)
async def test_a_demand_beyond_every_deployment_is_a_usage_error(option: str) -> None:
    """Its sums would be no numbers."""
    code, _, errors = await stretto("size", "--rate=1", option)
    assert code == 2
    name = option.partition("=")[0]
    assert name in errors
    assert name != "--rate" or "must be a number from 0.001 to 1000000" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("json", [(), ("--json",)])
async def test_the_largest_demand_has_a_size(json: tuple[str, ...]) -> None:
    """Also rows that are larger than a page, and more bytes than 64 bits count."""
    days = ("--after=99999d", "--retention=99999d")
    most = ("--rate=1000000", "--members=1001", "--instances=10000")
    code, shown, errors = await stretto("size", *most, *days, *json)
    assert (0, "") == (code, errors)
    assert "attempt" in shown
