"""Which requests are plain, and that aiohttp's parser reads each of them as the very same request."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import HttpVersion11
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError
from hypothesis import event, given
from hypothesis import strategies as st

from stretto.http.front import plain_requests
from stretto.http.front.plain_requests import PlainRequest, PlainRequests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BODY = b'{"name": "Team"}'
START = b"POST /v1/groups HTTP/1.1\r\nHost: x\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLAIN = START + LENGTH + b"\r\n" + BODY
GET = b"GET /v1/groups?limit=2 HTTP/1.1\r\nHost: x\r\n\r\n"
INNER = b"POST /v1/groups HTTP/1.1\r\nHost: inner\r\nContent-Length: 0\r\n\r\n"

OTHERS = {
    "another version": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a preflight of all": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "another method": PLAIN.replace(b"POST", b"PATCH"),
    "a tunnel": b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "whole URL": PLAIN.replace(b"/v1/groups", b"http://x/v1/groups"),
    "no fields": b"POST /v1/groups HTTP/1.1\r\n\r\n",
    "last of its connection": START + b"Connection: close\r\n" + LENGTH + b"\r\n" + BODY,
    "a last listing": GET.replace(b"Host: x", b"Host: x\r\nConnection: close"),
    "a check's other hop": b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close, x\r\n\r\n",
    "a last check that is none": b"GET /livez? HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "another protocol": START + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "chunks": START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "expectation": START + b"expect: 100-continue\r\n" + LENGTH + b"\r\n" + BODY,
    "compressed": START + b"Content-Encoding: gzip\r\n" + LENGTH + b"\r\n" + BODY,
    "two lengths": START + LENGTH * 2 + b"\r\n" + BODY,
    "two hosts": START + b"Host: y\r\n" + LENGTH + b"\r\n" + BODY,
    "no host": PLAIN.replace(b"Host: x", b"Accept: x"),
    "an empty host": PLAIN.replace(b"Host: x", b"Host: "),
    "a host with a path": PLAIN.replace(b"Host: x", b"Host: x/y"),
    "hosts in a list": PLAIN.replace(b"Host: x", b"Host: x, y"),
    "a host with its user": PLAIN.replace(b"Host: x", b"Host: a@x"),
    "an old handshake": START + b"Sec-WebSocket-Key1: x\r\n" + LENGTH + b"\r\n" + BODY,
    "a proxy's last": START + b"Proxy-Connection: close\r\n" + LENGTH + b"\r\n" + BODY,
    "a kept connection": START + b"Keep-Alive: timeout=5\r\n" + LENGTH + b"\r\n" + BODY,
    "settings of HTTP/2": START + b"HTTP2-Settings: x\r\n" + LENGTH + b"\r\n" + BODY,
    "a field of the hop": START + b"Connection: keep-alive, x\r\n" + LENGTH + b"\r\n" + BODY,
    "trailers": START + b"TE: trailers\r\n" + LENGTH + b"\r\n" + BODY,
    "a long head": START + b"X: %b\r\n" % (b"x" * 8_190) + LENGTH + b"\r\n" + BODY,
    "many fields": START + b"".join(b"X%d: x\r\n" % n for n in range(63)) + LENGTH + b"\r\n" + BODY,
    "two keys": START + b"Idempotency-Key: k\r\nidempotency-key: k\r\n" + LENGTH + b"\r\n" + BODY,
    "two tokens": START + b"Authorization: a\r\nAUTHORIZATION: a\r\n" + LENGTH + b"\r\n" + BODY,
    "a signed length": PLAIN.replace(b"Length: ", b"Length: +"),
    "a length with a nought": PLAIN.replace(b"Length: ", b"Length: 0"),
    "a length in a list": PLAIN.replace(b"\r\n\r\n", b", 16\r\n\r\n"),
    "a length behind a tab": PLAIN.replace(b"Length: ", b"Length:\t"),
    "space before a colon": PLAIN.replace(b"Length:", b"Length :"),
    "no space behind a colon": PLAIN.replace(b"Length: ", b"Length:"),
    "a folded line": PLAIN.replace(b"Host: x\r\n", b"Host: x\r\n y: z\r\n"),
    "lines that end too soon": PLAIN.replace(b"Host: x\r\n", b"Host: x\n"),
    "a carriage's return": PLAIN.replace(b"Host: x", b"Host: x\ry: z"),
    "no text": PLAIN.replace(b"Host: x", b"Host: \xff"),
    "a nought": PLAIN.replace(b"Host: x", b"Host: \0"),
    "two at once": PLAIN * 2,
    "the beginning of another": PLAIN + b"G",
    "a line before it": b"\r\n" + PLAIN,
    "a part of a head": START,
}


def test_a_plain_request_is_read_as_it_was_sent() -> None:
    """Names in small letters; what may be there twice does no harm."""
    requests = PlainRequests()
    fields = {b"host": b"x", b"content-length": b"%d" % len(BODY)}
    assert PlainRequest(b"POST /v1/groups", fields, BODY) == requests.read(PLAIN)
    twice = PLAIN.replace(b"Host", b"Via: 1.1 a\r\nvia: 1.1 b\r\nConnection: Keep-Alive\r\nHost")
    read = requests.read(twice)
    assert read is not None
    assert (b"1.1 b", b"Keep-Alive", BODY) == (
        read.fields[b"via"],
        read.fields[b"connection"],
        read.body,
    )
    assert PlainRequest(b"GET /v1/groups?limit=2", {b"host": b"x"}, b"") == requests.read(GET)


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_health_check_may_be_the_last_of_its_connection(path: str) -> None:
    """As haproxy and the kubelet send it."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\n".encode()
    kept = PlainRequests().read(head + b"\r\n")
    requests = PlainRequests()
    last = requests.read(head + b"connection: Close\r\n\r\n")
    assert kept is not None
    assert last is not None
    assert requests.read(GET) is None
    assert [False, True] == [kept.is_last, last.is_last]


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_whatever_is_not_plain_ends_what_is_known_of_its_connection(data: bytes) -> None:
    """No matter how plain all else is."""
    requests = PlainRequests()
    assert requests.read(GET) is not None
    assert requests.read(data) is None
    assert requests.read(PLAIN) is None


@pytest.mark.parametrize("size", [1, 3, len(BODY) - 1])
def test_a_body_may_come_later(size: int) -> None:
    """It is not plain, and what follows is; unless it is longer than announced."""
    requests = PlainRequests()
    head = START + LENGTH + b"\r\n"
    for rest in (b"", BODY[:size]):
        assert requests.read(head + rest) is None
        assert requests.read(BODY[len(rest) : -1]) is None
        assert requests.read(b"") is None
        assert requests.read(BODY[-1:]) is None
        assert requests.read(PLAIN) is not None
    assert requests.read(head + b"{") is None
    assert requests.read(BODY) is None
    assert requests.read(PLAIN) is None


# A request within a body, and what must be known to see that it is one.
HIDDEN: Mapping[str, tuple[bytes, object]] = {
    "_HEAD": (
        b"Transfer-Encoding : chunked\r\n",
        re.compile(rb"(POST /v1/groups) HTTP/1.1\r\n(.*?)\r\n\r\n", re.DOTALL),
    ),
    "_UNUSUAL": (b"Transfer-Encoding: chunked\r\n", frozenset()),
    "_REPEATED": (
        b"Content-Length: %d\r\nContent-Length: 0\r\n" % len(INNER),
        {b"content-length"},
    ),
    "_LENGTH": (b"Content-Length: 0_0\r\n", re.compile(rb"[0-9_]+")),
}


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("guard", HIDDEN)
def test_a_request_within_a_body_is_none(
    guard: str, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what is asked of a plain request, it would be taken for one."""
    fields, lax = HIDDEN[guard]
    if not is_guarded:
        monkeypatch.setattr(plain_requests, guard, lax)
    requests = PlainRequests()
    requests.read(START + fields + b"\r\n")
    assert is_guarded == (requests.read(INNER) is None)


ODD_NAMES = b"""Connection Content-Encoding Content-Length Expect Host HTTP2-Settings Idempotency-Key
    Keep-Alive Proxy-Connection Sec-WebSocket-Key1 Server Te Trailer Transfer-Encoding Upgrade Via
    content-length""".split()
HOSTS = [b"x", b"x:80", b"[::1]:80", b"a.example", b"", b"x y", b"a@x", b"x/y", b"x, y", b"x:y"]
ODD_VALUES = b"x 0 5 16 +5 05 5,5 chunked identity gzip keep-alive close upgrade".split()
ODD_VALUES += [b"keep-alive, x", b"Keep-Alive", b"100-continue", b"", b"a\nb", b"a\rb", b"\x80"]
STARTS = [b"POST /v1/groups", b"GET /", b"HEAD /x?y", b"OPTIONS /", b"OPTIONS *", b"PATCH /"]
STARTS += [b"GET /livez", b"GET /readyz", b"post /", b"POST x", b"GET //"]
BODIES = [b"", BODY, INNER, PLAIN, b"0\r\n\r\n", b"5\r\nabcde\r\n0\r\n\r\n", b"\r\n"]


def mostly(usual: bytes, *odd: bytes) -> st.SearchStrategy[bytes]:
    """The usual, and now and then something else."""
    return st.integers(0, 40).flatmap(lambda n: st.sampled_from(odd) if n == 40 else st.just(usual))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request as a client or an attacker writes it."""
    body = draw(st.sampled_from(BODIES))
    usual = st.sampled_from([*STARTS[:4], b"GET /livez"])
    lines = [b"%b HTTP/1.1" % draw(usual | mostly(*STARTS))]
    hosts = st.just(HOSTS[:1]) | st.lists(st.sampled_from(HOSTS), max_size=2)
    lines += [b"Host: %b" % host for host in draw(hosts)]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    if draw(st.integers(0, 2)) == 0:
        odd = (
            st.sampled_from([*ODD_NAMES, b""]),
            mostly(b": ", b":", b" : "),
            st.sampled_from(ODD_VALUES),
        )
        line = b"".join(map(draw, odd))
        lines = draw(st.sampled_from([[*lines, line], [lines[0], line, *lines[1:]]]))
    return b"".join(line + draw(mostly(b"\r\n", b"\n", b"\r\n ")) for line in [*lines, b""]) + body


@st.composite
def arriving(draw: st.DrawFn) -> list[bytes]:
    """What arrives on one connection, in the pieces in which it does."""
    pieces: list[bytes] = []
    for request in draw(st.lists(requests(), min_size=1, max_size=6)):
        head = request.find(b"\r\n\r\n") + 4
        places = st.lists(st.integers(0, len(request)), max_size=2) | st.just([head])
        cuts = draw(st.just([]) | places)
        pieces += [request[a:b] for a, b in pairwise([0, *sorted(cuts), len(request)])]
        if draw(mostly(b"", b"joined")):
            pieces[-2:] = [b"".join(pieces[-2:])]
    return pieces


async def compare(pieces: Iterable[bytes]) -> int:
    """Feed both readers; return how many were plain, each of which both read as the same."""
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(
        BaseProtocol(loop), loop, 2**16, payload_exception=ValueError, max_msg_queue_size=16
    )
    plain, count = PlainRequests(), 0
    bodies: list[Any] = []
    for piece in pieces:
        read = plain.read(piece)
        try:
            messages, is_upgraded, _ = parser.feed_data(piece)
        except HttpProcessingError:
            # The answer says so, and its connection ends.
            assert read is None
            return count
        if read is not None:
            assert all(body.is_eof() for body in bodies)
            ((message, body),) = messages
            assert not is_upgraded
            assert body.is_eof()
            assert read.begins == f"{message.method} {message.path}".encode()
            assert (message.version, message.should_close) == (HttpVersion11, read.is_last)
            assert not read.is_last or read.begins in plain_requests.CHECKS
            assert b"".join(getattr(body, "_buffer", ())) == read.body
            for name, value in read.fields.items():
                assert message.headers.getall(name.decode())[-1] == value.decode().strip()
            count += 1
        for _, body in messages:
            bodies.append(body)
            parser.message_consumed()
        if is_upgraded:
            return count
    return count


@given(arriving())
def test_the_parser_reads_every_plain_request_as_the_same(pieces: list[bytes]) -> None:
    """Whatever came before it, in whatever pieces."""
    event(f"{asyncio.run(compare(pieces))} plain requests")


FIELDS_OF_THE_PARSER: Mapping[str, tuple[str, object]] = {
    "no host": ("_HOST", re.compile(b".*")),
    "an old handshake": ("_UNUSUAL", frozenset()),
    "a proxy's last": ("_UNUSUAL", frozenset()),
}


@pytest.mark.parametrize("name", FIELDS_OF_THE_PARSER)
def test_the_comparison_sees_what_the_parser_alone_judges(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails where the reader takes for plain what the parser refuses, or answers otherwise."""
    assert asyncio.run(compare([OTHERS[name]])) == 0
    guard, lax = FIELDS_OF_THE_PARSER[name]
    monkeypatch.setattr(plain_requests, guard, lax)
    with pytest.raises(AssertionError):
        asyncio.run(compare([OTHERS[name]]))


def test_the_comparison_sees_a_request_within_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails where a reader takes one for a request."""
    chunked = START + b"Transfer-Encoding: chunked\r\n\r\n"
    pieces = [chunked, INNER]
    assert asyncio.run(compare(pieces)) == 0
    monkeypatch.setattr(plain_requests, "_UNUSUAL", frozenset())
    with pytest.raises((AssertionError, ValueError)):
        asyncio.run(compare(pieces))
