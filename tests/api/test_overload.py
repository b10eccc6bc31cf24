"""More than the writers get done: the rest is rejected, at little price, and loses nothing."""

from __future__ import annotations

import asyncio
import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

from stretto.http.admission import LoadShedder
from stretto.http.front.connection import ClientConnection
from stretto.http.service import SERVICE
from stretto.runtime.mailbox import Mailbox
from support.api_client import TEAM, Api, settled_create, token_of
from support.database import sound
from support.full_service import (
    DEADLINE_SECONDS,
    QUEUED_MAX,
    FullService,
    full_service,
    waiting_create,
)
from support.raw_client import creation, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from support.database import Connection


async def test_a_full_service_sheds_before_anything_is_done(
    database_url: str, connection: Connection
) -> None:
    """No row, no flight; all else is served, and nothing is lost."""
    async with full_service(database_url, connection) as service:
        for number in range(50):
            reply = await service.api.create(f"s{number}")
            assert (503, "1") == (reply.status, reply.headers["Retry-After"])
            assert ("overloaded", "same-key") == (reply.json["code"], reply.json["retry"])
        client = await service.raw.connect()
        for _ in range(3):
            client.send(creation(service.token, "s"))
            assert (await client.answer())[0] == 503
        assert 1 + QUEUED_MAX == service.app[SERVICE].creator.flights
        assert (await service.api.get("/livez")).status == 200
        assert (await service.api.get("/v1/attempts/s0")).status == 404
        metrics = (await service.api.get("/metrics")).body.decode()
        assert 'stretto_attempts_total{outcome="overloaded"} 53.0' in metrics
        rejections = (
            'stretto_http_requests_total{method="POST",route="/v1/groups",status="503"} 53.0'
        )
        assert rejections in metrics
        # A client may have sent head and body in two pieces: what is rejected then is not counted here.
        counted = re.search(
            r'^stretto_fast_path_seconds_count{outcome="overloaded"} (\d+)\.0$',
            metrics,
            re.MULTILINE,
        )
        assert counted is not None
        assert 3 <= int(counted[1]) <= 53
        assert await connection.fetchval("SELECT count(*) FROM attempt") == 2
        await service.release()
        await asyncio.gather(*service.waiting)
        # The same requests again, as their answers ask, and on the same connections.
        replies = [await settled_create(service.api, f"s{number}") for number in range(50)]
        assert {201} == {reply.status for reply in replies}
        client.send(creation(token_of("mallory"), "s"))
        assert (await client.answer())[0] == 201
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 53 + QUEUED_MAX
    assert await sound(connection)


async def test_a_full_service_serves_an_owner_who_has_less_queued_than_another(
    database_url: str, connection: Connection
) -> None:
    """Also one whose token it has not seen; the other's newest creation has to come again."""
    async with full_service(database_url, connection) as service:
        for key, is_token_known in (("b0", False), ("b1", True)):
            assert is_token_known is _is_known(service, "bob")
            small = asyncio.create_task(waiting_create(service.api, key, "bob"))
            displaced, others = await asyncio.wait(
                service.waiting, return_when=asyncio.FIRST_COMPLETED
            )
            assert [503] == [each.result() for each in displaced]
            service.waiting[:] = [small, *others]
        # Both have two now: the newcomer is rejected, whose ever it is.
        assert 503 == await waiting_create(service.api, "b2", "bob")
        assert 503 == await waiting_create(service.api, "s")
        assert 1 + QUEUED_MAX == service.app[SERVICE].creator.flights
        assert await connection.fetchval("SELECT count(*) FROM attempt") == 2


def _is_known(service: FullService, user: str) -> bool:
    """Whether a token of that user has been verified."""
    remembered = service.app[SERVICE].authenticator._verified.values()
    return any(verified.owner == user for _, verified in remembered)


async def test_where_the_mailbox_is_not_fair_an_owner_pays_for_another(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin."""
    monkeypatch.setattr(Mailbox, "would_displace", lambda *_: False)
    async with full_service(database_url, connection) as service:
        assert 503 == await waiting_create(service.api, "b0", "bob")
        client = await service.raw.connect(creation("no token of ours", "s"))
        assert 503 == (await client.answer())[0]


async def test_a_full_service_still_replays_what_it_remembers(
    database_url: str, connection: Connection
) -> None:
    """It takes no room in the mailbox; the same meaning in other words is rejected like all else."""
    async with full_service(database_url, connection) as service:
        reply = await service.api.create("known")
        assert (201, "replayed") == (reply.status, reply.headers["Idempotency-Status"])
        assert (await service.api.create("known", {**TEAM, "description": None})).status == 503


async def test_without_the_fast_path_a_rejected_request_costs_a_look_at_its_token(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rejected where it would be queued, and claims nothing either."""
    monkeypatch.setattr(LoadShedder, "has_room", lambda *_: True)
    async with full_service(database_url, connection) as service:
        client = await service.raw.connect(creation("no token of ours", "s"))
        assert (await client.answer())[0] == 401
        assert (await service.api.create("s")).status == 503
        assert await connection.fetchval("SELECT count(*) FROM attempt") == 2


async def test_the_fast_path_rejects_in_the_words_that_are_used_inside(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, the version and its fields in their order, also in the last answer."""
    async with full_service(database_url, connection) as service:
        create = creation(service.token, "s").replace(b"Host", b"X-Request-Id: r-1:a\r\nHost", 1)
        for is_last in (False, True):
            heads = []
            for has_room in (False, True):
                monkeypatch.setattr(LoadShedder, "has_room", lambda *_, answer=has_room: answer)
                if is_last:
                    service.app[SERVICE].draining.set()
                client = await service.raw.connect(create)
                while b"}" not in client.answered:
                    await client._change()
                heads.append(client.answered.splitlines())
                dates = [line for line in heads[-1] if line.startswith(b"Date: ")]
                sent_at = parsedate_to_datetime(
                    dates[0].removeprefix(b"Date: ").decode()
                ).timestamp()
                assert abs(time.time() - sent_at) < DEADLINE_SECONDS
                heads[-1][heads[-1].index(dates[0])] = b"Date"
            assert (b"Connection: close" in heads[0]) is is_last
            assert heads[0] == heads[1]


async def test_requests_of_one_connection_are_answered_in_their_order(
    database_url: str, connection: Connection
) -> None:
    """Also where some are rejected and others are not, and all come at once."""
    ping = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    async with full_service(database_url, connection) as service:
        create = creation(service.token, "s")
        client = await service.raw.connect()
        for sent in ((create, ping, create), (create,), (ping, create), (ping,)):
            for data in sent:
                client.send(data)
        answers = [(await client.answer())[0] for _ in range(7)]
        assert [503, 200, 503, 503, 200, 503, 200] == answers
        client.send(create + ping + create)
        assert [503, 200, 503] == [(await client.answer())[0] for _ in range(3)]


async def test_a_rejected_client_that_sends_on_waits_behind_the_others(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its rejection; each further one waits for its own turn."""
    async with full_service(database_url, connection) as service:
        shedder = service.app[SERVICE].shedder
        monkeypatch.setattr(shedder, "_send_some", lambda: None)
        clients = [await service.raw.connect(creation(service.token, "s"))]
        await until(lambda: len(shedder._pending) == 1)
        clients.append(await service.raw.connect(creation(service.token, "s")))
        await until(lambda: len(shedder._pending) == 2)
        first, second = shedder._pending
        clients[0].send(creation(service.token, "s"))
        assert (await clients[0].answer())[0] == 503
        assert [second, first] == list(shedder._pending)
        LoadShedder._send_some(shedder)
        assert [503, 503] == [(await client.answer())[0] for client in clients]


@pytest.mark.parametrize("is_read_as_plain", [False, True])
async def test_what_the_parser_refuses_takes_no_place(
    is_read_as_plain: bool, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the reader before it should ever take it for plain, and its client reads nothing."""
    if is_read_as_plain:
        monkeypatch.setattr("stretto.http.front.plain_requests._HOST", re.compile(b".*"))
    shedders: list[LoadShedder] = []
    receive = ClientConnection.data_received

    def data_received(client: ClientConnection, data: bytes) -> None:
        receive(client, data)
        assert client._service is not None
        shedders.append(client._service.shedder)
        assert shedders[-1]._coming_of == {}

    monkeypatch.setattr(ClientConnection, "data_received", data_received)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        client = await raw.connect(creation("x", "s").replace(b"Host: x\r\n", b""))
        assert (await client.answer())[0] == 400
    assert shedders


@pytest.mark.parametrize("end", ["abort", "close_at_once", "force_close"])
async def test_a_connection_that_ends_gives_its_place_back(
    end: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the parser's yes and the first step of the work, whichever side ends it."""
    receive = ClientConnection.data_received
    ended: list[LoadShedder] = []
    coming: list[int] = []

    def data_received(client: ClientConnection, data: bytes) -> None:
        receive(client, data)
        assert client._service is not None
        assert client.transport is not None
        ended.append(client._service.shedder)
        coming.append(sum(ended[-1]._coming_of.values()))
        if end == "abort":
            client.transport.abort()
        else:
            getattr(client, end)()
            coming.append(sum(ended[-1]._coming_of.values()))

    monkeypatch.setattr(ClientConnection, "data_received", data_received)
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        assert await (await raw.connect(creation(token_of("alice"), "s"))).closed() == b""
        assert ended[0]._coming_of == {}
    # Not judged above: what a protocol raises there closes its connection, and fails no test.
    assert coming == ([1] if end == "abort" else [1, 0])


async def test_a_client_that_hangs_up_gives_back_its_place(
    database_url: str, connection: Connection
) -> None:
    """Those that were admitted, and those that wait for their rejection."""
    async with full_service(database_url, connection) as service:
        for token in ("no token of ours", service.token) * 20:
            (await service.raw.connect(creation(token, "s"))).transport.abort()
        assert (await service.api.create("s")).status == 503
        assert not service.app[SERVICE].shedder._pending
        await service.release()
        await asyncio.gather(*service.waiting)
        for _ in range(20):
            (await service.raw.connect(creation("no token of ours", "s"))).transport.abort()
        assert (await service.api.create("s")).status == 201


async def test_a_client_that_does_not_read_is_not_answered_for_ever(
    database_url: str, connection: Connection
) -> None:
    """What waits to be sent to a client that only asks is bounded: at some point it is not read."""
    async with full_service(database_url, connection) as service:
        client = await service.raw.connect()
        client.transport.pause_reading()
        flood = creation(service.token, "s") * 1000
        # The kernel keeps some megabytes; then no more is read.
        while client.transport.get_write_buffer_size() < len(flood):
            client.send(flood)
            assert (await service.api.get("/livez")).status == 200
