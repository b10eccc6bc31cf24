"""A PostgreSQL of a test's own: to be crashed, stalled, filled up and followed by a standby."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.embedded.cluster import NAME, prepare_cluster
from stretto.embedded.place import ServerPlace, find_place
from stretto.postgres.migrate import migrate
from support.ports import free_port
from support.standby_names import await_none, await_standby
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.embedded.account import Account
    from support.database import Connection

READY_SECONDS: Final = 60
# A fast stop waits for what the standby has not got yet.
STOP_SECONDS: Final = 10
IN_SYNC: Final = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
NO_RECEIVER: Final = "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"
# Small, so that a few of them fill a small disk; quick to start.
SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "max_connections": "100",
    # A standby that was away is not waited for longer than a test lasts.
    "wal_keep_size": "64MB",
    "wal_retrieve_retry_interval": "100ms",
}


@dataclass(slots=True)
class OwnServer:
    """One cluster and its server, which keeps its port over restarts."""

    place: ServerPlace
    port: int
    settings: dict[str, str] = field(default_factory=lambda: dict(SETTINGS))

    @property
    def dsn(self) -> str:
        """The database's address."""
        return dsn_of(self)

    @property
    def pid(self) -> int:
        """The postmaster."""
        return int((self.place.cluster / "postmaster.pid").read_text().splitlines()[0])

    @property
    def processes(self) -> list[int]:
        """The postmaster and all its children, at this moment."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    async def start(self) -> bool:
        """Start; return whether it takes connections."""
        options = {**self.settings, "port": str(self.port)}
        flags = " ".join(shlex.quote(f"-c{name}={value}") for name, value in options.items())
        log = self.place.cluster / "start.log"
        return await self._pg_ctl("start", "-w", "-t", "60", "-l", log, "-o", flags) == 0

    async def stop(self, mode: str = "fast") -> None:
        """Stop, in one of PostgreSQL's modes; one that does not end in time is stopped at once."""
        limit = ("-w", "-t", str(STOP_SECONDS))
        if await self._pg_ctl("stop", "-m", mode, *limit) != 0:
            await self._pg_ctl("stop", "-m", "immediate", *limit)

    async def kill(self) -> None:
        """Kill all its processes at once, as the loss of the machine does."""
        killed = self.processes
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(map(is_alive, killed)), READY_SECONDS)
        # Its id may be another program's soon, which must not be taken for the server.
        (self.place.cluster / "postmaster.pid").unlink()

    async def set_synchronous(self, *, is_synchronous: bool) -> None:
        """Wait for the standby at every commit that waits for the disk, or do not."""
        connection = await self.connect()
        if is_synchronous:
            await await_standby(self.dsn, "standby")
            await until(lambda: connection.fetchval(IN_SYNC), READY_SECONDS)
        else:
            await await_none(self.dsn)
        await connection.close()

    async def restart(self, mode: str = "immediate") -> None:
        """Stop what still runs, and start."""
        await self.stop(mode)
        assert await self.start(), (self.place.cluster / "start.log").read_text()[-2000:]

    async def promote(self) -> None:
        """Make a standby the primary."""
        assert await self._pg_ctl("promote", "-w", "-t", "60") == 0

    async def fall_behind(self) -> None:
        """Have a standby get nothing more: what follows is lost when it is promoted."""
        connection = await self.connect()
        await connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
        await connection.execute("SELECT pg_reload_conf()")
        await until(lambda: connection.fetchval(NO_RECEIVER), READY_SECONDS)
        await connection.close()

    async def mark(self, point: str) -> None:
        """Name a point of the WAL, to which a base backup can be recovered."""
        connection = await self.connect()
        # The id makes it a commit, which is flushed.
        await connection.execute("SELECT pg_create_restore_point($1), pg_current_xact_id()", point)
        await connection.close()

    async def recover(self, point: str, wal: Path) -> None:
        """Start a base backup, and apply the WAL in a folder up to a marked point."""
        request = self.place.cluster / "recovery.signal"
        request.touch()
        self.place.account.own(request)
        usual = self.settings
        # Not in its files, which its standby is copied from: that one has no point to end at.
        self.settings = usual | {
            "restore_command": f"cp {wal}/%f %p",
            "recovery_target_name": point,
            "recovery_target_action": "promote",
        }
        assert await self.start(), (self.place.cluster / "start.log").read_text()[-2000:]
        self.settings = usual
        connection = await self.connect()
        await until(lambda: connection.fetchval("SELECT NOT pg_is_in_recovery()"), READY_SECONDS)
        await connection.close()

    async def dump(self) -> Path:
        """Return a backup, made as the runbook says."""
        file = self.place.cluster / "stretto.dump"
        # The server may still recover from a crash.
        await (await self.connect()).close()
        flags = ("--format=custom", "--schema=stretto")
        await self._client("pg_dump", *flags, f"--file={file}", f"--dbname={self.dsn}")
        return file

    async def restore(self, file: Path) -> None:
        """Read a backup into this server's empty database, as the runbook says."""
        flags = ("--exit-on-error", "--no-owner", "--no-privileges")
        await self._client("pg_restore", *flags, f"--dbname={self.dsn}", str(file))

    async def _client(self, program: str, *arguments: str) -> None:
        code, output = await asyncio.to_thread(self.place.run, program, *arguments)
        assert code == 0, output

    async def _pg_ctl(self, *arguments: str | Path) -> int:
        run = self.place.run
        code, _ = await asyncio.to_thread(run, "pg_ctl", "-D", self.place.cluster, *arguments)
        return code

    async def connect(self) -> Connection:
        """Connect, as soon as it takes connections."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    return await asyncpg.connect(
                        self.dsn, timeout=2, server_settings={"search_path": "stretto,public"}
                    )
                # Nothing signals that a server is ready again.
                await asyncio.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        for pid in self.processes:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def limit_files(self, size_bytes: int) -> None:
        """Let no file grow beyond this size: the full disk of those who may not mount one."""
        for pid in self.processes:
            # As its own account: root may not everywhere.
            self.place.account.run("prlimit", f"--pid={pid}", f"--fsize={size_bytes}:")


def dsn_of(*servers: OwnServer) -> str:
    """Return one address of servers that hold the same database."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    login = f"{NAME}:{servers[0].place.password.read_text()}"
    return f"postgresql://{login}@{hosts}/{NAME}?sslmode=disable"


@asynccontextmanager
async def own_server(*, has_tables: bool = True, **settings: str) -> AsyncIterator[OwnServer]:
    """Run a new server, and remove it afterwards; its database has our tables, or is empty."""
    async with _placed() as server:
        server.settings |= settings
        await asyncio.to_thread(prepare_cluster, server.place)
        assert await server.start()
        admin = await asyncpg.connect(server.dsn.replace(f"/{NAME}?", "/postgres?"))
        await admin.execute(f"CREATE DATABASE {NAME}")
        await admin.close()
        if has_tables:
            connection = await server.connect()
            await migrate(connection, "stretto")
            await connection.close()
        yield server


@asynccontextmanager
async def standby_of(primary: OwnServer, name: str = "standby") -> AsyncIterator[OwnServer]:
    """Run a physical standby of a running server: a base backup that streams."""
    async with backup_of(primary, "-R", name=name) as server:
        assert await server.start()
        yield server


@asynccontextmanager
async def backup_of(
    primary: OwnServer, *options: str, name: str = "backup"
) -> AsyncIterator[OwnServer]:
    """Make a base backup of a running server, which is not started."""
    async with _placed() as server:
        server.settings = dict(primary.settings)
        server.place.cluster.mkdir(mode=0o700)
        shutil.copy(primary.place.password, server.place.password)
        for made in (server.place.cluster, server.place.password):
            server.place.account.own(made)
        source = (
            f"host=127.0.0.1 port={primary.port} user={NAME} dbname=replication"
            f" password={primary.place.password.read_text()} application_name={name}"
        )
        flags = ("-X", "stream", "-c", "fast", *options)
        # The server may still recover from a crash.
        await (await primary.connect()).close()
        code, output = await asyncio.to_thread(
            server.place.run, "pg_basebackup", "-D", server.place.cluster, "-d", source, *flags
        )
        assert code == 0, output
        # It has no standby, should it become the primary. The last line counts.
        with (server.place.cluster / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")
        yield server


@asynccontextmanager
async def small_disk(size: str, account: Account) -> AsyncIterator[Path]:
    """Mount a file system of that size in memory; only root may."""
    folder = Path(tempfile.mkdtemp(prefix="stretto-disk-"))
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(folder))
    assert await _run(*mount) == 0
    try:
        account.own(folder)
        yield folder
    finally:
        assert await _run("umount", "--lazy", str(folder)) == 0
        folder.rmdir()


async def _run(*command: str) -> int:
    return await (await asyncio.create_subprocess_exec(*command)).wait()


@asynccontextmanager
async def _placed() -> AsyncIterator[OwnServer]:
    folder = Path(tempfile.mkdtemp(prefix="stretto-server-"))
    folder.chmod(0o755)
    place = find_place(folder, lambda _: None)
    server = OwnServer(place, free_port())
    try:
        yield server
    finally:
        if (place.cluster / "postmaster.pid").exists():
            with suppress(OSError, ValueError):
                server.signal(signal.SIGCONT)
            await server.stop("immediate")
        # Under root it may lie elsewhere than was asked for.
        for made in {folder, place.folder}:
            shutil.rmtree(made, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def fill(disk: Path) -> Path:
    """Leave no room on a disk; return the file that takes it all."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
    return filler
