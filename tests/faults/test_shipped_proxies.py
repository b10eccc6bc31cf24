"""The sample files of `deploy/` in real haproxy and nginx; places and paces alone are a test's."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import signal
import socket
import ssl
import struct
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from yarl import URL

from stretto.codec import PROBLEM_CONTENT_TYPE, problem
from stretto.domain import event_id
from stretto.errors import DatabaseUnavailable, RateLimited
from stretto.events.settings import HubSettings
from support.api_client import TEAM, Api, api_for, connected_api, token_of
from support.chromium import chromium
from support.live_service import live_service
from support.ports import free_port
from support.proxies import listens, nginx_lines, running_sample
from support.service_process import apis
from support.topology import Member
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from playwright.async_api import Page

    from support.service_process import ServiceProcess, StartService

DEADLINE_SECONDS = 60
CREATORS = 4
# While creations go on, before and after the restart.
CREATED_MIN = 20
# Longer than three failed checks, which are 100 ms apart here.
DRAIN = {"DRAIN_SECONDS": "1"}
GOING_AWAY = 1001
# With its name, about as long as the service lets a line of a head be: 8 KiB.
TOKEN_CHARACTERS = 8000

PROXIES = ("haproxy", "nginx")
# Each field is as long as nginx lets it be, and together they are more than the service takes.
LARGE_HEAD = (
    b"GET /v1/groups HTTP/1.1\r\nHost: chat.example\r\nConnection: close\r\n"
    + b"X-More: %b\r\n" % (b"a" * 800)
    + b"".join(b"X-%d: %b\r\n" % (number, b"a" * 8170) for number in range(4))
    + b"\r\n"
)
# RFC 9113: a client's preface and its empty SETTINGS; a frame's head, its type, and a setting's name.
HTTP2_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HTTP2_HEAD_BYTES = 9
HTTP2_SETTINGS = 4
HTTP2_STREAMS_MAX = 3
# Of a connection to haproxy, by our sample.
STREAMS_MAX = 48
# haproxy draws one of two instances: all of these draws are the same once in a million runs.
TRIES = 21
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
# More than the connections of Debian's nginx.conf. Each begins a record of TLS, and sends no more of it.
HALVES = 800
HALF = b"\x16\x03\x01\x02\x00\x01"
TAIL = b"GET /v1/%b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST_HEAD = b"POST /v1/groups HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
# After which haproxy calls an instance down.
FAILED_CHECKS = 3
# Shorter than haproxy waits by itself for what it has sent.
HANG_DEADLINE_SECONDS = 30
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


# At two instances, by default.
SESSIONS_OF_USER = 2 * HubSettings().sessions_per_user
LIMIT_CONN = "limit_conn stretto_addresses 400;"
LARGE_BYTES = 3 * 2**20
# nginx reads no such body.
TOO_LARGE_BYTES = 2**19
CLIENT = base64.b64encode(
    (Path(__file__).parents[2] / "clients/js/stretto.js").read_bytes()
).decode()
# One at a time: those that ask at once may all be sent to one instance.
FOLLOW = """async ([module, token, count]) => {
    const {Stretto} = await import("data:text/javascript;base64," + module);
    window.client = new Stretto({token: () => token});
    for (let each = 0; each < count; each++) {
        const events = client.events();
        events[Symbol.asyncIterator]().next();
        await events.ready;
    }
}"""
CREATE = """async ([group, milliseconds]) => {
    const intention = await client.intend(group);
    const late = new Promise(then => setTimeout(then, milliseconds, "late"));
    return Promise.race([intention.send().then(() => "created"), late]);
}"""
FETCH = """async ([path, token, bytes]) => {
    const headers = {
        Authorization: "Bearer " + token, "Idempotency-Key": "k", "Content-Type": "application/json"};
    const creation = {method: "POST", headers, body: " ".repeat(bytes)};
    const protocol = new Promise(then => new PerformanceObserver(list => {
        then(list.getEntriesByName(location.origin + path)[0].nextHopProtocol);
    }).observe({type: "resource"}));
    const response = await fetch(path, bytes ? creation : {headers});
    const {code} = await response.json();
    return [await protocol, response.status, response.headers.get("Retry-After"), code];
}"""
SOCKET = """async token => {
    const socket = new WebSocket(
        location.origin.replace("http", "ws") + "/v1/events", ["stretto.v1", "stretto.token." + token]);
    return new Promise(then => {
        socket.onmessage = () => then("open");
        socket.onclose = event => then(event.code);
    });
}"""


@asynccontextmanager
async def behind(
    proxy: str, folder: Path, *urls: str, paces: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Api, ssl.SSLContext]]:
    """Open a client of the proxy, which encrypts; yields the certificate's context as well."""
    place = folder / proxy
    place.mkdir()
    async with running_sample(proxy, place, *urls, paces=paces) as url:
        tls = ssl.create_default_context(cafile=place / "server.crt")
        async with connected_api(url, tls) as api:
            yield api, tls


@asynccontextmanager
async def members_of(api: Api, tls: ssl.SSLContext) -> AsyncIterator[list[Member]]:
    """Have two sessions of each kind; one of each is at each replica, since those take turns."""
    members = [Member("bob", [api.url], sse=sse, tls=tls) for sse in (False, False, True, True)]
    staying = []
    try:
        for number, member in enumerate(members):
            staying.append(asyncio.create_task(member.stay(), name=f"member {number}"))
            await opened(member)
        yield members
    finally:
        for task in staying:
            task.cancel()
        await asyncio.gather(*staying, return_exceptions=True)


async def opened(member: Member) -> None:
    """Wait until a session has begun."""
    await until(lambda: member.position is not None)


@asynccontextmanager
async def creations(api: Api, proxy: str) -> AsyncIterator[dict[str, str]]:
    """Create groups, each once and without a retry; yields the ids of events, by the key."""
    created: dict[str, str] = {}
    left = asyncio.Event()

    async def create(creator: int) -> None:
        for turn in itertools.count():
            if left.is_set():
                return
            key = f"{proxy}-{creator}-{turn}"
            reply = await api.create(key)
            assert 201 == reply.status, (key, reply.body)
            created[key] = str(event_id(UUID(reply.json["conversation_id"])))

    async with asyncio.TaskGroup() as creators:
        for creator in range(CREATORS):
            creators.create_task(create(creator), name=f"creator {creator}")
        yield created
        left.set()


async def created_more(*created: dict[str, str]) -> None:
    """Wait for some creations that have not begun yet, of each proxy."""
    wanted = [len(each) + CREATED_MIN for each in created]
    await until(
        lambda: all(len(each) >= so_many for each, so_many in zip(created, wanted, strict=True))
    )


async def restarted(replica: ServiceProcess, start_service: StartService) -> ServiceProcess:
    """Stop a replica as an update does, and start another one on its port."""
    replica.signal(signal.SIGTERM)
    assert 0 == await replica.exited()
    return await start_service(PORT=str(URL(replica.url).port), **DRAIN)


async def served(replica: ServiceProcess) -> None:
    """Wait until a proxy sends creations to a replica."""
    async with apis(replica) as (api,):

        async def has_created() -> bool:
            return b'route="/v1/groups",status="201' in (await api.get("/metrics")).body

        await until(has_created)


async def test_a_restart_behind_the_shipped_proxies_fails_no_request(
    start_service: StartService, tmp_path: Path
) -> None:
    """Of clients that never retry; sessions of both kinds go on elsewhere, and miss nothing."""
    replicas = [await start_service(**DRAIN) for _ in range(2)]
    urls = [replica.url for replica in replicas]
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        behind("haproxy", tmp_path, *urls) as haproxy,
        behind("nginx", tmp_path, *urls) as nginx,
        members_of(*haproxy) as before_haproxy,
        members_of(*nginx) as before_nginx,
    ):
        async with (
            creations(haproxy[0], "haproxy") as first,
            creations(nginx[0], "nginx") as second,
        ):
            await created_more(first, second)
            again = await restarted(replicas[0], start_service)
            await served(again)
            await created_more(first, second)
        events = {*first.values(), *second.values()}
        members = (*before_haproxy, *before_nginx)
        await until(lambda: all(events <= {*member.heard} for member in members))
        # Of two sessions of a kind one was at the replica that went.
        for pair in (members[:2], members[2:4], members[4:6], members[6:]):
            assert [GOING_AWAY] == [code for member in pair for code in member.codes]


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_shipped_proxy_passes_the_contract_alone_and_logs_no_key(
    proxy: str, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """However the path of another page is written; a long token passes."""
    pages = ("/metrics", "/livez", "/readyz", "/docs", "/v1/../metrics", "/v1/%2e%2e/metrics")
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as service,
        behind(proxy, tmp_path, service.url, service.url) as (api, _),
    ):
        for page in (*pages, "//metrics", "/metrics/../v1/groups"):
            async with api.session.get(URL(api.url + page, encoded=True)) as response:
                assert 200 != response.status, page
                assert b"stretto_" not in await response.read()
        token = {"Authorization": f"Bearer {'x' * TOKEN_CHARACTERS}"}
        reply = await api.get("/v1/groups", user=None, headers=token)
        assert (401, "unauthenticated") == (reply.status, reply.json["code"])
        assert 201 == (await api.create("a-key-of-mine")).status
        own = await api.get(
            "/v1/attempts/a-key-of-mine", headers={"X-Request-Id": "a-request-of-mine"}
        )
        assert (200, "a-request-of-mine") == (own.status, own.headers["X-Request-Id"])
        made = (await api.get("/v1/attempts/a-key-of-mine")).headers["X-Request-Id"]
        said: list[str] = []

        def has_logged() -> bool:
            said.append(capfd.readouterr().err)
            return "a-request-of-mine" in logged() and made in logged()

        def logged() -> str:
            return "".join((*said, *(path.read_text() for path in tmp_path.rglob("*.log"))))

        # A proxy logs a request when it is done with it.
        await until(has_logged)
    assert "a-key-of-mine" not in logged()
    assert "Bearer" not in logged()


async def test_few_requests_share_a_connection_to_a_shipped_haproxy(tmp_path: Path) -> None:
    """It bounds the connections of an address, and an HTTP/2 connection counts as one."""
    url = f"http://127.0.0.1:{free_port()}"
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        behind("haproxy", tmp_path, url, url) as (api, tls),
    ):
        tls.set_alpn_protocols(["h2"])
        place = URL(api.url)
        reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
        writer.write(HTTP2_BEGIN)
        head = await reader.readexactly(HTTP2_HEAD_BYTES)
        assert HTTP2_SETTINGS == head[3]
        settings = await reader.readexactly(int.from_bytes(head[:3], "big"))
        assert (HTTP2_STREAMS_MAX, STREAMS_MAX) in struct.iter_unpack("!HI", settings)
        writer.close()


@asynccontextmanager
async def page_at(url: str) -> AsyncIterator[Page]:
    """Open a page of the proxy's origin in a browser: its 404 is one."""
    async with chromium() as browser:
        context = await browser.new_context(ignore_https_errors=True)
        page = await context.new_page()
        await page.goto(url)
        yield page


@asynccontextmanager
async def browser_with_sessions(
    proxy: str, folder: Path, database_url: str, sessions: int, paces: Mapping[str, str]
) -> AsyncIterator[Page]:
    """Open a page that has so many sessions, at two instances behind a proxy."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as one,
        live_service(database_url) as other,
        behind(proxy, folder, one.api.url, other.api.url, paces=paces) as (api, _),
        page_at(api.url) as page,
    ):
        await page.evaluate(FOLLOW, [CLIENT, token_of("alice"), sessions])
        assert sessions == len(one.hub) + len(other.hub)
        yield page


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_browser_with_all_sessions_of_its_user_creates_behind_a_shipped_proxy(
    proxy: str, database_url: str, tmp_path: Path
) -> None:
    """Its tabs share its connections."""
    async with browser_with_sessions(proxy, tmp_path, database_url, SESSIONS_OF_USER, {}) as page:
        assert "created" == await page.evaluate(CREATE, [TEAM, 20_000])


@pytest.mark.parametrize(
    ("proxy", "sessions", "paces"),
    [
        ("haproxy", 20, {"max-concurrent-streams 48": "max-concurrent-streams 20"}),
        ("nginx", 6, {"ssl http2;": "ssl;"}),
    ],
)
async def test_a_browser_whose_sessions_take_all_that_a_proxy_lets_it_have_sends_no_creation(
    proxy: str, sessions: int, paces: Mapping[str, str], database_url: str, tmp_path: Path
) -> None:
    """The twin: as with the numbers that the samples had."""
    async with browser_with_sessions(proxy, tmp_path, database_url, sessions, paces) as page:
        assert "late" == await page.evaluate(CREATE, [TEAM, 2000])


async def test_what_a_shipped_nginx_answers_over_http2_is_what_it_answers_over_http1(
    database_url: str, tmp_path: Path
) -> None:
    """A body that is too large, too many requests, no instance; a WebSocket has a connection of its own."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for place in (first, second, third):
        place.mkdir()
    few = {LIMIT_CONN: "limit_conn stretto_addresses 1;"}
    token = token_of("alice")
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        live_service(database_url) as live,
        behind("nginx", first, live.api.url, live.api.url) as (api, _),
        behind("nginx", second, live.api.url, live.api.url, paces=few) as (crowded, _),
        behind("nginx", third, nowhere, nowhere) as (away, _),
        page_at(api.url) as page,
    ):
        too_large = await page.evaluate(FETCH, ["/v1/groups", token, LARGE_BYTES])
        assert ["h2", 413, None, "body_too_large"] == too_large
        assert "open" == await page.evaluate(SOCKET, token)
        await page.goto(crowded.url)
        await page.evaluate(FOLLOW, [CLIENT, token, 1])
        refused = await page.evaluate(FETCH, ["/v1/groups", token, 0])
        assert ["h2", 429, "1", "rate_limited"] == refused
        await page.goto(away.url)
        unserved = await page.evaluate(FETCH, ["/v1/groups", token, 0])
        assert ["h2", 503, "1", "database_unavailable"] == unserved


async def answer_to(request: bytes, url: str, tls: ssl.SSLContext) -> bytes:
    """Send bytes as they are; return all that comes until the proxy closes."""
    place = URL(url)
    reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_large_head_behind_a_shipped_proxy_costs_no_other_client_its_answer(
    proxy: str, start_service: StartService, tmp_path: Path
) -> None:
    """It is refused by haproxy itself; of nginx's upstream, no instance counts as failed."""
    replicas = [await start_service() for _ in range(2)]
    urls = [replica.url for replica in replicas]
    async with asyncio.timeout(DEADLINE_SECONDS), behind(proxy, tmp_path, *urls) as (api, tls):
        status = (await answer_to(LARGE_HEAD, api.url, tls)).split(b" ", 2)[1]
        assert {"haproxy": b"400", "nginx": b"431"}[proxy] == status
        for number in range(4):
            assert 201 == (await api.create(f"k{number}")).status


@pytest.mark.parametrize("proxy", PROXIES)
async def test_while_no_instance_answers_a_shipped_proxy_says_so_as_the_service_would(
    proxy: str, tmp_path: Path
) -> None:
    """In the form of every error, with the same advice; whatever the path looks like."""
    url = f"http://127.0.0.1:{free_port()}"
    expected = problem(DatabaseUnavailable())
    async with asyncio.timeout(DEADLINE_SECONDS), behind(proxy, tmp_path, url, url) as (api, _):
        replies = [await api.create("k"), await api.get("/v1/attempts/k.html")]
        if proxy == "nginx":
            replies.append(await api.create("k", {"name": "x" * TOO_LARGE_BYTES}))
        for reply in replies:
            assert (503, "1") == (reply.status, reply.headers["Retry-After"])
            assert PROBLEM_CONTENT_TYPE == reply.headers["Content-Type"]
            assert expected == {**reply.json, "detail": expected["detail"]}
            assert reply.json["detail"] != expected["detail"]


async def test_an_address_with_too_many_requests_is_told_so_by_a_shipped_nginx(
    tmp_path: Path,
) -> None:
    """In the form of every error: as while an instance hangs, whose requests wait."""
    few = {LIMIT_CONN: "limit_conn stretto_addresses 1;"}
    expected = problem(RateLimited())
    instance = Instance()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        instance.running() as url,
        behind("nginx", tmp_path, url, url, paces=few) as (api, tls),
    ):
        _, writer = await asking(b"held", api.url, tls)
        await until(lambda: bool(instance.held))
        reply = await api.get("/v1/attempts/k.html")
        assert (429, "1") == (reply.status, reply.headers["Retry-After"])
        assert PROBLEM_CONTENT_TYPE == reply.headers["Content-Type"]
        assert expected == {**reply.json, "detail": expected["detail"]}
        writer.close()


@pytest.mark.parametrize(
    ("network", "others"),
    [
        (
            "2001:db8:1:2::1 2001:db8:1:2:3:4:5:6 2001:db8:1:2:ffff::",
            "2001:db8:1:3::1 2001:db8:1::1",
        ),
        ("2001:db8:1::1 2001:db8:1::2:3:4 2001:db8:1::", "2001:db8:2::1 2001:db8::1"),
        ("2001:db8::1 2001:db8::4:3:2:1", "2001:db8:0:1::1 2001:db9::1"),
        ("2001:db8:1::1 2001:db8:1:0:5:6:7:1", "2001:db8:1:5::1 2001:db8::1"),
        ("fd00::7:a:b:c:1 fd00:0:0:7::1", "fd00::1 fd00::6:a:b:c:1"),
        # By NAT64, each address is a client of IPv4.
        ("64:ff9b::c000:201", "64:ff9b::c000:202 64:ff9b::202 64:ff9b:1::1"),
        ("64:ff9b::1:c000:201 64:ff9b::1:2:c000:201", "64:ff9b::c000:201 64:ff9b:0:1::1"),
        ("192.0.2.1 192.0.2.1", "192.0.2.2 ::ffff:192.0.2.2 2001:db8::1"),
        ("::ffff:192.0.2.1 ::ffff:192.0.2.1", "::ffff:192.0.2.2 ::1"),
    ],
)
async def test_a_shipped_nginx_counts_a_network_of_ipv6_as_one(
    network: str, others: str, tmp_path: Path
) -> None:
    """A /64: one client has all of its addresses. Each of IPv4 counts by itself."""
    async with counting_nginx(tmp_path) as counted_as:
        own = [await counted_as(address) for address in network.split()]
        apart = [await counted_as(address) for address in others.split()]
        assert 1 == len({*own})
        assert own[0] not in apart


async def test_wherever_zeros_stand_a_shipped_nginx_tells_networks_apart(tmp_path: Path) -> None:
    """With `::` in each place, and behind it the same groups as elsewhere."""
    networks: dict[bytes, set[tuple[str, ...]]] = {}
    async with counting_nginx(tmp_path) as counted_as:
        for rest in itertools.product("012", repeat=3):
            network = ("fd00", *rest)
            counted = {
                await counted_as(":".join((*network, *interface)))
                for interface in itertools.product("01", repeat=4)
            }
            assert 1 == len(counted), network
            networks.setdefault(counted.pop(), set()).add(network)
    assert 3**3 == len(networks)


@asynccontextmanager
async def counting_nginx(tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[bytes]]]:
    """Run the shipped nginx; yields what says as what it counts an address."""
    asked = """client_header_timeout 10s;
        set_real_ip_from 127.0.0.1;
        real_ip_header X-Client;
        location = /v1/network { return 200 $stretto_network; }"""
    paces = {"client_header_timeout 10s;": asked}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Instance().running() as url,
        behind("nginx", tmp_path, url, url, paces=paces) as (api, _),
    ):

        async def counted_as(address: str) -> bytes:
            return (await api.get("/v1/network", headers={"X-Client": address})).body

        yield counted_as


@pytest.mark.parametrize("is_of_both_kinds", [False, True])
async def test_a_shipped_haproxy_counts_a_network_as_one(
    is_of_both_kinds: bool, tmp_path: Path
) -> None:
    """Its mask is tried with a /24. An address of IPv4 that is written as one of IPv6 counts by itself."""
    paces = {"sc0_conn_cur gt 100": "sc0_conn_cur gt 1", "ipmask(32,64)": "ipmask(24,64)"}
    if not is_of_both_kinds:
        # The first rule takes addresses of IPv4 in either form.
        paces["{ src ::ffff:0:0/96 64:ff9b::/96 }"] = "{ always_false }"
    else:
        port = free_port()
        both = tmp_path / "haproxy/both.pem"
        paces["alpn h2,http/1.1"] = f"alpn h2,http/1.1\n    bind :::{port} v4v6 ssl crt {both}"
    instance = Instance()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        instance.running() as url,
        behind("haproxy", tmp_path, url, url, paces=paces) as (api, tls),
    ):
        place = URL(api.url).with_port(port) if is_of_both_kinds else URL(api.url)
        await until(lambda: listens(str(place.host), int(place.port or 0)))

        async def connects_from(address: str) -> bool:
            try:
                _, writer = await asyncio.open_connection(
                    place.host, place.port, ssl=tls, local_addr=(address, 0)
                )
            except (OSError, ssl.SSLError):
                return False
            writers.append(writer)
            return True

        writers: list[asyncio.StreamWriter] = []
        assert await connects_from("127.0.1.1")
        assert is_of_both_kinds == await connects_from("127.0.1.2")
        assert not await connects_from("127.0.1.1")
        assert await connects_from("127.0.2.1")
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(
    ("proxy", "paces", "status"),
    [
        ("haproxy", {"sc0_http_req_rate gt 10000": "sc0_http_req_rate gt 3"}, 503),
        ("nginx", {"rate=1000r/s": "rate=1r/m", "burst=2000 nodelay": "burst=2 nodelay"}, 429),
    ],
)
async def test_requests_that_come_too_fast_from_an_address_end_at_a_shipped_proxy(
    proxy: str, paces: Mapping[str, str], status: int, tmp_path: Path
) -> None:
    """As those that a client resets at once: no instance gets them. Other addresses are served."""
    instance = Instance()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        instance.running() as url,
        behind(proxy, tmp_path, url, url, paces=paces) as (api, tls),
    ):
        replies = [await api.get("/v1/groups") for _ in range(5)]
        assert [200] * 3 + [status] * 2 == [reply.status for reply in replies]
        assert ("1", PROBLEM_CONTENT_TYPE) == (
            replies[-1].headers["Retry-After"],
            replies[-1].headers["Content-Type"],
        )
        assert 3 == instance.requests
        place = URL(api.url)
        reader, writer = await asyncio.open_connection(
            place.host, place.port, ssl=tls, local_addr=("127.0.2.1", 0)
        )
        writer.write(b"GET /v1/groups HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_connections_that_come_too_fast_from_an_address_are_refused_by_a_shipped_haproxy(
    tmp_path: Path,
) -> None:
    """Also where each has ended before the next: a handshake costs the proxy more than the client."""
    paces = {"sc0_conn_rate gt 2000": "sc0_conn_rate gt 2"}
    instance = Instance()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        instance.running() as url,
        behind("haproxy", tmp_path, url, url, paces=paces) as (api, tls),
    ):
        place = URL(api.url)

        async def connects() -> bool:
            try:
                _, writer = await asyncio.open_connection(
                    place.host, place.port, ssl=tls, local_addr=("127.0.2.1", 0)
                )
            except (OSError, ssl.SSLError):
                return False
            writer.close()
            return True

        assert [True, True, False] == [await connects() for _ in range(3)]


@pytest.mark.parametrize(
    ("address", "other", "are_apart"),
    [
        ("64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2", True),
        ("64:ff9b::1:192.0.2.1", "64:ff9b::1:192.0.2.2", False),
    ],
)
async def test_a_shipped_haproxy_counts_each_address_of_nat64(
    address: str, other: str, are_apart: bool, tmp_path: Path
) -> None:
    """They are clients of IPv4, which have no network of their own; other addresses there have one."""
    port = free_port()
    paces = {
        # A header says the address; it is read later than a connection is taken.
        "connection track-sc0 src if": "session track-sc0 src if",
        "connection track-sc0 src,": "session track-sc0 src,",
        "connection reject if { sc0_conn_cur gt 100 }": "session reject if { sc0_conn_cur gt 1 }",
        "alpn h2,http/1.1": f"alpn h2,http/1.1\n    bind 127.0.0.1:{port} accept-proxy",
    }
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Instance().running() as url,
        behind("haproxy", tmp_path, url, url, paces=paces),
    ):
        await until(lambda: listens("127.0.0.1", port))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        second_reader, second_writer = await asyncio.open_connection("127.0.0.1", port)

        async def is_answered(reader: asyncio.StreamReader) -> bool:
            try:
                return bool(await reader.readline())
            except ConnectionResetError:
                return False

        head = b"PROXY TCP6 %b ::1 1 443\r\nGET /else HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(head % address.encode())
        assert await is_answered(reader)
        second_writer.write(head % other.encode())
        assert are_apart == await is_answered(second_reader)
        writer.close()
        second_writer.close()


@asynccontextmanager
async def dropping_service() -> AsyncIterator[str]:
    """Run what closes without an answer if it is asked to; yields its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/v1/drop" not in head:
            writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_shipped_proxy_takes_no_instance_out_for_one_request(
    proxy: str, tmp_path: Path
) -> None:
    """Which both of them have closed without an answer."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        dropping_service() as one,
        dropping_service() as other,
        behind(proxy, tmp_path, one, other) as (api, tls),
    ):
        head = b"GET /v1/%b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        await until(_answers(head % b"ready", api.url, tls))
        dropped = await answer_to(head % b"drop", api.url, tls)
        assert {"haproxy": b"502", "nginx": b"503"}[proxy] == dropped.split(b" ", 2)[1]
        assert b'"code": "database_unavailable"' in dropped
        for _ in range(4):
            answer = await answer_to(head % b"other", api.url, tls)
            assert b"200" == answer.split(b" ", 2)[1]


class Instance:
    """Answers as an instance does, at once; once it is sick, it refuses all but its health check.

    Requests for `/v1/held` wait until their answers are written to `held`.
    """

    def __init__(self) -> None:
        self.is_sick = self.is_unready = self.hangs = False
        self.requests = self.checks = 0
        self.sessions: list[asyncio.StreamWriter] = []
        self.held: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve; yields the URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            yield f"http://{host}:{port}"
            for each in (*self.sessions, *self.held):
                each.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.checks += b"/readyz" in head
        if self.hangs or b"/v1/held" in head:
            self.held.append(writer)
            return
        if b"/v1/events" in head:
            self.sessions.append(writer)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:\n\n")
            return
        if b"/readyz" in head:
            writer.write(REFUSAL if self.is_unready else ANSWER)
        else:
            self.requests += 1
            writer.write(REFUSAL if self.is_sick else ANSWER)
        writer.close()


@pytest.mark.parametrize("proxy", PROXIES)
async def test_an_instance_that_fails_at_once_does_not_get_every_request(
    proxy: str, tmp_path: Path
) -> None:
    """It has fewer connections than one with sessions. And what it refuses goes to the other one."""
    instances = sick, well = Instance(), Instance()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        sick.running() as one,
        well.running() as other,
        behind(proxy, tmp_path, one, other) as (api, tls),
    ):
        head = b"GET /v1/%b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        await until(_answers(head % b"ready", api.url, tls))
        sessions = [await asking(b"events", api.url, tls) for _ in range(4)]
        for reader, _ in sessions:
            await reader.readuntil(b":\n\n")
        assert [2, 2] == [len(each.sessions) for each in instances]
        # It restarts, and its sessions go to the other one.
        sick.is_sick = True
        for session in sick.sessions:
            session.close()
        before = sick.requests
        for _ in range(TRIES):
            answer = await answer_to(head % b"groups", api.url, tls)
            assert b"200" == answer.split(b" ", 2)[1]
        assert 0 < sick.requests - before < TRIES
        for _, writer in sessions:
            writer.close()


async def asking(
    name: bytes, url: str, tls: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection of its own, and return that."""
    place = URL(url)
    reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
    writer.write(b"GET /v1/%b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % name)
    return reader, writer


@asynccontextmanager
async def one_of_two_at_work(
    folder: Path,
) -> AsyncIterator[tuple[Instance, Instance, list[asyncio.StreamReader], Api, ssl.SSLContext]]:
    """Run two instances behind haproxy; yields one that has a request, the other, and clients.

    These have asked for a session at the first instance, and at the second one, and for that request.
    """
    instances = Instance(), Instance()
    checked_soon = {"timeout check 10s": "timeout check 1s"}
    async with (
        asyncio.timeout(HANG_DEADLINE_SECONDS),
        instances[0].running() as one,
        instances[1].running() as other,
        behind("haproxy", folder, one, other, paces=checked_soon) as (api, tls),
    ):
        connections = []
        for name in (b"events", b"events", b"held"):
            connections.append(await asking(name, api.url, tls))
            if name == b"events":
                await connections[-1][0].readuntil(b":\n\n")
        await until(lambda: bool(instances[0].held or instances[1].held))
        busy, free = instances if instances[0].held else instances[::-1]
        readers = [reader for reader, _ in connections]
        if busy is instances[1]:
            readers[:2] = readers[1::-1]
        yield busy, free, readers, api, tls
        for _, writer in connections:
            writer.close()


async def test_what_a_hung_instance_has_goes_to_the_other_one_behind_a_shipped_haproxy(
    tmp_path: Path,
) -> None:
    """Requests at once, sessions by their clients; its own time-outs are 35 s and 60 s."""
    async with one_of_two_at_work(tmp_path) as (busy, free, clients, api, tls):
        busy.hangs = True
        session, other_session, request = clients
        await until(lambda: bool(free.held))
        free.held[0].write(ANSWER)
        free.held[0].close()
        assert b" 200 " in await request.read()
        assert b"" == await session.read()
        for _ in range(TRIES):
            assert b" 200 " in await answer_to(TAIL % b"groups", api.url, tls)
        free.sessions[0].write(b":\n\n")
        assert b":\n\n" == await other_session.readexactly(3)


async def test_an_instance_that_is_not_ready_keeps_what_it_has_behind_a_shipped_haproxy(
    tmp_path: Path,
) -> None:
    """It drains, or its database is away; it gets nothing more until it is ready again."""
    async with one_of_two_at_work(tmp_path) as (busy, _, clients, api, tls):
        busy.is_unready = True
        before = busy.checks
        # More than would make it count as down.
        await until(lambda: busy.checks > before + 2 * FAILED_CHECKS)
        asked = busy.requests
        for _ in range(TRIES):
            assert b" 200 " in await answer_to(TAIL % b"groups", api.url, tls)
        assert asked == busy.requests
        busy.sessions[0].write(b":\n\n")
        assert b":\n\n" == await clients[0].readexactly(3)
        busy.held[0].write(ANSWER)
        busy.held[0].close()
        assert b" 200 " in await clients[2].read()
        busy.is_unready = False

        async def is_asked() -> bool:
            await answer_to(TAIL % b"groups", api.url, tls)
            return busy.requests > asked

        await until(is_asked)


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_body_that_comes_behind_its_head_is_tried_at_the_other_instance_too(
    proxy: str, tmp_path: Path
) -> None:
    """As browsers and most libraries send it, of which a proxy may read the head first."""
    sick = Instance()
    sick.is_sick = True
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        sick.running() as one,
        Instance().running() as other,
        behind(proxy, tmp_path, one, other) as (api, tls),
    ):
        await until(_answers(TAIL % b"ready", api.url, tls))
        place = URL(api.url)
        before = sick.requests
        for _ in range(TRIES):
            reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
            writer.write(POST_HEAD)
            # Time for the proxy to send the head on.
            await answer_to(TAIL % b"groups", api.url, tls)
            writer.write(b"{}")
            assert b" 200 " in await reader.read()
            writer.close()
        assert sick.requests > before


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_client_that_has_closed_its_half_is_answered_behind_a_shipped_haproxy(
    is_at_once: bool, tmp_path: Path
) -> None:
    """It has sent all that it wants. A session would end."""
    instance = Instance()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        instance.running() as one,
        behind("haproxy", tmp_path, one, one) as (api, tls),
    ):
        await until(_answers(TAIL % b"ready", api.url, tls))
        reader, writer = await asking(b"held", api.url, tls)
        connection = writer.get_extra_info("socket")
        if not is_at_once:
            await until(lambda: bool(instance.held))
        connection.shutdown(socket.SHUT_WR)
        await until(lambda: bool(instance.held))
        # Time for haproxy to notice.
        for _ in range(TRIES):
            await answer_to(TAIL % b"groups", api.url, tls)
        instance.held[0].write(ANSWER)
        instance.held[0].close()
        assert b" 200 " in await reader.read()
        writer.close()


def _answers(request: bytes, url: str, tls: ssl.SSLContext) -> Callable[[], Awaitable[bool]]:
    async def has_answered() -> bool:
        return b" 200 " in await answer_to(request, url, tls)

    return has_answered


async def test_clients_that_send_no_whole_head_shut_nobody_out_of_a_shipped_nginx(
    tmp_path: Path,
) -> None:
    """They are closed after a while, with the lines for nginx.conf; an idle connection is not."""
    pace = {"client_header_timeout 10s;": "client_header_timeout 2s;"}
    request = b"GET /v1/groups HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Instance().running() as one,
        Instance().running() as other,
        behind("nginx", tmp_path, one, other, paces=pace) as (api, tls),
    ):
        place = URL(api.url)
        reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
        writer.write(request)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        halves = []
        for _ in range(HALVES):
            half = await asyncio.open_connection(place.host, place.port)
            half[1].write(HALF)
            halves.append(half)
        last = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert b" 200 " in await answer_to(last, api.url, tls)
        for half_reader, half_writer in halves:
            assert b"" == await half_reader.read()
            half_writer.close()
        writer.write(request)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()
    files, connections = (int(re.sub(r"\D", "", line)) for line in nginx_lines())
    assert connections < files


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_shipped_proxy_passes_what_the_service_takes(
    proxy: str, database_url: str, tmp_path: Path
) -> None:
    """A key with dots and slashes, a request without Host, and one in absolute form."""
    key = "../../metrics"
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as service,
        behind(proxy, tmp_path, service.url, service.url) as (api, tls),
    ):
        assert 201 == (await api.create(key)).status
        url = URL(f"{api.url}/v1/attempts/{key.replace('/', '%2F')}", encoded=True)
        token = f"Bearer {token_of('alice')}"
        async with api.session.get(url, headers={"Authorization": token}) as response:
            assert 200 == response.status
        for target, host in (("/v1/groups", ""), ("http://x/v1/groups", "Host: x\r\n")):
            version = "1.1\r\nConnection: close" if host else "1.0"
            request = f"GET {target} HTTP/{version}\r\n{host}Authorization: {token}\r\n\r\n"
            answer = await answer_to(request.encode(), api.url, tls)
            assert b"200" == answer.split(b" ", 2)[1], answer
        closed = "GET http://x/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert b" 404 " in await answer_to(closed.encode(), api.url, tls)
