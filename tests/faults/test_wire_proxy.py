"""The proxy does to a statement what it says, and to no other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio
from uuid_utils.compat import uuid4

from chaos.wire_proxy import FaultKind, WireProxy
from stretto.postgres.queries import QUERIES
from support.database import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

DEADLINE_SECONDS = 30


@pytest_asyncio.fixture
async def broken(proxy: WireProxy) -> AsyncIterator[Connection]:
    """A connection that runs through the proxy."""
    connection = await connect(proxy.dsn)
    yield connection
    connection.terminate()


async def claim(connection: Connection) -> int:
    """Run the claim with a key of its own; return how many it won."""
    columns = [uuid4()], ["o"], [b"f" * 16], [uuid4()]
    return len(await connection.fetchval(QUERIES["claim"], *columns, "1s"))


async def claims(connection: Connection) -> int:
    """Return how many claims have arrived."""
    count: int = await connection.fetchval("SELECT count(*) FROM attempt")
    return count


async def test_what_is_not_planned_passes_untouched(
    proxy: WireProxy, broken: Connection, connection: Connection
) -> None:
    """Prepared statements, simple ones and errors; only what has a name is counted."""
    assert [1, 1] == [await claim(broken), await claim(broken)]
    assert "BEGIN" == await broken.execute("BEGIN")
    with pytest.raises(asyncpg.UndefinedTableError):
        await broken.fetch("SELECT * FROM nowhere")
    await broken.execute("ROLLBACK")
    assert {"claim": 2} == proxy.runs
    assert await claims(connection) == 2


@pytest.mark.parametrize(
    ("kind", "arrived"),
    [
        (FaultKind.RESET_BEFORE, False),
        (FaultKind.RESET_AFTER, True),
        (FaultKind.TEAR, True),
    ],
)
async def test_a_reset_breaks_the_connection_before_or_after(
    kind: FaultKind, arrived: bool, proxy: WireProxy, broken: Connection, connection: Connection
) -> None:
    """Of the second claim only; the client cannot distinguish the two."""
    fault = proxy.plan(kind, "claim", nth=2)
    assert await claim(broken) == 1
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await claim(broken)
    assert fault.happened.is_set()
    assert arrived == fault.answered.is_set()
    assert await claims(connection) == 1 + arrived


@pytest.mark.parametrize(
    ("kind", "arrives"),
    [(FaultKind.DROP, False), (FaultKind.SWALLOW, True), (FaultKind.BLACK_HOLE, False)],
)
async def test_silence_leaves_the_client_waiting(
    kind: FaultKind, arrives: bool, proxy: WireProxy, broken: Connection, connection: Connection
) -> None:
    """Whether the statement was done or not."""
    fault = proxy.plan(kind, "claim")
    waiting = asyncio.ensure_future(claim(broken))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await fault.happened.wait()
        if arrives:
            await fault.answered.wait()
    assert not waiting.done()
    assert await claims(connection) == arrives
    broken.terminate()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await waiting


async def test_a_held_statement_arrives_after_its_client_has_gone(
    proxy: WireProxy, broken: Connection, connection: Connection
) -> None:
    """As a packet does that was on its way."""
    fault = proxy.plan(FaultKind.HOLD, "claim")
    waiting = asyncio.ensure_future(claim(broken))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await fault.happened.wait()
        broken.terminate()
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await waiting
        assert await claims(connection) == 0
        fault.released.set()
        await fault.answered.wait()
    assert await claims(connection) == 1


async def test_a_silenced_proxy_closes_nothing_until_it_is_restored(
    proxy: WireProxy, broken: Connection
) -> None:
    """Old connections wait, new ones do not come about; then the old are reset."""
    proxy.silence()
    waiting = asyncio.ensure_future(claim(broken))
    with pytest.raises(TimeoutError):
        await asyncpg.connect(proxy.dsn, timeout=0.1)
    assert not waiting.done()
    proxy.restore()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await waiting
    fresh = await connect(proxy.dsn)
    assert await claim(fresh) == 1
    await fresh.close()
