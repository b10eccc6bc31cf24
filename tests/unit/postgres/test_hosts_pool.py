"""A host's pool: its code runs in a task of its own, and no connection is lost."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from stretto.postgres import hosts_pool
from stretto.postgres.hosts_pool import acquire, release
from stretto.runtime.cancelling import is_cancelled
from stretto.store_errors import Unreachable
from support.cancellations import fail_and_leave_one_behind, leave_one_behind
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pool:
    """Gives a connection once it is opened, or fails as `setup` of a host may."""

    def __init__(self) -> None:
        # Its connections have the driver's own codecs.
        settings = SimpleNamespace(get_data_codec=lambda _, **__: None)
        self._protocol = SimpleNamespace(get_settings=lambda: settings)
        self.opened = asyncio.Event()
        self.asked = asyncio.Event()
        self.given = 0
        self.released: list[object] = []
        self.does = leave_one_behind

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        """Do nothing: what is released is counted."""

    async def fetchrow(self, *_: object) -> None:
        """Answer that neither tables nor rows are hidden, after a turn of the loop."""
        await asyncio.sleep(0)

    async def acquire(self, **_: float) -> object:
        self.asked.set()
        await self.opened.wait()
        await self.does()
        self.given += 1
        return self

    async def release(self, connection: object, **_: float | None) -> None:
        self.released.append(connection)


async def test_what_a_hosts_setup_leaves_behind_is_not_left_in_our_task() -> None:
    """Whether it fails or not: it would pass for a cancellation from outside."""
    pool: Any = Pool()
    pool.opened.set()
    connection: object = await acquire(pool, 1)
    assert pool == connection
    pool.does = fail_and_leave_one_behind
    with pytest.raises(Unreachable, match="setup of the host's pool raised BusUnavailable"):
        await acquire(pool, 1)
    assert not is_cancelled()


async def test_code_of_a_hosts_that_swallows_its_cancellation_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every read of that kind would wait with it; its connection is given back once it has ended."""
    monkeypatch.setattr(hosts_pool, "STUCK_SECONDS", 0.02)
    monkeypatch.setattr(hosts_pool, "SESSION_SECONDS", 0.0)
    pool: Any = Pool()
    may_end = asyncio.Event()

    async def stay() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    pool.does = stay
    pool.opened.set()
    with pytest.raises(Unreachable, match="does not end"):
        await acquire(pool, 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "release", lambda *_, **__: stay())
        with pytest.raises(TimeoutError, match="does not end"):
            await release(pool, pool, 0.01)
    may_end.set()
    await until(lambda: pool.released)


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_as_its_task_is_cancelled_is_released(turns: int) -> None:
    """In whatever turn of the loop: the pool would be without it for ever."""
    pool: Any = Pool()
    task = asyncio.create_task(acquire(pool, 1))
    await pool.asked.wait()
    pool.opened.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    for _ in range(5):
        await asyncio.sleep(0)
    kept = 0 if isinstance(result, asyncio.CancelledError) else 1
    assert kept + len(pool.released) == pool.given


async def test_a_look_at_a_session_does_not_end_with_the_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy pool gives it late, and a far one answers late: it would be cut."""
    bounds: list[float] = []

    @contextmanager
    def watched(_: object, seconds: float) -> Iterator[None]:
        bounds.append(seconds)
        yield

    monkeypatch.setattr(hosts_pool, "watchdog", watched)
    pool: Any = Pool()
    pool.opened.set()
    await acquire(pool, 0.001)
    assert [hosts_pool.SESSION_SECONDS] == bounds
