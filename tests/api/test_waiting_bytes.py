"""Bytes that wait for their turn are copied a few times, however many lines they have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from stretto.http.front.connection import ClientConnection
from stretto.http.front.parsing import BODY_BUFFER_BYTES
from stretto.http.front.queueing import QUEUED_MAX
from support.api_client import token_of
from support.counted_arrival import watched_connections
from support.database import first_row, pend, writes_held_up
from support.raw_client import PING, RawClients, creation, creation_head, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.api_client import Api
    from support.database import Connection

DEADLINE_SECONDS = 30
# Of 8 KiB each, before something waits; an unread body has eight.
PARTS_MAX = 20
COPIES_MAX = 8
# As bytes arrive, and as a request is taken from the queue.
LOOKS_MAX = 8
TOKEN = token_of("alice")
# Waits for an attempt that is never settled, until its row is gone.
LOOKUP = (
    f"GET /v1/attempts/k HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Prefer: wait=30\r\n\r\n"
).encode()
CHUNKED = creation_head(TOKEN, "c") + b"Transfer-Encoding: chunked\r\n\r\n"
HANDSHAKE = (
    b"GET /v1/events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)
UNREAD = b"%x\r\n%b\r\n" % (2 * BODY_BUFFER_BYTES + 1, b" " * (2 * BODY_BUFFER_BYTES + 1))
LINES = b"2\r\n  \r\n" * 20_000
FIRST = {
    "a full queue": PING * QUEUED_MAX,
    "a body that is not read": CHUNKED + UNREAD,
    "a handshake": HANDSHAKE,
}


class Counted(bytes):
    """Bytes that count how many of them are copied."""

    copied = 0

    @classmethod
    def noted(cls, made: bytes) -> Counted:
        """Count what was made from such bytes."""
        cls.copied += len(made)
        return cls(made)

    def __add__(self, other: Any) -> Counted:
        return self.noted(bytes(self) + bytes(other))

    def __radd__(self, other: Any) -> Counted:
        return self.noted(bytes(other) + bytes(self))

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return self.noted(found) if isinstance(found, bytes) else found


@pytest.fixture
def database_url(server_url: str) -> str:
    """Without PgBouncer: the copies are the server's front's."""
    return server_url


@pytest.fixture
async def raw(api: Api) -> AsyncIterator[RawClients]:
    """Clients of that service."""
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as clients:
        yield clients


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ClientConnection]:
    """The service's side of all connections."""
    return watched_connections(monkeypatch).clients


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each part that the parser got: it copies what it keeps with each of them."""
    counts: list[int] = []
    read_request = ClientConnection._read_request

    def read(client: ClientConnection, data: bytes) -> bool:
        counts.append(len(data))
        return read_request(client, data)

    monkeypatch.setattr(ClientConnection, "_read_request", read)
    return counts


def few_copies(client: ClientConnection, data: bytes) -> bool:
    """Receive bytes in one read of the socket; return whether they were copied a few times at most."""
    Counted.copied = 0
    client.data_received(Counted(data))
    return Counted.copied <= COPIES_MAX * len(data)


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
async def test_bytes_behind_what_waits_are_copied_a_few_times(
    first: bytes,
    raw: RawClients,
    made: list[ClientConnection],
    parts: list[int],
    connection: Connection,
) -> None:
    """Whatever waits: they are kept as they came."""
    await pend(connection, "k")
    await raw.connect(LOOKUP)
    await until(lambda: bool(made) and made[0]._current_request is not None)
    parts.clear()
    assert few_copies(made[0], first + LINES)
    assert len(parts) <= PARTS_MAX


async def test_what_waits_behind_chunks_is_not_looked_at_for_each_that_is_read(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their handler reads one after the other."""
    looks = 0
    data_received = ClientConnection.data_received

    def look(client: ClientConnection, data: bytes) -> None:
        nonlocal looks
        looks += 1
        data_received(client, data)

    monkeypatch.setattr(ClientConnection, "data_received", look)
    body = b'{"name": "Team"}'.ljust(200)
    data = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    client = await raw.connect(CHUNKED + data + PING)
    assert [201, 200] == [(await client.answer())[0] for _ in range(2)]
    assert looks < LOOKS_MAX


async def test_bytes_behind_a_creation_in_flight_are_copied_a_few_times(
    raw: RawClients, made: list[ClientConnection], parts: list[int], connection: Connection
) -> None:
    """They are held as they came."""
    # Its token is known from then on.
    client = await raw.connect(creation(TOKEN, "first"))
    assert 201 == (await client.answer())[0]
    async with writes_held_up(connection):
        client.send(creation(TOKEN, "second"))
        await first_row(connection, "SELECT 1 FROM attempt WHERE status = 'pending'")
        parts.clear()
        assert few_copies(made[0], CHUNKED + LINES)
        assert [] == parts
    assert [201, 400] == [(await client.answer())[0] for _ in range(2)]
