"""An exact repeat is answered on the fast path: as any other request, but sooner."""

from __future__ import annotations

import asyncio
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING

import orjson
import pytest
import pytest_asyncio

from stretto.domain import MEMBERS_MAX, UserId
from stretto.http.front.connection import ClientConnection
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.settings import ConnectionLimits
from stretto.http.tokens.authenticator import Authenticator
from stretto.http.tokens.making import make_token
from support.api_client import SECRET, Api, api_for, token_of
from support.database import first_row, writes_held_up
from support.raw_client import RawClients, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from support.database import Connection

DEADLINE_SECONDS = 60
BODY = b'{"name": "Team", "members": ["bob"]}'
TOKEN = token_of("alice")
FIELDS: Mapping[str, str] = {
    "Authorization": f"Bearer {TOKEN}",
    "Idempotency-Key": "k",
    "Content-Type": "application/json",
    "X-Request-Id": "r-1",
}


def request(fields: Mapping[str, str] = FIELDS, body: bytes = BODY, version: str = "1.1") -> bytes:
    """Return a creation as it is sent."""
    lines = [f"POST /v1/groups HTTP/{version}", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + body


REPEAT = request()
HEADS = {
    "one host": b"Host: x\r\n",
    "no host": b"",
    "two hosts": b"Host: x\r\nHost: x\r\n",
    "an empty host": b"Host: \r\n",
    "an odd host": b"Host: a@x/y\r\n",
    "an old handshake": b"Host: x\r\nSec-WebSocket-Key1: x\r\n",
    "a proxy's last": b"Host: x\r\nProxy-Connection: close\r\n",
    "kept": b"Host: x\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive, x\r\n",
    "kept in capitals": b"Host: x\r\nConnection: Keep-Alive\r\n",
    "HTTP/2": b"Host: x\r\nConnection: HTTP2-Settings\r\nHTTP2-Settings: x\r\nUpgrade: h2c\r\n",
    "an upgrade alone": b"Host: x\r\nUpgrade: websocket\r\n",
    "trailers": b"Host: x\r\nTE: trailers\r\n",
}
DEFLATED = request({**FIELDS, "Content-Encoding": "deflate"}, zlib.compress(BODY))
OTHERS: Mapping[str, tuple[int, str, bytes]] = {
    "another body": (422, "key_reused", request(body=b'{"name": "Other"}')),
    "the same meaning": (201, "replayed", request(body=BODY + b" ")),
    "no body": (400, "request_invalid", request(body=b"")),
    "compressed": (201, "replayed", DEFLATED),
    "another type": (
        415,
        "unsupported_media_type",
        request({**FIELDS, "Content-Type": "text/plain"}),
    ),
    "charset": (
        201,
        "replayed",
        request({**FIELDS, "Content-Type": "application/json; charset=utf-8"}),
    ),
    "quoted key": (201, "replayed", request({**FIELDS, "Idempotency-Key": '"k"'})),
    "key that is no text": (400, "key_invalid", request({**FIELDS, "Idempotency-Key": "k\udcff"})),
    "first sent at no time": (
        400,
        "request_invalid",
        request({**FIELDS, "Idempotency-First-Sent": "yesterday"}),
    ),
    "two keys": (400, "key_invalid", request({**FIELDS, "idempotency-key": "k"})),
    "empty key": (400, "key_invalid", request({**FIELDS, "Idempotency-Key": ""})),
    "another owner": (
        201,
        "created",
        request({**FIELDS, "Authorization": f"Bearer {token_of('mallory')}"}),
    ),
    "no token": (401, "unauthenticated", request({**FIELDS, "Authorization": ""})),
    "two tokens": (
        401,
        "unauthenticated",
        request({**FIELDS, "authorization": f"Bearer {TOKEN}"}),
    ),
    "tampered token": (
        401,
        "unauthenticated",
        request({**FIELDS, "Authorization": f"Bearer {TOKEN}A"}),
    ),
    "last of its connection": (201, "replayed", request({**FIELDS, "Connection": "close"})),
    "old version": (201, "replayed", request(version="1.0")),
}


@pytest_asyncio.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """A service that remembers the success of `REPEAT`."""
    async with api_for(database_url) as api:
        yield api


@pytest_asyncio.fixture
async def raw(api: Api) -> AsyncIterator[RawClients]:
    """Connections to it."""
    async with raw_clients(api.url) as clients:
        client = await clients.connect(REPEAT)
        assert (await client.answer())[0] == 201
        yield clients


async def worked_for(api: Api) -> float:
    """Return how many creations were admitted: an answer on the fast path takes no time."""
    name = 'stretto_http_request_seconds_count{method="POST",route="/v1/groups"} '
    lines = (await api.get("/metrics")).body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).removeprefix(name))


async def test_the_fast_path_answers_what_would_have_been_answered_inside(
    api: Api, raw: RawClients
) -> None:
    """Line by line; only the time of day may differ."""
    answers = []
    for admitted in (0, 1):
        before = await worked_for(api)
        fields = {**FIELDS, **({"Expect": "100-continue"} if admitted else {})}
        client = await raw.connect(request(fields))
        if admitted:
            await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        status, headers, document = await client.answer()
        del headers["date"]
        answers.append((status, list(headers.items()), document))
        assert before + admitted == await worked_for(api)
    assert answers[0] == answers[1]
    assert {"idempotent-replayed", "server"} < dict(answers[0][1]).keys()
    metrics = (await api.get("/metrics")).body.decode()
    assert (
        'stretto_http_requests_total{method="POST",route="/v1/groups",status="201"} 3.0' in metrics
    )
    assert 'stretto_attempts_total{outcome="replayed"} 2.0' in metrics
    assert 'stretto_fast_path_seconds_count{outcome="replayed"} 1.0' in metrics


@pytest.mark.parametrize(("status", "outcome", "data"), OTHERS.values(), ids=OTHERS)
async def test_whatever_differs_goes_its_usual_way(
    status: int, outcome: str, data: bytes, api: Api, raw: RawClients
) -> None:
    """Even where all else is the same."""
    before = await worked_for(api)
    answered, headers, document = await (await raw.connect(data)).answer()
    assert (status, outcome) == (answered, headers.get("idempotency-status") or document["code"])
    assert before + 1 == await worked_for(api)


async def test_a_repeat_is_answered_however_old_it_is(api: Api, raw: RawClients) -> None:
    """Its group is known: it starts nothing."""
    before = await worked_for(api)
    client = await raw.connect(request({**FIELDS, "Idempotency-First-Sent": "@1"}))
    status, headers, _ = await client.answer()
    assert (201, "replayed") == (status, headers["idempotency-status"])
    assert before == await worked_for(api)


async def test_quotes_around_a_key_are_no_part_of_it(raw: RawClients) -> None:
    """They are where they are written as such (RFC 9651, 3.3.3)."""
    client = await raw.connect()
    ids = []
    for key in (r'"\"k\""', '"k"', "k"):
        client.send(request({**FIELDS, "Idempotency-Key": key}))
        ids.append((await client.answer())[2]["group_id"])
    assert ids[0] != ids[1] == ids[2]


async def test_a_token_is_good_on_the_fast_path_until_it_ends(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was verified before, and counts no longer."""
    now = [1e9]
    clocked = partial(Authenticator, clock_seconds=lambda: now[0])
    monkeypatch.setattr("stretto.assembly.application.Authenticator", clocked)
    token = make_token(SECRET, UserId("alice"), lifetime_seconds=60, clock_seconds=lambda: now[0])
    repeat = request({**FIELDS, "Authorization": f"Bearer {token}"})
    async with api_for(database_url) as api, raw_clients(api.url) as raw:
        client = await raw.connect()
        statuses = []
        for seconds in (0, 59, 1):
            now[0] += seconds
            client.send(repeat)
            statuses.append((await client.answer())[0])
        assert [201, 201, 401] == statuses


async def test_a_repeat_overtakes_no_other(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before it on its connection is answered first, begun or not."""
    read_one_by_one(monkeypatch)
    client = await raw.connect()
    ping = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    for number in range(20):
        new = request({**FIELDS, "Idempotency-Key": f"new{number}"})
        client.send(new + REPEAT + REPEAT + ping + REPEAT)
        statuses = [(await client.answer())[1].get("idempotency-status") for _ in range(5)]
        assert ["created", "replayed", "replayed", None, "replayed"] == statuses


@pytest.mark.parametrize("key", ["new", '"new"'], ids=["on the fast path", "by a handler"])
async def test_a_repeat_waits_for_what_is_worked_for(
    key: str, api: Api, raw: RawClients, connection: Connection
) -> None:
    """The connection is the order of its answers."""
    client = await raw.connect()
    async with writes_held_up(connection):
        client.send(request({**FIELDS, "Idempotency-Key": key}))
        await first_row(connection, "SELECT 1 FROM attempt WHERE status = 'pending'")
        client.send(REPEAT)
        for _ in range(10):
            await api.get("/livez")
    statuses = [(await client.answer())[1]["idempotency-status"] for _ in range(2)]
    assert ["created", "replayed"] == statuses


async def test_a_large_repeat_leaves_its_connection_as_it_was(api: Api, raw: RawClients) -> None:
    """More than aiohttp keeps unread."""
    members = [f"{number:0128}" for number in range(MEMBERS_MAX)]
    large = request(
        {**FIELDS, "Idempotency-Key": "l"}, orjson.dumps({"name": "L", "members": members})
    )
    client = await raw.connect()
    for _ in range(3):
        client.send(large)
        assert (await client.answer())[0] == 201
        client.send(REPEAT)
        assert (await client.answer())[0] == 201


@pytest.mark.parametrize(
    "fields",
    [{"Content-Length": str(len(REPEAT))}, {"Transfer-Encoding": "chunked"}],
    ids=["length", "chunks"],
)
async def test_a_repeat_within_a_body_is_not_answered(
    fields: Mapping[str, str], api: Api, raw: RawClients
) -> None:
    """It is a part of another request, even where it comes alone (request smuggling)."""
    lines = [f"{name}: {value}\r\n" for name, value in {**FIELDS, **fields}.items()]
    client = await raw.connect(f"POST /v1/groups HTTP/1.1\r\n{''.join(lines)}\r\n".encode())
    for _ in range(3):
        assert (await api.get("/livez")).status == 200
    client.send(REPEAT)
    status, headers, _ = await client.answer()
    assert (400, None) == (status, headers.get("idempotency-status"))
    for _ in range(3):
        assert (await api.get("/livez")).status == 200
    assert client.answered == b""


async def test_a_head_that_begins_behind_a_repeat_is_read_on(raw: RawClients) -> None:
    """Cut at every place."""
    client = await raw.connect()
    for cut in range(1, len(REPEAT)):
        client.send(REPEAT + REPEAT[:cut])
        assert (await client.answer())[0] == 201
        client.send(REPEAT[cut:])
        assert (await client.answer())[0] == 201


async def test_a_head_that_never_ends_is_cut_off_after_a_repeat_as_well(database_url: str) -> None:
    """No client is trusted for having been answered."""
    limits = ConnectionLimits(read_timeout_seconds=0.01)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=limits) as api,
        raw_clients(api.url) as raw,
    ):
        await (await raw.connect(REPEAT)).answer()
        client = await raw.connect(REPEAT)
        await client.answer()
        client.send(REPEAT[:20])
        assert (await client.answer())[0] == 408
        assert await client.closed() == b""


async def test_a_client_that_does_not_read_is_not_answered_for_ever(
    api: Api, raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be sent to a client that only asks is bounded: at some point it is not read."""
    read_one_by_one(monkeypatch)
    client = await raw.connect()
    client.transport.pause_reading()
    async with asyncio.timeout(DEADLINE_SECONDS):
        while client.transport.get_write_buffer_size() < 1000 * len(REPEAT):
            # So few are read in one piece.
            client.send(REPEAT * 100)
            assert (await api.get("/livez")).status == 200


def read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests that arrive at once be read as if they had come alone."""
    read = ClientConnection.data_received

    def read_all(client: ClientConnection, data: bytes) -> None:
        for part in re.split(rb"(?=POST /|GET /)", data):
            if part or not data:
                read(client, part)

    monkeypatch.setattr(ClientConnection, "data_received", read_all)


@pytest.mark.parametrize("lines", HEADS.values(), ids=HEADS)
async def test_both_ways_answer_the_same(
    lines: bytes, raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the head says of hosts, hops and connections."""
    answers = []
    head, _, rest = REPEAT.partition(b"Host: x\r\n")
    for reads in (PlainRequests.read, lambda *_: None):
        monkeypatch.setattr(PlainRequests, "read", reads)
        client = await raw.connect(head + lines + rest)
        status, headers, document = await client.answer()
        headers.pop("date")
        # Of what cannot be read, the id cannot be read either.
        assert status == 400 or "r-1" == headers["x-request-id"]
        headers.pop("x-request-id")
        answers.append((status, headers, document))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "data",
    [
        REPEAT,
        b"no request\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/groups HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD /docs/swagger-ui.css HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
        b"Accept: text/event-stream\r\n\r\n" % TOKEN.encode(),
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % TOKEN.encode(),
    ],
    ids=["replay", "unreadable", "not found", "no token", "file", "stream", "WebSocket"],
)
async def test_every_answer_forbids_guessing_and_names_no_version(
    data: bytes, raw: RawClients
) -> None:
    """Wherever it is made."""
    client = await raw.connect(data)
    # What cannot be read is answered in the older version.
    await client.until(b"HTTP/1.")
    while b"\r\n\r\n" not in client.answered:
        await client._change()
    head = client.answered.partition(b"\r\n\r\n")[0] + b"\r\n"
    assert 1 == head.count(b"\r\nX-Content-Type-Options: nosniff\r\n")
    assert 1 == head.count(b"\r\nServer: stretto\r\n")
