"""The search for a primary among the hosts of a URL, without any of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from stretto.postgres import race as module
from stretto.postgres.race import race
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = Callable[[int], object]

STANDBY = ConnectionError("a standby")


class Hosts:
    """Hosts by name; each answers its nth try with a name, a failure, or not at all (None)."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.tries: Counter[str] = Counter()
        self.closed: list[str] = []
        self.given_up: list[str] = []

    async def connect(self, host: str) -> str | Exception:
        self.tries[host] += 1
        answer = self.answers[host](self.tries[host])
        if answer is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up.append(host)
        assert isinstance(answer, str | Exception)
        return answer

    async def race(self) -> tuple[str, str] | dict[str, Exception]:
        return await race([*self.answers], self.connect, self.closed.append)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.001)


async def test_the_first_host_that_takes_writes_is_the_only_one_that_is_asked() -> None:
    """The one that served last stands first: it usually costs one connection."""
    hosts = Hosts(a=lambda _: "opened", b=lambda _: "opened")
    assert ("a", "opened") == await hosts.race()
    assert {"a": 1} == hosts.tries


async def test_hosts_that_have_all_failed_are_not_tried_again() -> None:
    """Whoever wants a connection decides that."""
    refused = ConnectionRefusedError()
    hosts = Hosts(a=lambda _: refused, b=lambda _: STANDBY)
    assert {"a": refused, "b": STANDBY} == await hosts.race()
    assert {"a": 1, "b": 1} == hosts.tries


async def test_a_standby_that_is_promoted_while_another_host_is_silent_is_found() -> None:
    """Otherwise a frozen host would hide it until its own time is up."""
    hosts = Hosts(
        frozen=lambda _: None,
        other=lambda _: STANDBY,
        promoted=lambda n: "opened" if n == 5 else STANDBY,
    )
    assert ("promoted", "opened") == await hosts.race()
    assert {"frozen": 1, "other": 5, "promoted": 5} == hosts.tries
    assert ["frozen"] == hosts.given_up


async def test_hosts_that_are_all_silent_are_given_up() -> None:
    """Each is silent anew when the time of another one's try is up: there is always one to wait for."""
    tries: Counter[str] = Counter()

    async def connect(host: str) -> str | Exception:
        tries[host] += 1
        # Ends behind the beginning of the other one's next try.
        ahead = tries[host] + (host == "b")
        other = "a" if host == "b" else "b"
        await until(lambda: tries[other] >= ahead)
        return TimeoutError()

    async with asyncio.timeout(10):
        failures = await race(["a", "b"], connect, list[str]().append)
    assert isinstance(failures, dict)
    assert {"a": TimeoutError, "b": TimeoutError} == {
        host: type(failure) for host, failure in failures.items()
    }
    assert tries.total() <= 4


async def test_a_host_that_is_named_twice_is_one() -> None:
    """Its name stands twice in a URL."""
    refused = ConnectionRefusedError()
    hosts = Hosts(a=lambda _: refused)
    async with asyncio.timeout(10):
        assert {"a": refused} == await race(["a", "a"], hosts.connect, hosts.closed.append)


async def test_a_slow_primary_is_waited_for() -> None:
    """Hosts that answer sooner do not cut it off."""
    hosts = Hosts(slow=lambda _: None, standby=lambda _: STANDBY)
    is_open = asyncio.Event()

    async def connect(host: str) -> str | Exception:
        if host == "slow":
            await is_open.wait()
            return "opened"
        hosts.tries[host] += 1
        if hosts.tries[host] == 4:
            is_open.set()
        return STANDBY

    assert ("slow", "opened") == await race(["slow", "standby"], connect, hosts.closed.append)


async def test_a_second_connection_is_closed() -> None:
    """Of two hosts that answer in the same turn, or of one that answers when it is cancelled."""
    closed: list[str] = []
    found = asyncio.Event()

    async def connect(host: str) -> str | Exception:
        if host == "late":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "late"
        await found.wait() if host == "twin" else found.set()
        return host

    won = await race(["late", "twin", "good"], connect, closed.append)
    assert isinstance(won, tuple)
    assert ["good", "late", "twin"] == sorted([str(won[0]), *closed])


async def test_a_cancelled_search_leaves_no_try_behind() -> None:
    """The service stops while the database is away."""
    hosts = Hosts(frozen=lambda _: None, gone=lambda _: None)
    task = asyncio.create_task(hosts.race())
    await until(lambda: hosts.tries.total() == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["frozen", "gone"] == sorted(hosts.given_up)


async def test_a_connection_that_a_cancelled_search_has_opened_is_closed() -> None:
    """Its caller never sees it."""
    closed: list[str] = []
    asked = asyncio.Event()

    async def connect(host: str) -> str | Exception:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return host
        return STANDBY

    task = asyncio.create_task(race(["late"], connect, closed.append))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["late"] == closed


async def test_a_connection_that_was_found_is_closed_where_the_search_is_cancelled() -> None:
    """While it still waits for the end of another try."""
    closed: list[str] = []
    is_ending = asyncio.Event()

    async def connect(host: str) -> str | Exception:
        if host == "stubborn":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                is_ending.set()
                await asyncio.Event().wait()
        return host

    task = asyncio.create_task(race(["stubborn", "good"], connect, closed.append))
    await is_ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["good"] == closed
