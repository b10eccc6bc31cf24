"""StrettoClient against a real service behind a proxy that fails by its script."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from stretto import ClientError, GroupRejected, StrettoClient, group_id
from stretto.client import calls, intentions
from stretto.client.calls import BACKOFF_SECONDS_MAX
from stretto.client.replies import BACKOFF_SECONDS_FIRST
from stretto.domain import UserId
from stretto.errors import (
    AttemptPending,
    DatabaseUnavailable,
    HookFailed,
    InternalError,
    Overloaded,
    RateLimited,
    Retry,
)
from stretto.http.front.serving import serving
from stretto.http.problems import problem_response
from support.api_client import api_for, token_of
from support.call_time import CallTime
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from stretto.domain import CreatedGroup, NewGroup

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Step = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]

TRIES_MAX = 10
# Nothing in these tests takes as long: a test that waits for it has met a bug.
LONG_SECONDS = 60.0


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Retry at once, and so often; returns the pauses that were due."""
    due: list[float] = []
    sleep, call_time = asyncio.sleep, CallTime(monkeypatch)

    async def at_once(seconds: float) -> None:
        due.append(seconds)
        if len(due) >= TRIES_MAX:
            await call_time.end()
        await sleep(0)

    monkeypatch.setattr(calls, "sleep", at_once)
    return due


@dataclass
class Proxy:
    """Takes one step of its script for each request; hands over to the service afterwards."""

    url: str = ""
    script: list[Step] = field(default_factory=list)
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    first_sent: list[str | None] = field(default_factory=list)
    """What each request has said of that."""


async def refuse_to_create(_: object, created: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
    """Veto the groups that are called so."""
    if any(new_group.name == "Veto" for _, new_group in created):
        raise GroupRejected("vetoed", "Not this one.")


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    """A proxy before the service."""
    proxy = Proxy()

    async def hand_over(request: web.Request) -> web.StreamResponse:
        reply = await service.request(
            "POST", "/v1/groups", headers=request.headers, data=await request.read()
        )
        return web.Response(status=reply.status, body=reply.body, headers=reply.headers)

    async def play(request: web.Request) -> web.StreamResponse:
        proxy.seen.append((request.headers["Idempotency-Key"], await request.read()))
        proxy.first_sent.append(request.headers.get("Idempotency-First-Sent"))
        if proxy.script:
            return await proxy.script.pop(0)(request, hand_over)
        return await hand_over(request)

    app = web.Application()
    app.router.add_post("/chat/v1/groups", play)
    async with (
        api_for(database_url, on_create=refuse_to_create) as service,
        serving(app, host="127.0.0.1", port=0) as port,
    ):
        proxy.url = f"http://127.0.0.1:{port}/chat/"
        yield proxy


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[StrettoClient]:
    """Open a client of the user alice."""
    # As strict as a caller's may be: answers are judged by the client alone.
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        yield StrettoClient(session, url, token_of("alice"))


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[StrettoClient]:
    """A client that only knows the proxy."""
    async with client_of(proxy.url) as client:
        yield client


def answering(status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> Step:
    """Return a step that answers in the service's place."""

    async def answer(*_: object) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return answer


def answering_with(error: Any) -> Step:
    """Return a step that answers as the service does for this error."""

    async def answer(*_: object) -> web.StreamResponse:
        return problem_response(error)

    return answer


async def cut(request: web.Request, _: Handler) -> web.StreamResponse:
    """Cut the connection before the service hears of the request."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def lose_the_answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the service do its work, then cut the connection."""
    await handler(request)
    return await cut(request, handler)


async def hang(*_: object) -> web.StreamResponse:
    """Never answer."""
    return await asyncio.Future()


HTML = b"<html><h1>502 Bad Gateway</h1></html>"
AGAIN: dict[str, Step] = {
    "409": answering_with(AttemptPending(retry_after_seconds=1)),
    "429": answering_with(RateLimited(retry_after_seconds=1)),
    "500": answering_with(InternalError()),
    "503": answering_with(Overloaded(retry_after_seconds=1)),
    "503 of the database": answering_with(DatabaseUnavailable(retry_after_seconds=1)),
    "503 of a host's hook": answering_with(HookFailed(retry_after_seconds=1)),
    "connection cut": cut,
    "a proxy's HTML 502": answering(502, HTML),
    "a proxy's JSON 504": answering(504, b'{"message": "time-out"}'),
    "a proxy's JSON list": answering(503, b"[]"),
    "a proxy's own 429": answering(429, b"slow down", {"Retry-After": "Wed, 21 Oct 2015"}),
    "an unknown advice": answering(503, b'{"code": "x", "retry": "tomorrow"}'),
    "a code of no type": answering(503, b'{"code": [], "retry": []}'),
    "a proxy's JSON with a code": answering(409, b'{"code": "conflict", "retry": "never"}'),
    "201 without a body": answering(201),
    "201 with another body": answering(201, b'{"group_id": 1}'),
    "201 cut short": answering(201, b'{"group_id": "2d8de0a2'),
}


@pytest.mark.parametrize("step", AGAIN.values(), ids=AGAIN.keys())
async def test_what_may_pass_is_tried_again_with_the_same_key_and_body(
    step: Step, proxy: Proxy, client: StrettoClient
) -> None:
    """Until the service has answered; the caller sees one call with one answer."""
    proxy.script = [step, step]
    answer = await client.create_group("Team", ["bob"], key="k")
    assert (group_id("alice", "k"), False) == (answer.group.group_id, answer.is_replay)
    assert len(proxy.seen) == 3
    assert len(set(proxy.seen)) == 1
    assert proxy.seen[0][0] == "k"


async def test_a_lost_answer_is_asked_for_again_and_is_a_replay(
    proxy: Proxy, client: StrettoClient
) -> None:
    """The group was created by the first try: there is no second one."""
    proxy.script = [lose_the_answer]
    answer = await client.create_group("Team")
    assert answer.is_replay
    key, _ = proxy.seen[0]
    assert group_id("alice", key) == answer.group.group_id
    assert [key, key] == [seen for seen, _ in proxy.seen]


async def test_every_try_says_when_the_first_one_was_sent(
    proxy: Proxy, client: StrettoClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a key of ours, the time of the call; of the caller's own, what the caller knows of it."""
    seconds = int(time.time())
    clock = SimpleNamespace(time=itertools.count(seconds).__next__)
    monkeypatch.setattr(intentions, "time", clock)
    proxy.script = [cut, cut]
    await client.create_group("Team")
    await client.create_group("Team", key="k")
    await client.create_group("Team", key="l", first_sent=seconds - 60)
    await client.create_group("Team", first_sent=seconds - 61.0)
    assert [f"@{seconds}"] * 3 == proxy.first_sent[:3]
    assert [None, f"@{seconds - 60}", f"@{seconds - 61}"] == proxy.first_sent[3:]


async def test_a_call_that_comes_too_late_creates_nothing(
    proxy: Proxy, client: StrettoClient
) -> None:
    """It is not tried again; the caller learns that the wish is too old."""
    with pytest.raises(ClientError) as refusal:
        await client.create_group("Team", key="k", first_sent=1)
    code, retry = refusal.value.code, refusal.value.retry
    assert ("first_sent_out_of_range", Retry.NEW_KEY) == (code, retry)
    assert 1 == len(proxy.seen)


async def test_calls_without_a_key_are_different_wishes(
    proxy: Proxy, client: StrettoClient
) -> None:
    """Each has a new key, and makes a group of its own."""
    answers = [await client.create_group("Team") for _ in range(2)]
    assert [False, False] == [answer.is_replay for answer in answers]
    assert len({answer.group for answer in answers}) == 2
    assert len({key for key, _ in proxy.seen}) == 2


async def test_a_second_call_with_the_key_is_a_replay(client: StrettoClient) -> None:
    """The same group, and marked."""
    first, second = [await client.create_group("Team", key="k") for _ in range(2)]
    assert first.group == second.group
    assert (False, True) == (first.is_replay, second.is_replay)


@pytest.mark.parametrize("members", ["bob", UserId("bob"), b"bob", {"bob": "member"}])
async def test_members_that_are_one_text_are_refused(members: Any, proxy: Proxy) -> None:
    """Each character would be a member; nothing is sent. The twin is a list, or any other series."""
    async with aiohttp.ClientSession() as session:
        client = StrettoClient(session, proxy.url, token_of("alice"))
        with pytest.raises(TypeError, match=r"must be a list of user ids, such as \['bob'\], not"):
            await client.create_group("Team", members)
        assert [] == proxy.seen
        answers = [
            await client.create_group("Team", members, key="k")  # type: ignore[arg-type]
            for members in (["bob"], ("bob",), {"bob"}, iter(["bob"]))
        ]
    assert [False, True, True, True] == [answer.is_replay for answer in answers]


async def test_a_group_has_what_the_caller_chooses(proxy: Proxy, client: StrettoClient) -> None:
    """And sends what it sent before there was a choice, where there is none."""
    members: list[str | dict[str, str]] = ["bob", {"user_id": "carol", "role": "admin"}]
    chosen: dict[str, Any] = {"kind": "project", "metadata": {"b": 0.5, "a": [1, None]}}
    assert not (await client.create_group("Team", members, key="k", **chosen)).is_replay
    assert (await client.create_group("Team", members, key="k", **chosen)).is_replay
    with pytest.raises(ClientError, match="key_reused"):
        await client.create_group("Team", members, key="k", kind="project")
    with pytest.raises(ValueError, match="metadata/a: must be a number"):
        await client.create_group("Team", metadata={"a": float("nan")})
    await client.create_group("Team", ["bob"])
    bodies = [orjson.loads(body) for _, body in proxy.seen]
    assert {"name": "Team", "description": None, "members": members, **chosen} == bodies[0]
    assert {"name", "description", "members"} == bodies[-1].keys()


async def test_an_empty_key_is_refused_and_not_replaced(
    proxy: Proxy, client: StrettoClient
) -> None:
    """A key that got lost on the way must not turn into a new wish."""
    with pytest.raises(ClientError) as refusal:
        await client.create_group("Team", key="")
    assert ("key_invalid", Retry.NEVER) == (refusal.value.code, refusal.value.retry)
    assert proxy.seen == []


@pytest.mark.parametrize("key", ['"6f1c2e90"', '"', '"\\"', '\\"'])
async def test_a_key_with_quotes_is_sent_as_it_is(client: StrettoClient, key: str) -> None:
    """The service takes the quotes off a quoted key, and the component does not."""
    answer = await client.create_group("Team", key=key)
    assert answer.group.group_id == group_id("alice", key)


@pytest.mark.parametrize(
    ("name", "code", "retry"),
    [
        ("Another team", "key_reused", Retry.NEW_KEY),
        ("", "request_invalid", Retry.NEVER),
    ],
)
async def test_a_refusal_ends_the_call(
    name: str, code: str, retry: Retry, proxy: Proxy, client: StrettoClient
) -> None:
    """422 and 400 are not tried again; code and advice are reported."""
    await client.create_group("Team", key="k")
    with pytest.raises(ClientError, match=code) as refusal:
        await client.create_group(name, key="k")
    assert (code, retry, None) == (
        refusal.value.code,
        refusal.value.retry,
        refusal.value.failure,
    )
    assert len(proxy.seen) == 2


async def test_an_attempt_that_failed_for_good_says_why(
    proxy: Proxy, client: StrettoClient
) -> None:
    """410 is not tried again; the host's own reason comes through."""
    with pytest.raises(ClientError) as refusal:
        await client.create_group("Veto")
    assert ("attempt_failed", Retry.NEW_KEY) == (refusal.value.code, refusal.value.retry)
    assert refusal.value.failure is not None
    assert ("vetoed", "Not this one.") == (
        refusal.value.failure.code,
        refusal.value.failure.detail,
    )
    assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    "step",
    [
        answering(200, b"{}"),
        answering(302, headers={"Location": "/elsewhere"}),
        answering(403, HTML),
        answering(404, b'{"message": "no such route"}'),
        answering(413, HTML),
        answering(403, b'{"code": 5, "retry": "never"}'),
        answering(422, b'{"type": "about:blank", "code": "blocked", "retry": "new-key"}'),
    ],
)
async def test_what_is_no_stretto_is_reported_at_once(
    step: Step, proxy: Proxy, client: StrettoClient
) -> None:
    """A wrong address is not tried for a minute, and a redirected POST is not sent as a GET.

    It settles nothing: after an answer that was lost there may be a group.
    """
    proxy.script = [step]
    with pytest.raises(ClientError, match="not an answer of a stretto service") as refusal:
        await client.create_group("Team")
    assert Retry.SAME_KEY is refusal.value.retry
    assert len(proxy.seen) == 1


@pytest.mark.parametrize("url", ["chat.example", "127.0.0.1:8080", "chat:8080", "ftp://chat"])
async def test_an_address_that_is_none_is_reported_at_once(url: str) -> None:
    """It is the program's error, which no time heals."""
    with pytest.raises(aiohttp.InvalidURL, match="must begin with http:// or https://"):
        async with client_of(url):
            pass


async def test_a_path_without_a_host_is_reported_at_once() -> None:
    """It is relative to the session's own address, and this session has none."""
    async with client_of("") as client:
        with pytest.raises(aiohttp.InvalidURL):
            await client.create_group("Team")


async def test_what_never_settles_ends_in_a_timeout_with_its_reason(
    proxy: Proxy, client: StrettoClient
) -> None:
    """The outcome is unknown, and the last failure is reported."""
    proxy.script = [answering_with(AttemptPending())] * TRIES_MAX
    with pytest.raises(TimeoutError, match=r"attempt_pending.*may still succeed"):
        await client.create_group("Team")
    assert len(proxy.seen) == TRIES_MAX
    assert len(set(proxy.seen)) == 1


async def test_the_time_bounds_a_service_that_is_silent(
    proxy: Proxy, client: StrettoClient
) -> None:
    """A request under way is given up, too."""
    proxy.script = [hang]
    async with asyncio.timeout(LONG_SECONDS):
        with pytest.raises(TimeoutError, match=r"within 0\.05 s \(no answer\)"):
            await client.create_group("Team", timeout_seconds=0.05)


async def test_a_silent_try_is_followed_by_another(
    proxy: Proxy, client: StrettoClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One dead connection does not use up the whole time."""
    monkeypatch.setattr(calls, "TRY_SECONDS_MAX", 0.5)
    proxy.script = [hang]
    await client.create_group("Team", timeout_seconds=LONG_SECONDS)
    assert len(proxy.seen) == 2


async def test_a_body_has_the_time_that_a_slow_link_takes_for_it(
    proxy: Proxy, client: StrettoClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, one of 140 KB would never arrive at 70 kbit/s, however often it is tried."""
    monkeypatch.setattr(calls, "TRY_SECONDS_MAX", 0.001)
    monkeypatch.setattr(calls, "BYTES_PER_SECOND_MIN", 1)
    await client.create_group("Team", timeout_seconds=LONG_SECONDS)
    assert len(proxy.seen) == 1


async def test_a_service_that_is_not_there_ends_in_a_timeout(unused_tcp_port: int) -> None:
    """With the reason, too."""
    async with client_of(f"http://127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(TimeoutError, match="Connection refused"):
            await client.create_group("Team")


@pytest.mark.parametrize(
    ("field_value", "seconds"), [("7", 7.0), ("99999999999", 30.0), ("0", 0.1), ("-5", 0.1)]
)
async def test_the_wait_that_a_service_asks_for_is_kept(
    field_value: str, seconds: float, proxy: Proxy, client: StrettoClient, pauses: list[float]
) -> None:
    """With some jitter and a bound; where it asks for none, our own backoff runs."""
    proxy.script = [answering(503, headers={"Retry-After": field_value})]
    await client.create_group("Team", timeout_seconds=LONG_SECONDS)
    assert 0 <= pauses[0] - seconds <= BACKOFF_SECONDS_FIRST


async def test_clients_that_were_refused_together_come_back_apart(
    proxy: Proxy, client: StrettoClient, pauses: list[float]
) -> None:
    """The pause that all of them were asked for is stretched by a part of a second, each by another."""
    for _ in range(5):
        proxy.script = [answering(503, headers={"Retry-After": "7"})]
        await client.create_group("Team", timeout_seconds=LONG_SECONDS)
    assert len(set(pauses)) > 1


async def test_a_retry_leaves_the_programs_output_alone(
    unused_tcp_port: int,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    pauses: list[float],
) -> None:
    """It is in the log, below what a host shows; the pauses grow up to their bound."""
    caplog.set_level("DEBUG", "stretto")
    async with client_of(f"http://127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(TimeoutError):
            await client.create_group("Team")
    assert ("", "") == capsys.readouterr()
    lines = [each for each in caplog.records if each.message.startswith("client.retried cause=")]
    assert {"DEBUG"} == {each.levelname for each in lines}
    assert TRIES_MAX == len(lines) == len(pauses)
    assert pauses[0] < 2 * BACKOFF_SECONDS_FIRST + 0.01
    assert BACKOFF_SECONDS_MAX == pauses[-1] == max(pauses)


async def test_leaving_the_call_is_no_timeout(proxy: Proxy, client: StrettoClient) -> None:
    """A cancelled caller gets its cancellation."""
    proxy.script = [hang]
    call = asyncio.ensure_future(client.create_group("Team"))
    await until(lambda: proxy.seen)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
