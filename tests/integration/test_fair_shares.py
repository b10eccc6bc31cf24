"""No user's backlog keeps another waiting: those who share a mailbox take turns in it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation import deletion
from stretto.creation.reads import PAGES_READ_MAX, ROWS_READ_MAX
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import Overloaded
from stretto.postgres import connecting, deletions
from stretto.postgres import trail as trail_module
from stretto.postgres.connections import READ_SECONDS
from stretto.postgres.lanes import Lane
from stretto.runtime.batch_reader import WAITING_MAX
from stretto.runtime.mailbox import Mailbox
from stretto.store_errors import ReadCancelled, Unreachable
from support.database import connect, first_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from uuid import UUID

    from stretto.assembly.component import Component
    from stretto.domain import CreatedGroup
    from support.database import Connection

ALICE, BOB = UserId("alice"), UserId("bob")
BATCH_MAX: Final = 4
QUEUED_MAX: Final = 40
SMALL: Final = ComponentSettings(writers=1, batch_max=BATCH_MAX, mailbox_max=QUEUED_MAX)
# As many histories as may wait.
FLOOD: Final = WAITING_MAX
WAITING: Final = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
                    AND wait_event_type = 'Lock' AND query LIKE '%FROM attempt_trail WHERE%'"""
LARGE: Final = [f"m{number}" for number in range(1000)]


@dataclass
class Gate:
    """A host's hook that holds the first batch, and notes the owners of each that is written."""

    batches: list[list[UserId]] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self, _: object, groups: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
        self.batches.append([new_group.owner for _, new_group in groups])
        self.reached.set()
        await self.opened.wait()

    def batches_before(self, owner: UserId) -> int:
        """Return how many batches were written between the held one and an owner's first."""
        return next(n for n, owners in enumerate(self.batches[1:]) if owner in owners)


def in_one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no mailbox distinguish users."""
    made = Mailbox.__init__
    monkeypatch.setattr(Mailbox, "__init__", lambda self, most, *_, **__: made(self, most))


async def create(component: Component, owner: UserId, key: str, members: list[str]) -> object:
    """Create a group of that owner."""
    new_group = NewGroup.parse(owner, {"name": "Team", "members": members})
    return await component.creator.create(IdempotencyKey(key), new_group)


async def behind_a_backlog(
    database_url: str, members: list[str]
) -> tuple[Gate, list[object], object]:
    """Fill the mailbox for alice, then create one group of bob's; return how both were answered."""
    gate = Gate()
    async with open_component(database_url, settings=SMALL, on_create=gate.hold) as component:
        held = asyncio.ensure_future(create(component, ALICE, "held", []))
        await gate.reached.wait()
        backlog = [
            asyncio.ensure_future(create(component, ALICE, f"a{number}", members))
            for number in range(QUEUED_MAX)
        ]
        await asyncio.sleep(0)
        assert QUEUED_MAX <= component.mailbox.places
        small = asyncio.ensure_future(create(component, BOB, "b", []))
        await asyncio.sleep(0)
        gate.opened.set()
        await held
        answers = await asyncio.gather(*backlog, return_exceptions=True)
        (answer,) = await asyncio.gather(small, return_exceptions=True)
        return gate, answers, answer


@pytest.mark.parametrize("members", [[], LARGE], ids=["small groups", "large groups"])
async def test_a_creation_is_in_the_next_batch_whatever_another_owner_has_queued(
    members: list[str], database_url: str
) -> None:
    """The mailbox is full: it takes the place of the other's newest, which has claimed nothing."""
    gate, answers, answer = await behind_a_backlog(database_url, members)
    assert not isinstance(answer, Exception)
    assert 0 == gate.batches_before(BOB)
    failed = [isinstance(each, Exception) for each in answers]
    # A large group takes six places, and the last one may take more than are left.
    fits = math.ceil(QUEUED_MAX / 6) if members else QUEUED_MAX
    assert [False] * (fits - 1) + [True] * (QUEUED_MAX - fits + 1) == failed
    assert isinstance(answers[-1], Overloaded)


async def test_in_one_queue_a_creation_is_rejected_for_the_backlog_of_another(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin."""
    in_one_queue(monkeypatch)
    _, answers, answer = await behind_a_backlog(database_url, [])
    assert isinstance(answer, Overloaded)
    assert not any(isinstance(each, Exception) for each in answers)


READS: Final = {
    "attempts": ROWS_READ_MAX,
    "trails": PAGES_READ_MAX,
    "groups": ROWS_READ_MAX,
    "groups of any user": ROWS_READ_MAX,
    "lists": PAGES_READ_MAX,
    "members": PAGES_READ_MAX,
}
"""The kinds of reads, with how many share a statement."""


async def read_beside_a_flood(component: Component, kind: str) -> list[tuple[UserId, object]]:
    """Ask more for alice than may wait, and once for bob; return the outcomes as they come."""
    outcomes: list[tuple[UserId, object]] = []
    group = await component.creator.create(
        IdempotencyKey("k"), NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})
    )
    reads = component.reads.groups

    async def read(user: UserId) -> None:
        asked: dict[str, Callable[[], Awaitable[object]]] = {
            "attempts": lambda: component.reads.attempts.look(uuid4(), 5.0, user),
            "trails": lambda: component.reads.trail(user, uuid4()),
            "groups": lambda: reads.group_of_member(uuid4(), user),
            "groups of any user": lambda: reads.group_of_member(uuid4(), None, asker=user),
            "lists": lambda: reads.groups_of_member(user, None, 10),
            "members": lambda: reads.members_of_group(group.group.group_id, user, None, 10),
        }
        try:
            outcomes.append((user, await asked[kind]()))
        except Overloaded as error:
            outcomes.append((user, error))

    await asyncio.gather(*map(read, [*[ALICE] * (WAITING_MAX + 5), BOB]))
    return outcomes


@pytest.mark.parametrize("kind", READS)
async def test_a_read_is_in_the_next_statement_whatever_another_user_has_asked(
    kind: str, database_url: str
) -> None:
    """Six of the other's are too many: five that came too late, and one whose place was needed."""
    async with open_component(database_url) as component:
        outcomes = await read_beside_a_flood(component, kind)
    answered = [user for user, outcome in outcomes if not isinstance(outcome, Overloaded)]
    assert BOB in answered[: READS[kind]]
    assert WAITING_MAX == len(answered)
    assert [ALICE] * 6 == [user for user, outcome in outcomes if isinstance(outcome, Overloaded)]


@pytest.mark.parametrize("kind", READS)
async def test_in_one_queue_a_read_is_rejected_for_those_of_another_user(
    kind: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin."""
    in_one_queue(monkeypatch)
    async with open_component(database_url) as component:
        outcomes = await read_beside_a_flood(component, kind)
    assert isinstance(dict(outcomes)[BOB], Overloaded)


@pytest.fixture
async def holder(server_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connection]:
    """A connection for locks, for which statements wait as long as a read may take."""
    monkeypatch.setitem(connecting._SERVER_SETTINGS, "lock_timeout", "0")
    holder = await connect(server_url)
    yield holder
    await holder.close()


async def answered_beside_histories(
    database_url: str, connection: Connection, holder: Connection, seconds: float
) -> set[object]:
    """Flood the histories while their table is locked; return which other reads are answered."""
    async with open_component(database_url) as component, holder.transaction():
        await holder.execute("LOCK TABLE attempt_trail")
        reads = component.reads
        tasks = [asyncio.ensure_future(reads.trail(ALICE, uuid4())) for _ in range(FLOOD)]
        await first_row(connection, WAITING)
        others = {
            asyncio.ensure_future(reads.attempts.look(uuid4(), 5.0, BOB)): "attempts",
            asyncio.ensure_future(reads.groups.group_of_member(uuid4(), BOB)): "groups",
            asyncio.ensure_future(reads.groups.groups_of_member(BOB, None, 10)): "lists",
        }
        done, _ = await asyncio.wait(others, timeout=seconds)
    await asyncio.gather(*tasks, *others, return_exceptions=True)
    return {others[each] for each in done}


async def test_no_other_read_waits_for_histories(
    database_url: str, connection: Connection, holder: Connection
) -> None:
    """However many one owner asks for, and however long their statement takes."""
    seconds = READ_SECONDS / 2
    answered = await answered_beside_histories(database_url, connection, holder, seconds)
    assert {"attempts", "groups", "lists"} == answered


async def test_on_one_connection_a_look_waits_for_histories(
    database_url: str, connection: Connection, holder: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin."""
    monkeypatch.setattr(trail_module, "Lane", SimpleNamespace(TRAILS=Lane.LOOKS))
    answered = await answered_beside_histories(database_url, connection, holder, READ_SECONDS / 2)
    assert {"groups", "lists"} == answered


HELD: Final = 30


async def deletions_before_bobs(
    component: Component, holder: Connection, *, repeats: int = 1
) -> tuple[int, Sequence[object]]:
    """Ask for groups of alice's that a host holds, then for bob's; return what was answered first.

    That is the number of alice's requests, and all outcomes of hers.
    """
    for owner, count in ((ALICE, HELD), (BOB, 1)):
        for number in range(count):
            await create(component, owner, f"k{number}", [])
    held = [group_id(ALICE, IdempotencyKey(f"k{number}")) for number in range(HELD)]
    answered: list[UserId] = []

    async def delete(id_: UUID, owner: UserId) -> None:
        try:
            await component.deleter.delete(id_, owner)
        finally:
            answered.append(owner)

    async with holder.transaction():
        await holder.execute("SELECT FROM chat_group WHERE owner_id = 'alice' FOR UPDATE")
        of_alice = [asyncio.ensure_future(delete(id_, ALICE)) for id_ in held * repeats]
        await asyncio.sleep(0)
        await delete(group_id(BOB, IdempotencyKey("k0")), BOB)
        before = answered.index(BOB)
        outcomes = await asyncio.gather(*of_alice, return_exceptions=True)
    return before, outcomes


@pytest.mark.parametrize("repeats", [1, 4], ids=["once", "repeated"])
async def test_a_deletion_waits_for_one_held_group_of_another_owner(
    repeats: int, component: Component, holder: Connection
) -> None:
    """However many the other's are, and however often it repeats each."""
    before, outcomes = await deletions_before_bobs(component, holder, repeats=repeats)
    assert before <= repeats
    assert {ReadCancelled, Overloaded, Unreachable} >= {type(each) for each in outcomes}


async def test_in_one_queue_a_deletion_waits_for_all_held_groups(
    database_url: str, holder: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: without a second deleter."""
    in_one_queue(monkeypatch)
    monkeypatch.setattr(deletion, "TURN_SECONDS", 60.0)
    monkeypatch.setattr(deletions, "LOCK_SECONDS", deletions.HASTY_LOCK_SECONDS)
    async with open_component(database_url) as component:
        component.deleter.slow = None
        before, _ = await deletions_before_bobs(component, holder)
    assert HELD == before
