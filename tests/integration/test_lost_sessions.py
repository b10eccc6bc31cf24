"""A hook whose session is lost: by the server, or by what the hook does to it, for some owners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.attempt import AnswerStatus
from stretto.creation.breakers import (
    OWNER_SECONDS_MAX,
    VICTIM_PAUSE_SECONDS_MAX,
    OwnerBreakers,
)
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import HookFailed
from stretto.observations import OwnerPaused, WriteFailed
from support.clock import Clock
from support.database import end_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from stretto.assembly.component import Component
    from stretto.creation.flight import Answer
    from stretto.domain import CreatedGroup
    from stretto.observations import Observation
    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection

BAD: Final = UserId("bad")
GOOD: Final = [UserId(f"good-{number}") for number in range(6)]


class Host:
    """A hook that has the server end its session for one owner, so often; it notes its batches."""

    def __init__(self, connection: Connection, times: int, clock: Clock) -> None:
        self._connection = connection
        self._times = times
        self._clock = clock
        self.batches: list[list[UserId]] = []

    async def __call__(
        self, inner: InnerConnection, made: Sequence[tuple[CreatedGroup, NewGroup]]
    ) -> None:
        owners = [group.owner for _, group in made]
        self.batches.append(owners)
        if BAD in owners and self._times:
            self._times -= 1
            self._clock.now += 2 * OWNER_SECONDS_MAX
            await end_session(self._connection, inner)
            await inner.execute("SELECT 1")


async def created(component: Component, owner: UserId, key: str = "k") -> Answer:
    """Create a group."""
    new_group = NewGroup.parse(owner, {"name": "Team"})
    return await component.creator.create(IdempotencyKey(key), new_group)


async def test_a_session_that_is_lost_once_costs_no_request_its_answer(
    database_url: str, connection: Connection
) -> None:
    """As by an operator, or a failover: the same request leads again."""
    host = Host(connection, 1, Clock())
    async with open_component(database_url, on_create=host) as component:
        assert AnswerStatus.CREATED is (await created(component, BAD)).status
    assert [[BAD], [BAD]] == host.batches


async def test_an_owner_whose_session_is_lost_again_and_again_harms_no_other(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is taken apart at once, and it is paused once others have gone through."""
    clock = Clock()
    events: list[Observation] = []
    breakers = OwnerBreakers(events.append, clock)
    monkeypatch.setattr("stretto.assembly.parts.OwnerBreakers", lambda _: breakers)
    host = Host(connection, 1000, clock)
    settings = ComponentSettings(writers=1)
    async with open_component(
        database_url, settings=settings, on_create=host, observe=events.append
    ) as component:
        await asyncio.gather(*(created(component, owner, "before") for owner in GOOD))
        host.batches.clear()
        bad, *good = await asyncio.gather(
            *(created(component, owner) for owner in (BAD, *GOOD)), return_exceptions=True
        )
    assert {AnswerStatus.CREATED} == {
        answer.status for answer in good if not isinstance(answer, BaseException)
    }
    assert len(GOOD) == len([each for each in good if not isinstance(each, BaseException)])
    assert isinstance(bad, HookFailed)
    together = [owners for owners in host.batches if len(owners) > 1 and BAD in owners]
    assert 1 >= len(together), host.batches
    assert [BAD] in host.batches
    assert "OwnerPaused" in {type(event).__name__ for event in events}
    paused = next(event for event in events if isinstance(event, OwnerPaused))
    assert paused.kind == "HookCutOff"
    # It may have been a failover, which hits anyone.
    assert paused.seconds <= VICTIM_PAUSE_SECONDS_MAX
    assert BAD not in breakers.suspects
    failed = [event for event in events if isinstance(event, WriteFailed)]
    assert "idle_in_transaction_session_timeout" in str(failed[0].error)
