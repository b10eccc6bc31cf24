"""Tombstones on a real database: of deleted groups, and of failed attempts that were swept."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from stretto.assembly.opening import open_component
from stretto.creation.attempt import Sighting, Tombstone
from stretto.creation.deletion import Deletion
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    GroupDeleted,
    GroupRejected,
    NotFound,
)
from stretto.postgres import deletions
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.changes import delete_group, rename_group, set_role
from stretto.postgres.check import check_database
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.retention import sweep
from stretto.postgres.settings import Retention
from stretto.store_errors import ReadCancelled, Unreachable
from support.database import connect, lock_waiters, sound
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.assembly.component import Component
    from stretto.postgres.connections import Database
    from support.database import Connection

ALICE, BOB = UserId("alice"), UserId("bob")
KEY = IdempotencyKey("k")
ID = group_id(ALICE, KEY)
TEAM = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})
EVENTS = "SELECT coalesce(event_type, 'group.created') AS type FROM outbox ORDER BY position"


async def create(component: Component, key: str = KEY) -> UUID:
    """Create a group of alice's."""
    return (await component.creator.create(IdempotencyKey(key), TEAM)).group.group_id


async def violations(connection: Connection) -> set[str]:
    """Return what the check finds."""
    return {each.what for each in (await check_database(connection, 30)).violations}


async def fail(database_url: str) -> None:
    """Have the key's attempt fail, for a reason of the host's."""

    async def reject(*_: object) -> None:
        raise GroupRejected("quota", "Ten groups of Alice Smith are enough.")

    async with open_component(database_url, on_create=reject) as component:
        with pytest.raises(AttemptFailed):
            await component.creator.create(KEY, TEAM)


async def sweep_all(connection: Connection) -> dict[str, int]:
    """Sweep what has been settled by now."""
    future = datetime.now(UTC) + timedelta(days=60)
    return await sweep(lambda: nullcontext(connection), Retention(30, 30), future, lambda *_: None)


async def test_a_failed_attempt_stays_failed_when_it_is_swept(
    database_url: str, connection: Connection
) -> None:
    """By a tombstone, which has the failure's code, and nothing of the host's words or the owner."""
    await fail(database_url)
    assert 1 == (await sweep_all(connection))["attempt"]
    async with open_component(database_url) as component:
        with pytest.raises(AttemptFailed) as failed:
            await component.creator.create(KEY, TEAM)
        assert "quota" == failed.value.failure.code
        assert "Smith" not in failed.value.failure.detail
        report = await component.lookup.look_up(ALICE, KEY, 0)
        assert ("failed", "quota") == (report.status, report.failure and report.failure.code)
        with pytest.raises(NotFound):
            await component.deleter.delete(ID, ALICE)
    row = await connection.fetchrow("SELECT * FROM chat_group")
    assert row is not None
    kept = {"group_id", "created_at", "failure_code", "revision"}
    assert kept == {name for name, value in row.items() if value is not None}
    assert 0 == await connection.fetchval("SELECT count(*) FROM attempt")
    assert await sound(connection)
    assert {0} == {*(await sweep_all(connection)).values()}


async def test_an_attempt_of_any_other_kind_leaves_no_tombstone(
    component: Component, connection: Connection
) -> None:
    """Its group is there, or its key may still create one."""
    await create(component)
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           VALUES (gen_random_uuid(), 'alice', '0123456789abcdef', gen_random_uuid())"""
    )
    assert 2 == (await sweep_all(connection))["attempt"]
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")


async def test_a_failed_attempt_never_succeeds_while_it_is_swept(
    database_url: str, connection: Connection
) -> None:
    """Its row or its tombstone is there at each moment, for a claim as for a look."""
    await fail(database_url)
    async with open_component(database_url) as one, open_component(database_url) as two:
        load = asyncio.gather(
            *(each.creator.create(KEY, TEAM) for _ in range(100) for each in (one, two)),
            return_exceptions=True,
        )
        while not load.done():
            await sweep_all(connection)
        assert {AttemptFailed} == {type(each) for each in await load}
    assert await sound(connection)


async def test_creating_and_deleting_at_once_makes_one_group_or_none(
    database_url: str, connection: Connection
) -> None:
    """G1, in two processes: what was deleted stays deleted, whatever was in flight."""
    keys = [IdempotencyKey(f"k{number}") for number in range(40)]

    async def delete(component: Component, key: IdempotencyKey) -> bool:
        await asyncio.sleep(0.01 * (hash(key) % 5))
        try:
            await component.deleter.delete(group_id(ALICE, key), ALICE)
        except NotFound:
            return False
        return True

    async with open_component(database_url) as one, open_component(database_url) as two:
        both = (one, two)
        creations = [each.creator.create(key, TEAM) for key in keys for each in both * 3]
        deletions = [delete(each, key) for key in keys for each in both]
        creating = asyncio.gather(*creations, return_exceptions=True)
        deleted = await asyncio.gather(*deletions)
        for answer in await creating:
            assert not isinstance(answer, BaseException) or isinstance(answer, GroupDeleted)
        gone = {key for key, is_gone in zip(keys, deleted[::2], strict=True) if is_gone}
        gone |= {key for key, is_gone in zip(keys, deleted[1::2], strict=True) if is_gone}
        assert gone

        async def is_gone_everywhere() -> bool:
            answers = await asyncio.gather(
                *(each.creator.create(key, TEAM) for key in gone for each in both),
                return_exceptions=True,
            )
            return {GroupDeleted} == {type(each) for each in answers}

        await until(is_gone_everywhere)
    rows = await connection.fetch("SELECT group_id FROM chat_group WHERE deleted_at IS NOT NULL")
    assert {group_id(ALICE, key) for key in gone} == {row["group_id"] for row in rows}
    assert len(keys) == await connection.fetchval("SELECT count(*) FROM chat_group")
    assert await sound(connection)


async def test_a_host_deletes_in_its_own_transaction(
    component: Component, connection: Connection
) -> None:
    """With its own writes, or not at all; whoever owns the group."""
    await create(component)
    transaction = connection.transaction()
    await transaction.start()
    assert await delete_group(connection, ID)
    await transaction.rollback()
    component.creator.forget()
    assert ID == await create(component)
    async with connection.transaction():
        assert await delete_group(connection, ID)
        assert not await delete_group(connection, ID)
    assert not await delete_group(connection, ID)

    async def is_gone() -> bool:
        try:
            await create(component)
        except GroupDeleted:
            return True
        return False

    await until(is_gone)
    types = [row["type"] for row in await connection.fetch(EVENTS)]
    assert ["group.created", "group.deleted"] == types
    assert await sound(connection)


async def test_the_event_of_a_transaction_that_does_not_flush_is_flushed(
    component: Component, connection: Connection, database_url: str
) -> None:
    """Readers of the log rest on that."""
    await create(component)
    await connection.execute("SET synchronous_commit = off")
    async with connection.transaction():
        await delete_group(connection, ID)
        assert "on" == await connection.fetchval("SHOW synchronous_commit")
    assert "off" == await connection.fetchval("SHOW synchronous_commit")


async def test_a_change_that_is_under_way_comes_before_the_deletion(
    component: Component, connection: Connection, database_url: str
) -> None:
    """The event has the name that the change has given."""
    await create(component)
    host = await connect(database_url)
    async with host.transaction():
        await rename_group(host, ID, name="New")
        deleting = asyncio.create_task(component.deleter.delete(ID, ALICE))
        await lock_waiters(connection, 1)
    await deleting
    await host.close()
    rows = await connection.fetch("SELECT group_name, event_type FROM outbox ORDER BY position")
    assert ("New", "group.deleted") == tuple(rows[-1])
    async with connection.transaction():
        with pytest.raises(NotFound):
            await rename_group(connection, ID, name="Newer")
    assert await sound(connection)


async def test_who_is_made_no_owner_meanwhile_deletes_nothing(
    component: Component, connection: Connection, database_url: str
) -> None:
    """The roles count after the wait for the group's lock."""
    await create(component)
    host = await connect(database_url)
    async with host.transaction():
        await set_role(host, ID, "bob", "owner")
        await set_role(host, ID, "alice", "member")
        deleting = asyncio.create_task(component.deleter.delete(ID, ALICE))
        await lock_waiters(connection, 1)
    with pytest.raises(NotFound):
        await deleting
    await host.close()
    await component.deleter.delete(ID, BOB)
    assert await sound(connection)


async def test_a_change_that_waited_for_the_deletion_finds_no_group(
    component: Component, connection: Connection, database_url: str
) -> None:
    """It does not write to the tombstone."""
    await create(component)
    host = await connect(database_url)

    async def rename() -> None:
        async with host.transaction():
            await rename_group(host, ID, name="New")

    async with connection.transaction():
        await delete_group(connection, ID)
        renaming = asyncio.create_task(rename())
        await lock_waiters(connection, 1)
    with pytest.raises(NotFound):
        await renaming
    await host.close()
    assert await sound(connection)


async def test_an_attempt_that_is_held_is_not_waited_for(
    component: Component, connection: Connection, database_url: str
) -> None:
    """It is left to the sweep, and decides nothing."""
    await create(component)
    holder = await connect(database_url)
    async with holder.transaction():
        await holder.execute("SELECT FROM attempt FOR UPDATE")
        await component.deleter.delete(ID, ALICE)
    await holder.close()
    assert 1 == await connection.fetchval("SELECT count(*) FROM attempt")
    with pytest.raises(GroupDeleted):
        await create(component)
    assert await sound(connection)


async def test_a_tombstone_is_not_healed(
    component: Component, connection: Connection, database: Database
) -> None:
    """By a follower that has seen the group before it was deleted."""
    await create(component)
    await component.deleter.delete(ID, ALICE)
    store = PostgresAttemptStore(database)
    await store.heal(ID)
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           VALUES ($1, 'alice', '0123456789abcdef', gen_random_uuid())""",
        ID,
    )
    await store.heal(ID)
    assert "pending" == await connection.fetchval("SELECT status FROM attempt")
    seen = await store.look(ID, 5.0, ALICE)
    assert (None, True) == (seen.group, isinstance(seen.tombstone, Tombstone))
    with pytest.raises(GroupDeleted):
        await create(component)


async def test_an_instance_that_knows_no_tombstones_creates_no_second_group(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the version before: it finds neither a group nor a claim that wins, and answers 409."""
    look_all = PostgresAttemptStore.look_all

    async def look_as_before(
        store: PostgresAttemptStore, wanted: Sequence[tuple[UUID, float]]
    ) -> list[Sighting]:
        return [replace(seen, tombstone=None) for seen in await look_all(store, wanted)]

    async with open_component(database_url) as component:
        await create(component)
        await component.deleter.delete(ID, ALICE)
    monkeypatch.setattr(PostgresAttemptStore, "look_all", look_as_before)
    async with open_component(database_url) as component:
        with pytest.raises(AttemptPending):
            await create(component)
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")
    assert 0 == await connection.fetchval("SELECT count(*) FROM attempt")


async def test_a_deleted_key_is_not_asked_about(database_url: str) -> None:
    """A host that would refuse the group now does not hide that it was deleted."""
    async with open_component(database_url) as component:
        await create(component)
        await component.deleter.delete(ID, ALICE)

    async def refuse(_: NewGroup) -> None:
        raise GroupRejected("no", "Not any more.")

    async with open_component(database_url, authorize=refuse) as component:
        with pytest.raises(GroupDeleted):
            await create(component)


async def deletions_at_once(component: Component, *ids: UUID) -> Sequence[BaseException | None]:
    """Have alice's groups deleted in one batch; return what became of each."""
    return await asyncio.gather(
        *(component.deleter.delete(each, ALICE) for each in ids), return_exceptions=True
    )


async def test_what_a_host_keeps_keeps_its_group(
    component: Component, connection: Connection
) -> None:
    """A foreign key of the host's: nothing is deleted, and other groups are not held up."""
    await create(component)
    other = await create(component, "other")
    await connection.execute("CREATE TABLE message (conversation_id uuid REFERENCES conversation)")
    await connection.execute(
        "INSERT INTO message SELECT conversation_id FROM chat_group WHERE group_id = $1", ID
    )
    outcomes = await deletions_at_once(component, ID, other)
    assert isinstance(outcomes[0], Unreachable)
    assert outcomes[1] is None
    assert ID == await create(component)
    assert await sound(connection)


@pytest.mark.parametrize("state", ["LH001", "42P01", "21000", "P0001"])
async def test_whatever_an_owners_trigger_raises_holds_up_no_other_deletion(
    state: str, component: Component, connection: Connection
) -> None:
    """A legal hold with a state of the host's own, a table that is missing."""
    await create(component)
    other = await create(component, "other")
    await connection.execute(
        f"""CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF OLD.group_id = '{ID}' THEN RAISE EXCEPTION 'held' USING ERRCODE = '{state}'; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER hold BEFORE UPDATE OR DELETE ON chat_group
                FOR EACH ROW EXECUTE FUNCTION hold()"""
    )
    outcomes = await deletions_at_once(component, ID, other)
    assert isinstance(outcomes[0], ReadCancelled)
    assert outcomes[1] is None


@pytest.mark.parametrize("is_hasty", [True, False])
async def test_a_deletion_waits_for_a_lock_as_long_as_others_can_bear(
    is_hasty: bool,
    component: Component,
    connection: Connection,
    database: Database,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And longer if none wait. The time-out ends with its statement."""
    monkeypatch.setattr(deletions, "HASTY_LOCK_SECONDS" if is_hasty else "LOCK_SECONDS", 0.01)
    monkeypatch.setattr(deletions, "LOCK_SECONDS" if is_hasty else "HASTY_LOCK_SECONDS", 60.0)
    await create(component)
    host = await connect(database_url)
    wanted = Deletion(ID, ALICE, None)
    async with PostgresDeletionStore(database).deleting() as delete:
        async with host.transaction():
            await rename_group(host, ID, name="New")
            with pytest.raises(ReadCancelled, match="lock timeout"):
                await delete(wanted, is_hasty=is_hasty)
            waiting = asyncio.ensure_future(delete(wanted, is_hasty=not is_hasty))
            await lock_waiters(connection, 1)
        assert await waiting
    await host.close()
    assert await sound(connection)


async def test_a_trigger_that_is_too_slow_keeps_its_group(
    component: Component, connection: Connection, database: Database
) -> None:
    """The server ends its statement; those behind it on the same connection are deleted."""
    await create(component)
    other = await create(component, "other")
    await connection.execute(
        f"""CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_sleep(60); RETURN OLD; END $$;
            CREATE TRIGGER hanging BEFORE UPDATE ON chat_group FOR EACH ROW
            WHEN (OLD.group_id = '{ID}') EXECUTE FUNCTION hang()"""
    )
    async with PostgresDeletionStore(database).deleting() as delete:
        with pytest.raises(ReadCancelled, match="statement timeout"):
            await delete(Deletion(ID, ALICE, None), is_hasty=True)
        assert await delete(Deletion(other, ALICE, None), is_hasty=True)
    await connection.execute("DROP TRIGGER hanging ON chat_group")
    assert ID == await create(component)
    assert await sound(connection)


async def test_a_deferred_trigger_that_is_too_slow_keeps_its_group(
    component: Component, connection: Connection, database: Database
) -> None:
    """No time-out bounds what runs in the commit: it would hold up the deletions of all."""
    await create(component)
    other = await create(component, "other")
    await connection.execute(
        f"""CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_sleep(60); RETURN OLD; END $$;
            CREATE CONSTRAINT TRIGGER hanging AFTER UPDATE ON chat_group
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
            WHEN (OLD.group_id = '{ID}') EXECUTE FUNCTION hang()"""
    )
    async with PostgresDeletionStore(database).deleting() as delete:
        with pytest.raises(ReadCancelled, match="statement timeout"):
            await delete(Deletion(ID, ALICE, None), is_hasty=True)
        assert await delete(Deletion(other, ALICE, None), is_hasty=True)
    assert ID == await create(component)


async def test_a_hasty_deletion_ends_soon(
    component: Component, connection: Connection, database: Database
) -> None:
    """Its time is not enough for this trigger. Twin: that of the second deleter is."""
    await create(component)
    await connection.execute(
        f"""CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_sleep({2 * deletions.HASTY_SECONDS}); RETURN NEW; END $$;
            CREATE TRIGGER waiting BEFORE UPDATE ON chat_group FOR EACH ROW
            EXECUTE FUNCTION wait()"""
    )
    wanted = Deletion(ID, ALICE, None)
    async with PostgresDeletionStore(database).deleting() as delete:
        with pytest.raises(ReadCancelled, match="statement timeout"):
            await delete(wanted, is_hasty=True)
        assert await delete(wanted, is_hasty=False)


async def test_a_deletion_ends_in_its_time_with_what_is_deferred(
    component: Component,
    connection: Connection,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the connection would be cut, and with it the deletions of all who wait."""
    await create(component)
    await connection.execute(
        """CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_sleep(2); RETURN NEW; END $$;
            CREATE TRIGGER waiting BEFORE UPDATE ON chat_group FOR EACH ROW
            EXECUTE FUNCTION wait();
            CREATE CONSTRAINT TRIGGER waiting_again AFTER UPDATE ON chat_group
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()"""
    )
    monkeypatch.setattr(deletions, "READ_SECONDS", 3.0)
    async with PostgresDeletionStore(database).deleting() as delete:
        with pytest.raises(ReadCancelled, match="statement timeout"):
            await delete(Deletion(ID, ALICE, None), is_hasty=False)
    assert ID == await create(component)


async def test_a_slow_trigger_of_one_owner_keeps_no_other_waiting(
    component: Component, connection: Connection
) -> None:
    """Others delete meanwhile, and its deletion comes to its end."""
    await create(component)
    await connection.execute(
        """CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM set_config('lock_timeout', '4s', true);
                PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$;
            CREATE TRIGGER waiting BEFORE UPDATE ON chat_group FOR EACH ROW
            WHEN (OLD.owner_id = 'alice') EXECUTE FUNCTION wait()"""
    )
    await component.creator.create(KEY, NewGroup.parse(BOB, {"name": "Team"}))
    await connection.execute("SELECT pg_advisory_lock(7)")
    slow = asyncio.create_task(component.deleter.delete(ID, ALICE))
    await until(lambda: ALICE in component.deleter.suspects)
    await component.deleter.delete(group_id(BOB, KEY), BOB)
    assert not slow.done()
    await connection.execute("SELECT pg_advisory_unlock(7)")
    await slow
    assert await sound(connection)


@pytest.mark.parametrize(
    ("table", "operation"),
    [("outbox", "INSERT"), ("chat_group", "UPDATE"), ("conversation", "DELETE")],
)
async def test_a_trigger_that_drops_a_part_lets_nothing_be_deleted(
    table: str, operation: str, component: Component, connection: Connection
) -> None:
    """All or nothing (G5)."""
    await create(component)
    await connection.execute(
        f"""CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN RETURN NULL; END $$;
            CREATE TRIGGER dropping BEFORE {operation} ON {table}
            FOR EACH ROW EXECUTE FUNCTION drop_it()"""
    )
    with pytest.raises(Unreachable):
        await component.deleter.delete(ID, ALICE)
    await connection.execute(f"DROP TRIGGER dropping ON {table}")
    assert ID == await create(component)
    assert await sound(connection)


async def test_a_deletion_on_another_server_waits_for_its_history(
    database_url: str, database: Database, connection: Connection
) -> None:
    """Until a component has begun it, the owner gets an error that passes."""
    async with open_component(database_url) as component:
        await create(component)
    await connection.execute("UPDATE outbox_history SET server_started_at = '-infinity'")
    before = await connection.fetchval("SELECT max(number) FROM outbox_history")
    store = PostgresDeletionStore(database)
    with pytest.raises(ReadCancelled, match="no history of events has begun"):
        async with store.deleting() as delete:
            await delete(Deletion(ID, ALICE, None), is_hasty=False)
    assert 1 == await connection.fetchval("SELECT count(*) FROM outbox")
    async with open_component(database_url) as component:
        await component.deleter.delete(ID, ALICE)
    assert [before, before + 1] == [
        row["history"]
        for row in await connection.fetch("SELECT history FROM outbox ORDER BY history")
    ]


@pytest.mark.parametrize("column", ["owner_id", "name", "description", "deleted_at"])
async def test_a_tombstone_never_changes(
    column: str, component: Component, connection: Connection
) -> None:
    """For any client of the database."""
    await create(component)
    await component.deleter.delete(ID, ALICE)
    with pytest.raises(asyncpg.RestrictViolationError):
        await connection.execute(f"UPDATE chat_group SET {column} = NULL")


@pytest.mark.parametrize(
    "change",
    [
        "deleted_at = now()",
        "failure_code = 'x'",
        "name = NULL",
        "owner_id = NULL",
        "fingerprint = NULL",
        "conversation_id = NULL",
        """deleted_at = now(), failure_code = 'x', name = NULL, owner_id = NULL,
           fingerprint = NULL, conversation_id = NULL""",
        """deleted_at = now(), description = 'kept', name = NULL, owner_id = NULL,
           fingerprint = NULL, conversation_id = NULL""",
    ],
)
async def test_a_row_is_a_whole_group_or_an_empty_tombstone(
    change: str, component: Component, connection: Connection
) -> None:
    """Nothing in between."""
    await create(component)
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute(f"UPDATE chat_group SET {change}")


@pytest.mark.parametrize(
    ("expected", "violation"),
    [
        ("deleted without its event", "DELETE FROM outbox WHERE event_type = 'group.deleted'"),
        ("event without a group", "DELETE FROM chat_group WHERE deleted_at IS NOT NULL"),
        (
            "event of its deletion, but the group is there",
            """UPDATE outbox SET event_type = 'group.deleted'
               WHERE conversation_id IN (SELECT conversation_id FROM chat_group)""",
        ),
        (
            "conversation without a group",
            """INSERT INTO conversation (conversation_id) SELECT conversation_id FROM outbox
               ON CONFLICT DO NOTHING""",
        ),
        (
            "failed, but it had a group",
            """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status,
                                    failure_code, failure_detail, settled_at)
               SELECT group_id, 'alice', '0123456789abcdef', group_id, 'failed', 'x', 'y', now()
               FROM chat_group WHERE deleted_at IS NOT NULL""",
        ),
        (
            "succeeded, but the key has failed before: its tombstone says so",
            """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status,
                                    conversation_id, settled_at)
               SELECT group_id, 'alice', '0123456789abcdef', group_id, 'succeeded', group_id, now()
               FROM chat_group WHERE failure_code IS NOT NULL""",
        ),
        (
            "event without a group",
            """UPDATE outbox
               SET subject = (SELECT group_id FROM chat_group WHERE failure_code IS NOT NULL)""",
        ),
    ],
)
async def test_the_check_finds_every_kind_of_violation(
    expected: str, violation: str, component: Component, connection: Connection
) -> None:
    """And none beside a group, a deleted one, and the tombstone of a failed attempt."""
    await create(component)
    await create(component, "kept")
    await component.deleter.delete(ID, ALICE)
    await connection.execute(
        "INSERT INTO chat_group (group_id, failure_code) VALUES (gen_random_uuid(), 'x')"
    )
    assert set() == await violations(connection)
    assert 1 == (await check_database(connection, 30)).groups
    await connection.execute(violation)
    assert expected in await violations(connection)
