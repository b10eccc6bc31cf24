"""A trigger of the operator's that says SET, and not SET LOCAL: its session stays as it was.

A writer's session is kept for days. Of what such a trigger sets, the next statements would know.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.attempt import AnswerStatus
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import AttemptFailed
from stretto.postgres.migrate import migrate
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.assembly.component import Component
    from support.database import Connection

ALICE, CAROL = UserId("alice"), UserId("carol")
OTHER: Final = "other"
# Of whatever alice does.
WHEN: Final = {
    "claim": "BEFORE INSERT ON attempt FOR EACH ROW WHEN (NEW.owner_id = 'alice')",
    "lead": "AFTER UPDATE ON attempt FOR EACH ROW WHEN (NEW.owner_id = 'alice')",
    "group": "AFTER INSERT ON chat_group FOR EACH ROW WHEN (NEW.owner_id = 'alice')",
}
DELETION: Final = {
    "group": "AFTER UPDATE ON chat_group FOR EACH ROW WHEN (OLD.owner_id = 'alice')",
    "attempt": "AFTER DELETE ON attempt FOR EACH ROW WHEN (OLD.owner_id = 'alice')",
}


@pytest_asyncio.fixture
async def other(connection: Connection) -> None:
    """Another deployment of the same database, with a schema of its own."""
    await migrate(connection, OTHER)


async def have_set(connection: Connection, when: str, statement: str) -> None:
    """Have a trigger of alice's rows send a statement."""
    await connection.execute(
        f"""CREATE FUNCTION public.change_session() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN {statement}; RETURN NEW; END$$;
            CREATE TRIGGER change_session {when} EXECUTE FUNCTION public.change_session()"""
    )


@asynccontextmanager
async def one_writer(database_url: str, *, is_hooked: bool = False) -> AsyncIterator[Component]:
    """Open a component whose writes all go over one session."""

    async def hook(*_: object) -> None:
        """Do nothing."""

    on_create = hook if is_hooked else None
    settings = ComponentSettings(writers=1)
    async with open_component(database_url, settings=settings, on_create=on_create) as component:
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
    await have_set(connection, WHEN["group"], "SET statement_timeout TO 1")
    await connection.execute(
        """CREATE FUNCTION public.rest() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END$$;
           CREATE TRIGGER rest BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION public.rest()"""
    )
    async with one_writer(database_url) as component:
        assert AnswerStatus.CREATED == await create(component, ALICE)
        # Its first try is cancelled, and its session replaced.
        assert await create(component, CAROL) in (AnswerStatus.CREATED, AnswerStatus.RECOVERED)
        assert AnswerStatus.CREATED == await create(component, CAROL, "later")


@pytest.mark.usefixtures("other")
async def test_a_failure_leaves_no_other_schema_behind(
    database_url: str, connection: Connection
) -> None:
    """An attempt that a rule of the operator's refuses is settled by a statement of its own."""
    await connection.execute(
        "ALTER TABLE chat_group ADD CONSTRAINT no_alice CHECK (owner_id <> 'alice')"
    )
    await have_set(connection, WHEN["lead"], f"SET search_path TO {OTHER}")
    async with one_writer(database_url) as component:
        with pytest.raises(AttemptFailed):
            await create(component, ALICE)
        assert AnswerStatus.CREATED == await create(component, CAROL)
    assert ["carol"] == await owners(connection)


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("when", DELETION)
async def test_a_deletion_that_would_go_on_in_another_schema_is_undone(
    when: str, database_url: str, connection: Connection
) -> None:
    """It says why, and is the only one."""
    await have_set(connection, DELETION[when], f"SET search_path TO {OTHER}")
    async with one_writer(database_url) as component:
        for owner in (ALICE, CAROL):
            await create(component, owner)
        ids = {
            row["owner_id"]: row["group_id"]
            for row in await connection.fetch("SELECT owner_id, group_id FROM chat_group")
        }
        with pytest.raises(Unreachable, match="give its function a SET clause"):
            await component.deleter.delete(ids[ALICE], ALICE)
        await component.deleter.delete(ids[CAROL], CAROL)
    deleted = "SELECT group_id FROM chat_group WHERE deleted_at IS NOT NULL"
    assert [ids[CAROL]] == [row["group_id"] for row in await connection.fetch(deleted)]


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


@pytest.mark.parametrize("setting", ["off", "local"])
async def test_a_trigger_does_not_have_a_commit_wait_for_no_disk(
    setting: str, database_url: str, connection: Connection
) -> None:
    """Nor for less than the operator's setting says. A deferred trigger sees what holds at the commit."""
    await connection.execute(
        """CREATE TABLE public.seen (durability text);
           CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
               INSERT INTO public.seen VALUES (current_setting('synchronous_commit'));
               RETURN NULL;
           END$$;
           CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON chat_group
               DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see()"""
    )
    await have_set(
        connection,
        "AFTER INSERT OR UPDATE ON chat_group FOR EACH ROW",
        f"SET LOCAL synchronous_commit TO {setting}",
    )
    async with one_writer(database_url) as component:
        await create(component, ALICE)
        await component.deleter.delete(group_id(ALICE, IdempotencyKey("k")), ALICE)
    seen = await connection.fetch("SELECT durability FROM public.seen")
    assert ["on", "on"] == [row["durability"] for row in seen]
