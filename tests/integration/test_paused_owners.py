"""No tenant harms another (G6): an owner whose writes cost the others their time is paused."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.attempt import AnswerStatus
from stretto.creation.breakers import PAUSE, VICTIM_PAUSE_SECONDS_MAX, OwnerBreakers
from stretto.creation.flight import Answer
from stretto.creation.ports import Write
from stretto.creation.settings import CreatorSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import DatabaseUnavailable, HookFailed
from stretto.observations import Observation, OwnerPaused, OwnerResumed, WriteFailed
from stretto.store_errors import HookError, HookInterrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.assembly.component import Component
    from stretto.domain import CreatedGroup
    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection

ALICE, MALLORY = UserId("alice"), UserId("mallory")
ONE_WRITER: Final = ComponentSettings(writers=1, creator=CreatorSettings(lease_seconds=0.1))
HOT, COLD = 20, 8
TRIGGERS: Final = {
    "trigger": ("chat_group", "RAISE EXCEPTION 'busy' USING ERRCODE = '40001'"),
    "hang": ("chat_group", "PERFORM pg_sleep(60)"),
    "hang in claim": ("attempt", "PERFORM pg_sleep(60)"),
}
"""Of mallory's alone: the table, and what its trigger does."""


class Clock:
    """The machine's, until it stands still."""

    def __init__(self) -> None:
        self.now: float | None = None

    def __call__(self) -> float:
        return time.monotonic() if self.now is None else self.now


async def wave(component: Component, name: str) -> tuple[list[object], list[object]]:
    """Ask for groups of both owners at once; return what mallory got, and what alice."""
    create = component.creator.create
    results = await asyncio.gather(
        *(
            create(IdempotencyKey(f"{name}{number}"), NewGroup.parse(owner, {"name": "Team"}))
            for owner, count in ((MALLORY, HOT), (ALICE, COLD))
            for number in range(count)
        ),
        return_exceptions=True,
    )
    return list(results[:HOT]), list(results[HOT:])


def statuses(results: list[object]) -> set[object]:
    """Return how requests were answered, or the kinds of the errors."""
    return {each.status if isinstance(each, Answer) else type(each) for each in results}


async def harm(connection: Connection, kind: str, harmed: asyncio.Event) -> AsyncExitStack:
    """Have mallory's writes cost something, until the stack is closed."""
    stack = AsyncExitStack()
    if kind == "lock":
        await connection.execute(
            """CREATE TABLE app_user (user_id text PRIMARY KEY);
               INSERT INTO app_user VALUES ('alice'), ('mallory');
               ALTER TABLE chat_group ADD FOREIGN KEY (owner_id) REFERENCES app_user"""
        )
        await stack.enter_async_context(connection.transaction())
        await connection.execute("SELECT FROM app_user WHERE user_id = 'mallory' FOR UPDATE")
    elif kind != "hook":
        table, does = TRIGGERS[kind]
        await connection.execute(
            f"""CREATE FUNCTION busy() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN {does}; RETURN NEW; END$$;
                CREATE TRIGGER busy BEFORE INSERT ON {table} FOR EACH ROW
                WHEN (NEW.owner_id = 'mallory') EXECUTE FUNCTION busy()"""
        )
        stack.push_async_callback(connection.execute, f"DROP TRIGGER busy ON {table}")
    else:
        harmed.set()
        stack.callback(harmed.clear)
    return stack


@pytest.mark.parametrize("kind", ["lock", "hook", *TRIGGERS])
async def test_an_owner_who_costs_the_others_their_time_is_paused(
    kind: str, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are created in its first batch; afterwards its requests cost them nothing at all.

    Nothing of what comes meanwhile is claimed. When the harm is over, all of it is created.
    """
    clock, events, harmed = Clock(), list[Observation](), asyncio.Event()
    monkeypatch.setattr(
        "stretto.assembly.parts.OwnerBreakers", partial(OwnerBreakers, clock_seconds=clock)
    )
    monkeypatch.setattr("stretto.postgres.hook.HOOK_SECONDS", 0.3)
    monkeypatch.setattr("stretto.postgres.stalls.STALL_SECONDS", 0.3)

    async def hook(_: InnerConnection, made: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
        if harmed.is_set() and any(group.owner == MALLORY for _, group in made):
            await asyncio.Event().wait()

    async with open_component(
        database_url,
        settings=ONE_WRITER,
        on_create=hook if kind == "hook" else None,
        observe=events.append,
    ) as component:
        expected = HookFailed if kind == "hook" else DatabaseUnavailable
        async with await harm(connection, kind, harmed):
            hot, cold = await wave(component, "first")
            assert {expected} == statuses(hot)
            assert {AnswerStatus.CREATED} == statuses(cold)
            clock.now = clock()
            claimed = await connection.fetchval("SELECT count(*) FROM attempt")
            events.clear()
            hot, cold = await wave(component, "second")
            assert {expected} == statuses(hot)
            assert {AnswerStatus.CREATED} == statuses(cold)
            assert [] == [event for event in events if isinstance(event, WriteFailed)]
            assert claimed + COLD == await connection.fetchval("SELECT count(*) FROM attempt")
            # Retry-After gives the pause: ten times what it has cost.
            pauses = [each.retry_after_seconds for each in hot if isinstance(each, expected)]
            assert all(pause is not None and pause > 1 for pause in pauses)
        clock.now += PAUSE.seconds_max
        for name in ("second", "first"):
            hot, _ = await wave(component, name)
            assert {AnswerStatus.CREATED, AnswerStatus.RECOVERED} >= statuses(hot)
        assert [OwnerResumed] == [
            type(event) for event in events if isinstance(event, OwnerPaused | OwnerResumed)
        ]


async def test_a_hook_that_waits_for_a_lock_meets_it_and_is_not_ended_before(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is known for a victim: ended as one that hangs, it would be paused for longer each time."""
    clock, events = Clock(), list[Observation]()
    monkeypatch.setattr(
        "stretto.assembly.parts.OwnerBreakers", partial(OwnerBreakers, clock_seconds=clock)
    )
    await connection.execute(
        """CREATE TABLE app_count (user_id text PRIMARY KEY, groups int);
           INSERT INTO app_count VALUES ('alice', 0), ('mallory', 0)"""
    )

    async def hook(inner: InnerConnection, made: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
        for _, group in made:
            await inner.execute(
                "UPDATE app_count SET groups = groups + 1 WHERE user_id = $1", group.owner
            )

    async with open_component(
        database_url, settings=ONE_WRITER, on_create=hook, observe=events.append
    ) as component:

        async def created(owner: UserId, name: str) -> object:
            key = IdempotencyKey(f"{owner}{name}")
            results = await asyncio.gather(
                component.creator.create(key, NewGroup.parse(owner, {"name": "Team"})),
                return_exceptions=True,
            )
            return statuses(list(results)).pop()

        async with connection.transaction():
            await connection.execute("SELECT FROM app_count WHERE user_id = 'mallory' FOR UPDATE")
            for name in ("first", "second", "third"):
                results = await asyncio.gather(created(MALLORY, name), created(ALICE, name))
                assert [HookFailed, AnswerStatus.CREATED] == list(results)
                # A hook that failed late has taught that hooks take long; those that are quick forget it.
                for number in range(20):
                    await created(ALICE, f"{name}{number}")
                clock.now = clock() + VICTIM_PAUSE_SECONDS_MAX + 1
                assert HookFailed is await created(MALLORY, f"probe-{name}")
                clock.now += VICTIM_PAUSE_SECONDS_MAX
        assert AnswerStatus.CREATED == await created(MALLORY, "last")
    errors = [each.error for each in events if isinstance(each, OwnerPaused | WriteFailed)]
    assert {HookInterrupted} == {type(error) for error in errors}


async def test_a_components_hook_is_ended_for_a_victim_whose_client_comes_back(
    database_url: str,
) -> None:
    """While a culprit is probed: all of its stores ask those who know of both."""
    async with open_component(database_url, settings=ONE_WRITER) as component:
        breakers = component.writers[0]._breakers
        culprit, victim = (
            Write(uuid4(), uuid4(), uuid4(), NewGroup.parse(owner, {"name": "T"}), b"f" * 16, False)
            for owner in (MALLORY, ALICE)
        )
        breakers.charge(culprit, 1.0, HookError("hang"))
        breakers.keep(culprit, 0.0, HookError("hang"))
        breakers.charge(victim, 1.0, HookInterrupted("lock"))
        others_wait = component.write_stores[0]._stalls._others_wait
        breakers._open[MALLORY].until = 0.0
        assert breakers.begin_probe(MALLORY)
        assert not others_wait()
        breakers.error_of(ALICE)
        assert others_wait()
