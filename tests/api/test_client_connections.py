"""StrettoClient over a session that has no connection left: its connector allows only so many."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver

from stretto import StrettoClient
from stretto.client import calls, sessions
from stretto.client.connections import shortage
from stretto.http.front.serving import serving
from support.call_time import CallTime
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONG_SECONDS = 30.0
SOON_SECONDS = 0.05
ADVICE = r"are in use \({}=1\), .* a higher {}, or events\(\) a session of its own"

LIMITS = pytest.mark.parametrize("limit", ["limit", "limit_per_host"])


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A service whose sessions begin and last, and that never answers anything else."""
    is_over = asyncio.Event()

    async def play(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"id: 1\n\n")
        await is_over.wait()
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", play)
    async with serving(app, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
        is_over.set()


class Lost(AbstractResolver):
    """Finds no host but the service's, and never says so."""

    async def resolve(self, *_: object, **__: object) -> Any:
        """Hang, as a server of names that is away does."""
        return await asyncio.Future()

    async def close(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def following(url: str, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with such a connector, one connection of which is held by events."""
    connector = aiohttp.TCPConnector(**options)
    async with (
        asyncio.timeout(LONG_SECONDS),
        aiohttp.ClientSession(f"{url}/", connector=connector) as session,
        aclosing(StrettoClient(session, url, "a").events()) as events,
    ):
        await anext(events)
        yield session


@LIMITS
@pytest.mark.parametrize("is_relative", [False, True])
async def test_events_beyond_the_sessions_connections_end_with_advice(
    limit: str, is_relative: bool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded time: those that hold the connections have no end."""
    monkeypatch.setattr(sessions, "CONNECTION_SECONDS_MAX", SOON_SECONDS)
    async with following(url, **{limit: 1}) as session:
        client = StrettoClient(session, "" if is_relative else url, "a")
        message = r"no connection within 0\.05 s \(all connections .*" + ADVICE
        with pytest.raises(TimeoutError, match=message.format(limit, limit)):
            await anext(client.events())


@LIMITS
@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_call_beyond_the_sessions_connections_says_why_it_has_no_outcome(
    limit: str, is_cut: bool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its own time ends first or that of a try, which another one follows."""
    pauses: list[float] = []
    call_time = CallTime(monkeypatch)

    async def out_of_time(seconds: float) -> None:
        pauses.append(seconds)
        await call_time.end()

    monkeypatch.setattr(calls, "sleep", out_of_time)
    monkeypatch.setattr(calls, "TRY_SECONDS_MAX", LONG_SECONDS if is_cut else SOON_SECONDS)
    async with following(url, **{limit: 1}) as session:
        client = StrettoClient(session, url, "a")
        message = r"no outcome within \S+ s \(all .*" + ADVICE + r"\); .*may still succeed"
        with pytest.raises(TimeoutError, match=message.format(limit, limit)):
            await client.create_group("T", timeout_seconds=SOON_SECONDS if is_cut else LONG_SECONDS)
    assert (not is_cut) == bool(pauses)


@LIMITS
async def test_a_silent_service_is_no_lack_of_connections(
    limit: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the call has the last connection, and gets no answer over it."""
    async with following(url, **{limit: 2}) as session:
        client = StrettoClient(session, url, "a")
        with pytest.raises(TimeoutError, match=r"\(no answer\)"):
            await client.create_group("T", timeout_seconds=SOON_SECONDS)
        monkeypatch.setattr(calls, "TRY_SECONDS_MAX", SOON_SECONDS)
        call_time = CallTime(monkeypatch)

        async def out_of_time(_: float) -> None:
            await call_time.end()

        monkeypatch.setattr(calls, "sleep", out_of_time)
        with pytest.raises(TimeoutError, match=r"\(no answer in time\)"):
            await client.read_group("g")


async def test_events_of_a_host_that_is_away_are_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the connections are another host's, and there is one left for this."""
    monkeypatch.setattr(calls, "BACKOFF_SECONDS_MAX", 0.0)
    tries: list[None] = []

    async def token() -> str:
        tries.append(None)
        return "a"

    async with following(url, resolver=Lost(), limit=2, limit_per_host=1) as session:
        monkeypatch.setattr(sessions, "CONNECTION_SECONDS_MAX", SOON_SECONDS)
        events = StrettoClient(session, "http://away.example", token).events()
        waiting = asyncio.ensure_future(anext(events))
        await until(lambda: len(tries) >= 3 or waiting.done())
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait((waiting,))


async def test_events_wait_for_a_connection_that_is_returned(url: str) -> None:
    """The twin: there are requests with an end before them."""
    connector = aiohttp.TCPConnector(limit=1)
    async with (
        asyncio.timeout(LONG_SECONDS),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        client = StrettoClient(session, url, "a")
        call = asyncio.ensure_future(client.read_group("g"))
        await until(lambda: shortage(session, url) != "")
        events = client.events()
        waiting = asyncio.ensure_future(anext(events))
        call.cancel()
        assert "1" == (await waiting).position
        await events.aclose()
