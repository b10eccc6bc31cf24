"""A trigger of the operator's that says SET, and not SET LOCAL: its session stays as it was.

A writer's session is kept for days. Of what such a trigger sets, the next statements would know.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import AsyncMock
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.attempt import AnswerStatus
from stretto.creation.deletion import Deletion
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import AttemptFailed, DatabaseUnavailable
from stretto.postgres import deletions, writes
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.connections import Database
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.migrate import migrate
from stretto.store_errors import Unreachable
from support.commit_settings import (
    DEFERRED,
    have_set,
    messages_at_commits,
    see_commits,
    seen_at_commits,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from stretto.assembly.component import Component
    from support.database import Connection

ALICE, CAROL = UserId("alice"), UserId("carol")
OTHER: Final = "other"
# Of whatever alice does.
WHEN: Final = {
    "claim": "BEFORE INSERT ON attempt FOR EACH ROW WHEN (NEW.owner_id = 'alice')",
    "lead": "AFTER UPDATE ON attempt FOR EACH ROW WHEN (NEW.owner_id = 'alice')",
    "group": "AFTER INSERT ON chat_group FOR EACH ROW WHEN (NEW.owner_id = 'alice')",
    "claim's end": f"AFTER INSERT ON attempt {DEFERRED} WHEN (NEW.owner_id = 'alice')",
    "lead's end": f"AFTER INSERT ON chat_group {DEFERRED} WHEN (NEW.owner_id = 'alice')",
}
DELETION: Final = {
    "group": "AFTER UPDATE ON chat_group FOR EACH ROW WHEN (OLD.owner_id = 'alice')",
    "attempt": "AFTER DELETE ON attempt FOR EACH ROW WHEN (OLD.owner_id = 'alice')",
}

LOOSEN: Final = "SET synchronous_commit TO local"
QUIET: Final = "SET LOCAL client_min_messages TO error"


@pytest_asyncio.fixture
async def other(connection: Connection) -> None:
    """Another deployment of the same database, with a schema of its own."""
    await migrate(connection, OTHER)


@asynccontextmanager
async def one_writer(database_url: str, *, is_hooked: bool = False) -> AsyncIterator[Component]:
    """Open a component whose writes all go over one session."""

    async def hook(*_: object) -> None:
        """Do nothing."""

    on_create = hook if is_hooked else None
    settings = ComponentSettings(writers=1)
    async with open_component(database_url, settings=settings, on_create=on_create) as component:
        yield component


@asynccontextmanager
async def hosts_or_own(database_url: str, *, is_hosts: bool) -> AsyncIterator[Component]:
    """Open a component with one writer, over a host's pool or connections of its own."""
    if not is_hosts:
        async with one_writer(database_url) as component:
            yield component
        return
    settings = ComponentSettings(writers=1)
    path = {"search_path": "stretto"}
    async with (
        asyncpg.create_pool(database_url, min_size=0, max_size=12, server_settings=path) as pool,
        open_component(pool=pool, settings=settings) as component,
    ):
        yield component


async def create(component: Component, owner: UserId, key: str = "k") -> AnswerStatus:
    """Create a group; return how the answer came about."""
    team = NewGroup.parse(owner, {"name": "Team", "members": ["bob"]})
    return (await component.creator.create(IdempotencyKey(key), team)).status


async def owners(connection: Connection, schema: str = "stretto") -> list[str]:
    """Return who has groups in a schema."""
    found: list[str] = await connection.fetchval(
        f"SELECT coalesce(array_agg(owner_id ORDER BY owner_id), '{{}}') FROM {schema}.chat_group"
    )
    return found


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("is_hooked", [False, True])
@pytest.mark.parametrize("when", WHEN)
async def test_no_group_is_written_into_another_schema(
    when: str, is_hooked: bool, database_url: str, connection: Connection
) -> None:
    """Neither one of the same batch nor a later one, which its owner would never find again."""
    await have_set(connection, WHEN[when], f"SET search_path TO {OTHER}")
    async with one_writer(database_url, is_hooked=is_hooked) as component:
        together = [create(component, ALICE), create(component, CAROL)]
        assert [AnswerStatus.CREATED] * 2 == await asyncio.gather(*together)
        assert AnswerStatus.CREATED == await create(component, CAROL, "later")
    assert ["alice", "carol", "carol"] == await owners(connection)
    assert [] == await owners(connection, OTHER)


@pytest.mark.parametrize("when", WHEN)
async def test_no_later_group_is_written_by_another_role(
    when: str, database_url: str, connection: Connection, role: str
) -> None:
    """It may not write it, and nothing would be created any more."""
    await have_set(connection, WHEN[when], f"SET ROLE {role}")
    async with one_writer(database_url) as component:
        assert AnswerStatus.CREATED == await create(component, ALICE)
        assert AnswerStatus.CREATED == await create(component, CAROL)


async def test_a_time_out_that_a_trigger_sets_ends_with_its_session(
    database_url: str, connection: Connection
) -> None:
    """Each statement would be cancelled from then on."""
    await have_set(connection, WHEN["group"], "SET statement_timeout TO 200")
    await connection.execute(
        """CREATE FUNCTION public.rest() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN PERFORM pg_sleep(0.4); RETURN NEW; END$$;
           CREATE TRIGGER rest BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION public.rest()"""
    )
    async with one_writer(database_url) as component:
        assert AnswerStatus.CREATED == await create(component, ALICE)
        # Its first try is cancelled, and its session replaced.
        assert await create(component, CAROL) in (AnswerStatus.CREATED, AnswerStatus.RECOVERED)
        assert AnswerStatus.CREATED == await create(component, CAROL, "later")


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("is_hosts", [False, True])
async def test_a_failure_leaves_no_other_schema_behind(
    is_hosts: bool, database_url: str, connection: Connection
) -> None:
    """An attempt that a rule of the operator's refuses is settled by a statement of its own.

    The writer goes on with the session, which a host's pool resets only once it comes back.
    """
    await connection.execute(
        "ALTER TABLE chat_group ADD CONSTRAINT no_alice CHECK (owner_id <> 'alice')"
    )
    await have_set(connection, WHEN["lead"], f"SET search_path TO {OTHER}")
    async with hosts_or_own(database_url, is_hosts=is_hosts) as component:
        with pytest.raises(AttemptFailed):
            await create(component, ALICE)
        assert AnswerStatus.CREATED == await create(component, CAROL)
    assert ["carol"] == await owners(connection)


async def ids_of(connection: Connection) -> dict[str, UUID]:
    """Return the groups by their owners."""
    rows = await connection.fetch("SELECT owner_id, group_id FROM stretto.chat_group")
    return {row["owner_id"]: row["group_id"] for row in rows}


@asynccontextmanager
async def both_deleted(
    component: Component, connection: Connection
) -> AsyncIterator[tuple[Any, set[UUID]]]:
    """Create a group of each, and delete them in one batch; yields its connection, and their ids."""
    for owner in (ALICE, CAROL):
        await create(component, owner)
    ids = await ids_of(connection)
    async with PostgresDeletionStore(component.database).deleting() as delete:
        for owner in (ALICE, CAROL):
            assert await delete(Deletion(ids[owner], owner, None), is_hasty=False)
        bound: Any = delete
        yield bound.__self__.connection, set(ids.values())


async def deleted(connection: Connection) -> set[UUID]:
    """Return the groups that are deleted."""
    rows = await connection.fetch(
        "SELECT group_id FROM stretto.chat_group WHERE deleted_at IS NOT NULL"
    )
    return {row["group_id"] for row in rows}


@pytest.mark.usefixtures("other")
async def test_a_deletion_that_would_go_on_in_another_schema_is_undone(
    database_url: str, connection: Connection
) -> None:
    """It says why, and is the only one."""
    await have_set(connection, DELETION["group"], f"SET search_path TO {OTHER}")
    async with one_writer(database_url) as component:
        for owner in (ALICE, CAROL):
            await create(component, owner)
        ids = await ids_of(connection)
        with pytest.raises(Unreachable, match="its function needs a SET clause"):
            await component.deleter.delete(ids[ALICE], ALICE)
        await component.deleter.delete(ids[CAROL], CAROL)
    assert {ids[CAROL]} == await deleted(connection)


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize(
    ("when", "statement"),
    [
        ("attempt", f"SET search_path TO {OTHER}"),
        ("group", "SET LOCAL search_path TO public, stretto"),
        ("group", "SET search_path TO public, stretto"),
    ],
)
async def test_a_deletion_whose_session_was_changed_finds_its_tables(
    when: str, statement: str, database_url: str, connection: Connection
) -> None:
    """And so do those that come after it in its batch."""
    await have_set(connection, DELETION[when], statement)
    async with (
        one_writer(database_url) as component,
        both_deleted(component, connection) as (session, ids),
    ):
        path = await session.fetchval("SELECT current_setting('search_path')")
    assert path == "stretto"
    assert ids == await deleted(connection)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("wanted", ["heal", "reclaim"])
async def test_a_shared_session_keeps_its_schema(
    wanted: str, is_shared: bool, database_url: str, connection: Connection
) -> None:
    """A pooler resets no session between transactions; the twin is one that is not known as such."""
    async with one_writer(database_url) as component:
        await create(component, ALICE)
    group = group_id(ALICE, IdempotencyKey("k"))
    token = uuid4()
    await connection.execute("DELETE FROM attempt")
    if wanted == "reclaim":
        await connection.execute(
            "INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)"
            " SELECT group_id, owner_id, fingerprint, $1 FROM chat_group",
            token,
        )
    when = WHEN["lead"] if wanted == "reclaim" else WHEN["claim"].replace("BEFORE", "AFTER")
    await have_set(connection, when, f"SET search_path TO pg_catalog; {LOOSEN}")

    async def keep(_: object) -> None:
        """Reset nothing."""

    path = {"search_path": "stretto"}
    async with (
        asyncpg.create_pool(
            database_url, min_size=0, max_size=1, reset=keep, server_settings=path
        ) as pool,
        Database(database_url, pool=pool) as database,
    ):
        database.is_shared = is_shared
        store = PostgresAttemptStore(database)
        if wanted == "heal":
            await store.heal(group)
        else:
            assert await store.reclaim(group, token, uuid4(), 0.0)
        left = await pool.fetchrow(
            "SELECT current_setting('search_path'), current_setting('synchronous_commit')"
        )
    assert left is not None
    assert (("stretto", "on") if is_shared else ("pg_catalog", "local")) == tuple(left)


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("statement", [f"SET search_path TO {OTHER}", "SET ROLE pg_monitor"])
async def test_a_heal_leaves_no_other_schema_behind(
    statement: str, database_url: str, connection: Connection
) -> None:
    """Those who heal share two sessions: each other swept key would have none of its group."""
    async with one_writer(database_url) as component:
        for number in range(4):
            await create(component, CAROL, str(number))
        await create(component, ALICE)
    await connection.execute("TRUNCATE attempt")
    await have_set(connection, WHEN["claim"].replace("BEFORE", "AFTER"), statement)
    async with one_writer(database_url) as component:
        assert AnswerStatus.HEALED == await create(component, ALICE)
        healed = [await create(component, CAROL, str(number)) for number in range(4)]
    assert [AnswerStatus.HEALED] * 4 == healed


@pytest.mark.parametrize(
    ("when", "statement"),
    [
        ("AFTER INSERT OR UPDATE ON chat_group", "SET LOCAL synchronous_commit TO off"),
        ("AFTER INSERT OR UPDATE ON chat_group", "SET LOCAL synchronous_commit TO local"),
        ("AFTER INSERT ON chat_group", LOOSEN),
        ("AFTER INSERT ON attempt", LOOSEN),
        ("AFTER UPDATE ON chat_group", LOOSEN),
        ("AFTER INSERT OR UPDATE ON chat_group", QUIET),
        ("AFTER UPDATE ON chat_group", "SET client_min_messages TO error"),
        ("AFTER INSERT ON attempt", "SET client_min_messages TO error"),
    ],
)
@pytest.mark.parametrize("how", ["FOR EACH ROW", DEFERRED])
@pytest.mark.parametrize("is_hooked", [False, True])
async def test_a_trigger_does_not_have_a_commit_wait_for_no_disk(
    when: str,
    statement: str,
    how: str,
    is_hooked: bool,
    database_url: str,
    connection: Connection,
) -> None:
    """Nor for less than the operator's setting says, in its own transaction or in later ones.

    Nor does it hide the warning that a standby lacks what was committed.
    """
    await see_commits(connection, "chat_group", "INSERT OR UPDATE")
    await have_set(connection, f"{when} {how}", statement)
    async with (
        one_writer(database_url, is_hooked=is_hooked) as component,
        both_deleted(component, connection),
    ):
        pass
    assert ["on"] * 4 == await seen_at_commits(connection)
    assert {"notice"} == await messages_at_commits(connection)


async def test_a_claim_waits_for_no_disk_whatever_its_trigger_sets(
    database_url: str, connection: Connection
) -> None:
    """The lead behind it waits, and makes the claim durable too."""
    await see_commits(connection, "attempt")
    await have_set(connection, "AFTER INSERT ON attempt FOR EACH ROW", LOOSEN)
    async with one_writer(database_url) as component:
        await create(component, ALICE)
    assert ["off"] == await seen_at_commits(connection, "pending")


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_veto_with_the_state_of_a_missing_right_costs_no_session(
    is_told: bool, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger may raise any: the session is asked. The twin takes each for a changed session."""
    if not is_told:
        for module in (writes, deletions):
            monkeypatch.setattr(module, "is_changed", AsyncMock(return_value=True))
    veto = "RAISE EXCEPTION 'no' USING ERRCODE = 'insufficient_privilege'"
    async with one_writer(database_url) as component:
        for owner in (ALICE, CAROL):
            await create(component, owner)
        ids = await ids_of(connection)
        await have_set(connection, WHEN["group"], veto)
        await connection.execute(
            f"CREATE TRIGGER veto {DELETION['group']} EXECUTE FUNCTION public.change_session()"
        )
        before, seen = await sessions(connection), set[int]()
        for number in range(3):
            with pytest.raises(DatabaseUnavailable):
                await create(component, ALICE, str(number))
            with pytest.raises(Unreachable):
                await component.deleter.delete(ids[ALICE], ALICE)
            await create(component, CAROL, str(number))
            seen |= await sessions(connection)
    # The first deletion has opened its lane's.
    assert (len(seen - before) <= 1) is is_told


async def sessions(connection: Connection) -> set[int]:
    """Return the server processes of the component's sessions."""
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'stretto'"
    )
    return {row["pid"] for row in rows}
