"""Statements that answer many questions at once: each gets its own answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from stretto.creation.attempt import AttemptStatus
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.connections import Database
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.lanes import Lane
from stretto.postgres.queries import QUERIES
from support.database import pend

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.assembly.component import Component
    from stretto.domain import Member
    from support.database import Connection

ALICE, BOB, CAROL, DAVE = map(UserId, ("alice", "bob", "carol", "dave"))
KEYS = ("a", "b", "c")


@pytest_asyncio.fixture
async def groups(component: Component) -> list[UUID]:
    """Three groups of alice's: with bob and carol, with bob, and of hers alone."""
    made = []
    for key, members in zip(KEYS, (["bob", "carol"], ["bob"], []), strict=True):
        new_group = NewGroup.parse(ALICE, {"name": key, "members": members})
        answer = await component.creator.create(IdempotencyKey(key), new_group)
        made.append(answer.group.group_id)
    return made


def ids_of(pages: Sequence[Sequence[Member] | None]) -> list[list[str] | None]:
    """Return the users of each page; None where there is no group to read."""
    return [page if page is None else [member.user_id for member in page] for page in pages]


async def test_looks_come_back_in_the_order_of_their_questions(
    component: Component, groups: list[UUID], connection: Connection
) -> None:
    """The same one twice, one that is nowhere, and each with its own lease."""
    pending = await pend(connection, "pending", seconds_ago=60)
    store = PostgresAttemptStore(component.database)
    nowhere = group_id(ALICE, "nowhere")
    wanted = [groups[2], pending, nowhere, groups[0], pending, groups[2]]
    leases = [1.0, 3600.0, 1.0, 1.0, 1.0, 1.0]
    seen = await store.look_all(list(zip(wanted, leases, strict=True)))
    found = [each.group and each.group.group.group_id for each in seen]
    assert [groups[2], None, None, groups[0], None, groups[2]] == found
    assert seen[2].attempt is None
    pendings = [seen[1].attempt, seen[4].attempt]
    assert [False, True] == [each and each.lease_over for each in pendings]
    assert [AttemptStatus.PENDING] * 2 == [each and each.status for each in pendings]
    assert seen[0] == seen[5]


async def test_each_question_gets_its_own_groups_and_members(
    component: Component, groups: list[UUID]
) -> None:
    """And nothing where the user takes no part."""
    store = PostgresGroupStore(component.database)
    asked = [(groups[1], CAROL), (groups[0], CAROL), (groups[2], ALICE), (groups[0], DAVE)]
    shown = await store.group_of_member([*asked, (groups[1], None), (group_id(ALICE, "x"), None)])
    expected_ids = [None, groups[0], groups[2], None, groups[1], None]
    assert expected_ids == [group and group.group_id for group in shown]
    assert [3, 1, 2] == [group.members_count for group in shown if group]
    lists = await store.groups_of_member(
        [(DAVE, None, 9), (BOB, None, 9), (CAROL, None, 9), (BOB, None, 9)]
    )
    assert [[], ["b", "a"], ["a"], ["b", "a"]] == [[g.name for g in page] for page in lists]
    members = await store.members_of_group(
        [
            (groups[2], ALICE, None, 9),
            (groups[1], CAROL, None, 9),
            (group_id(ALICE, "x"), None, None, 9),
            (groups[0], None, None, 9),
            # Of a group that is there, the page after the last member is empty.
            (groups[1], BOB, "bob", 9),
        ]
    )
    assert [["alice"], None, None, ["alice", "bob", "carol"], []] == ids_of(members)


async def test_pages_of_one_statement_go_on_where_each_has_ended(
    component: Component, groups: list[UUID]
) -> None:
    """Each behind its own cursor, and each as long as it was asked for."""
    store = PostgresGroupStore(component.database)
    (newest,) = await store.groups_of_member([(ALICE, None, 1)])
    cursor = newest[-1].conversation_id
    lists = await store.groups_of_member([(ALICE, cursor, 1), (ALICE, cursor, 9), (ALICE, None, 2)])
    assert [["b"], ["b", "a"], ["c", "b"]] == [[group.name for group in page] for page in lists]
    members = await store.members_of_group(
        [(groups[0], BOB, "alice", 1), (groups[0], None, "alice", 9), (groups[0], ALICE, None, 2)]
    )
    assert [["bob"], ["bob", "carol"], ["alice", "bob"]] == ids_of(members)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("look", "ARRAY[gen_random_uuid()], ARRAY[5.0], NULL"),
        ("group_of_member", "ARRAY[gen_random_uuid()], ARRAY['alice']"),
        ("group_of_member", "ARRAY[gen_random_uuid()], ARRAY[NULL]"),
        ("members_of_group", "ARRAY[gen_random_uuid()], ARRAY['alice'], ARRAY['bob'], ARRAY[9]"),
        ("members_of_group", "ARRAY[gen_random_uuid()], ARRAY[NULL], ARRAY[NULL], ARRAY[9]"),
        ("read_trails", "ARRAY[gen_random_uuid()], 100"),
    ],
)
async def test_rows_are_found_by_their_keys_however_small_the_tables_were(
    database_url: str, name: str, arguments: str
) -> None:
    """A plan is kept: made on empty tables, it must not read the whole of large ones.

    Nor may it where the settings are not ours: on a host's connections.
    """
    async with (
        asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool,
        Database(pool=pool) as database,
    ):
        await _require_keys(database, name, arguments)
    async with Database(database_url) as database:
        await _require_keys(database, name, arguments)


async def _require_keys(database: Database, name: str, arguments: str) -> None:
    async with database.connection(Lane.LOOKS) as connection:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE read AS {QUERIES[name]}")
        rows = await connection.fetch(f"EXPLAIN EXECUTE read({arguments})")
    plan = "\n".join(row[0] for row in rows)
    assert plan.count("Index Scan") + plan.count("Index Only Scan") == plan.count("Index Cond"), (
        plan
    )
    assert "Seq Scan" not in plan
