"""A hook that takes long for some owners, and hangs or vetoes, costs the others little.

One that takes long for all, and hangs for some owners, is told from one that hangs for all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.attempt import AnswerStatus
from stretto.creation.breakers import OWNER_SECONDS_MAX, OwnerBreakers
from stretto.creation.flight import Answer
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import AttemptFailed, GroupRejected
from support.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from stretto.assembly.component import Component
    from stretto.domain import CreatedGroup
    from stretto.postgres.driver_connection import Connection

HANGING: Final = [UserId(f"bad-{number}") for number in range(4)]
HOOK_SECONDS: Final = 1.5 * OWNER_SECONDS_MAX
HANG_SECONDS: Final = 5 * HOOK_SECONDS


async def created(component: Component, owner: UserId, key: str) -> object:
    """Ask for a group; return its status, or the error."""
    try:
        answer = await component.creator.create(
            IdempotencyKey(key), NewGroup.parse(owner, {"name": "Team"})
        )
    except Exception as error:  # noqa: BLE001 whatever it is
        return error
    return answer.status if isinstance(answer, Answer) else answer


async def test_a_success_clears_no_owner_whose_hook_hangs_for_much_longer(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each newcomer would have all of them share its successors' batches, which hang."""
    clock = Clock()
    breakers = OwnerBreakers(lambda _: None, clock)
    monkeypatch.setattr("stretto.assembly.parts.OwnerBreakers", lambda _: breakers)
    monkeypatch.setattr("stretto.postgres.hook_patience.ALONE_SECONDS", 0.2)
    monkeypatch.setattr("stretto.postgres.hook_patience.STALL_SECONDS", 0.2)
    batches = list[list[UserId]]()

    async def hook(_: Connection, made: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
        batches.append([group.owner for _, group in made])
        if any(group.owner in HANGING for _, group in made):
            clock.now += HANG_SECONDS
            await asyncio.Event().wait()
        clock.now += HOOK_SECONDS

    settings = ComponentSettings(writers=1)
    async with open_component(database_url, settings=settings, on_create=hook) as component:
        await asyncio.gather(*(created(component, owner, f"1{owner}") for owner in HANGING))
        assert AnswerStatus.CREATED == await created(component, UserId("first"), "first")
        assert all(owner in breakers.suspects or owner in breakers for owner in HANGING)
        batches.clear()
        results = await asyncio.gather(
            *(created(component, owner, f"2{owner}") for owner in HANGING),
            *(created(component, UserId(f"new{number}"), f"new{number}") for number in range(3)),
        )
        assert [AnswerStatus.CREATED] * 3 == results[-3:]
        # Each of those who hang is alone.
        assert not [each for each in batches if len(each) > 1 and set(each) & set(HANGING)]


async def test_a_slow_veto_keeps_proven_owners_waiting_once_however_many_new_owners_are_vetoed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are led next, together; each of the others has its own veto then."""
    clock, good = Clock(), [UserId(f"good-{number}") for number in range(3)]
    breakers = OwnerBreakers(lambda _: None, clock)
    monkeypatch.setattr("stretto.assembly.parts.OwnerBreakers", lambda _: breakers)
    batches = list[list[UserId]]()

    async def hook(_: Connection, made: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
        batches.append(sorted(group.owner for _, group in made))
        if not {*good}.issuperset(batches[-1]):
            clock.now += HOOK_SECONDS
            raise GroupRejected("full", "No more groups.")

    settings = ComponentSettings(writers=1)
    async with open_component(database_url, settings=settings, on_create=hook) as component:
        await asyncio.gather(*(created(component, owner, f"1{owner}") for owner in good))
        batches.clear()
        owners = [*good, *(UserId(f"new-{number}") for number in range(9))]
        results = await asyncio.gather(*(created(component, owner, owner) for owner in owners))
        assert [AnswerStatus.CREATED] * 3 == results[:3]
        assert {AttemptFailed} == {type(each) for each in results[3:]}
        assert [owners, good] == batches[:2]
        assert sorted([each] for each in owners[3:]) == sorted(batches[2:])
