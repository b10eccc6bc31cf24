"""Pages of allowed origins may read every answer, however it came about; others read none."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp import web

import stretto
from stretto.codec import BODY_BYTES_MAX
from stretto.http.front.heads import HEAD_BYTES_MAX
from stretto.http.front.serving import serving
from stretto.http.settings import ConnectionLimits, StreamSettings
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, api_for, connected_api
from support.full_service import full_service
from support.raw_client import RawClient, RawClients, creation, creation_head, raw_clients
from support.ways import REPEAT, TOKEN, UNREADABLE, WAYS, with_lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

DEADLINE_SECONDS = 60
PAGE = "https://chat.example"
FOREIGN = "https://chat.example.evil"
ALLOWED = StreamSettings(origins=frozenset({PAGE, "https://other.example"}))
PREFLIGHT = (
    b"OPTIONS /v1/groups HTTP/1.1\r\nHost: x\r\nAccess-Control-Request-Method: POST\r\n"
    b"Access-Control-Request-Headers: authorization,content-type,idempotency-key\r\n\r\n"
)
READABLE = {name: way for name, way in WAYS.items() if name != "old and chunked"}
# Their origin is not known, or not looked at.
CLOSING = {**UNREADABLE, "old and chunked": WAYS["old and chunked"]}
LARGE_HEAD = b"GET /livez HTTP/1.1\r\nHost: x\r\n%b\r\n" % b"".join(
    b"X-%d: %b\r\n" % (number, b"x" * 8_000) for number in range(HEAD_BYTES_MAX // 8_000 + 1)
)


@pytest_asyncio.fixture
async def raw(server_url: str) -> AsyncIterator[RawClients]:
    """Connections to a service that allows pages, and remembers the success of `REPEAT`."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(server_url, streams=ALLOWED) as api,
        raw_clients(api.url) as clients,
    ):
        assert (await (await clients.connect(REPEAT)).answer())[0] == 201
        yield clients


def from_page(request: bytes, origin: str = PAGE) -> bytes:
    """Return a request as the browser sends it for a page."""
    return with_lines(request, b"Origin: %b" % origin.encode())


def values(head: bytes, name: str) -> list[str]:
    """Return the values of a field in an answer's head."""
    return re.findall(rf"(?mi)^{name}: ([^\r]*)", head.decode())


async def readers(client: RawClient) -> list[str]:
    """Return the origins whose pages may read the next answer, and its `Retry-After`."""
    head = await client.head()
    allowed = values(head, "Access-Control-Allow-Origin")
    exposed = values(head, "Access-Control-Expose-Headers")
    assert len(allowed) == len(exposed)
    assert all("Retry-After" in each for each in exposed)
    assert [] == values(head, "Access-Control-Allow-Credentials")
    return allowed


@pytest.mark.parametrize("request_bytes", READABLE.values(), ids=READABLE)
async def test_an_allowed_page_may_read_every_answer(request_bytes: bytes, raw: RawClients) -> None:
    """The twin is a page of another origin, and one that a name of ours begins."""
    assert [PAGE] == await readers(await raw.connect(from_page(request_bytes)))
    assert [PAGE] == await readers(await raw.connect(from_page(request_bytes, f"{PAGE} \t")))
    assert [] == await readers(await raw.connect(from_page(request_bytes, FOREIGN)))
    assert [] == await readers(await raw.connect(request_bytes))


@pytest.mark.parametrize("request_bytes", CLOSING.values(), ids=CLOSING)
async def test_every_page_may_read_that_its_request_cannot_be_read(
    request_bytes: bytes, raw: RawClients
) -> None:
    """No origin is known of it."""
    assert ["*"] == await readers(await raw.connect(from_page(request_bytes)))


async def test_an_allowed_page_reads_why_it_was_cut_off(server_url: str) -> None:
    """Too large, too slow: in head and body."""
    limits = ConnectionLimits(read_timeout_seconds=0.1)
    large = creation_head(TOKEN, "k") + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(server_url, limits=limits, streams=ALLOWED) as api,
        raw_clients(api.url) as raw,
    ):
        for status, reader, request in (
            (b"413", PAGE, large),
            (b"431", "*", LARGE_HEAD),
            (b"408", PAGE, creation(TOKEN, "k")[:-1]),
            (b"408", "*", b"GET /livez HTTP/1.1\r\n"),
        ):
            client = await raw.connect(from_page(request))
            await client.until(b"HTTP/1.1 ")
            assert client.answered.startswith(status)
            assert [reader] == await readers(client)


@pytest.mark.parametrize("request_bytes", (WAYS | UNREADABLE).values(), ids=WAYS | UNREADABLE)
async def test_without_allowed_origins_nothing_is_said(
    request_bytes: bytes, server_url: str
) -> None:
    """Nor that an answer depends on its origin."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(server_url) as api,
        raw_clients(api.url) as raw,
    ):
        for _ in range(2):
            head = await (await raw.connect(from_page(request_bytes))).head()
            assert [] == values(head, "Access-Control-[^:]*") + values(head, "Vary")


@pytest.mark.parametrize("way", ["replay", "new", "routes", "not found"])
async def test_where_any_origin_is_allowed_all_are_told_the_same(way: str, server_url: str) -> None:
    """So one answer is good for every page, and caches need not distinguish them."""
    streams = StreamSettings(origins=frozenset({"*", PAGE}))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(server_url, streams=streams) as api,
        raw_clients(api.url) as raw,
    ):
        assert (await (await raw.connect(REPEAT)).answer())[0] == 201
        for request in (WAYS[way], from_page(WAYS[way]), from_page(WAYS[way], "null")):
            client = await raw.connect(request)
            assert ["*"] == await readers(client)


@pytest.mark.parametrize("way", ["replay", "routes", "metrics"])
async def test_caches_keep_the_answers_of_origins_apart(way: str, raw: RawClients) -> None:
    """Also those that no page may read."""
    for request in (WAYS[way], from_page(WAYS[way]), from_page(WAYS[way], FOREIGN)):
        assert ["Origin"] == values(await (await raw.connect(request)).head(), "Vary")


async def test_a_page_may_read_that_its_creation_is_rejected(
    server_url: str, connection: Connection
) -> None:
    """By load shedding, before its request is parsed: it has to learn for how long to wait."""
    async with full_service(server_url, connection, ALLOWED) as full:
        pages = (PAGE, FOREIGN)
        clients = [
            await full.raw.connect(from_page(creation(full.token, f"n{number}"), page))
            for number, page in enumerate(pages)
        ]
        heads = [await client.head() for client in clients]
        assert [["1"], ["1"]] == [values(head, "Retry-After") for head in heads]
        assert [[PAGE], []] == [values(head, "Access-Control-Allow-Origin") for head in heads]
        await full.release()


async def test_the_fast_path_says_the_same_as_the_routes(raw: RawClients) -> None:
    """Line by line; only the time of day may differ."""
    answers = []
    for more in ([], [b"Expect: 100-continue"]):
        request = with_lines(from_page(REPEAT), b"X-Request-Id: r-1", *more)
        head = await (await raw.connect(request)).head()
        answers.append([line for line in head.split(b"\r\n") if not line.startswith(b"Date: ")])
    assert answers[0] == answers[1]
    assert b"Access-Control-Allow-Origin: %b" % PAGE.encode() in answers[0]


@pytest.mark.parametrize("path", [b"/v1/groups", b"/v1/events", b"/nowhere"])
async def test_a_preflight_allows_what_the_contract_has(path: bytes, raw: RawClients) -> None:
    """On every path: a page is to read a 404 as well."""
    request = from_page(PREFLIGHT.replace(b"/v1/groups", path))
    head = await (await raw.connect(request)).head()
    assert head.startswith(b"HTTP/1.1 204 ")
    assert [PAGE] == values(head, "Access-Control-Allow-Origin")
    (fields,) = values(head, "Access-Control-Allow-Headers")
    wanted = {"Authorization", "Content-Type", "Idempotency-Key", "Idempotency-First-Sent"}
    wanted |= {"Last-Event-ID", "X-Request-Id", "traceparent"}
    assert wanted <= {*fields.split(", ")}
    assert ["DELETE, GET, HEAD, POST"] == values(head, "Access-Control-Allow-Methods")
    assert ["7200"] == values(head, "Access-Control-Max-Age")


@pytest.mark.parametrize(
    "request_bytes",
    [
        from_page(PREFLIGHT, FOREIGN),
        PREFLIGHT,
        from_page(from_page(PREFLIGHT, FOREIGN)),
        from_page(PREFLIGHT.replace(b"Request-Method", b"Request-Methods")),
    ],
    ids=["foreign", "no page", "two pages", "no preflight"],
)
async def test_what_is_no_preflight_of_an_allowed_page_is_a_method_like_others(
    request_bytes: bytes, raw: RawClients
) -> None:
    """It is not allowed here."""
    head = await (await raw.connect(request_bytes)).head()
    assert head.startswith(b"HTTP/1.1 405 ")
    assert [] == values(head, "Access-Control-Allow-Methods")


async def test_a_connection_stays_on_the_fast_path_behind_a_preflight(raw: RawClients) -> None:
    """A browser sends both on one; a repeat on the fast path is given no id."""
    client = await raw.connect(from_page(PREFLIGHT))
    await client.head()
    client.send(from_page(REPEAT))
    head = await client.head()
    assert ([PAGE], []) == (
        values(head, "Access-Control-Allow-Origin"),
        values(head, "X-Request-Id"),
    )


async def test_a_mounted_component_answers_pages_under_its_prefix(server_url: str) -> None:
    """The host's own answers are the host's business, also where its middleware answers for us."""

    @web.middleware
    async def turning_away(request: web.Request, handler: object) -> web.StreamResponse:
        if "away" in request.query:
            stream = web.StreamResponse(status=403, headers={"Vary": "Cookie"})
            await stream.prepare(request)
            return stream
        assert callable(handler)
        response: web.StreamResponse = await handler(request)
        return response

    app = web.Application(middlewares=[turning_away])
    tokens = TokenSettings(jwt_secret=SECRET)
    stretto.setup(app, "/apps/chat", dsn=server_url, tokens=tokens, streams=ALLOWED)
    async with (
        serving(app, host="127.0.0.1", port=0) as port,
        connected_api(f"http://127.0.0.1:{port}") as api,
    ):
        headers = {"Origin": PAGE}
        expected = {
            "/apps/chat/livez": (200, PAGE),
            "/apps/chat/nowhere": (404, PAGE),
            "/apps/chat/livez?away": (403, PAGE),
            "/nowhere": (404, None),
        }
        for path, (status, reader) in expected.items():
            reply = await api.get(path, headers=headers)
            allowed = reply.headers.get("Access-Control-Allow-Origin")
            assert (status, reader) == (reply.status, allowed)
        reply = await api.get("/apps/chat/livez?away", headers=headers)
        assert ["Cookie", "Origin"] == reply.headers.getall("Vary")
        preflight = {**headers, "Access-Control-Request-Method": "POST"}
        reply = await api.request("OPTIONS", "/apps/chat/v1/groups", headers=preflight)
        assert (204, PAGE) == (reply.status, reply.headers["Access-Control-Allow-Origin"])
