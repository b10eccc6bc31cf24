"""What goes on around the service: clients that hang up, clocks that jump, schemas that change."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import jwt
import orjson
import pytest

import chaos
from stretto.domain import group_id
from support.api_client import SECRET, TEAM, Api, settled_create, token_of
from support.database import LEADER, first_row, sound, writes_held_up
from support.raw_client import creation
from support.service_process import apis

if TYPE_CHECKING:
    from support.database import Connection
    from support.service_process import ServiceProcess, StartService

HOUR, DAY = 3600, 24 * 3600
HOOK = Path(chaos.__path__[0], "clock_hook")
CHANGES = [
    "ALTER TABLE attempt ADD COLUMN spare text",
    "ALTER TABLE chat_group ADD COLUMN spare text DEFAULT 'x'",
    "CREATE INDEX spare ON chat_group (spare)",
    "ALTER TABLE attempt DROP COLUMN spare",
    "ALTER TABLE chat_group DROP COLUMN spare",
    "ALTER TABLE outbox ALTER COLUMN group_name SET STATISTICS 100",
    "VACUUM FULL attempt",
]


class WrongClock:
    """Gives the services that start next a clock that this test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "offset"
        self.jump(0)
        monkeypatch.setenv("PYTHONPATH", str(HOOK))
        monkeypatch.setenv("CLOCK_OFFSET_FILE", str(self._file))

    def jump(self, seconds: float) -> None:
        """Set the clock so many seconds before the right time."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(seconds))
        # Never read half-written.
        draft.rename(self._file)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrongClock:
    """The clock of the services that this test starts."""
    return WrongClock(tmp_path, monkeypatch)


def token_until(seconds: float) -> dict[str, str]:
    """Return the header of a token that is valid for so long from now on."""
    token = jwt.encode({"sub": "alice", "exp": int(time.time() + seconds)}, SECRET)
    return {"Authorization": f"Bearer {token}"}


async def post(api: Api, key: str, wait: int = 10) -> tuple[int, str, bytes]:
    """Create a group with a token that outlives every jump; return status, how, and the body."""
    reply = await api.request(
        "POST",
        "/v1/groups",
        headers=token_until(9 * DAY) | {"Idempotency-Key": key, "Prefer": f"wait={wait}"},
        json=TEAM,
    )
    return reply.status, reply.headers.get("Idempotency-Status", ""), reply.body


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_the_lease_does_not_run_on_the_services_clock(
    jump: int, clock: WrongClock, start_service: StartService, connection: Connection
) -> None:
    """A leader who lives is not robbed, a dead one not waited for, however wrong the clock is."""
    service = await start_service(LEASE_SECONDS=str(HOUR))
    async with apis(service) as (api,):
        await post(api, "another")
        for key in ("living", "dead"):
            await connection.execute(
                """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
                   SELECT $1, owner_id, fingerprint, gen_random_uuid() FROM attempt LIMIT 1""",
                group_id("alice", key),
            )
        await connection.execute(
            "UPDATE attempt SET claimed_at = claimed_at - interval '61 minutes'"
            " WHERE group_id = $1",
            group_id("alice", "dead"),
        )
        clock.jump(jump)
        assert 409 == (await post(api, "living", wait=0))[0]
        assert (201, "recovered") == (await post(api, "dead"))[:2]
    assert await sound(connection)


async def test_the_hook_does_set_the_services_clock(
    clock: WrongClock, start_service: StartService
) -> None:
    """The tokens that it judges by this clock show it: otherwise these tests prove nothing."""
    service = await start_service()
    async with apis(service) as (api,):
        for jump, fresh, expired in ((0, 200, 401), (DAY, 401, 401), (-DAY, 200, 200)):
            clock.jump(jump)
            statuses = [
                (await api.get("/v1/groups", headers=token_until(seconds))).status
                for seconds in (HOUR, -HOUR)
            ]
            assert [fresh, expired] == statuses


async def test_a_clock_that_jumps_under_load_changes_no_answer(
    clock: WrongClock, start_service: StartService, connection: Connection
) -> None:
    """To and fro, while two processes are asked for the same keys."""
    services = [await start_service(), await start_service()]
    keys = [f"k{number}" for number in range(60)]
    jumps = itertools.cycle((DAY, -DAY, 0, 10, -10))
    async with apis(*services) as clients:
        load = asyncio.gather(*(post(clients[n % 2], key) for n in range(4) for key in keys))
        jumped = 0
        while not load.done():
            clock.jump(next(jumps))
            jumped += 1
            await asyncio.sleep(0)
        replies = await load
    assert jumped > 1
    assert {201} == {status for status, _, _ in replies}
    assert len({body for _, _, body in replies}) == len(keys)
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == len(keys)
    assert await sound(connection)


async def test_a_schema_that_changes_under_load_costs_no_request(
    start_service: StartService, connection: Connection
) -> None:
    """Columns and indexes come and go: plans grow stale, locks are waited for, nothing fails."""
    services = [await start_service(), await start_service()]
    keys = [f"k{number}" for number in range(100)]
    changes = itertools.cycle(CHANGES)
    async with apis(*services) as clients:
        load = asyncio.gather(
            *(settled_create(clients[n % 2], key) for n in range(4) for key in keys)
        )
        changed = 0
        while not load.done() or changed < 2 * len(CHANGES):
            await connection.execute(next(changes))
            changed += 1
        replies = await load
        last = await settled_create(clients[0], "last")
    assert {201} == {reply.status for reply in [*replies, last]}
    assert len({reply.body for reply in replies}) == len(keys)
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == len(keys) + 1
    assert await sound(connection)


async def opened(service: ServiceProcess) -> asyncio.StreamWriter:
    """Open a connection to the service."""
    parts = urlsplit(service.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    return writer


def cut(writer: asyncio.StreamWriter) -> None:
    """Reset the connection."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
async def test_half_a_request_leaves_nothing_behind(
    part: float, start_service: StartService, connection: Connection
) -> None:
    """Cut in its headers or in its body; the whole one then creates the group."""
    service = await start_service()
    message = creation(token_of("alice"), "k", orjson.dumps(TEAM))
    writer = await opened(service)
    writer.write(message[: int(len(message) * part)])
    await writer.drain()
    cut(writer)
    async with apis(service) as (api,):
        assert (await api.create("another")).status == 201
        assert await connection.fetchval("SELECT count(*) FROM attempt") == 1
        reply = await api.create("k")
    assert (201, "created") == (reply.status, reply.headers["Idempotency-Status"])
    assert await sound(connection)


async def test_a_client_that_hangs_up_gets_its_group_all_the_same(
    start_service: StartService, connection: Connection
) -> None:
    """Its write is under way: it goes on, and the next request finds what it made."""
    service = await start_service()
    async with apis(service) as (api,):
        async with writes_held_up(connection):
            writer = await opened(service)
            writer.write(creation(token_of("alice"), "k", orjson.dumps(TEAM)))
            await first_row(connection, LEADER)
            cut(writer)
        reply = await api.create("k")
    assert (201, "true") == (reply.status, reply.headers["Idempotent-Replayed"])
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 1
    assert await sound(connection)
