"""Routes that need no token, and must not keep those with one waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from stretto.http import readiness
from stretto.http.routes.health import metrics, readyz
from stretto.http.service import SERVICE
from stretto.runtime.shared import Shared
from stretto.store_errors import Unreachable
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

DEADLINE_SECONDS = 10


def asking(ping: Callable[[], Awaitable[None]]) -> web.Request:
    """Return a request to a service whose database is asked so."""
    service = SimpleNamespace(
        draining=asyncio.Event(),
        creator=SimpleNamespace(is_stopping=False),
        runner=SimpleNamespace(down=[], up={}),
        authenticator=SimpleNamespace(has_keys=lambda: True),
        reads=SimpleNamespace(ping=ping),
        database_asked=Shared(),
    )
    return cast("web.Request", SimpleNamespace(app={SERVICE: service}))


async def test_a_health_check_does_not_wait_for_a_silent_database(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A load balancer would take the instance for one that hangs, and cut off all that it has."""
    monkeypatch.setattr(readiness, "PING_SECONDS", 0.01)

    async def ping() -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(DEADLINE_SECONDS):
        assert 503 == (await readyz(asking(ping))).status
    (line,) = caplog.records
    assert "no answer to a health check yet" in str(line.__dict__)


async def test_a_health_check_says_what_may_be_wrong_and_names_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It needs no token, and repeats no request whose outcome could be found out."""

    async def ping() -> None:
        raise Unreachable("permission denied for table secret")

    answer = (await readyz(asking(ping))).text
    (line,) = caplog.records
    assert answer is not None
    assert "permission denied for table secret" in str(line.__dict__)
    assert "is read-only, has no connection left, or lacks a table" in answer
    assert "request.database_unavailable in the log" in answer
    assert "secret" not in answer
    assert "the same request" not in answer


async def test_a_health_check_waits_for_no_longer_where_another_waits_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time runs from when it has asked, not from when the database is asked for it."""
    monkeypatch.setattr(readiness, "PING_SECONDS", 0.0)

    async def ping() -> None:
        await asyncio.Event().wait()

    service = asking(ping).app[SERVICE]
    is_over = asyncio.Event()

    async def first() -> bool:
        await is_over.wait()
        return True

    before = service.database_asked.ask(first)
    await asyncio.sleep(0)
    behind = service.database_asked.ask(readiness.asking(service))
    monkeypatch.setattr(readiness, "PING_SECONDS", DEADLINE_SECONDS)
    is_over.set()
    async with asyncio.timeout(DEADLINE_SECONDS / 2):
        assert [True, False] == [await before, await behind]


async def test_the_database_is_asked_once_for_all_that_ask_before() -> None:
    """Any client may ask: thousands of connections do not keep a proxy's check waiting."""
    pings = 0
    may_end = asyncio.Event()

    async def ping() -> None:
        nonlocal pings
        pings += 1
        await may_end.wait()

    request = asking(ping)
    first = [asyncio.create_task(readyz(request)) for _ in range(5)]
    await until(lambda: pings)
    behind = [asyncio.create_task(readyz(request)) for _ in range(5)]
    await asyncio.sleep(0)
    may_end.set()
    assert [200] * 10 == [(await answer).status for answer in (*first, *behind)]
    assert 2 == pings


async def test_metrics_are_written_once_for_all_that_ask_meanwhile() -> None:
    """They take milliseconds; hundreds of connections may ask at once, and without a token.

    Nobody gets what was begun before the request came: a scrape sees all that is over.
    """
    written = 0
    may_end = asyncio.Event()

    async def exposition() -> bytes:
        nonlocal written
        written += 1
        await may_end.wait()
        return b"%d" % written

    service = SimpleNamespace(exposition=Shared(), own_exposition=exposition)
    request = cast("web.Request", SimpleNamespace(app={SERVICE: service}))
    first = [asyncio.create_task(metrics(request)) for _ in range(5)]
    await until(lambda: written)
    behind = [asyncio.create_task(metrics(request)) for _ in range(5)]
    # One that leaves takes the result from nobody.
    leaving = asyncio.create_task(metrics(request))
    await asyncio.sleep(0)
    leaving.cancel()
    may_end.set()
    assert [b"1"] * 5 == [(await answer).body for answer in first]
    assert [b"2"] * 5 == [(await answer).body for answer in behind]
    assert b"3" == (await metrics(request)).body


async def test_metrics_that_failed_are_made_again() -> None:
    """An error is that of those who waited for it."""

    async def fail() -> bytes:
        raise TimeoutError

    async def succeed() -> bytes:
        return b"metrics"

    shared: Shared[bytes] = Shared()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await shared.get(fail)
    assert b"metrics" == await shared.get(succeed)


async def test_metrics_whose_task_a_host_has_cancelled_are_made_again() -> None:
    """Also where it had not begun; who waited then is cancelled as well."""

    async def succeed() -> bytes:
        return b"metrics"

    shared: Shared[bytes] = Shared()
    waiting = asyncio.create_task(shared.get(succeed))
    await asyncio.sleep(0)
    (making,) = (task for task in asyncio.all_tasks() if task.get_name() == "shared result")
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert b"metrics" == await shared.get(succeed)
