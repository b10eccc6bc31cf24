"""A reload of the server's configuration is no misuse of the session by a hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from stretto.embedded.postgres import embedded_postgres
from stretto.postgres.migrate import migrate
from stretto.store_errors import Transient
from support.database import connect, own_database
from support.embedded_servers import FAST
from support.hooked_stores import led_by, open_stores
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection
    from support.hooked_stores import Created


@pytest_asyncio.fixture
async def url(folder: Path) -> AsyncIterator[str]:
    """A database on a server of its own: a reload meets every session of the others' one."""
    async with (
        embedded_postgres(folder / "data", notify=lambda _: None, settings=FAST) as server,
        own_database(server.dsn, "template1") as url,
    ):
        migrating = await connect(url)
        await migrate(migrating, "stretto")
        await migrating.close()
        yield url


async def reload(admin: Connection, setting: str) -> None:
    """Have the server's configuration say otherwise, for a session that is open, too."""
    name, value = setting.split(" = ")
    await admin.execute(f"ALTER SYSTEM SET {setting}")
    await admin.execute("SELECT pg_reload_conf()")
    shown = "SELECT setting = $2 FROM pg_settings WHERE name = $1"
    await until(lambda: admin.fetchval(shown, name, value))


class Leaving:
    """A hook that runs the statements which the test has put in; it keeps its last connection."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.pids: list[int] = []
        self.during: str = ""
        self.admin: Connection | None = None

    async def __call__(self, inner: InnerConnection, _: Created) -> None:
        self.pids.append(await inner.fetchval("SELECT pg_backend_pid()"))
        if self.admin is not None:
            await reload(self.admin, self.during)
            name, value = self.during.split(" = ")
            shown = "SELECT reset_val = $2 FROM pg_settings WHERE name = $1"
            await until(lambda: inner.fetchval(shown, name, value))
        for statement in self.statements:
            await inner.execute(statement)


@pytest.mark.parametrize(
    "settings",
    [
        ("deadlock_timeout = 5000", "deadlock_timeout = 5100"),
        ("synchronous_commit = local", "synchronous_commit = remote_write"),
        ("synchronous_commit = off", "synchronous_commit = on"),
        ("work_mem = 5120", "work_mem = 6144"),
    ],
)
async def test_a_reload_ends_no_session_of_a_hooks(settings: tuple[str, str], url: str) -> None:
    """Neither one between two leads nor one while a hook runs; what a hook sets is seen as before."""
    between, during = settings
    hook = Leaving()
    admin = await asyncpg.connect(url)
    async with open_stores(url, is_hosts_pool=False) as stores:
        store = stores(hook)
        assert await led_by(store, "a")
        await reload(admin, between)
        assert await led_by(store, "b")
        hook.admin, hook.during = admin, during
        assert await led_by(store, "c")
        hook.admin = None
        assert await led_by(store, "d")
        assert 1 == len(set(hook.pids))
        hook.statements = ["SET deadlock_timeout = '7s'"]
        assert await led_by(store, "e")
        assert await led_by(store, "f")
        assert 2 == len(set(hook.pids))
        assert [] == stores.lost
    await admin.close()


@pytest.mark.parametrize("left", ["SET work_mem = '9MB'", "SET synchronous_commit = local"])
async def test_what_was_set_between_two_leads_is_misuse_whatever_was_reloaded(
    left: str, url: str
) -> None:
    """By a statement that a hook has left running: what the next lead has run on is unknown."""
    kept: list[InnerConnection] = []

    async def hook(inner: InnerConnection, _: Created) -> None:
        kept.append(inner)

    admin = await asyncpg.connect(url)
    async with open_stores(url, is_hosts_pool=False) as stores:
        store = stores(hook)
        assert await led_by(store, "a")
        await reload(admin, "deadlock_timeout = 5000")
        connection = store._connection
        assert connection is not None
        await connection.execute(left)
        with pytest.raises(Transient, match="an earlier on_create left something running"):
            await led_by(store, "b")
    await admin.close()
