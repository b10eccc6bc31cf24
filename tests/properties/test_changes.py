"""Whatever hosts change of a group, in whichever order, and whatever of it is rolled back.

A model of a few dictionaries predicts every outcome. After each transaction the tables, the events and
the check of the whole database say the same as the model, and the group's key has its first answer.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stretto
from stretto.assembly.opening import open_component
from stretto.domain import IdempotencyKey
from support.changed_groups import ROLES, TEAM, Seen, changes, seen
from support.database import connect, sound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from support.database import Connection

PROFILE = settings(
    # The same runs everywhere and every time: what is found stays found.
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=list(HealthCheck),
)
USERS = ["alice", "bob", "carol", "dave"]

users = st.sampled_from(USERS)
roles = st.sampled_from(["owner", "admin", "member"])
# Which change, and its arguments.
Step: TypeAlias = tuple[str, tuple[Any, ...]]
steps = st.one_of(
    st.tuples(st.just("rename"), st.tuples(st.sampled_from(["Team", "Crew", None]))),
    st.tuples(st.just("describe"), st.tuples(st.sampled_from(["Ours", "", None]))),
    st.tuples(st.just("add"), st.tuples(st.dictionaries(users, roles, max_size=3))),
    st.tuples(st.just("remove"), st.tuples(st.sets(users, max_size=3))),
    st.tuples(st.just("role"), st.tuples(users, roles)),
)
transactions = st.lists(
    st.tuples(st.lists(steps, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=8
)


@dataclass(frozen=True, slots=True)
class Model:
    """A group as it is due, and what its events have to say."""

    group: Seen = field(default_factory=lambda: Seen("Team", "Ours", dict(ROLES)))
    events: tuple[tuple[str, dict[str, str], frozenset[str]], ...] = ()

    def after(self, kind: str, arguments: tuple[Any, ...]) -> tuple[Model, str | None]:
        """Return the model after a change, or the code of its refusal."""
        old = self.group
        new, users = old, dict[str, str]()
        if kind == "rename":
            new = replace(old, name=arguments[0] or old.name)
        elif kind == "describe":
            new = replace(old, description=arguments[0])
        elif kind == "add":
            users = {user: role for user, role in arguments[0].items() if user not in old.roles}
            new = replace(old, roles=old.roles | users)
        elif kind == "remove":
            users = {user: old.roles[user] for user in arguments[0] if user in old.roles}
            left = {user: role for user, role in old.roles.items() if user not in users}
            new = replace(old, roles=left)
        else:
            user, role = arguments
            if user not in old.roles:
                return self, "not_a_member"
            users = {} if old.roles[user] == role else {user: role}
            new = replace(old, roles=old.roles | users)
        if "owner" not in new.roles.values():
            return self, "last_owner"
        if new == old:
            return self, None
        event = (kind, users, frozenset({*old.roles, *new.roles}))
        return Model(replace(new, revision=old.revision + 1), (*self.events, event)), None


TYPES = {
    "rename": "group.renamed",
    "describe": "group.renamed",
    "add": "group.members_added",
    "remove": "group.members_removed",
    "role": "group.role_changed",
}


class World:
    """A database for all examples of a test, and the loop that they run in."""

    def __init__(self, url: str) -> None:
        # Debug mode would double the time of thousands of short steps.
        self._runner = asyncio.Runner(debug=False)
        self._stack = AsyncExitStack()
        self._keys = 0
        self.run = self._runner.run
        self.run(self._open(url))

    async def _open(self, url: str) -> None:
        self.component = await self._stack.enter_async_context(open_component(url))
        self.connection = await connect(url)

    async def begin(self) -> tuple[IdempotencyKey, UUID]:
        """Create the one group."""
        await self.connection.execute(
            "TRUNCATE attempt, conversation, chat_group, conversation_member, outbox"
        )
        self._keys += 1
        key = IdempotencyKey(f"k{self._keys}")
        return key, (await self.component.creator.create(key, TEAM)).group.group_id

    def close(self) -> None:
        """Leave nothing open."""
        self.run(self._stack.aclose())
        self.run(self.connection.close())
        self._runner.close()


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A database and a component of this test."""
    world = World(database_url)
    yield world
    world.close()


async def outcome(connection: Connection, group: UUID, step: Step) -> Any:
    """Make a change; return what was made, None, or the code of its refusal."""
    try:
        return await make(connection, group, step)
    except stretto.ChangeRefused as error:
        return error.failure.code


async def make(connection: Connection, group: UUID, step: Step) -> Any:
    """Make a change, as a host calls it."""
    kind, arguments = step
    if kind == "rename":
        name = stretto.KEEP if arguments[0] is None else arguments[0]
        return await stretto.rename_group(connection, group, name=name)
    if kind == "describe":
        return await stretto.rename_group(connection, group, description=arguments[0])
    change = {"add": stretto.add_members, "remove": stretto.remove_members}.get(kind)
    if change is None:
        return await stretto.set_role(connection, group, *arguments)
    return await change(connection, group, *arguments)


async def transact(
    connection: Connection, group: UUID, model: Model, change_steps: list[Step]
) -> Model:
    """Make changes in the transaction that is open; each outcome is the one that is due."""
    for step in change_steps:
        due, refusal = model.after(*step)
        made = await outcome(connection, group, step)
        if due == model:
            assert refusal == made
            continue
        assert (due.group.revision, tuple(sorted(due.events[-1][1]))) == (made.revision, made.users)
        model = due
    return model


async def require(world: World, group: UUID, model: Model) -> None:
    """Compare everything that is there with the model."""
    assert model.group == await seen(world.connection, group)
    found = await changes(world.connection)
    assert len(model.events) == len(found)
    assert [*range(1, len(found) + 1)] == [event.data["revision"] for event in found]
    for (kind, members, recipients), event in zip(model.events, found, strict=True):
        told: Mapping[str, str] = {
            member["user_id"]: member["role"] for member in event.data.get("members", ())
        }
        assert (TYPES[kind], recipients) == (event.type, frozenset(event.recipients))
        assert members == told
    assert await sound(world.connection)


@PROFILE
@given(script=transactions)
def explore(world: World, script: list[tuple[list[Step], bool]]) -> None:
    """Run transactions one after the other; some are rolled back."""

    async def work() -> None:
        key, group = await world.begin()
        first = await world.component.creator.create(key, TEAM)
        model = Model()
        for change_steps, commits in script:
            transaction = world.connection.transaction()
            await transaction.start()
            due = await transact(world.connection, group, model, change_steps)
            await (transaction.commit() if commits else transaction.rollback())
            model = due if commits else model
            await require(world, group, model)
        await world.connection.execute("TRUNCATE attempt")
        world.component.creator.forget()
        again = await world.component.creator.create(key, TEAM)
        assert first.document == again.document

    world.run(work())


def test_every_outcome_is_the_one_that_is_due(world: World) -> None:
    """Of changes one by one, several in a transaction, and of those that were rolled back."""
    explore(world)
