"""A primary that answers, and takes no writes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import orjson
import pytest

from support.database import END_OURS, set_read_only, sound
from support.service_process import apis
from support.waiting import until

if TYPE_CHECKING:
    from chaos.server import OwnServer
    from support.database import Connection
    from support.service_process import StartService

DEADLINE_SECONDS = 60
ROUNDS = 20
CLIENTS = 20
# Of the log; it was 13 KB of them.
BYTES_PER_SECOND_MAX = 3000
# A look each second, and a moment for its statement.
FENCED_SECONDS = 2.5


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
        # In asyncio's debug mode a busy machine adds what takes long.
        lines = [line for line in service.log[lines_before:] if b"Executing <" not in line]
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


@pytest.mark.parametrize("is_fenced", [True, False])
async def test_a_primary_that_a_reload_makes_read_only_is_not_read_any_more(
    start_on_server: StartService, server: OwnServer, beside: Connection, *, is_fenced: bool
) -> None:
    """Living sessions are cut, and nothing is answered from memory; `/readyz` is not asked for that.

    The twin's setting reaches new sessions alone: those that live still write, and are served.
    """
    service = await start_on_server()
    async with asyncio.timeout(DEADLINE_SECONDS), apis(service) as (api,):
        group_id = (await api.create("before")).json["group_id"]
        paths = ("/v1/groups", f"/v1/groups/{group_id}", "/v1/attempts/before")

        async def statuses() -> list[int]:
            replies = [await api.create("before"), *[await api.get(path) for path in paths]]
            return [reply.status for reply in replies]

        assert [201, 200, 200, 200] == await statuses()
        if is_fenced:
            await beside.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            await beside.execute("SELECT pg_reload_conf()")
        else:
            await set_read_only(beside, is_read_only=True)
        await asyncio.sleep(FENCED_SECONDS)
        for _ in range(2):
            assert ([503] * 4 if is_fenced else [201, 200, 200, 200]) == await statuses()
            assert (503 if is_fenced else 200) == (await api.get("/readyz")).status
        await beside.execute("SET default_transaction_read_only = off")
        if is_fenced:
            await beside.execute("ALTER SYSTEM RESET default_transaction_read_only")
            await beside.execute("SELECT pg_reload_conf()")
        else:
            await set_read_only(beside, is_read_only=False)

        async def is_ready() -> bool:
            return (await api.get("/readyz")).status == 200

        await until(is_ready)
        assert [201, 201] == [(await api.create(key)).status for key in ("before", "after")]
    assert await sound(beside)
