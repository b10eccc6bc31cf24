"""Every answer has its request's id, and so has each line of the log that the request causes."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from stretto.http.service import SERVICE
from support.api_client import Api, api_for
from support.full_service import full_service
from support.live_service import live_service
from support.raw_client import RawClient, RawClients, creation, raw_clients
from support.ways import REPEAT, TOKEN, UNREADABLE, WAYS, with_lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

DEADLINE_SECONDS = 60
ID = b"r-1:a/b"
MADE = re.compile(rb"[0-9a-f]{16}")
MAKING = {name: way for name, way in (WAYS | UNREADABLE).items() if name != "replay"}


@pytest_asyncio.fixture
async def raw(database_url: str) -> AsyncIterator[RawClients]:
    """Connections to a service that remembers the success of `REPEAT`."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as api,
        raw_clients(api.url) as clients,
    ):
        assert (await (await clients.connect(REPEAT)).answer())[0] == 201
        yield clients


async def ids_of(client: RawClient) -> list[bytes]:
    """Return every id in the head of the next answer."""
    return re.findall(rb"(?m)^X-Request-Id: ([^\r]*)", await client.head())


def with_id(request: bytes, *ids: bytes) -> bytes:
    """Return a request that has these ids."""
    return with_lines(request, *(b"X-Request-Id: %b" % each for each in ids))


@pytest.mark.parametrize("request_bytes", WAYS.values(), ids=WAYS)
async def test_every_way_answers_with_the_id_that_came(
    request_bytes: bytes, raw: RawClients
) -> None:
    """Once."""
    assert [ID] == await ids_of(await raw.connect(with_id(request_bytes, ID)))


@pytest.mark.parametrize("request_bytes", MAKING.values(), ids=MAKING)
async def test_every_way_makes_an_id_where_none_came(request_bytes: bytes, raw: RawClients) -> None:
    """Also for what cannot be read; all but a repeat may be in the log."""
    (made,) = await ids_of(await raw.connect(request_bytes))
    assert MADE.fullmatch(made)


@pytest.mark.parametrize("way", ["replay", "routes"])
@pytest.mark.parametrize(
    "offered",
    [[b"known"], [b"two words"], [b"x" * 65], [TOKEN[-30:].encode()], [b"r-1", b"r-2"]],
    ids=["the key", "not plain", "too long", "of the token", "two"],
)
async def test_what_may_not_be_logged_is_not_taken(
    offered: list[bytes], way: str, raw: RawClients
) -> None:
    """The fast path and the routes agree."""
    request = WAYS[way].replace(b"Key: routes", b"Key: known")
    found = await ids_of(await raw.connect(with_id(request, *offered)))
    # One that comes twice is not plain: the routes answer it, and they make one for any answer.
    is_plain = way == "replay" and len(offered) == 1
    assert [not is_plain] == [bool(found)]
    assert all(map(MADE.fullmatch, found))


async def test_a_repeat_on_the_fast_path_is_given_no_id(raw: RawClients) -> None:
    """No line of the log has it."""
    assert [] == await ids_of(await raw.connect(REPEAT))


async def test_requests_of_one_connection_have_ids_of_their_own(raw: RawClients) -> None:
    """Also one that is held behind a creation in flight."""
    client = await raw.connect()
    client.send(with_id(creation(TOKEN, "new"), b"r-1") + with_id(REPEAT, b"r-2"))
    assert ["r-1", "r-2"] == [(await client.answer())[1]["x-request-id"] for _ in range(2)]
    client.send(with_id(creation(TOKEN, "newer"), b"r-3"))
    client.send(with_id(REPEAT, b"r-4"))
    assert ["r-3", "r-4"] == [(await client.answer())[1]["x-request-id"] for _ in range(2)]


async def test_a_rejected_creation_is_answered_with_its_id(
    server_url: str, connection: Connection
) -> None:
    """Although all rejections of a turn have the same bytes otherwise."""
    async with full_service(server_url, connection) as full:
        clients = [
            await full.raw.connect(with_id(creation(full.token, f"n{number}"), b"r-%d" % number))
            for number in range(3)
        ]
        answers = [await client.answer() for client in clients]
        assert [(503, f"r-{number}") for number in range(3)] == [
            (status, headers["x-request-id"]) for status, headers, _ in answers
        ]
        await full.release()


@pytest.mark.parametrize("way", ["new", "routes"])
async def test_a_crash_is_logged_under_its_request(
    way: str,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the fast path, which has no task, and in the routes."""

    def ask(*_: object) -> asyncio.Future[None]:
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(RuntimeError("a bug"))
        return failed

    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        raw_clients(live.api.url) as raw,
    ):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await live.api.get("/v1/groups", headers=headers)).status == 200
        monkeypatch.setattr(live.app[SERVICE].creator._flights._writers, "ask", ask)
        assert [ID] == await ids_of(await raw.connect(with_id(WAYS[way], ID)))
        (line,) = (vars(each) for each in caplog.records if each.msg == "request.crashed")
        assert ID.decode() == line["request_id"]


async def test_a_failed_write_is_logged_with_the_requests_that_it_was_for(
    database_url: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Although the writer works for a batch."""
    async with api_for(database_url) as api:
        await connection.execute("ALTER TABLE chat_group RENAME TO mislaid")
        reply = await create(api, "k", "r-1")
        await connection.execute("ALTER TABLE mislaid RENAME TO chat_group")
    assert (503, "r-1") == (reply[0], reply[1])
    lines = [vars(each) for each in caplog.records if each.msg == "write.failed"]
    assert lines
    assert all(("r-1",) == line["request_ids"] for line in lines)


async def test_what_is_unreadable_is_logged_with_the_id_of_its_answer(
    raw: RawClients, caplog: pytest.LogCaptureFixture
) -> None:
    """It is made, as no field can be read."""
    caplog.set_level("INFO", "stretto")
    (made,) = await ids_of(await raw.connect(UNREADABLE["no request"]))
    (line,) = (vars(each) for each in caplog.records if each.msg == "request.unreadable")
    assert made.decode() == line["request_id"]


async def create(api: Api, key: str, id_: str) -> tuple[int, str]:
    """Create under an id; return the status and the id of the answer."""
    reply = await api.request(
        "POST",
        "/v1/groups",
        headers={
            "Idempotency-Key": key,
            "Content-Type": "application/json",
            "X-Request-Id": id_,
            "Prefer": "wait=0",
        },
        data=b'{"name": "Team"}',
    )
    return reply.status, reply.headers["X-Request-Id"]
