"""A statement that a hook has left running ends with the hook: it would lock the batch's attempts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio
from asyncpg import connect_utils

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.attempt import AnswerStatus
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.errors import StrettoError
from stretto.postgres import hook as hook_module
from stretto.postgres import writes as writes_module
from stretto.postgres.driver_connection import terminate
from stretto.store_errors import HookError
from support.both_stores import write
from support.hooked_stores import DEADLINE_SECONDS, Stores, open_stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection
    from support.hooked_stores import Created

# Longer than anything here may take.
SLOW: Final = "SELECT pg_sleep(60)"
UNLOCKED: Final = "SELECT group_id FROM attempt WHERE status = 'pending' FOR UPDATE SKIP LOCKED"


async def _gather(connection: InnerConnection) -> None:
    """Fail by the driver's refusal of a second statement, while the first goes on."""
    slow = _ended_quietly(connection.execute(SLOW))
    await asyncio.gather(slow, connection.execute("SELECT 1"))


async def _shield(connection: InnerConnection) -> None:
    """Take too long."""
    await asyncio.shield(_ended_quietly(connection.execute(SLOW)))


async def _never_await(connection: InnerConnection) -> None:
    """End while the statement goes on."""
    _ended_quietly(connection.execute(SLOW))
    await asyncio.sleep(0)


async def _hold_on(connection: InnerConnection) -> None:
    """Go on after the cancellation, with a statement that runs."""
    slow = _ended_quietly(connection.execute(SLOW))
    while not slow.done():
        try:
            await asyncio.shield(slow)
        except asyncio.CancelledError:
            continue


def _ended_quietly(statement: Awaitable[str]) -> asyncio.Future[str]:
    task = asyncio.ensure_future(statement)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


LEAVING: Final[dict[str, Callable[[InnerConnection], Awaitable[None]]]] = {
    "gathered": _gather,
    "shielded": _shield,
    "never awaited": _never_await,
    "resisting": _hold_on,
}


@pytest_asyncio.fixture(params=["own", "pool"])
async def stores(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Stores]:
    """Stores on connections of the component's own, and on those of a host's pool."""
    async with open_stores(database_url, is_hosts_pool=request.param == "pool") as stores:
        yield stores


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_module, "HOOK_SECONDS", 0.3)
    monkeypatch.setattr(hook_module, "HOOK_CANCEL_SECONDS", 0.1)


async def unlocked_after(
    leave: Callable[[InnerConnection], Awaitable[None]], stores: Stores, connection: Connection
) -> int:
    """Lead two, whose hook leaves a statement running; return how many attempts are not locked."""

    async def hook(inner: InnerConnection, _: Created) -> None:
        await leave(inner)

    store = stores(hook)
    ours = [write("a"), write("b")]
    await store.claim(ours)
    with pytest.raises(HookError):
        await store.lead(ours)
    return len(await connection.fetch(UNLOCKED))


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING.keys())
async def test_what_a_hook_has_left_running_is_ended(
    leave: Callable[[InnerConnection], Awaitable[None]], stores: Stores, connection: Connection
) -> None:
    """Nothing is locked any more when the lead has failed."""
    assert 2 == await unlocked_after(leave, stores, connection)


async def test_a_cancel_request_that_overtakes_its_statement_is_repeated(
    stores: Stores, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ignores the first; the statement would go on."""
    driver: Any = connect_utils
    cancel = driver._cancel
    requests: list[object] = []

    async def ignored_once(**request: object) -> None:
        requests.append(request)
        if len(requests) > 1:
            await cancel(**request)

    monkeypatch.setattr(driver, "_cancel", ignored_once)
    assert 2 == await unlocked_after(_gather, stores, connection)
    assert len(requests) > 1


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING.keys())
async def test_what_runs_on_a_connection_that_is_only_cut_goes_on(
    leave: Callable[[InnerConnection], Awaitable[None]],
    stores: Stores,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin: the server does not look whether its client is there while a statement runs."""

    async def cut(inner: InnerConnection, _: float) -> None:
        terminate(inner)

    for module in (hook_module, writes_module):
        monkeypatch.setattr(module, "end_session", cut)
    assert 0 == await unlocked_after(leave, stores, connection)
    await connection.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND query = $1""",
        SLOW,
    )


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING.keys())
async def test_the_neighbours_of_a_hook_that_leaves_a_statement_running_are_created(
    leave: Callable[[InnerConnection], Awaitable[None]], database_url: str
) -> None:
    """In a batch with that owner's request, each is answered long before the statement would end."""

    async def hook(inner: InnerConnection, created: Created) -> None:
        if any(group.owner == "mallory" for _, group in created):
            await leave(inner)

    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        open_component(
            database_url, settings=ComponentSettings(writers=1), on_create=hook
        ) as component,
    ):
        answers = await asyncio.gather(
            *(
                component.creator.create(
                    IdempotencyKey(f"key-{owner}"), NewGroup.parse(UserId(owner), {"name": "Team"})
                )
                for owner in ("alice", "bob", "mallory", "carol", "dave")
            ),
            return_exceptions=True,
        )
    assert isinstance(answers.pop(2), StrettoError)
    assert [AnswerStatus.CREATED] * 4 == [getattr(answer, "status", answer) for answer in answers]
