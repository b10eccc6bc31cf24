"""Whatever bytes stand in a head, the answer is no internal error."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from support.api_client import api_for, token_of
from support.raw_client import BODY, RawClients, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

DEADLINE_SECONDS = 120
FIELD_BYTES_MAX = 8_190
AUTHORIZATION = b"Authorization: Bearer " + token_of("alice").encode()
CREATION = (
    b"POST /v1/groups",
    AUTHORIZATION,
    b"Idempotency-Key: k",
    b"Content-Type: application/json",
    b"Content-Length: %d" % len(BODY),
)
HANDSHAKE = (
    b"GET /v1/events",
    AUTHORIZATION,
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    b"Sec-WebSocket-Protocol: stretto.v1",
)
STREAM = (b"GET /v1/events", AUTHORIZATION, b"Accept: text/event-stream")
# How a request usually begins, and the fields that have odd values here.
HEADS: Mapping[str, tuple[tuple[bytes, ...], str]] = {
    "creation": (
        CREATION,
        (
            "Authorization Idempotency-Key Content-Type Content-Length Prefer Host Connection Cookie"
            " Content-Encoding Transfer-Encoding Expect Upgrade Accept Forwarded X-Forwarded-For X"
            " Idempotency-First-Sent"
        ),
    ),
    "WebSocket": (
        HANDSHAKE,
        (
            "Sec-WebSocket-Key Sec-WebSocket-Version Sec-WebSocket-Protocol Sec-WebSocket-Extensions"
            " Origin Host Upgrade Connection Authorization Last-Event-ID"
        ),
    ),
    "stream": (STREAM, "Accept Last-Event-ID Authorization Upgrade Cache-Control"),
    "attempt": ((b"GET /v1/attempts/k", AUTHORIZATION), "Prefer Authorization"),
    "file": (
        (b"GET /docs/swagger-ui.css",),
        "Accept-Encoding If-Modified-Since If-Unmodified-Since If-None-Match If-Match If-Range Range",
    ),
}
TARGETS: Final = (
    b"/v1/groups?%b=1",
    b"/v1/groups?limit=%b",
    b"/v1/groups?cursor=%b",
    b"/v1/groups?limit=1&%b",
    b"/v1/groups/%b",
    b"/v1/groups/%b/members",
    b"/v1/groups/00000000-0000-0000-0000-000000000000/members?cursor=%b",
    b"/v1/attempts/%b",
    b"/v1/attempts/%b/history",
    b"/v1/events?since=%b",
    b"/v1/events?%b",
    b"/docs/%b",
    b"/%b",
    b"/%b/v1/groups",
    b"/v1/groups#%b",
    b"//%b/v1/groups",
    b"http://%b/v1/groups",
    b"%b",
)
ODD: Final = (
    # No text, in every way in which bytes are none in UTF-8.
    *(b"\x80", b"\xa0", b"\xc3", b"\xe9", b"\xff", b"\xc3\x28", b"\xc0\xaf"),
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff" * 4_000),
    # Text, and still not what is meant: a letter, digits, a line's end, a mark of the order of bytes.
    *(b"\xc3\xa4", b"\xc2\xb2", b"\xd9\xa3", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80"),
    *(b"%ff", b"%00", b"%0", b"%c3%28", b"%ed%a0%80", b"%0d%0a", b"%2F", b"%2e%2e", b".."),
    *(b"", b" ", b"\t", b"\x01", b"\x7f", b"-1", b"1e999", b"NaN", b"9" * 4_000, b"x" * 8_100),
    *(bytes([byte]) for byte in b"%\"'\\,;=:@/?#[]{}()<>&+~*!"),
    b"x" * FIELD_BYTES_MAX,
)


@pytest.fixture
async def raw(server_url: str) -> AsyncIterator[RawClients]:
    """Connections to a service."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(server_url) as api,
        raw_clients(api.url) as clients,
    ):
        yield clients


async def status_of(raw: RawClients, lines: tuple[bytes, ...], body: bytes = b"") -> str:
    """Return the status that a request is answered with."""
    client = await raw.connect(b"\r\n".join([lines[0] + b" HTTP/1.1", *lines[1:], b"", body]))
    await client.until(b"HTTP/1.")
    while len(client.answered) < len("1 200"):
        await client._change()
    client.transport.abort()
    return client.answered[2:5].decode()


@pytest.mark.parametrize(("usual", "names"), HEADS.values(), ids=HEADS)
async def test_no_value_of_a_field_is_an_internal_error(
    usual: tuple[bytes, ...], names: str, raw: RawClients
) -> None:
    """Alone, and before and behind what usually stands there."""
    answered: dict[bytes, str] = {}
    lines = (usual[0], b"Host: x", *usual[1:])
    for name, odd in product(names.encode().split(), ODD):
        begins = name + b": "
        others = tuple(line for line in lines if not line.startswith(begins))
        value = b"".join(line.removeprefix(begins) for line in lines if line.startswith(begins))
        for field in {begins + odd, begins + value + odd, begins + odd + value}:
            body = BODY if usual is CREATION else b""
            answered[field] = await status_of(raw, (*others, field), body)
    assert {} == {field: status for field, status in answered.items() if status[0] not in "124"}
    assert "400" in answered.values()


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_no_target_is_an_internal_error(target: bytes, raw: RawClients) -> None:
    """In a path, in a query, or where there should be one of both."""
    answered = {}
    for odd in ODD:
        request = (b"GET %b" % (target % odd), b"Host: x", AUTHORIZATION)
        answered[odd] = await status_of(raw, request)
    assert {} == {odd: status for odd, status in answered.items() if status[0] not in "24"}
    assert "400" in answered.values()
