"""A server that was away behind PgBouncer is served again as soon as it is back, as documented."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from support.pgbouncer import running_pgbouncer, url_through

if TYPE_CHECKING:
    from chaos.server import OwnServer

OPERATIONS: Final = (Path(__file__).parents[2] / "docs/operations.md").read_text()
# PgBouncer's own pause is 15 s.
DEADLINE_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 4.0


async def ask(url: str) -> None:
    """Ask the server for something."""
    connection = await asyncpg.connect(url.removesuffix("&pgbouncer=true"))
    try:
        await connection.execute("SELECT 1")
    finally:
        connection.terminate()


@pytest.mark.parametrize("is_documented", [True, False])
async def test_a_restart_is_no_outage_of_fifteen_seconds_behind_pgbouncer(
    is_documented: bool, server: OwnServer
) -> None:
    """By default PgBouncer tries no login for so long after one that has failed."""
    (documented,) = re.findall(r"(?m)^ +(server_login_retry = \d+)$", OPERATIONS)
    with running_pgbouncer(server.dsn, *[documented] * is_documented) as folder:
        url = url_through(folder, server.dsn)
        await ask(url)
        await server.stop()
        asked = asyncio.create_task(ask(url))
        # Its first login fails meanwhile.
        await asyncio.wait({asked}, timeout=1.0)
        assert await server.start()
        seconds = DEADLINE_SECONDS if is_documented else SILENCE_SECONDS
        await asyncio.wait({asked}, timeout=seconds)
        assert is_documented == asked.done()
        asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled() or asked.exception() is None
