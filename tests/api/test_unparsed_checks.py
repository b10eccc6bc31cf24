"""Health checks that are answered before they are parsed: as on the way through the routes, and sooner."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from stretto.creation.reads import Reads
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.service import SERVICE
from stretto.http.settings import StreamSettings
from stretto.http.tokens.authenticator import Authenticator
from stretto.runtime.runner import Runner
from stretto.store_errors import Unreachable
from support.api_client import token_of
from support.counted_arrival import watched_connections
from support.live_service import LiveService, live_service
from support.raw_client import PING, RawClient, RawClients, creation, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto.http.front.connection import ClientConnection
    from stretto.http.front.health_checks import HealthChecks

DEADLINE_SECONDS = 60
TOKEN = token_of("alice")
READY = PING.replace(b"/livez", b"/readyz")
LAST = READY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
NEW = creation(TOKEN, "new")
FLOOD = 40
STREAMS = StreamSettings(origins=frozenset({"https://app"}))
FORMS = {
    "kept": (),
    "last": (b"Connection: close",),
    "with an id": (b"X-Request-Id: r-1", b"Connection: keep-alive"),
    "the kubelet's": (b"User-Agent: kube-probe/1.31", b"Accept: */*", b"Connection: close"),
    "all of it": (b"X-Request-Id: r-1", b"Origin: https://app", b"Connection: close"),
    "of a page": (b"Origin: https://app", b"X-Request-Id: r-1"),
}


class World:
    """A service, and its connections in the order in which they were made."""

    def __init__(
        self,
        live: LiveService,
        raw: RawClients,
        made: list[ClientConnection],
        may_answer: asyncio.Event,
    ) -> None:
        self.live, self.raw, self.made = live, raw, made
        self.may_answer = may_answer
        """Whether the database answers."""

    @property
    def checks(self) -> HealthChecks:
        """The checks that wait."""
        checks = self.made[0]._checks
        assert checks is not None
        return checks

    async def waiting(self, request: bytes = READY) -> tuple[RawClient, ClientConnection]:
        """Send a check that waits until the database may answer."""
        self.may_answer.clear()
        client = await self.raw.connect(request)
        await until(lambda: self.made[-1]._check and self.checks._askings)
        return client, self.made[-1]


@pytest_asyncio.fixture
async def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A service whose database answers checks when a test says so."""
    made, ping = watched_connections(monkeypatch).clients, Reads.ping
    may_answer = asyncio.Event()
    may_answer.set()

    async def ping_later(reads: Reads) -> None:
        await may_answer.wait()
        await ping(reads)

    monkeypatch.setattr(Reads, "ping", ping_later)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url, streams=STREAMS) as live,
        raw_clients(live.api.url) as raw,
    ):
        yield World(live, raw, made, may_answer)


def drain(world: World, _: pytest.MonkeyPatch) -> None:
    """Have it stop."""
    world.live.app[SERVICE].draining.set()


def lose_keys(_: World, patches: pytest.MonkeyPatch) -> None:
    """Have it know no key."""
    patches.setattr(Authenticator, "has_keys", lambda _: False)


def lose_writers(_: World, patches: pytest.MonkeyPatch) -> None:
    """Have its writers not run."""
    patches.setattr(Runner, "down", property(lambda _: ["writer"]))


def rest(_: World, patches: pytest.MonkeyPatch) -> None:
    """Have something not run that no request waits for."""
    patches.setattr(Runner, "up", {"relay": 0, "writer": 1})


def fail(error: Exception) -> Callable[[World, pytest.MonkeyPatch], None]:
    """Return what has the database answer so."""

    async def ping(_: Reads) -> None:
        raise error

    return lambda _, patches: patches.setattr(Reads, "ping", ping)


STATES: dict[str, tuple[int, Callable[[World, pytest.MonkeyPatch], None]]] = {
    "ready": (200, lambda *_: None),
    "draining": (503, drain),
    "keys unknown": (503, lose_keys),
    "not running": (503, lose_writers),
    "database away": (503, fail(Unreachable("no route"))),
    "a bug": (500, fail(RuntimeError("ours"))),
}


async def whole(client: RawClient) -> bytes:
    """Return the next answer as it was sent."""
    while True:
        head, end, body = client.answered.partition(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        if end and length and len(body) >= int(length[1]):
            return client.answered
        await client._change()


@pytest.mark.parametrize("lines", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("status", "change"), STATES.values(), ids=STATES)
async def test_both_ways_answer_the_same(
    status: int,
    change: Callable[[World, pytest.MonkeyPatch], None],
    lines: tuple[bytes, ...],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Byte for byte, but for the time of day and an id that the routes make."""
    change(world, monkeypatch)
    fields = b"".join(b"%b\r\n" % line for line in lines)
    for request, expected in ((PING, 200), (READY, status)):
        answers = []
        for is_parsed in (False, True):
            with monkeypatch.context() as patches:
                if is_parsed:
                    patches.setattr(PlainRequests, "read", lambda *_: None)
                client = await world.raw.connect(request[:-2] + fields + b"\r\n")
                answer = re.sub(rb"(\r\nDate: )[^\r]+", rb"\1", await whole(client))
                if b"X-Request-Id: r-1" not in lines:
                    answer = re.sub(rb"\r\nX-Request-Id: [0-9a-f]{16}", b"", answer)
                answers.append(answer)
            assert is_parsed == (world.made[-1]._request_count > 0)
            if b"\r\nConnection: close" in answer:
                await client.closed()
        assert answers[0].startswith(b"HTTP/1.1 %d " % expected)
        assert answers[0] == answers[1]
        assert (b"Connection: close" in lines or change is drain) == (
            b"\r\nConnection: close\r\n" in answers[0]
        )


@pytest.mark.parametrize(
    "request_",
    [
        PING.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer x\r\n\r\n"),
        PING.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n{}"),
        PING.replace(b"/livez", b"/livez?"),
        PING.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["token", "body", "query", "1.0"],
)
async def test_other_checks_take_the_way_through_the_routes(request_: bytes, world: World) -> None:
    """They have turns of their own there."""
    client = await world.raw.connect(request_)
    assert 200 == (await client.answer())[0]
    assert world.made[-1]._request_count == 1


async def test_each_check_is_counted_with_its_time(world: World) -> None:
    """As on the way through the routes."""
    client = await world.raw.connect()
    for request in (PING, PING, READY):
        client.send(request)
        assert 200 == (await client.answer())[0]
    metrics = (await world.live.api.get("/metrics", user=None)).body.decode()
    for path, count in (("/livez", 2), ("/readyz", 1)):
        labels = f'method="GET",route="{path}"'
        assert f'stretto_http_requests_total{{{labels},status="200"}} {count}.0\n' in metrics
        assert f"stretto_http_request_seconds_count{{{labels}}} {count}.0\n" in metrics


async def test_an_id_that_the_log_has_is_in_the_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether its client has sent it or it was made for the log."""
    fail(Unreachable("no route"))(world, monkeypatch)
    client = await world.raw.connect(READY)
    status, headers, _ = await client.answer()
    (line,) = (each for each in caplog.records if "database_unavailable" in str(each.__dict__))
    assert 503 == status
    assert headers["x-request-id"] in str(line.__dict__)


async def test_what_comes_behind_a_check_is_answered_behind_it(world: World) -> None:
    """It is held as it came, one read of the socket at most; and a head that it ends in is timed."""
    client, connection = await world.waiting()
    client.send(NEW + PING[:9])
    await until(lambda: connection._held)
    assert connection.arrived_bytes >= len(NEW)
    assert connection.transport is not None
    assert not connection.transport.is_reading()
    assert (b"", None) == (client.answered, connection.arriving_since)
    world.may_answer.set()
    assert [200, 201] == [(await client.answer())[0] for _ in range(2)]
    await until(lambda: connection.arriving_since is not None)
    client.send(PING[9:])
    assert 200 == (await client.answer())[0]


async def test_nothing_is_read_behind_the_last_check(world: World) -> None:
    """Its client has said that nothing comes."""
    client, connection = await world.waiting(LAST)
    client.send(NEW)
    await until(lambda: connection.transport and not connection.transport.is_reading())
    world.may_answer.set()
    answered = await client.closed()
    assert 1 == answered.count(b"HTTP/1.1")
    assert b"\r\nConnection: close\r\n" in answered


async def test_a_client_that_closes_its_half_is_answered(world: World) -> None:
    """Then the connection ends."""
    client, connection = await world.waiting()
    client.transport.write_eof()
    await until(lambda: connection._is_at_end)
    world.may_answer.set()
    assert (await client.closed()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_client_that_hangs_up_is_waited_for_no_more(world: World) -> None:
    """And is counted as no request that was answered."""
    client, connection = await world.waiting()
    # Reset: a client that only closes may be one that has closed its half, and reads on.
    connected = client.transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()
    await until(lambda: connection.transport is None)
    assert [0] == [len(asking.clients) for asking in world.checks._askings.values()]
    world.may_answer.set()
    await until(lambda: not world.checks._askings)
    metrics = (await world.live.api.get("/metrics", user=None)).body.decode()
    assert 'route="/readyz"' not in metrics


async def test_a_check_that_waits_may_be_closed_to_make_room_and_is_not_idle(
    world: World,
) -> None:
    """It is a stranger's, also on a connection that a user had before."""
    client = await world.raw.connect(NEW)
    await client.answer()
    connection = world.made[-1]
    assert connection.user is not None
    world.may_answer.clear()
    client.send(READY)
    await until(lambda: connection._check)
    # Nor by its time alone.
    connection.connected_at += DEADLINE_SECONDS
    connection._request_count = connection._answered = 0
    assert (True, True) == (connection.is_of_stranger, connection.is_unworked)
    assert (False, None) == (connection.is_idle, connection.waiting_since)
    world.may_answer.set()
    await client.answer()
    assert connection.user is None
    assert (True, True) == (connection.is_of_stranger, connection.is_idle)


async def test_where_a_check_is_answered_its_connection_waits_for_nothing(world: World) -> None:
    """It is timed, and makes room, as one that owes its next request."""
    client = await world.raw.connect(PING)
    await client.answer()
    client.send(PING[:9])
    connection = world.made[-1]
    await until(lambda: connection.arriving_since is not None)
    assert not connection.waits_for_turn
    assert connection.waiting_since == connection.arriving_since


async def test_a_check_that_waits_at_the_stop_is_answered(world: World) -> None:
    """The service stops while its database is silent."""
    client, _ = await world.waiting()
    world.live.app[SERVICE].draining.set()
    world.may_answer.set()
    assert b"\r\nConnection: close\r\n" in await client.closed()


class Asker(RawClient):
    """A client that asks again as soon as it is answered."""

    answers = 0
    check = PING

    def data_received(self, data: bytes) -> None:
        self.answers += data.count(b"HTTP/1.1 200 OK")
        self.send(self.check)


@pytest.mark.parametrize("check", [PING, READY], ids=["livez", "readyz"])
async def test_many_that_ask_again_and_again_keep_no_other_check_waiting(
    check: bytes, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection's check is answered before any of theirs has had three more."""
    monkeypatch.setattr("stretto.http.front.health_checks.CHECKS_SENT_PER_TURN", 2)
    loop = asyncio.get_running_loop()
    host, _, port = world.live.api.url.removeprefix("http://").partition(":")
    askers: list[Asker] = []
    for _ in range(FLOOD):
        _, asker = await loop.create_connection(Asker, host, int(port))
        asker.check = check
        asker.send(check)
        askers.append(asker)
    await until(lambda: all(asker.answers for asker in askers))
    client = await world.raw.connect()
    before = [asker.answers for asker in askers]
    client.send(check)
    assert 200 == (await client.answer())[0]
    more = [asker.answers - count for asker, count in zip(askers, before, strict=True)]
    for asker in askers:
        asker.transport.abort()
    assert max(more) <= 3, more
