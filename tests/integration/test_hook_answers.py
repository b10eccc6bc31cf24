"""What callers and operators learn of a host's hook that fails."""

from __future__ import annotations

import asyncio
import traceback
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.flight import Answer
from stretto.creation.settings import CreatorSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import HookFailed
from stretto.observations import ConnectionLost, WriteFailed
from stretto.store_errors import HookError
from support.database import groups
from support.hooked_stores import DEADLINE_SECONDS, running
from support.logged_events import logged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from stretto.observations import Observation
    from stretto.postgres.driver_connection import Connection as InnerConnection
    from stretto.postgres.hook import OnCreate
    from support.database import Connection
    from support.hooked_stores import Created

ALICE: Final = UserId("alice")


async def test_only_the_key_whose_hook_fails_is_hit(
    database_url: str, tables: None, connection: Connection
) -> None:
    """Its neighbours in the batch are created; it stays open, and is created once it can be."""
    events: list[Observation] = []
    failing = {"Team 3"}
    batches: list[int] = []

    async def hook(inner: InnerConnection, created: Created) -> None:
        batches.append(len(created))
        for _, new_group in created:
            if new_group.name in failing:
                await inner.execute("SELECT 1 / 0")

    settings = ComponentSettings(writers=1, creator=CreatorSettings(lease_seconds=0.1))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        open_component(
            database_url, settings=settings, on_create=hook, observe=events.append
        ) as component,
    ):

        async def create(number: int) -> object:
            new_group = NewGroup.parse(ALICE, {"name": f"Team {number}"})
            return await component.creator.create(IdempotencyKey(f"k{number}"), new_group)

        answers = await asyncio.gather(*map(create, range(8)), return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        assert [HookFailed] == [type(error) for error in failed]
        assert answers[3] is failed[0]
        assert max(batches) > 1
        failing.clear()
        answer = await create(3)
        assert isinstance(answer, Answer)
        assert group_id(ALICE, "k3") == answer.group.group_id
    assert await groups(connection) == 8
    kinds = {type(event.error) for event in events if isinstance(event, WriteFailed)}
    assert {HookError} == kinds
    assert ConnectionLost() not in events


async def test_a_hook_that_fails_is_tried_once_per_request(database_url: str) -> None:
    """A bug does not go away by itself, and other keys wait for the writer meanwhile."""
    calls: list[object] = []

    async def hook(*created: object) -> None:
        calls.append(created)
        raise RuntimeError

    async with open_component(database_url, on_create=hook) as component:
        with pytest.raises(HookFailed) as failed:
            await component.creator.create(
                IdempotencyKey("k"), NewGroup.parse(ALICE, {"name": "Team"})
            )
    assert len(calls) == 1
    assert failed.value.retry_after_seconds == 1


@pytest.mark.parametrize(
    ("key", "awaits"),
    [
        ("k", lambda creation: creation),
        ("l", lambda creation: creation),
        ("l", lambda creation: asyncio.wait_for(creation, 60)),
        ("l", asyncio.gather),
    ],
    ids=["its own key", "another key", "wait_for", "gather"],
)
async def test_a_hook_that_awaits_a_creation_of_its_component_fails_at_once(
    key: str, awaits: Callable[[Coroutine[Any, Any, Answer]], Awaitable[object]], database_url: str
) -> None:
    """Its writer waits for the hook: that would last until the hook's time is over."""
    events: list[Observation] = []

    async def create(key: str) -> Answer:
        new_group = NewGroup.parse(ALICE, {"name": "Team"})
        return await component.creator.create(IdempotencyKey(key), new_group)

    async def hook(*_: object) -> None:
        await awaits(create(key))

    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        open_component(database_url, on_create=hook, observe=events.append) as component,
    ):
        with pytest.raises(HookFailed):
            await create("k")
    (failed,) = (event for event in events if isinstance(event, WriteFailed))
    assert "on_create must not await a creation by its own component" in str(failed.error)


async def test_a_hook_may_begin_a_creation_that_it_does_not_await(database_url: str) -> None:
    """After its end, or in a context of its own; it is written after the first one."""
    begun: list[asyncio.Task[Answer]] = []
    is_over = asyncio.Event()

    async def create(key: str) -> Answer:
        new_group = NewGroup.parse(ALICE, {"name": "Team"})
        return await component.creator.create(IdempotencyKey(key), new_group)

    async def later() -> Answer:
        await is_over.wait()
        return await create("l")

    async def hook(*_: object) -> None:
        if not begun:
            own = asyncio.create_task(create("own"), context=Context())
            begun.extend([own, asyncio.create_task(later())])
            await asyncio.sleep(0.05)
            is_over.set()

    async with open_component(database_url, on_create=hook) as component:
        await create("k")
        await asyncio.gather(*begun)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_hook_that_blocks_the_event_loop_is_called_once_and_reported(
    goes_on: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own watchdog is overdue by then and cuts the connection: that is no loss, but the hook's."""
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    events: list[Observation] = []
    clock_seconds, ahead_seconds = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: clock_seconds() + ahead_seconds[0])

    async def block(connection: InnerConnection, created: Created) -> None:
        calls.append(created)
        ahead_seconds[0] += 6.0
        if goes_on:
            await asyncio.sleep(0)
            await connection.execute("SELECT 1")

    async with open_component(database_url, on_create=block, observe=events.append) as component:
        with pytest.raises(HookFailed):
            await component.creator.create(
                IdempotencyKey("k"), NewGroup.parse(ALICE, {"name": "Team"})
            )
    assert len(calls) == 1
    (failed,) = (event for event in events if isinstance(event, WriteFailed))
    assert "the event loop was blocked while on_create ran, for 6." in str(failed.error)


async def test_a_hook_that_blocks_after_an_error_of_the_database_shows_no_row(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes with the loss of the connection, and is no less its hook's for that."""
    loop = asyncio.get_running_loop()
    clock_seconds, ahead_seconds = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: clock_seconds() + ahead_seconds[0])
    events: list[Observation] = []
    # Not as a traceback shows it, which quotes this line.
    email = "carol{}example.org".format("@")

    async def block(connection: InnerConnection, _: Created) -> None:
        try:
            async with connection.transaction():
                await connection.execute("CREATE TEMP TABLE user_ (email text PRIMARY KEY)")
                await connection.execute("INSERT INTO user_ VALUES ($1), ($1)", email)
        finally:
            ahead_seconds[0] += 6.0
            await asyncio.sleep(0)

    async with open_component(database_url, on_create=block, observe=events.append) as component:
        with pytest.raises(HookFailed):
            await component.creator.create(
                IdempotencyKey("k"), NewGroup.parse(ALICE, {"name": "Team"})
            )
    (failed,) = (event for event in events if isinstance(event, WriteFailed))
    text = "".join(traceback.format_exception(failed.error))
    assert "the event loop was blocked while on_create ran, for 6." in text
    assert "UniqueViolationError" in text
    assert email not in text


async def _wrap(connection: InnerConnection, _: Created) -> None:
    """Raise an error of the host's own that comes from the server's."""
    try:
        await connection.execute("SELECT 'secret alice'::int")
    except asyncpg.PostgresError as error:
        message = "no channel"
        raise ExceptionGroup(message, [LookupError()]) from error


@pytest.mark.parametrize(
    ("expected", "hook"),
    [
        (
            (
                "on_create raised ForeignKeyViolationError (23503): insert or update on table"
                ' "channel" violates foreign key constraint "channel_tenant_fkey"'
            ),
            running("INSERT INTO public.channel VALUES (gen_random_uuid(), 'secret alice')"),
        ),
        (
            (
                "on_create raised InvalidTextRepresentationError (22P02): invalid input syntax for"
                ' type integer: "…"'
            ),
            running("SELECT 'secret alice'::int"),
        ),
        ("on_create raised ExceptionGroup", _wrap),
    ],
)
async def test_the_log_says_what_to_mend_and_shows_no_rows(
    expected: str,
    hook: OnCreate,
    database_url: str,
    tables: None,
    events: list[Observation],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SQLSTATE, message and traceback; the server's details quote rows, and are left out."""
    async with open_component(database_url, on_create=hook, observe=events.append) as component:
        with pytest.raises(HookFailed):
            await component.creator.create(
                IdempotencyKey("k"), NewGroup.parse(ALICE, {"name": "Team"})
            )
    (failure,) = (event for event in events if isinstance(event, WriteFailed))
    (line,) = logged(capsys, failure)
    assert ("write.failed", "HookError", expected) == (line["event"], line["kind"], line["cause"])
    assert "in hook" in line["exception"] or "in _wrap" in line["exception"]
    assert "secret" not in (line["cause"] + line["exception"]).replace("'secret alice'", "")
