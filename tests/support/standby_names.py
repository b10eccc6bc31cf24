"""Names the standby that the commits of a server wait for.

Sessions learn from the checkpointer whether there is one: some time after a reload, on a busy machine.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import asyncpg

from support.embedded_servers import ask
from support.waiting import until

# No server has this name: commits wait until another one is named, or none.
AWAY: Final = "away"
COMMIT: Final = "SELECT pg_logical_emit_message(true, 'test', '')"
WAITS: Final = (
    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')"
)


async def await_standby(dsn: str, name: str = AWAY) -> None:
    """Have all commits wait for a standby of that name, from now on."""
    await _name(dsn, AWAY)
    watcher, probe = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    commit = asyncio.create_task(probe.execute(COMMIT))

    async def is_waiting() -> bool:
        nonlocal commit
        if commit.done():
            commit = asyncio.create_task(probe.execute(COMMIT))
        return bool(await watcher.fetchval(WAITS, probe.get_server_pid()))

    await until(is_waiting)
    await watcher.execute("SELECT pg_terminate_backend($1)", probe.get_server_pid())
    with suppress(asyncpg.PostgresError, OSError):
        await commit
    await watcher.close()
    if name != AWAY:
        await _name(dsn, name)


async def await_none(dsn: str) -> None:
    """Have the commits of a server wait for no standby; those that wait go on in a moment."""
    await _name(dsn, "")


async def _name(dsn: str, name: str) -> None:
    await ask(dsn, f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    await ask(dsn, "SELECT pg_reload_conf()")
