"""No user's backlog keeps another waiting: those who share a mailbox take turns in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.reads import PAGES_READ_MAX, ROWS_READ_MAX
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import Overloaded
from stretto.runtime.batch_reader import WAITING_BATCHES_MAX
from stretto.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.assembly.component import Component
    from stretto.domain import CreatedGroup

ALICE, BOB = UserId("alice"), UserId("bob")
BATCH_MAX: Final = 4
QUEUED_MAX: Final = 40
SMALL: Final = ComponentSettings(writers=1, batch_max=BATCH_MAX, mailbox_max=QUEUED_MAX)
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
    monkeypatch.setattr(Mailbox, "__init__", lambda self, most, _=None: made(self, most))


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
        assert QUEUED_MAX == len(component.mailbox)
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
    assert [False] * (QUEUED_MAX - 1) + [True] == failed
    assert isinstance(answers[-1], Overloaded)


async def test_in_one_queue_a_creation_is_rejected_for_the_backlog_of_another(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin."""
    in_one_queue(monkeypatch)
    _, answers, answer = await behind_a_backlog(database_url, [])
    assert isinstance(answer, Overloaded)
    assert not any(isinstance(each, Exception) for each in answers)


READS: Final = {"groups": ROWS_READ_MAX, "lists": PAGES_READ_MAX, "members": PAGES_READ_MAX}
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
            "groups": lambda: reads.group_of_member(uuid4(), user),
            "lists": lambda: reads.groups_of_member(user, None, 10),
            "members": lambda: reads.members_of_group(user, group.group.group_id, None, 10),
        }
        try:
            outcomes.append((user, await asked[kind]()))
        except Overloaded as error:
            outcomes.append((user, error))

    await asyncio.gather(*map(read, [*[ALICE] * (READS[kind] * WAITING_BATCHES_MAX + 5), BOB]))
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
    assert READS[kind] * WAITING_BATCHES_MAX == len(answered)
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
