"""What a host changes of a group, in a transaction of its own: all of it with its event, or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import orjson
import pytest

import stretto
from stretto.assembly.opening import open_component
from stretto.domain import IdempotencyKey, UserId
from stretto.members import MEMBERS_MAX
from stretto.postgres import changes as changes_module
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.migrate import grant
from stretto.postgres.queries import QUERIES
from support.changed_groups import ALICE, ROLES, TEAM, UNCHANGED, Seen, changed, changes, seen
from support.commit_settings import have_set
from support.database import connect, lock_waiters, sound
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from stretto.assembly.component import Component
    from support.database import Connection

UNKNOWN = UUID(int=7)
HOSTS_ROW = "INSERT INTO public.audit VALUES ('changed')"


@pytest.fixture
async def group(component: Component) -> UUID:
    """A group of alice's, with bob, and carol as an admin."""
    return (await component.creator.create(IdempotencyKey("k"), TEAM)).group.group_id


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Connection]:
    """A connection of another host."""
    other = await connect(database_url)
    yield other
    other.terminate()


@pytest.fixture
async def audit(connection: Connection) -> None:
    """A table of the host's."""
    await connection.execute("CREATE TABLE public.audit (what text)")


async def audited(connection: Connection) -> int:
    """How many rows the host has written."""
    count: int = await connection.fetchval("SELECT count(*) FROM public.audit")
    return count


@pytest.mark.parametrize(
    ("change", "arguments", "expected", "said"),
    [
        (
            stretto.rename_group,
            {"name": "Crew"},
            Seen("Crew", "Ours", ROLES, 1),
            (
                "group.renamed",
                {"name": "Crew", "description": "Ours", "members_count": 3},
                "alice bob carol",
            ),
        ),
        (
            stretto.rename_group,
            {"description": None},
            Seen("Team", None, ROLES, 1),
            (
                "group.renamed",
                {"name": "Team", "description": None, "members_count": 3},
                "alice bob carol",
            ),
        ),
        (
            stretto.rename_group,
            {"name": "Crew", "description": "Theirs"},
            Seen("Crew", "Theirs", ROLES, 1),
            (
                "group.renamed",
                {"name": "Crew", "description": "Theirs", "members_count": 3},
                "alice bob carol",
            ),
        ),
        (
            stretto.add_members,
            {"roles": {"erin": "admin", "dave": "member", "bob": "admin"}},
            Seen("Team", "Ours", ROLES | {"dave": "member", "erin": "admin"}, 1),
            (
                "group.members_added",
                {
                    "name": "Team",
                    "members_count": 5,
                    "members": [
                        {"user_id": "dave", "role": "member"},
                        {"user_id": "erin", "role": "admin"},
                    ],
                },
                "alice bob carol dave erin",
            ),
        ),
        (
            stretto.remove_members,
            {"users": ["carol", "mallory", "bob"]},
            Seen("Team", "Ours", {"alice": "owner"}, 1),
            (
                "group.members_removed",
                {
                    "name": "Team",
                    "members_count": 1,
                    "members": [
                        {"user_id": "bob", "role": "member"},
                        {"user_id": "carol", "role": "admin"},
                    ],
                },
                "alice bob carol",
            ),
        ),
        (
            stretto.set_role,
            {"user": "bob", "role": "owner"},
            Seen("Team", "Ours", ROLES | {"bob": "owner"}, 1),
            (
                "group.role_changed",
                {
                    "name": "Team",
                    "members_count": 3,
                    "members": [{"user_id": "bob", "role": "owner"}],
                },
                "alice bob carol",
            ),
        ),
    ],
    ids=["name", "description", "both", "add", "remove", "role"],
)
async def test_a_change_is_made_with_its_one_event(
    change: Callable[..., Awaitable[stretto.GroupChange | None]],
    arguments: dict[str, Any],
    expected: Seen,
    said: tuple[str, dict[str, object], str],
    group: UUID,
    connection: Connection,
) -> None:
    """It says what has changed, and goes to the members before and after."""
    event_type, data, recipients = said
    made = await changed(connection, change, group, **arguments)
    assert expected == await seen(connection, group)
    (event,) = await changes(connection)
    conversation = await connection.fetchval("SELECT conversation_id FROM chat_group")
    assert event.document.pop("time").endswith("+00:00")
    assert {
        "specversion": "1.0",
        "id": str(made.event_id),
        "source": "urn:stretto",
        "type": event_type,
        "subject": str(group),
        "datacontenttype": "application/json",
        "data": {
            "group_id": str(group),
            "conversation_id": str(conversation),
            "owner_id": "alice",
            "kind": "project",
            "revision": 1,
            **data,
        },
    } == event.document
    assert tuple(recipients.split()) == event.recipients
    users = [member["user_id"] for member in event.data.get("members", ())]
    assert (1, users) == (made.revision, [*made.users])
    assert await sound(connection)


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        (stretto.rename_group, {"name": "Team"}),
        (stretto.rename_group, {"description": "Ours"}),
        (stretto.rename_group, {}),
        (stretto.add_members, {"roles": {"bob": "admin", "alice": "member"}}),
        (stretto.add_members, {"roles": {}}),
        (stretto.remove_members, {"users": {"mallory"}}),
        (stretto.remove_members, {"users": ()}),
        (stretto.set_role, {"user": "carol", "role": "admin"}),
        (stretto.set_role, {"user": "alice", "role": "owner"}),
    ],
)
async def test_what_is_so_already_is_no_change(
    change: Callable[..., Any], arguments: dict[str, Any], group: UUID, connection: Connection
) -> None:
    """And has no event, so a host may repeat what it does not know the outcome of."""
    assert await changed(connection, change, group, **arguments) is None
    assert UNCHANGED == await seen(connection, group)
    assert [] == await changes(connection)


@pytest.mark.parametrize(
    ("code", "change", "arguments"),
    [
        ("last_owner", stretto.remove_members, {"users": ["bob", "alice"]}),
        ("last_owner", stretto.set_role, {"user": "alice", "role": "admin"}),
        ("not_a_member", stretto.set_role, {"user": "mallory", "role": "admin"}),
        (
            "too_many_members",
            stretto.add_members,
            {"roles": {f"u{number}": "member" for number in range(MEMBERS_MAX - 1)}},
        ),
    ],
)
@pytest.mark.usefixtures("audit")
async def test_what_a_group_cannot_become_changes_nothing(
    code: str,
    change: Callable[..., Any],
    arguments: dict[str, Any],
    group: UUID,
    connection: Connection,
) -> None:
    """The host's transaction goes on as it likes."""
    async with connection.transaction():
        await connection.execute(HOSTS_ROW)
        with pytest.raises(stretto.ChangeRefused) as error:
            await change(connection, group, **arguments)
    assert code == error.value.failure.code
    problem = stretto.problem_of(error.value)
    assert (403, code) == (problem.status, orjson.loads(problem.body)["failure"]["code"])
    assert 1 == await audited(connection)
    assert UNCHANGED == await seen(connection, group)
    assert [] == await changes(connection)


async def test_a_group_may_be_filled_to_its_limit(group: UUID, connection: Connection) -> None:
    """The twin: as many as a creation may have, besides the one who has created it."""
    more = {f"u{number}": "member" for number in range(MEMBERS_MAX - 2)}
    made = await changed(connection, stretto.add_members, group, more)
    assert MEMBERS_MAX - 2 == len(made.users)
    assert MEMBERS_MAX + 1 == len((await seen(connection, group)).roles)
    (event,) = await changes(connection)
    assert MEMBERS_MAX + 1 == len(event.recipients) == event.data["members_count"]
    with pytest.raises(stretto.ChangeRefused, match="has 1001 members at most"):
        await changed(connection, stretto.add_members, group, {"dave": "member"})
    # Whom the group has already is not counted twice.
    assert await changed(connection, stretto.add_members, group, {"bob": "member"}) is None


@pytest.mark.usefixtures("audit")
async def test_a_change_shares_the_fate_of_the_hosts_transaction(
    group: UUID, connection: Connection
) -> None:
    """Whole or up to a savepoint."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(HOSTS_ROW)
    await stretto.rename_group(connection, group, name="Crew")
    await stretto.remove_members(connection, group, ["bob"])
    await transaction.rollback()
    assert (0, UNCHANGED) == (await audited(connection), await seen(connection, group))
    assert [] == await changes(connection)
    async with connection.transaction():
        await connection.execute(HOSTS_ROW)
        savepoint = connection.transaction()
        await savepoint.start()
        await stretto.add_members(connection, group, {"dave": "member"})
        await savepoint.rollback()
        await stretto.rename_group(connection, group, name="Crew")
    assert Seen("Crew", "Ours", ROLES, 1) == await seen(connection, group)
    assert (["group.renamed"], 1) == (
        [event.type for event in await changes(connection)],
        await audited(connection),
    )


async def test_changes_of_one_transaction_are_read_in_their_order(
    group: UUID, connection: Connection
) -> None:
    """They have one place in the log; each has a revision and an id of its own."""
    async with connection.transaction():
        for number in range(20):
            await stretto.rename_group(connection, group, name=f"Team {number}")
    found = await changes(connection)
    assert [*range(1, 21)] == [event.data["revision"] for event in found]
    assert [f"Team {number}" for number in range(20)] == [event.data["name"] for event in found]
    assert 20 == len({event.document["id"] for event in found})


async def test_the_one_who_has_created_a_group_may_leave_it(
    group: UUID, component: Component, connection: Connection
) -> None:
    """Once it has another owner; services that read any group still find it."""
    await changed(connection, stretto.set_role, group, "bob", "owner")
    await changed(connection, stretto.set_role, group, "alice", "member")
    await changed(connection, stretto.remove_members, group, ["alice"])
    with pytest.raises(stretto.ChangeRefused, match="one owner at least"):
        await changed(connection, stretto.remove_members, group, ["bob"])
    assert {"bob": "owner", "carol": "admin"} == (await seen(connection, group)).roles
    last = (await changes(connection))[-1]
    assert ("alice", 2, ("alice", "bob", "carol")) == (
        last.data["owner_id"],
        last.data["members_count"],
        last.recipients,
    )
    reads = component.reads.groups
    assert await reads.group_of_member(group, ALICE) is None
    read = await reads.group_of_member(group, None)
    assert read is not None
    assert ("alice", 2) == (read.owner_id, read.members_count)
    assert [] == await reads.groups_of_member(ALICE, None, 9)
    store = PostgresGroupStore(component.database)
    owned = [await store.groups_of_owner(UserId(user), None, 9) for user in ROLES]
    assert [[], [read], []] == owned
    assert await sound(connection)


async def test_there_must_be_a_group_to_change(group: UUID, connection: Connection) -> None:
    """An unknown id is the same error for each change."""
    for change, arguments in (
        (stretto.rename_group, {"name": "Crew"}),
        (stretto.add_members, {"roles": {"dave": "member"}}),
        (stretto.remove_members, {"users": ["bob"]}),
        (stretto.set_role, {"user": "bob", "role": "admin"}),
    ):
        with pytest.raises(stretto.NotFound, match=f"no group {UNKNOWN}"):
            await changed(connection, change, UNKNOWN, **arguments)
    assert UNCHANGED == await seen(connection, group)


async def test_outside_a_transaction_is_a_programmers_error(
    group: UUID, connection: Connection
) -> None:
    """The lock would end before the change, and nothing would tie it to what the host writes."""
    with pytest.raises(RuntimeError, match="together with its event"):
        await stretto.rename_group(connection, group, name="Crew")
    assert UNCHANGED == await seen(connection, group)


async def test_two_hosts_that_remove_the_last_owners_leave_one(
    group: UUID, connection: Connection, other: Connection, database_url: str
) -> None:
    """The second waits for the first, and then sees what is left."""
    await changed(connection, stretto.set_role, group, "bob", "owner")
    await remove_at_once(group, connection, other, database_url, stretto.ChangeRefused)
    assert ["bob"] == [
        user for user, role in (await seen(connection, group)).roles.items() if role == "owner"
    ]
    assert await sound(connection)


async def test_without_the_lock_no_owner_would_be_left(
    group: UUID,
    connection: Connection,
    other: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin: a statement that has waited decides by the members of before."""
    unlocked = {**QUERIES, "lock_group": QUERIES["lock_group"].replace("FOR NO KEY UPDATE", "")}
    monkeypatch.setattr(changes_module, "QUERIES", unlocked)
    await changed(connection, stretto.set_role, group, "bob", "owner")
    await remove_at_once(group, connection, other, database_url, None)
    assert {"carol": "admin"} == (await seen(connection, group)).roles
    assert not await sound(connection)


async def remove_at_once(
    group: UUID,
    connection: Connection,
    other: Connection,
    database_url: str,
    error: type[Exception] | None,
) -> None:
    """Remove alice, and bob before that has been committed."""
    watch = await connect(database_url)
    async with connection.transaction():
        await stretto.remove_members(connection, group, ["alice"])
        second = asyncio.ensure_future(changed(other, stretto.remove_members, group, ["bob"]))
        await lock_waiters(watch, 1)
    await watch.close()
    await asyncio.wait({second})
    assert error is (None if second.exception() is None else type(second.exception()))


@pytest.mark.parametrize("first_commits", [True, False])
async def test_a_change_waits_for_how_another_one_ends(
    first_commits: bool,
    group: UUID,
    connection: Connection,
    other: Connection,
    database_url: str,
) -> None:
    """And is one only if the other has not made it already."""
    watch = await connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    await stretto.add_members(connection, group, {"dave": "member"})
    adding = asyncio.ensure_future(changed(other, stretto.add_members, group, {"dave": "admin"}))
    await lock_waiters(watch, 1)
    await (transaction.commit() if first_commits else transaction.rollback())
    assert first_commits == (await adding is None)
    assert ("member" if first_commits else "admin") == (await seen(watch, group)).roles["dave"]
    assert 1 == len(await changes(watch))
    await watch.close()


async def test_a_snapshot_of_before_a_change_decides_nothing(
    group: UUID, connection: Connection, other: Connection
) -> None:
    """Above READ COMMITTED the transaction fails, as all that conflict there; it may be repeated."""
    await changed(connection, stretto.set_role, group, "bob", "owner")
    transaction = other.transaction(isolation="repeatable_read")
    await transaction.start()
    await other.execute("SELECT FROM chat_group")
    await changed(connection, stretto.remove_members, group, ["alice"])
    with pytest.raises(asyncpg.SerializationError):
        await stretto.remove_members(other, group, ["bob"])
    await transaction.rollback()
    assert {"bob": "owner", "carol": "admin"} == (await seen(connection, group)).roles


async def test_events_by_revision_say_what_became_of_a_group(
    group: UUID, connection: Connection, database_url: str
) -> None:
    """Hosts change it at once; a consumer that applies the events in their order has the same."""
    hosts = await asyncio.gather(*(connect(database_url) for _ in range(4)))
    users = [f"u{number}" for number in range(4)]

    async def work(number: int) -> int:
        made = 0
        for turn in range(12):
            user = users[(number + turn) % len(users)]
            turns: list[tuple[Callable[..., Awaitable[Any]], dict[str, Any]]] = [
                (stretto.add_members, {"roles": {user: "member", "bob": "admin"}}),
                (stretto.remove_members, {"users": [user, "bob"]}),
                (stretto.rename_group, {"name": f"By {number}"}),
                (stretto.add_members, {"roles": {user: "admin"}}),
            ]
            change, arguments = turns[(number + turn * 3) % 4]
            made += await changed(hosts[number], change, group, **arguments) is not None
        return made

    made = await asyncio.gather(*map(work, range(len(hosts))))
    found = sorted(await changes(connection), key=lambda event: event.data["revision"])
    assert [*range(1, sum(made) + 1)] == [event.data["revision"] for event in found]
    name, roles = "Team", dict(ROLES)
    for event in found:
        name = event.data["name"]
        for member in event.data.get("members", ()):
            if event.type == "group.members_removed":
                assert member["role"] == roles.pop(member["user_id"])
            else:
                assert member["user_id"] not in roles
                roles[member["user_id"]] = member["role"]
        assert len(roles) == event.data["members_count"]
    assert Seen(name, "Ours", roles, sum(made)) == await seen(connection, group)
    assert await sound(connection)
    await asyncio.gather(*(host.close() for host in hosts))


async def test_a_change_keeps_no_creation_waiting(
    group: UUID, component: Component, connection: Connection
) -> None:
    """Neither the group's own key nor another, however long the host's transaction is open."""
    async with asyncio.timeout(10), connection.transaction():
        await stretto.rename_group(connection, group, name="Crew")
        component.creator.forget()
        again = await component.creator.create(IdempotencyKey("k"), TEAM)
        assert group == again.group.group_id
        assert await component.creator.create(IdempotencyKey("other"), TEAM)


@pytest.mark.parametrize(("wanted", "expected"), [("off", "on"), ("local", "local"), ("on", "on")])
async def test_a_change_is_flushed_whatever_the_host_has_set(
    wanted: str, expected: str, group: UUID, connection: Connection
) -> None:
    """Readers rest on visible events: a crash must not give their transaction ids out again."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL synchronous_commit = {wanted}")
        await stretto.rename_group(connection, group, name="Crew")
        assert expected == await connection.fetchval("SHOW synchronous_commit")


async def test_a_deletion_leaves_the_hosts_session_as_it_was(
    group: UUID, connection: Connection
) -> None:
    """Whatever a trigger of its rows sets: the host's next statements would lead elsewhere."""
    path = await connection.fetchval("SHOW search_path")
    await have_set(
        connection, "AFTER UPDATE ON chat_group FOR EACH ROW", "SET search_path TO stretto, public"
    )
    async with connection.transaction():
        assert await stretto.delete_group(connection, group)
    assert path == await connection.fetchval("SHOW search_path")


async def test_a_change_after_a_restart_waits_for_a_component_and_keeps_none_waiting(
    database_url: str, connection: Connection, other: Connection
) -> None:
    """It begins no history: that would be locked until the host's transaction ends."""
    async with open_component(database_url) as component:
        made = await component.creator.create(IdempotencyKey("k"), TEAM)
    group, newest = made.group.group_id, "SELECT max(number) FROM outbox_history"
    before = await connection.fetchval(newest)
    await connection.execute("UPDATE outbox_history SET server_started_at = '-infinity'")
    for change, arguments in ((stretto.rename_group, {"name": "Crew"}), (stretto.delete_group, {})):
        async with asyncio.timeout(10), connection.transaction():
            # What is so already is no change, and the transaction goes on.
            assert None is await stretto.rename_group(connection, group, name="Team")
            with pytest.raises(asyncpg.SerializationError, match="no history of events has begun"):
                async with connection.transaction():
                    await change(connection, group, **arguments)
            # A writer that connects begins it, while the host's transaction is open.
            await other.execute(QUERIES["begin_history"], before)
        assert UNCHANGED == await seen(connection, group)
        assert before + 1 == await connection.fetchval(newest)
        await connection.execute("DELETE FROM outbox_history WHERE number > $1", before)
    async with open_component(database_url):
        await changed(connection, stretto.rename_group, group, name="Crew")
    assert [before + 1] == [event.history for event in await changes(connection)]


async def test_a_component_without_requests_begins_a_history_after_a_restart(
    group: UUID, connection: Connection
) -> None:
    """None of its writers connects; a host's changes fail until then."""
    newest = "SELECT max(number) FROM outbox_history"
    before = await connection.fetchval(newest)
    await connection.execute("UPDATE outbox_history SET server_started_at = '-infinity'")

    async def is_begun() -> bool:
        return bool(before + 1 == await connection.fetchval(newest))

    await until(is_begun)
    await changed(connection, stretto.rename_group, group, name="Crew")
    assert [before + 1] == [event.history for event in await changes(connection)]


@pytest.mark.parametrize(
    ("table", "moment"),
    [
        ("outbox", "INSERT"),
        ("chat_group", "UPDATE"),
        ("conversation_member", "INSERT"),
    ],
)
async def test_a_trigger_that_drops_a_row_is_an_error(
    table: str, moment: str, group: UUID, connection: Connection
) -> None:
    """A change without its event, or half of one, is not for the host to commit."""
    await connection.execute(
        f"""CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RETURN NULL; END$$;
            CREATE TRIGGER drop_row BEFORE {moment} ON {table} FOR EACH ROW
            EXECUTE FUNCTION drop_row()"""
    )
    with pytest.raises(RuntimeError, match="it must return NEW"):
        await changed(connection, stretto.add_members, group, {"dave": "member"})
    assert UNCHANGED == await seen(connection, group)


async def test_a_role_that_was_granted_to_may_change_groups(
    group: UUID, role: str, role_url: str, connection: Connection
) -> None:
    """By `stretto migrate --grant-to`; the host's role may be another one than the service's."""
    await grant(connection, "stretto", [role])
    host = await connect(role_url)
    assert await changed(host, stretto.rename_group, group, name="Crew", description=None)
    assert await changed(host, stretto.add_members, group, {"dave": "owner"})
    assert await changed(host, stretto.set_role, group, "dave", "admin")
    assert await changed(host, stretto.remove_members, group, ["dave"])
    await host.close()
    assert Seen("Crew", None, ROLES, 4) == await seen(connection, group)


async def test_rows_are_found_by_their_keys(connection: Connection) -> None:
    """On a host's connection, whose settings are not ours: not by reading whole tables."""
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE change AS {QUERIES['change_group']}")
    rows = await connection.fetch(
        """EXPLAIN EXECUTE change(gen_random_uuid(), gen_random_uuid(), 'group.renamed', 'n', false,
                                  NULL, '{}', '{}', 1001)"""
    )
    plan = "\n".join(row[0] for row in rows)
    for table in ("chat_group", "conversation_member"):
        assert f"Seq Scan on {table}" not in plan, plan
