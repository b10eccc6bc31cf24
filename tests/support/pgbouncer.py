"""A real PgBouncer in transaction mode, before the tests' PostgreSQL, on a socket in a folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg

from stretto.embedded.account import server_account
from support.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROGRAM = find_program("pgbouncer")
# What docs/operations.md asks of an operator.
ROLE_SETTINGS = (
    *("search_path = stretto", "lock_timeout = '1s'", "statement_timeout = 0"),
    "jit = off",
)
# Fewer than one service's six: transactions do change their server connection.
SERVER_CONNECTIONS = 3


@contextmanager
def running_pgbouncer(server: str, *settings: str) -> Iterator[Path]:
    """Run it for every database of a server; yields the folder of its socket."""
    with (
        tempfile.TemporaryDirectory(prefix="stretto-") as name,
        _started(server, Path(name), settings),
    ):
        yield Path(name)


@contextmanager
def _started(server: str, folder: Path, settings: Sequence[str]) -> Iterator[None]:
    assert PROGRAM is not None, "these tests need PgBouncer: apt-get install pgbouncer"
    url = urlsplit(server)
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        f"""[databases]
            * = host={url.hostname} port={url.port} user={url.username} password={url.password}
            [pgbouncer]
            unix_socket_dir = {folder}
            listen_port = 6432
            auth_type = any
            admin_users = app
            pool_mode = transaction
            default_pool_size = {SERVER_CONNECTIONS}
            """
        + "\n".join(settings)
    )
    configuration.chmod(0o600)
    # It refuses to run as root.
    account = server_account()
    account.own(folder)
    is_root = os.geteuid() == 0
    with subprocess.Popen(
        [PROGRAM, configuration],
        stderr=subprocess.PIPE,
        user=account.uid if is_root else None,
        group=account.gid if is_root else None,
        extra_groups=[] if is_root else None,
    ) as process:
        assert process.stderr is not None
        log = []
        while b"process up" not in (line := process.stderr.readline()):
            log.append(line)
            assert line, b"".join(log).decode()
        drain = Thread(target=process.stderr.read)
        drain.start()
        try:
            yield
        finally:
            process.kill()
            drain.join()


def url_through(folder: Path, server_url: str) -> str:
    """Return the URL of the same database through PgBouncer."""
    name = urlsplit(server_url).path
    return f"postgresql://app@{name}?host={folder}&port=6432&pgbouncer=true"


async def reconnect(folder: Path) -> None:
    """Have PgBouncer open new connections to the server, as an operator does on its console."""
    console = await asyncpg.connect(f"postgresql://app@/pgbouncer?host={folder}&port=6432")
    await console.execute("RECONNECT")
    console.terminate()


async def give_settings(server_url: str) -> None:
    """Have every role of a database bring what PgBouncer does not pass on."""
    connection = await asyncpg.connect(server_url)
    try:
        name = await connection.fetchval("SELECT quote_ident(current_database())")
        for setting in ROLE_SETTINGS:
            await connection.execute(f"ALTER DATABASE {name} SET {setting}")
    finally:
        await connection.close()
