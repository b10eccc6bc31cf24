"""A head of more than 32 KiB, or one that does not come in time: it is answered, not cut off."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from stretto.http.front.heads import HEAD_BYTES_MAX
from stretto.http.settings import ConnectionLimits
from support.api_client import api_for, token_of
from support.raw_client import BODY, PING, RawClients, creation_head, raw_clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.api_client import Api

DEADLINE_SECONDS = 60
LINE_BYTES = 8000
# aiohttp's.
FIELDS_MAX = 128
BEGUN = creation_head(token_of("alice"), "k") + b"Content-Length: %d\r\n\r\n{" % len(BODY)


def request_of(head_bytes: int) -> bytes:
    """Return a request without a body whose head has exactly so many bytes."""
    head = PING.removesuffix(b"\r\n")
    while (missing := head_bytes - len(head) - 2) > 2 * LINE_BYTES:
        head += b"X-Pad: %b\r\n" % (b"a" * (LINE_BYTES - 9))
    for part in (missing // 2, missing - missing // 2):
        head += b"X-Pad: %b\r\n" % (b"a" * (part - 9))
    assert head_bytes == len(head) + 2
    return head + b"\r\n"


@pytest.fixture
def database_url(server_url: str) -> str:
    """Without PgBouncer: what is sent here comes no further than the server's front."""
    return server_url


@pytest.fixture
async def raw(api: Api) -> AsyncIterator[RawClients]:
    """Clients of a service with its default limits."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        yield clients


async def answers(raw: RawClients, *pieces: bytes, before: bytes = b"") -> list[tuple[int, str]]:
    """Send pieces, each of which is read by itself; return statuses and codes until the close."""
    client = await raw.connect(before)
    for piece in pieces:
        client.send(piece)
        await (await raw.connect(PING)).answer()
    # One that was answered in full is the last, so that both kinds end.
    client.send(PING.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    found = []
    while not client.is_closed or client.answered:
        status, fields, document = await client.answer()
        found.append((status, document.get("code", "")))
        if "close" == fields.get("connection"):
            assert b"" == await client.closed()
            break
    return found


@pytest.mark.parametrize("before", [b"", PING], ids=["first", "behind another"])
@pytest.mark.parametrize(
    "cuts",
    [(), (1,), (30_000,), (HEAD_BYTES_MAX - 1,), (HEAD_BYTES_MAX,), (20_000, 32_000), (-1,), (-4,)],
)
@pytest.mark.parametrize("more", [0, 1, 2, 1000, 40_000])
async def test_a_head_gets_the_same_answer_however_it_is_cut(
    more: int, cuts: tuple[int, ...], before: bytes, raw: RawClients
) -> None:
    """As long as it is within the bound; beyond it, 431 and the end of the connection."""
    request = request_of(HEAD_BYTES_MAX + more)
    places = [0, *(cut % len(request) for cut in cuts), len(request)]
    pieces = [request[begin:end] for begin, end in itertools.pairwise(places)]
    earlier = [(200, "")] * bool(before)
    expected = [(431, "head_too_large")] if more else [(200, ""), (200, "")]
    assert earlier + expected == await answers(raw, *pieces, before=before)


@pytest.mark.parametrize("cuts", [(), (9000,)])
@pytest.mark.parametrize(
    "request_",
    [
        PING.replace(b"\r\n\r\n", b"\r\nX-Pad: %b\r\n\r\n" % (b"a" * 9000)),
        creation_head(token_of("alice"), "k") + b"X-Pad: %b\r\n\r\n" % (b"a" * 9000),
        PING.replace(b"/livez", b"/livez?" + b"a" * 9000),
        PING.replace(b"/livez", b"/livez?" + b"a" * 40_000),
        PING.removesuffix(b"\r\n") + b"X-Pad: %b\r\n" % (b"a" * 70) * FIELDS_MAX + b"\r\n",
        BEGUN.partition(b"\r\n\r\n")[0] + b"\r\nX-Pad: %b" % (b"a" * 70) * FIELDS_MAX + b"\r\n\r\n",
    ],
    ids=[
        "field",
        "field of a creation",
        "target",
        "larger target",
        "fields",
        "fields of a creation",
    ],
)
async def test_a_line_that_is_too_large_is_a_head_that_is(
    request_: bytes, cuts: tuple[int, ...], raw: RawClients
) -> None:
    """The parser refuses it before the head is counted; the client has one answer to understand."""
    places = [0, *cuts, len(request_)]
    pieces = [request_[begin:end] for begin, end in itertools.pairwise(places)]
    assert [(431, "head_too_large")] == await answers(raw, *pieces)


async def test_as_many_fields_as_may_be_are_taken(raw: RawClients) -> None:
    """`Host` is one of them."""
    fields = b"X-Pad: a\r\n" * (FIELDS_MAX - 1)
    assert [(200, "")] * 2 == await answers(raw, PING.removesuffix(b"\r\n") + fields + b"\r\n")


async def test_a_large_handshake_is_refused_as_well(raw: RawClients) -> None:
    """Nothing of it is kept for a session, and the client reads the answer."""
    handshake = b"X-A: b\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    request = request_of(HEAD_BYTES_MAX + 1).replace(b"/livez", b"/v1/events")
    request = request.removesuffix(b"\r\n") + handshake
    assert [(431, "head_too_large")] == await answers(raw, request[:9000], request[9000:])


@pytest.mark.parametrize("begun", [PING[:-1], BEGUN], ids=["head", "body"])
async def test_a_request_that_comes_too_slowly_is_answered(begun: bytes, database_url: str) -> None:
    """With what to do, as the connection's last answer; nothing was claimed."""
    limits = ConnectionLimits(read_timeout_seconds=0.1)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url, limits=limits) as api,
        raw_clients(api.url) as clients,
    ):
        client = await clients.connect(begun)
        status, fields, document = await client.answer()
        assert (408, "request_too_slow", "same-key") == (
            status,
            document["code"],
            document["retry"],
        )
        assert "close" == fields["connection"]
        assert b"" == await client.closed()
        assert 404 == (await api.get("/v1/attempts/k")).status
