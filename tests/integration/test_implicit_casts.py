"""Casts that the database's owner has made implicit: every statement of ours has one meaning with them."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

import stretto
from stretto.postgres.migrate import migrate
from stretto.postgres.migration_steps import own_steps
from stretto.postgres.queries import QUERIES
from support.changed_groups import TEAM, changed
from support.command_process import stretto as run
from support.database import connect, own_database
from support.implicit_casts import SETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from support.database import Connection

DEADLINE_SECONDS: Final = 60
CREATED: Final = 3


class Bus(asyncio.Queue[stretto.CommittedEvent]):
    """Takes every event."""

    async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[UUID, str]:
        """Keep them."""
        for event in events:
            self.put_nowait(event)
        return {}


async def hook(connection: asyncpg.Connection[asyncpg.Record], created: object) -> None:
    """Send something of the host's."""
    await connection.execute("SELECT $1::text", str(created))


@pytest.fixture(params=[*SETS.values()], ids=[*SETS])
async def casts(request: pytest.FixtureRequest, connection: Connection) -> Connection:
    """A database with the schema, in which such casts came later."""
    casts: str = request.param
    await connection.execute(casts)
    return connection


@pytest.mark.usefixtures("casts")
async def test_every_statement_can_be_prepared(database_url: str) -> None:
    """In a session that is new: one that was there has its plans."""
    refused = {}
    connection = await connect(database_url)
    for name, statement in QUERIES.items():
        try:
            await connection.prepare(statement)
        except asyncpg.PostgresError as error:
            refused[name] = str(error)
    await connection.close()
    assert {} == refused


@pytest.mark.parametrize("is_migrated", [False, True])
async def test_a_partition_that_is_detached_is_named(
    casts: Connection, database_url: str, *, is_migrated: bool
) -> None:
    """By the routine that looks whether the log is whole, of a new schema or of its migration."""
    if is_migrated:
        step = next(step for step in own_steps() if "require_whole_log_1" in step.statements)
        await casts.execute("DROP FUNCTION plan_whole_log_1, require_whole_log_1")
        await casts.execute(step.statements)
    await casts.execute("ALTER TABLE outbox DETACH PARTITION outbox_2")
    another = await connect(database_url)
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="from outbox: outbox_2;"):
        await another.execute("SELECT require_whole_log_1()")
    await another.close()


@pytest.mark.parametrize("casts", SETS.values(), ids=SETS)
async def test_a_new_database_is_migrated(casts: str) -> None:
    """Its tables, views and routines are made with the casts."""
    async with own_database(os.environ["TEST_POSTGRES_URL"], "template1") as url:
        connection = await connect(url)
        await connection.execute(casts)
        await migrate(connection, "stretto")
        await connection.close()
        async with stretto.open_component(url) as component:
            assert "created" == (await component.create("k", TEAM)).status


@pytest.mark.usefixtures("casts")
@pytest.mark.parametrize("on_create", [None, hook])
async def test_a_component_creates_and_its_events_come(
    on_create: stretto.OnCreate | None, connection: Connection, database_url: str
) -> None:
    """Groups are changed and deleted, too; the log is swept, and the database is sound."""
    bus = Bus()
    seen: asyncio.Queue[stretto.CommittedEvent] = asyncio.Queue()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        stretto.open_component(database_url, bus=bus, on_create=on_create) as component,
    ):
        await component.on_event(seen.put)
        for key in range(CREATED):
            await component.create(f"k{key}", TEAM)
        group_id = stretto.group_id("alice", "k0")
        await changed(connection, stretto.rename_group, group_id, name="Crew")
        await changed(connection, stretto.add_members, group_id, roles={"dave": "member"})
        await changed(connection, stretto.set_role, group_id, user="dave", role="admin")
        await changed(connection, stretto.remove_members, group_id, users=["dave"])
        await changed(connection, stretto.delete_group, group_id)
        groups = await component.groups("alice")
        members = await component.members(stretto.group_id("alice", "k1"))
        types = [
            *["group.created"] * CREATED,
            *("group.renamed", "group.members_added", "group.role_changed"),
            *("group.members_removed", "group.deleted"),
        ]
        for readers in (bus, seen):
            assert types == [(await readers.get()).event_type for _ in types]
    assert (CREATED - 1, 3) == (len(groups), len(members))
    for command in ("sweep", "check"):
        code, output, errors = await run(command, DATABASE_URL=database_url)
        assert code == 0, (output, errors)
