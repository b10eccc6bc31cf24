"""A primary that answers, and takes no writes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import orjson

from support.database import END_OURS, set_read_only, sound
from support.service_process import apis
from support.waiting import until

if TYPE_CHECKING:
    from support.database import Connection
    from support.service_process import StartService

DEADLINE_SECONDS = 60
ROUNDS = 20
CLIENTS = 20
# Of the log; it was 13 KB of them.
BYTES_PER_SECOND_MAX = 3000


def folded(line: bytes) -> int:
    """Return how many events a line of the log stands for."""
    return int(orjson.loads(line).get("folded", 1))


async def test_a_read_only_primary_is_unready_and_fills_no_log(
    start_service: StartService, connection: Connection
) -> None:
    """A line a second for each kind of failure; ready again although nothing was written."""
    service = await start_service()
    async with asyncio.timeout(DEADLINE_SECONDS), apis(service) as (api,):
        assert 201 == (await api.create("before")).status
        assert 200 == (await api.get("/readyz")).status
        await set_read_only(connection, is_read_only=True)
        await connection.execute(END_OURS)
        lines_before, started = len(service.log), time.monotonic()
        for turn in range(ROUNDS):
            replies = await asyncio.gather(
                api.get("/readyz"), *(api.create(f"{turn}-{n}") for n in range(CLIENTS))
            )
            assert {"database_unavailable"} == {reply.json["code"] for reply in replies}
        # What repeats within a second is logged at its end; on a fast machine all of it did.
        await until(lambda: any(folded(line) > 1 for line in service.log[lines_before:]))
        # A second that has begun has its line, and one more stands for what it has counted.
        seconds = 2 + time.monotonic() - started
        lines = service.log[lines_before:]
        await set_read_only(connection, is_read_only=False)

        async def is_ready() -> bool:
            return (await api.get("/readyz")).status == 200

        await until(is_ready)
        assert 201 == (await api.create("after")).status
    events = [orjson.loads(line) for line in lines]
    kinds = Counter((e["event"], e.get("kind"), e.get("actor")) for e in events)
    assert max(kinds.values()) <= seconds, kinds
    assert sum(map(len, lines)) <= seconds * BYTES_PER_SECOND_MAX
    assert sum(map(folded, lines)) > len(lines)
    assert await sound(connection)
